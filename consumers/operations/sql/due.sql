-- relay.now() is volatile, and stands in a subquery wherever an index on a time should serve.

-- name: leases_run_out
select o.operation_id, o.phase, o.claim_token as token, k.lifecycle, o.provider, o.profile_digest
  from relay.operation o join relay.operation_kind k on k.kind = o.kind
 where o.lease_expires_at <= (select relay.now())
 order by o.lease_expires_at limit %(limit)s

-- name: lock_run_out
-- Somebody at work on the row is faster than we are, or will be.
select 1 from relay.operation
 where operation_id = %(operation_id)s and claim_token = %(token)s and phase = %(phase)s
   and lease_expires_at <= relay.now()
   for update skip locked

-- name: attempt_unknown
update relay.attempt
   set outcome = 'unknown', outcome_reason = %(reason)s, finished_at = coalesce(finished_at, relay.now())
 where attempt_id = %(attempt_id)s and outcome = 'open'

-- name: lease_expired
update relay.operation set phase = %(to_phase)s, phase_reason = 'lease_expired'
 where operation_id = %(operation_id)s and claim_token = %(token)s and phase = %(phase)s

-- name: replays_due
-- Uncertain ones whose replay is due, and prepared ones that were to be replayed: is it too late for any?
select o.operation_id, o.phase from relay.operation o
 where o.next_action_at <= (select relay.now())
   and (o.phase = 'uncertain' or (o.phase = 'prepared' and exists (
          select 1 from relay.attempt a where a.operation_id = o.operation_id and a.action = 'submit'
             and a.outcome = 'unknown' and a.released_by_review is null)))
 order by o.next_action_at limit %(limit)s

-- name: lock_replay
-- Why not now, and whether only for now: what is paused or closed is looked at again.
select relay.why_no_replay(o.operation_id), relay.unknown_request(o.operation_id),
       relay.dispatch_gate() is not null or exists (
         select 1 from relay.provider_account a
          where a.provider = o.provider and a.account = o.account and a.paused_at is not null)
  from relay.operation o
 where o.operation_id = %(operation_id)s and o.phase = %(phase)s and o.next_action_at <= relay.now()
   for update skip locked

-- name: replay
update relay.operation set phase = 'prepared', phase_reason = 'replay', not_before = null
 where operation_id = %(operation_id)s and phase = 'uncertain'

-- name: unreplay
update relay.operation set phase = 'uncertain', phase_reason = 'unreplayed'
 where operation_id = %(operation_id)s and phase = 'prepared'

-- name: end_replays
-- Its review is what waits for it from now on.
update relay.operation set next_action_at = null where operation_id = %(operation_id)s and phase = 'uncertain'

-- name: postpone_replay
update relay.operation o
   set next_action_at = relay.now() + make_interval(secs => (
         select (p.idempotency ->> 'max_s')::double precision from relay.provider_profile p
          where p.provider = o.provider and p.digest = o.profile_digest))
 where o.operation_id = %(operation_id)s and o.phase = 'uncertain'

-- name: due
select operation_id from relay.operation
 where phase = %(phase)s and next_action_at <= (select relay.now())
   and (not_before is null or not_before <= (select relay.now()))
 order by next_action_at limit %(limit)s

-- name: emit_due
-- Writing an event moves next_action_at, so that another schedule doesn't find the row again.
with due as materialized (
  select operation_id from relay.operation
   where operation_id = any(%(operation_ids)s)
     and next_action_at <= relay.now() and phase in ('prepared', 'accepted')
     and (not_before is null or not_before <= relay.now())
   order by next_action_at for update skip locked)
select count(relay.emit(operation_id)) from due

-- name: unpaused
select o.operation_id
  from relay.operation o
  join relay.provider_account a on a.provider = o.provider and a.account = o.account
 where not o.is_final and o.phase = 'held' and o.phase_reason = 'paused' and a.paused_at is null
   and o.next_action_at <= (select relay.now())
 order by o.held_at, o.operation_id limit %(limit)s

-- name: wallets
-- Owners with something held for their allowance that fits now or is due, and what they may still reserve: less what
-- is prepared and about to be. Null: they have no allowance, or an overrun stopped them.
select due.owner_id, due.cost_unit,
       (select a.limit_amount - a.reserved - a.disputed - a.settled from relay.allowance a
         where a.owner_id = due.owner_id and a.unit = due.cost_unit and not a.overrun)
       - (select coalesce(sum(p.max_cost), 0) from relay.operation p
           where not p.is_final and p.phase = 'prepared' and p.owner_id = due.owner_id
             and p.cost_unit = due.cost_unit and (p.not_before is null or p.not_before <= (select relay.now())))
  from (select owner_id, cost_unit from relay.operation
         where not is_final and phase = 'held' and phase_reason = 'allowance' and next_action_at <= (select relay.now())
        union
        -- Money that came back is not waited for: whatever is prepared meanwhile would take it.
        select a.owner_id, a.unit from relay.allowance a
         where not a.overrun and exists (
           select 1 from relay.operation h
            where h.phase = 'held' and h.phase_reason = 'allowance' and h.owner_id = a.owner_id and h.cost_unit = a.unit
              and h.max_cost <= a.limit_amount - a.reserved - a.disputed - a.settled)
         limit %(limit)s) due

