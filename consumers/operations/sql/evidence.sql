-- name: load
select r.review_id, r.kind, r.state, r.attempt_id, r.evidence, r.opened_at, o.operation_id, o.version, o.phase,
       o.dispatch_no, o.job_id, o.provider, o.account, o.profile_digest, relay.now() as now,
       coalesce((select array_agg(j.job_id order by j.first_seen_at, j.job_id) from relay.remote_job j
                  where j.operation_id = o.operation_id
                    and j.provider_account = o.provider || '/' || o.account), '{}') as job_ids
  from relay.review r join relay.operation o using (operation_id)
 where r.review_id = %(review_id)s and r.operation_id = %(operation_id)s

-- name: requests
-- The submissions that the question is about: those that may have made a job and that no review released.
select attempt_id, coalesce(first_sent_at, started_at) as sent_at, late_delivery_until
  from relay.attempt
 where operation_id = %(operation_id)s and action = 'submit' and outcome in ('open', 'unknown')
   and released_by_review is null
 order by started_at

-- name: begin
insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker)
values (%(attempt_id)s, %(operation_id)s, 'observe', %(dispatch_no)s, %(worker)s)

-- name: finish
update relay.attempt
   set outcome = %(outcome)s, outcome_reason = %(reason)s, http_status = %(status)s, evidence = %(evidence)s,
       finished_at = relay.now()
 where attempt_id = %(attempt_id)s and action = 'observe' and outcome = 'open'

-- name: record_job
update relay.remote_job set state = %(state)s, cost = coalesce(%(cost)s, cost)
 where provider_account = %(provider_account)s and job_id = %(job_id)s and operation_id = %(operation_id)s

-- name: add_candidate
-- An id that the list has under this operation's reference: stored before anybody judges it.
insert into relay.remote_job (provider_account, job_id, operation_id, attempt_id, role)
values (%(provider_account)s, %(job_id)s, %(operation_id)s, %(attempt_id)s, 'candidate')
on conflict do nothing

-- name: lock_operation
select phase from relay.operation where operation_id = %(operation_id)s for update

-- name: prove_absent
-- Nothing of it was ever made, and so nothing charged: its reservation is given back by the database.
update relay.attempt
   set outcome = 'refused', outcome_reason = 'proven_absent', charged = false,
       finished_at = coalesce(finished_at, relay.now())
 where attempt_id = %(attempt_id)s and outcome in ('open', 'unknown') and released_by_review is null
   and late_delivery_until <= %(asked_at)s
   -- Nor of a request that was sent since, with the same key or another.
   and not exists (select 1 from relay.attempt later
                    where later.operation_id = attempt.operation_id and later.action = 'submit'
                      and later.attempt_id <> attempt.attempt_id and later.outcome in ('open', 'unknown')
                      and later.released_by_review is null and later.late_delivery_until > %(asked_at)s)

-- name: store
-- What says nothing new must not make a reviewer's sight stale.
update relay.review
   set evidence = evidence || jsonb_build_object('collected', %(collected)s::jsonb)
 where review_id = %(review_id)s and state = 'open'
   and evidence->'collected'->'findings' is distinct from %(collected)s::jsonb->'findings'

-- name: look_again
update relay.review
   set next_evidence_at = relay.now() + make_interval(secs => %(delay_s)s::double precision)
 where review_id = %(review_id)s and state = 'open' and next_evidence_at is not null
