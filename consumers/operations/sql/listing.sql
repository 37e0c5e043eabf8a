-- name: operations
select operation_id, kind, owner_id, operation_key, phase, phase_reason, is_final, job_id, provider, account,
       profile_digest, specification_hash, coalesce(payload_bytes, octet_length(payload), 0) as payload_bytes, payload_sha256,
       max_cost, cost_unit,
       accounting, source_ref, requested_by, dispatch_no, version, claimed_by, lease_expires_at, not_before,
       next_action_at, held_at, open_reviews, observed_at, observations, cancel_requested,
       parent_operation_id, created_at, updated_at
  from relay.operation
 where (%(phase)s::text is null or phase = %(phase)s)
   and (%(owner_id)s::text is null or owner_id = %(owner_id)s)
   and (%(operation_id)s::uuid is null or operation_id = %(operation_id)s)
 order by updated_at desc, operation_id
 limit %(limit)s

-- name: phases
select phase, count(*) from relay.operation
 where (%(owner_id)s::text is null or owner_id = %(owner_id)s)
 group by phase order by phase

-- name: journal
select version, from_phase, to_phase, cause, reason, actor, attempt_id, review_id, job_id, dispatch_no, at
  from relay.journal where operation_id = %(operation_id)s order by version

-- name: attempts
select a.attempt_id, a.action, a.dispatch_no, a.worker, a.started_at, a.first_sent_at, a.finished_at, a.outcome,
       a.outcome_reason, a.charged, a.http_status, a.request_sha256, a.idempotency_key, a.spool,
       a.late_delivery_until, a.released_by_review, a.evidence
  from relay.attempt a where a.operation_id = %(operation_id)s order by a.started_at, a.attempt_id

-- name: jobs
select provider_account, job_id, attempt_id, role, state, cost, first_seen_at
  from relay.remote_job where operation_id = %(operation_id)s order by first_seen_at, job_id

-- name: reservations
select attempt_id, unit, amount, state, settled_amount, created_at, updated_at
  from relay.reservation where operation_id = %(operation_id)s order by created_at, attempt_id

-- name: outputs
-- Without its URL, which may open the file to whoever reads this.
select ordinal, name, content_type, expected_bytes, stored_key, stored_bytes, stored_sha256, stored_at
  from relay.output where operation_id = %(operation_id)s order by ordinal

-- name: reviews
select review_id, attempt_id, kind, state, severity, revision, opened_at, deadline, evidence, resolution,
       resolution_reason, resolved_by, resolved_at
  from relay.review where operation_id = %(operation_id)s order by opened_at, review_id

-- name: incidents
select i.incident_id, i.attempt_id, i.boundary, i.what, i.evidence, i.opened_at, d.decision, d.decided_by,
       d.decided_at, d.review_id as decided_by_review
  from relay.incident i left join relay.incident_decision d using (incident_id)
 where i.operation_id = %(operation_id)s order by i.opened_at, i.incident_id

-- name: deliveries
select operation_id from relay.operation where parent_operation_id = %(operation_id)s order by created_at

-- name: now
select relay.now()
