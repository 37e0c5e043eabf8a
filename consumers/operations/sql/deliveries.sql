-- name: load
select d.operation_id, d.version, d.phase, d.dispatch_no, d.claim_token, d.lease_expires_at > relay.now() as lease_alive,
       d.owner_id, p.operation_id as parent_operation_id, p.job_id, p.provider, p.account, p.profile_digest,
       a.current_digest
  from relay.operation d
  join relay.operation_kind k on k.kind = d.kind and k.lifecycle = 'delivery'
  join relay.operation p on p.operation_id = d.parent_operation_id
  join relay.provider_account a on a.provider = p.provider and a.account = p.account
 where d.operation_id = %(operation_id)s

-- name: claim
update relay.operation o
   set phase = 'claimed', phase_reason = 'claim', claim_token = %(token)s, claimed_by = %(worker)s,
       lease_expires_at = relay.now() + make_interval(secs => %(lease_s)s)
  from relay.operation_kind k
 where o.operation_id = %(operation_id)s and o.phase = 'prepared'
   and o.dispatch_no = %(dispatch_no)s
   and (o.not_before is null or o.not_before <= relay.now())
   and k.kind = o.kind and k.lifecycle = 'delivery'
returning o.cancel_requested

-- name: insert_attempt
insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker)
values (%(token)s, %(operation_id)s, 'download', %(dispatch_no)s, %(worker)s)

-- name: outputs
select ordinal, name, url, content_type, expected_bytes, expected_sha256, stored_key
  from relay.output where operation_id = %(parent)s order by ordinal

-- name: lock_claim
-- Whoever writes under a claim holds the operation's row, so that the lease can't be taken away meanwhile; and
-- not for ever, if it freezes (see ground.py).
select cancel_requested, set_config('idle_in_transaction_session_timeout', '15s', true)
  from relay.operation
 where operation_id = %(operation_id)s and phase = 'claimed' and claim_token = %(token)s for update

-- name: record_part
update relay.output
   set stored_key = %(key)s, stored_bytes = %(size)s, stored_sha256 = %(sha256)s, stored_at = relay.now(),
       content_type = coalesce(content_type, %(content_type)s)
 where operation_id = %(parent)s and ordinal = %(ordinal)s and stored_at is null

-- name: refresh_url
update relay.output set url = %(url)s
 where operation_id = %(parent)s and ordinal = %(ordinal)s and name = %(name)s and stored_at is null

-- name: missing_parts
select count(*) from relay.output where operation_id = %(parent)s and stored_at is null

-- name: finish_attempt
update relay.attempt
   set outcome = %(outcome)s, outcome_reason = %(reason)s, evidence = %(evidence)s, finished_at = relay.now()
 where attempt_id = %(token)s and outcome = 'open'

-- name: end_claim
update relay.operation
   set phase = %(phase)s, phase_reason = %(reason)s,
       not_before = case when %(delay_s)s::double precision is null then null
                         else relay.now() + make_interval(secs => %(delay_s)s) end
 where operation_id = %(operation_id)s and phase = 'claimed' and claim_token = %(token)s

-- name: tries
-- Since the delivery was asked for, by its parent's success or by a person.
select count(*), relay.now() - min(a.started_at)
  from relay.attempt a
 where a.operation_id = %(operation_id)s and a.action = 'download'
   and a.started_at > (select max(j.at) from relay.journal j
                        where j.operation_id = %(operation_id)s
                          and j.cause in ('requested', 'review', 'operator'))

-- name: open_review
insert into relay.review (operation_id, attempt_id, kind, deadline, evidence)
select %(operation_id)s, %(token)s, 'output_expired',
       relay.now() + make_interval(secs => %(deadline_s)s), %(evidence)s
 where not exists (select 1 from relay.review where operation_id = %(operation_id)s
                    and kind = 'output_expired' and state = 'open')

-- name: phases
select operation_id, phase from relay.operation
 where operation_id = any(%(operation_ids)s) and parent_operation_id is not null
union
select parent_operation_id, phase from relay.operation where parent_operation_id = any(%(operation_ids)s)
