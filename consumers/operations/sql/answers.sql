-- name: durable
-- The spool forgets what was committed: a weaker setting of the server's must not forget it too.
select set_config('synchronous_commit',
         case when current_setting('synchronous_commit') in ('on', 'remote_apply')
              then current_setting('synchronous_commit') else 'on' end, true),
       -- See ground.py: who freezes with its locks held must not hold them for ever.
       set_config('idle_in_transaction_session_timeout', '15s', true)

-- name: lock_ids
-- Answers that name the same id come one after the other, so that the next statement sees everybody who has it.
select pg_advisory_xact_lock(hashtext('relay.remote_job'), key)
  from (select distinct hashtext(own.provider || '/' || own.account || ' ' || named.job_id) as key
          from relay.operation own, unnest(%(ids)s::text[]) as named (job_id)
         where own.operation_id = %(operation_id)s order by 1) ids

-- name: lock_operations
-- Everybody whom one of the ids concerns, in one order and before any money: two answers never wait for each other.
select operation_id from relay.operation
 where operation_id = any(array(
         -- As an array: with OR, each answer would read every operation there is.
         select %(operation_id)s::uuid
         union
         select j.operation_id from relay.remote_job j
           join relay.operation own on own.operation_id = %(operation_id)s
                and j.provider_account = own.provider || '/' || own.account
          where j.job_id = %(job_id)s
             or (j.job_id = any(%(candidates)s) and j.role in ('primary', 'duplicate'))))
 order by operation_id for update

-- name: operation
select phase, dispatch_no, claim_token, job_id, is_final, provider, account
  from relay.operation where operation_id = %(operation_id)s

-- name: lock_attempt
select outcome from relay.attempt
 where attempt_id = %(attempt_id)s and operation_id = %(operation_id)s for update

-- name: repeated
-- An answer without evidence is nobody's.
select 1 from relay.attempt a
 where a.attempt_id = %(attempt_id)s and a.outcome <> 'open' and a.evidence <> '{}' and a.evidence = %(evidence)s
   and not exists (select 1 from unnest(%(ids)s::text[]) as named (job_id)
                    where not exists (select 1 from relay.remote_job j
                                       where j.operation_id = a.operation_id and j.job_id = named.job_id
                                         and j.provider_account = %(provider_account)s))

-- name: record_unsent
insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker, finished_at, outcome,
                           outcome_reason, evidence)
values (%(attempt_id)s, %(operation_id)s, 'submit', %(dispatch_no)s, %(actor)s, relay.now(), 'unsent',
        %(reason)s, %(evidence)s)

-- name: finish_attempt
update relay.attempt
   set outcome = %(outcome)s, outcome_reason = %(reason)s, charged = %(charged)s, http_status = %(status)s,
       evidence = %(evidence)s, finished_at = coalesce(finished_at, relay.now())
 where attempt_id = %(attempt_id)s

-- name: keep_evidence
update relay.attempt set http_status = %(status)s, evidence = %(evidence)s
 where attempt_id = %(attempt_id)s and evidence = '{}'

-- name: add_job
insert into relay.remote_job (provider_account, job_id, operation_id, attempt_id, role)
values (%(provider_account)s, %(job_id)s, %(operation_id)s, %(attempt_id)s, %(role)s)
on conflict do nothing

-- name: job_holders
select operation_id, role, attempt_id from relay.remote_job
 where provider_account = %(provider_account)s and job_id = %(job_id)s order by operation_id

-- name: jobs
select job_id from relay.remote_job where operation_id = %(operation_id)s order by first_seen_at, job_id

-- name: told_by_this
select job_id from relay.remote_job where operation_id = %(operation_id)s and attempt_id = %(attempt_id)s

-- name: candidate_questions
-- What was seen of other requests, and waits for a person.
select attempt_id, evidence from relay.review
 where operation_id = %(operation_id)s and kind = 'candidate_id' and state = 'open'
   and attempt_id is distinct from %(attempt_id)s

-- name: first_told
-- Whose answer named the job first: its reservation pays for it. One key is one job: it is told by each of them.
select case when attempt_id = relay.paying_attempt(%(attempt_id)s) then %(attempt_id)s::uuid else attempt_id end
  from relay.remote_job
 where provider_account = %(provider_account)s and job_id = %(job_id)s and operation_id = %(operation_id)s

-- name: other_requests
-- Those that may have made a job, and that no review released.
select attempt_id, outcome from relay.attempt
 where operation_id = %(operation_id)s and action = 'submit' and attempt_id <> %(attempt_id)s
   and outcome in ('open', 'unknown', 'accepted') and released_by_review is null

-- name: repeats
-- The first request of the operation of which nothing is known, but this one.
select relay.unknown_request(%(operation_id)s, %(attempt_id)s)

-- name: reuses_a_key
-- Whether the provider had been sent this attempt's key before.
select 1 from relay.attempt me join relay.attempt a on a.operation_id = me.operation_id and a.action = 'submit'
   and a.attempt_id <> me.attempt_id and a.idempotency_key = me.idempotency_key and a.outcome <> 'unsent'
   and a.first_sent_at <= me.first_sent_at
 where me.attempt_id = %(attempt_id)s

