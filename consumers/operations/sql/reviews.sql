-- name: open
select r.review_id, r.operation_id, r.kind, r.severity, r.revision, r.opened_at, r.deadline,
       r.deadline <= relay.now() as overdue, o.kind as operation_kind, o.owner_id, o.operation_key, o.phase,
       coalesce(a.outcome_reason, o.phase_reason) as reason
  from relay.review r
  join relay.operation o on o.operation_id = r.operation_id
  left join relay.attempt a on a.attempt_id = r.attempt_id
 where r.state = 'open'
   and (%(kind)s::text is null or r.kind = %(kind)s)
   and (%(owner_id)s::text is null or o.owner_id = %(owner_id)s)
 order by r.severity desc, r.deadline, r.review_id
 limit %(limit)s

-- name: find
-- By the review's id, or by its operation's: then the open one that was opened first.
select review_id, operation_id from relay.review
 where review_id = %(wanted)s or operation_id = %(wanted)s
 order by (review_id = %(wanted)s) desc, (state = 'open') desc, opened_at
 limit 1

-- name: ask_again
update relay.review set next_evidence_at = relay.now() where review_id = %(review_id)s and state = 'open'

-- name: emit_evidence
select relay.emit_evidence(%(review_id)s)

-- name: durable
-- A decision that was acknowledged must not be lost to a weaker setting of the server's.
select set_config('synchronous_commit',
         case when current_setting('synchronous_commit') in ('on', 'remote_apply')
              then current_setting('synchronous_commit') else 'on' end, true),
       -- See ground.py: who freezes with its locks held must not hold them for ever.
       set_config('idle_in_transaction_session_timeout', '15s', true)

-- name: lock_operations
-- The review's, and whoever has the job that is named: in one order, so that two people who take each other's jobs
-- wait for each other and not for ever.
select operation_id from relay.operation
 where operation_id = any(array(
         select %(operation_id)s::uuid
         union
         select j.operation_id from relay.remote_job j
          where j.job_id = %(job_id)s
            and j.provider_account = (select o.provider || '/' || o.account from relay.operation o
                                       where o.operation_id = %(operation_id)s)))
 order by operation_id for update

-- name: other_holder
select operation_id from relay.remote_job
 where provider_account = %(provider_account)s and job_id = %(job_id)s and role = 'primary'
   and operation_id <> %(operation_id)s
   for update

-- name: make_way
update relay.remote_job set role = 'duplicate'
 where provider_account = %(provider_account)s and job_id = %(job_id)s and operation_id = %(operation_id)s

-- name: take_job
insert into relay.remote_job (provider_account, job_id, operation_id, attempt_id, role)
values (%(provider_account)s, %(job_id)s, %(operation_id)s, %(attempt_id)s, %(role)s)
on conflict (provider_account, job_id, operation_id) do update set role = excluded.role

-- name: ask
-- One question of a kind for each request.
insert into relay.review (operation_id, attempt_id, kind, deadline, evidence)
select %(operation_id)s, %(attempt_id)s, %(kind)s, relay.now() + interval '1 day', %(evidence)s
 where not exists (select 1 from relay.review where operation_id = %(operation_id)s
                    and attempt_id is not distinct from %(attempt_id)s
                    and kind = %(kind)s and state = 'open')

-- name: open_incident
insert into relay.incident (operation_id, attempt_id, boundary, what, evidence)
values (%(operation_id)s, %(attempt_id)s, %(boundary)s, %(what)s, %(evidence)s)

-- name: decide_incidents
-- What the review decided is what became of the incidents about the same request.
insert into relay.incident_decision (incident_id, decision, decided_by, review_id)
select incident_id, %(decision)s, %(actor)s, %(review_id)s
  from relay.incident i
 where operation_id = %(operation_id)s and attempt_id is not distinct from %(attempt_id)s
   -- One that the decision itself has opened is a question of its own.
   and evidence->>'review' is distinct from %(review_id)s::text
on conflict do nothing

-- name: accept_attempt
update relay.attempt set outcome = 'accepted', outcome_reason = 'review'
 where attempt_id = %(attempt_id)s and outcome in ('open', 'unknown')

-- name: resolve
-- Only at the sight that was shown: two reviewers can't both win.
update relay.review
   set state = 'resolved', resolution = %(resolution)s, resolution_reason = %(reason)s,
       resolved_by = %(actor)s, evidence = evidence || %(decision)s
 where review_id = %(review_id)s and state = 'open' and revision = %(revision)s

-- name: wait
-- The question stays open: it is urgent again at the new deadline, and whoever saw it before has to look again.
update relay.review
   set severity = 1,
       deadline = relay.now() + coalesce(make_interval(secs => %(wait_s)s::double precision), deadline - opened_at),
       evidence = evidence || jsonb_build_object('waits', coalesce(evidence->'waits', '[]') || %(waited)s::jsonb)
 where review_id = %(review_id)s and state = 'open' and revision = %(revision)s
returning deadline

-- name: release_attempt
update relay.attempt set released_by_review = %(review_id)s where attempt_id = %(attempt_id)s

-- name: dispute
select relay.dispute(%(attempt_id)s, %(reason)s)

-- name: settle
select relay.settle(%(attempt_id)s, %(cost)s, %(reason)s)

-- name: correct
select relay.correct(%(attempt_id)s, %(cost)s, %(reason)s)

-- name: move
update relay.operation
   set phase = %(to_phase)s, phase_reason = %(phase_reason)s, job_id = coalesce(%(job_id)s, job_id),
       -- Another job has never been observed.
       observed_at = case when job_id is distinct from coalesce(%(job_id)s, job_id) then null else observed_at end,
       observations = case when job_id is distinct from coalesce(%(job_id)s, job_id) then 0 else observations end
 where operation_id = %(operation_id)s and phase = %(from_phase)s
