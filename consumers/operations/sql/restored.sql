-- name: sources
select relay_id, epoch, state, unreconciled_since from relay.source_identity
 where outbox_table = 'relay.outbox' order by verified_at desc nulls last

-- name: gate
select relay.dispatch_gate()

-- name: lock
-- Arbitrary but fixed: one reconciliation at a time, and it ends with the session.
select pg_try_advisory_lock(1919247219, 5)

-- name: requested
select distinct event_type from relay.operation_kind where lifecycle = 'generation'

-- name: without_post
select kind from relay.operation_kind where lifecycle <> 'generation'

-- name: known
select j.operation_id, j.version, j.at, j.to_phase
  from unnest(%(operation_ids)s::uuid[], %(versions)s::integer[]) as asked (operation_id, version)
  join relay.journal j using (operation_id, version)

-- name: subjects
-- The newest claim, what followed it, and the attempt that it reserved money for and didn't make.
select o.operation_id, o.owner_id, o.kind, o.specification_hash, o.phase, o.phase_reason, o.dispatch_no,
       o.version, o.provider, o.profile_digest, o.job_id, coalesce(claimed.dispatch_no, 0) as claim_dispatch,
       coalesce(claimed.version, 0) as claim_version, followed.cause as claim_end,
       reserved.attempt_id as claim_attempt
  from relay.operation o
  join relay.operation_kind k on k.kind = o.kind and k.lifecycle = 'generation'
  left join lateral (select j.dispatch_no, j.version from relay.journal j
                      where j.operation_id = o.operation_id and j.to_phase = 'claimed'
                      order by j.version desc limit 1) claimed on true
  left join relay.journal followed
    on followed.operation_id = o.operation_id and followed.version = claimed.version + 1
  left join lateral (select r.attempt_id from relay.reservation r
                      where r.operation_id = o.operation_id
                        and not exists (select 1 from relay.attempt a where a.attempt_id = r.attempt_id)
                      order by r.created_at desc limit 1) reserved on true
 where (%(operation_ids)s::uuid[] is null and not o.is_final) or o.operation_id = any(%(operation_ids)s)

-- name: attempts_known
select attempt_id, outcome from relay.attempt where attempt_id = any(%(attempt_ids)s)

-- name: operations_known
select operation_id from relay.operation where operation_id = any(%(operation_ids)s)

-- name: lock_operation
select phase, phase_reason from relay.operation where operation_id = %(operation_id)s for update

-- name: restore_attempt
select relay.restore_attempt(%(operation_id)s, %(attempt_id)s, %(dispatch_no)s, %(worker)s, %(sent_at)s, %(spool)s,
    coalesce(%(sent_at)s, relay.now()) + make_interval(secs => %(late_delivery_s)s), %(reason)s, %(evidence)s)

-- name: last_restored
select attempt_id from relay.attempt where attempt_id = any(%(attempt_ids)s) and restored
 order by array_position(%(attempt_ids)s, attempt_id) desc limit 1

-- name: to_uncertain
update relay.operation set phase = 'uncertain', phase_reason = 'restored'
 where operation_id = %(operation_id)s and phase in ('prepared', 'claimed', 'held')

-- name: ask_about
insert into relay.review (operation_id, attempt_id, kind, deadline)
select %(operation_id)s, %(attempt_id)s, 'uncertain_submission', relay.now() + make_interval(secs => %(deadline_s)s)
 where not exists (select 1 from relay.review where operation_id = %(operation_id)s
                    and attempt_id = %(attempt_id)s and kind = 'uncertain_submission' and state = 'open')

-- name: tell_reviewers
-- Once: evidence that is told again would raise the revision, and make a reviewer's sight stale.
update relay.review set evidence = evidence || jsonb_build_object('restored', %(told)s::jsonb)
 where operation_id = %(operation_id)s and state = 'open' and not evidence ? 'restored'

-- name: keep_job
insert into relay.remote_job (provider_account, job_id, operation_id, attempt_id, role)
select o.provider || '/' || o.account, %(job_id)s, o.operation_id, %(attempt_id)s, 'candidate'
  from relay.operation o where o.operation_id = %(operation_id)s
on conflict do nothing

-- name: hold
update relay.operation set phase = 'held', phase_reason = 'restored'
 where operation_id = %(operation_id)s and phase = 'prepared'

-- name: resolve_hold
update relay.review
   set state = 'resolved', resolution = 'release', resolution_reason = %(reason)s, resolved_by = %(actor)s
 where review_id = (select review_id from relay.review where operation_id = %(operation_id)s and kind = 'hold'
                       and state = 'open' order by opened_at limit 1)
returning review_id

-- name: release
update relay.operation set phase = 'prepared', phase_reason = 'reconciled'
 where operation_id = %(operation_id)s and phase = 'held' and phase_reason = 'restored'

-- name: phantom
insert into relay.incident (phantom_operation_id, boundary, what, evidence)
values (%(operation_id)s, 'application_commit', %(what)s, %(evidence)s)
on conflict (phantom_operation_id) where phantom_operation_id is not null do nothing

-- name: end
select relay.end_reconciliation(%(since)s, %(actor)s)
