-- name: load
select o.operation_id, o.version, o.phase, o.is_final, o.job_id, o.provider, o.account, o.profile_digest, o.dispatch_no,
       o.max_cost, o.accounting, o.observed_at, o.observations, o.updated_at,
       accepted.at as accepted_at,
       -- Only what was accepted before seen_at existed asks its attempts: there is one for each GET.
       greatest(accepted.at, coalesce(o.seen_at, (select max(a.finished_at) from relay.attempt a
                                                   where a.operation_id = o.operation_id and a.action = 'observe'
                                                     and a.outcome = 'accepted'))) as last_seen_at,
       o.nudged_at, o.waits_until, coalesce(account.polls_failed, 0) as polls_failed, account.poll_not_before,
       (select j.cost from relay.remote_job j
         where j.operation_id = o.operation_id and j.job_id = o.job_id
           and j.provider_account = o.provider || '/' || o.account) as job_cost,
       not exists (select 1 from relay.remote_job j
                    where j.operation_id = o.operation_id and j.job_id = o.job_id and j.role = 'primary') as job_taken,
       relay.now() as now
  from relay.operation o
  left join relay.provider_account account on account.provider = o.provider and account.account = o.account
  left join lateral (select max(j.at) as at from relay.journal j
                      where j.operation_id = o.operation_id and j.to_phase = 'accepted') accepted on true
 where o.operation_id = %(operation_id)s

-- name: lock
select phase, set_config('idle_in_transaction_session_timeout', '15s', true) -- see ground.py
  from relay.operation where operation_id = %(operation_id)s for update

-- name: begin
insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker)
values (%(attempt_id)s, %(operation_id)s, 'observe', %(dispatch_no)s, %(worker)s)
returning started_at

-- name: finish_attempt
update relay.attempt
   set outcome = %(outcome)s, outcome_reason = %(reason)s, http_status = %(status)s, evidence = %(evidence)s,
       finished_at = coalesce(finished_at, relay.now())
 where attempt_id = %(attempt_id)s and action = 'observe'

-- name: record_job
update relay.remote_job set state = %(state)s, cost = coalesce(%(cost)s, cost)
 where provider_account = %(provider_account)s and job_id = %(job_id)s and operation_id = %(operation_id)s

-- name: paid_by
-- Whose reservation the primary job is paid from.
select r.attempt_id from relay.remote_job j join relay.reservation r on r.attempt_id = j.attempt_id
 where j.provider_account = %(provider_account)s and j.job_id = %(job_id)s
   and j.operation_id = %(operation_id)s and j.role = 'primary'

-- name: record_output
insert into relay.output (operation_id, ordinal, name, url, content_type, expected_bytes, expected_sha256)
values (%(operation_id)s, %(ordinal)s, %(name)s, %(url)s, %(content_type)s, %(size)s, %(sha256)s)
on conflict (operation_id, ordinal) do nothing

-- name: end_operation
-- The condition decides between two collectors of one job: only one of them ends it.
update relay.operation
   set phase = %(phase)s, phase_reason = %(reason)s, observed_at = relay.now(),
       observations = observations + 1,
       accounting = case when %(unsettled)s and accounting = 'reserved' then 'unsettled' else accounting end
 where operation_id = %(operation_id)s and phase = 'accepted' and job_id = %(job_id)s

-- name: poll_again
-- One reading of the clock: an event that comes when it is due must not look as if it came too early.
update relay.operation
   set observed_at = clock.now, observations = observations + 1, unanswered = 0, nudged_at = null, waits_until = null,
       seen_at = case when %(known)s then clock.now else coalesce(seen_at, %(last_seen_at)s) end,
       next_action_at = clock.now + make_interval(secs => %(delay_s)s)
  from (select relay.now() as now) clock
 where operation_id = %(operation_id)s and phase = 'accepted'

-- name: settle
select relay.settle(%(attempt_id)s, %(cost)s, %(reason)s)

-- name: prepare_delivery
select relay.prepare_delivery(%(operation_id)s)

-- name: open_review
-- Once: not while one is open, nor within quiet_s of the last.
insert into relay.review (operation_id, attempt_id, kind, deadline, evidence)
select %(operation_id)s, %(attempt_id)s, %(kind)s,
       relay.now() + make_interval(secs => %(deadline_s)s), %(evidence)s
 where not exists (
   select 1 from relay.review r where r.operation_id = %(operation_id)s and r.kind = %(kind)s
      and (r.state = 'open' or r.opened_at > relay.now() - make_interval(secs => %(quiet_s)s)))