-- name: accept_replayed
-- The declared promise: the same key and the same bytes are the same job.
update relay.attempt a set outcome = 'accepted', outcome_reason = 'replayed'
  from relay.attempt me
 where me.attempt_id = %(attempt_id)s and a.operation_id = me.operation_id and a.action = 'submit'
   and a.attempt_id <> me.attempt_id and a.idempotency_key = me.idempotency_key
   and a.request_sha256 = me.request_sha256 and a.outcome = 'unknown' and a.released_by_review is null

-- name: replayed
update relay.attempt set outcome = 'accepted', outcome_reason = 'replayed'
 where attempt_id = %(attempt_id)s and outcome = 'unknown'

-- name: replayed_and_accepted
select 1 from relay.attempt me join relay.attempt a on a.operation_id = me.operation_id and a.action = 'submit'
   and a.attempt_id <> me.attempt_id and a.idempotency_key = me.idempotency_key
   and a.request_sha256 = me.request_sha256 and a.outcome = 'accepted'
 where me.attempt_id = %(attempt_id)s

-- name: give_role
update relay.remote_job set role = %(role)s
 where provider_account = %(provider_account)s and job_id = %(job_id)s and operation_id = %(operation_id)s

-- name: accept
update relay.operation
   set phase = 'accepted', phase_reason = %(reason)s, job_id = %(job_id)s,
       accounting = case when %(unsettled)s and accounting in ('none', 'reserved') then 'unsettled' else accounting end
 where operation_id = %(operation_id)s and phase = %(phase)s

-- name: unsettled
update relay.operation set accounting = 'unsettled'
 where operation_id = %(operation_id)s and phase = 'accepted' and accounting in ('none', 'reserved')

-- name: move
update relay.operation
   set phase = %(to_phase)s, phase_reason = %(reason)s,
       not_before = case when %(delay_s)s::double precision is null then null
                         else relay.now() + make_interval(secs => %(delay_s)s) end
 where operation_id = %(operation_id)s and phase = 'submitting' and claim_token = %(attempt_id)s

-- name: move_claimed
update relay.operation
   set phase = %(to_phase)s, phase_reason = %(reason)s,
       not_before = case when %(delay_s)s::double precision is null then null
                         else relay.now() + make_interval(secs => %(delay_s)s) end
 where operation_id = %(operation_id)s and phase = 'claimed' and claim_token = %(attempt_id)s

-- name: reject_uncertain
update relay.operation set phase = 'rejected', phase_reason = %(reason)s
 where operation_id = %(operation_id)s and phase = 'uncertain'

-- name: add_to_review
-- New evidence raises the revision, and evidence that is there already doesn't.
update relay.review set evidence = evidence || %(evidence)s
 where operation_id = %(operation_id)s and attempt_id is not distinct from %(attempt_id)s
   and kind = %(kind)s and state = 'open' and evidence is distinct from evidence || %(evidence)s

-- name: open_review
-- One question for each request: its answer says what that request cost.
insert into relay.review (operation_id, attempt_id, kind, deadline, evidence)
select %(operation_id)s, %(attempt_id)s, %(kind)s,
       relay.now() + make_interval(secs => %(deadline_s)s), %(evidence)s
 where not exists (select 1 from relay.review where operation_id = %(operation_id)s
                    and attempt_id is not distinct from %(attempt_id)s
                    and kind = %(kind)s and state = 'open')

-- name: tell_reviewers
-- New evidence raises the revision: whoever decides has to have seen it.
update relay.review set evidence = evidence || jsonb_build_object('answered', %(told)s::jsonb)
 where operation_id = %(operation_id)s and state = 'open'

-- name: open_incident
insert into relay.incident (operation_id, attempt_id, boundary, what, evidence)
select %(operation_id)s, %(attempt_id)s, %(boundary)s, %(what)s, %(evidence)s
 where not exists (select 1 from relay.incident i
                    where i.operation_id = %(operation_id)s and i.attempt_id = %(attempt_id)s
                      and i.what = %(what)s and i.evidence = %(evidence)s)

-- name: unsent_in_a_row
-- Since something was sent, or a person let it go on.
select count(*) from relay.attempt a
 where a.operation_id = %(operation_id)s and a.action = 'submit' and a.outcome = 'unsent'
   and a.started_at > coalesce(greatest(
         (select max(b.started_at) from relay.attempt b
           where b.operation_id = a.operation_id and b.action = 'submit' and b.outcome <> 'unsent'),
         (select max(j.at) from relay.journal j
           where j.operation_id = a.operation_id and j.cause = 'review')), '-infinity')

-- name: note_failure
update relay.provider_account
   set failures_in_a_row = case when failure_reason = %(reason)s then failures_in_a_row + 1 else 1 end,
       failure_reason = %(reason)s,
       paused_at = case when failure_reason = %(reason)s and failures_in_a_row + 1 >= %(limit)s
                        then coalesce(paused_at, relay.now()) else paused_at end,
       paused_reason = case when failure_reason = %(reason)s and failures_in_a_row + 1 >= %(limit)s
                            then coalesce(paused_reason, failures_in_a_row + 1 || ' in a row: ' || %(reason)s)
                            else paused_reason end
 where provider = %(provider)s and account = %(account)s

-- name: note_success
update relay.provider_account set failures_in_a_row = 0, failure_reason = null
 where provider = %(provider)s and account = %(account)s and failures_in_a_row > 0

-- name: attempted
select o.operation_id, o.provider, o.profile_digest
  from relay.attempt a join relay.operation o using (operation_id)
 where a.attempt_id = %(attempt_id)s and a.action = 'submit'