-- name: batches
-- Batches with members held for their limits: what they may still reserve, and how many claims they may still have,
-- less what is prepared and about to be. Null: no such limit.
select batch_id, room, places from (
select b.batch_id, b.created_at, b.max_cost - b.reserved - b.disputed - b.settled - ready.cost as room,
       b.max_in_flight - b.in_flight - ready.members as places
  from relay.batch b
  cross join lateral (select count(*) as members, coalesce(sum(p.max_cost), 0) as cost from relay.operation p
                       where p.batch_id = b.batch_id and p.phase = 'prepared' and p.parent_operation_id is null
                         and (p.not_before is null or p.not_before <= (select relay.now()))) ready
 where b.completed_at is null) open_one
 -- Only those in which something fits: else the oldest ones, in which nothing does, would be all that is looked at.
 where (places is null or places > 0) and exists (
         select 1 from relay.operation h
          where h.batch_id = open_one.batch_id and h.phase = 'held' and h.phase_reason = 'batch'
            and (room is null or h.max_cost <= room))
 order by created_at limit %(limit)s

-- name: held_for_batch
select operation_id, max_cost from relay.operation
 where batch_id = %(batch_id)s and phase = 'held' and phase_reason = 'batch'
   and (%(room)s::numeric is null or max_cost <= %(room)s)
 order by held_at, operation_id limit %(limit)s

-- name: held_for_allowance
select operation_id, max_cost from relay.operation
 where not is_final and phase = 'held' and phase_reason = 'allowance'
   and owner_id = %(owner_id)s and cost_unit = %(unit)s and max_cost <= %(room)s
 order by held_at, operation_id limit %(limit)s

-- name: lock_held
select 1 from relay.operation
 where operation_id = %(operation_id)s and phase = 'held' and phase_reason = %(reason)s
   for update skip locked

-- name: release
update relay.operation set phase = 'prepared', phase_reason = 'released', not_before = null
 where operation_id = %(operation_id)s and phase = 'held' and phase_reason = %(reason)s

-- name: postpone_held
-- Whatever stays held for a cause that passes by itself is looked at again; the rest has a review.
with due as materialized (
  select o.operation_id, k.reemit_after
    from relay.operation o join relay.operation_kind k on k.kind = o.kind
   where not o.is_final and o.phase = 'held' and o.phase_reason = %(reason)s and o.next_action_at <= (select relay.now())
     and (%(owner_id)s::text is null or (o.owner_id = %(owner_id)s and o.cost_unit = %(unit)s))
     and (%(reason)s <> 'paused' or exists (
           select 1 from relay.provider_account a
            where a.provider = o.provider and a.account = o.account and a.paused_at is not null))
   order by o.next_action_at limit %(limit)s for update of o skip locked)
update relay.operation o set next_action_at = relay.now() + due.reemit_after
  from due where o.operation_id = due.operation_id

-- name: abandoned
-- Open, and no claim's any more. A submission's lease and what may still arrive late are long past.
select a.attempt_id, a.operation_id, a.action
  from relay.attempt a join relay.operation o on o.operation_id = a.operation_id
 where a.outcome = 'open' and o.claim_token is distinct from a.attempt_id
   and case a.action when 'submit' then coalesce(a.late_delivery_until, a.started_at + interval '1 day')
                     else a.started_at + make_interval(secs => %(forget_s)s) end <= (select relay.now())
 order by a.started_at limit %(limit)s

-- name: lock_operation
select claim_token from relay.operation where operation_id = %(operation_id)s for update skip locked

-- name: open_incident
insert into relay.incident (operation_id, attempt_id, boundary, what)
values (%(operation_id)s, %(attempt_id)s, 'network',
        'the process that sent this request never said what came of it, and the operation went on without it')

-- name: open_review
insert into relay.review (operation_id, attempt_id, kind, deadline)
values (%(operation_id)s, %(attempt_id)s, 'uncertain_submission', relay.now() + interval '1 day')

-- name: escalate
-- Once for each deadline that has passed; severity decides nothing, it only says how urgent the review is.
update relay.review r set severity = due.severity
  from (select review_id, least(%(most)s, 1 + floor(
                 extract(epoch from (select relay.now()) - opened_at)
                 / greatest(1, extract(epoch from deadline - opened_at)))::integer) as severity
          from relay.review
         where state = 'open' and deadline <= (select relay.now()) and severity < %(most)s
         order by deadline limit %(limit)s for update skip locked) due
 where r.review_id = due.review_id and r.severity < due.severity
returning r.review_id, r.operation_id, r.kind, r.severity

-- name: evidence_due
-- Open reviews whose question the provider is to be asked (again).
select review_id, operation_id from relay.review
 where state = 'open' and next_evidence_at <= (select relay.now())
 order by next_evidence_at limit %(limit)s

-- name: emit_evidence
-- Writing the event moves next_evidence_at, so that another schedule doesn't find the review again.
select relay.emit_evidence(review_id) from relay.review
 where review_id = %(review_id)s and state = 'open' and next_evidence_at <= relay.now()

-- name: overdue
select count(*), coalesce(extract(epoch from (select relay.now()) - min(due_at)), 0)::double precision
  from (select lease_expires_at as due_at from relay.operation where lease_expires_at is not null
        union all
        select next_action_at from relay.operation
         where phase in ('prepared', 'held', 'accepted') and next_action_at is not null) waiting
 where due_at <= (select relay.now()) - make_interval(secs => %(bound_s)s)
