-- name: read_at
select relay.now()

-- name: outbox
select event_id, seq, event_type, schema_version, operation_id, version, payload from relay.outbox order by seq

-- name: parked
select event_id from relay.parked_event where state = 'parked'

-- name: operations
select operation_id, kind, owner_id, phase, phase_reason, is_final, version, job_id,
       provider || '/' || account as provider_account, max_cost, cost_unit, lease_expires_at, next_action_at,
       open_reviews, parent_operation_id, source_ref
  from relay.operation order by created_at, operation_id

-- name: attempts
select attempt_id, operation_id, action, outcome, released_by_review is not null as released,
       idempotency_key
  from relay.attempt order by started_at, attempt_id

-- name: remote_jobs
select provider_account, job_id, operation_id, role from relay.remote_job order by first_seen_at, job_id

-- name: journal
select operation_id, version, from_phase, to_phase, cause from relay.journal order by operation_id, version

-- name: reviews
-- What the operation or the attempt that it is about says of itself is the reason that a person reads first.
select r.review_id, r.operation_id, r.kind, r.deadline,
       coalesce(a.outcome_reason, o.phase_reason) as reason
  from relay.review r join relay.operation o using (operation_id)
  left join relay.attempt a on a.attempt_id = r.attempt_id
 where r.state = 'open' order by r.opened_at, r.review_id

-- name: allowances
select owner_id, unit, limit_amount, reserved, disputed, settled, overrun from relay.allowance
 order by owner_id, unit

-- name: reservations
select attempt_id, operation_id, owner_id, unit, amount, state, settled_amount from relay.reservation
 order by created_at, attempt_id

-- name: outputs
-- Of what is redacted nobody is told where its files are.
select f.operation_id, f.ordinal, f.name, f.stored_key, f.stored_bytes, f.stored_sha256
  from relay.output f join relay.operation o using (operation_id)
 where o.redacted_at is null
 order by f.operation_id, f.ordinal
