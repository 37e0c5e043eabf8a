-- name: allowances
select owner_id, unit, limit_amount, reserved, disputed, settled,
       limit_amount - reserved - disputed - settled as available, overrun, updated_at
  from relay.allowance
 where (%(owner_id)s::text is null or owner_id = %(owner_id)s)
   and (%(unit)s::text is null or unit = %(unit)s)
 order by owner_id, unit

-- name: held
-- What waits for money: an owner without an allowance is told of here too.
select owner_id, cost_unit as unit, count(*) as operations, sum(max_cost) as amount
  from relay.operation
 where phase = 'held' and phase_reason = 'allowance'
   and (%(owner_id)s::text is null or owner_id = %(owner_id)s)
 group by owner_id, cost_unit order by owner_id, cost_unit

-- name: say_actor
select set_config('relay.actor', %(actor)s, true)

-- name: set
select owner_id, unit, limit_amount, reserved, disputed, settled,
       limit_amount - reserved - disputed - settled as available, overrun, updated_at
  from relay.set_allowance(%(owner_id)s, %(unit)s, %(limit)s, %(reason)s)

-- name: reservations
-- Reservations with what a person needs to judge them. `waits`: nothing that runs by itself will settle it. That is
-- what is disputed, and what is reserved for a request that is neither under way, nor in doubt, nor its operation's job.
select r.owner_id, r.unit, r.operation_id, o.operation_key, o.phase, r.attempt_id, r.amount, r.state, r.settled_amount,
       r.overrun, r.updated_at, o.open_reviews, coalesce(a.outcome, 'none') as outcome, coalesce(a.outcome_reason, '') as reason,
       (select array_agg(j.job_id order by j.first_seen_at) from relay.remote_job j
         where j.operation_id = r.operation_id and j.attempt_id = r.attempt_id) as jobs,
       r.state = 'disputed' or (r.state = 'reserved'
         and not (o.phase in ('claimed', 'submitting') and o.claim_token = r.attempt_id)
         and o.phase <> 'uncertain'
         -- In doubt, and a review or a declared replay will say what came of it.
         and not (not o.is_final and coalesce(a.outcome, '') in ('open', 'unknown') and a.released_by_review is null)
         and not (o.phase = 'accepted'
                  and exists (select 1 from relay.remote_job j where j.operation_id = r.operation_id
                               and j.attempt_id = r.attempt_id and j.job_id = o.job_id)
                  and not exists (select 1 from relay.review w where w.operation_id = r.operation_id
                                   and w.attempt_id = r.attempt_id and w.kind = 'id_with_error'))) as waits
  from relay.reservation r
  join relay.operation o using (operation_id)
  left join relay.attempt a on a.attempt_id = r.attempt_id
 where case when %(wanted)s::uuid is null then r.state in ('reserved', 'disputed')
            else r.operation_id = %(wanted)s or r.attempt_id = %(wanted)s end
   and (%(owner_id)s::text is null or r.owner_id = %(owner_id)s)
   and (%(unit)s::text is null or r.unit = %(unit)s)
 order by r.created_at, r.attempt_id

-- name: settle
select relay.settle(%(attempt_id)s, %(cost)s, %(reason)s)

-- name: correct
select relay.correct(%(attempt_id)s, %(cost)s, %(reason)s)

-- name: refund
select relay.refund(%(attempt_id)s, %(amount)s, %(reason)s)

-- name: charges
-- What the provider or its profile says that an attempt's jobs cost, beside what is booked for it. `by_hand`: a person
-- settled, corrected or refunded it, which is no difference. `known`: each of its jobs has a cost.
select r.operation_id, r.attempt_id, r.owner_id, r.unit, r.amount, r.state, r.settled_amount, j.charged, j.known,
       o.phase, o.provider, o.profile_digest, j.jobs,
       exists (select 1 from relay.ledger l where l.operation_id = r.operation_id and l.attempt_id = r.attempt_id
                and (l.entry in ('refund', 'correct') or (l.entry = 'settle' and l.reason not like 'job %%'))) as by_hand
  from relay.reservation r
  join relay.operation o using (operation_id)
  join (select operation_id, attempt_id, coalesce(sum(cost), 0) as charged, bool_and(cost is not null) as known,
               array_agg(job_id order by first_seen_at) as jobs
          from relay.remote_job where attempt_id is not null group by operation_id, attempt_id) j
    on j.operation_id = r.operation_id and j.attempt_id = r.attempt_id
 where (%(owner_id)s::text is null or r.owner_id = %(owner_id)s)
   and (%(unit)s::text is null or r.unit = %(unit)s)
 order by r.created_at, r.attempt_id

-- name: unbooked_jobs
-- Jobs that cost something, and whose attempt has no reservation.
select j.operation_id, o.owner_id, o.cost_unit as unit, j.job_id, j.cost
  from relay.remote_job j
  join relay.operation o using (operation_id)
 where j.cost > 0 and j.role <> 'candidate'
   and not exists (select 1 from relay.reservation r where r.attempt_id = j.attempt_id)
   and (%(owner_id)s::text is null or o.owner_id = %(owner_id)s)
   and (%(unit)s::text is null or o.cost_unit = %(unit)s)
