-- name: gate
select relay.dispatch_gate()

-- name: wanted
select provider, profile_digest, account, waits_until is not null as waited,
       waits_until > relay.now() as waits
  from relay.operation
 where operation_id = %(operation_id)s and phase = 'prepared' and dispatch_no = %(dispatch_no)s

-- name: claim
update relay.operation
   set phase = 'claimed', phase_reason = 'claim', claim_token = %(token)s, claimed_by = %(worker)s,
       lease_expires_at = relay.now() + make_interval(secs => %(lease_s)s)
 where operation_id = %(operation_id)s and phase = 'prepared'
   and dispatch_no = %(dispatch_no)s
   and (not_before is null or not_before <= relay.now())
   -- What would be a replay is claimed only while it may be one.
   and (relay.unknown_request(operation_id) is null or relay.why_no_replay(operation_id) is null
        or cancel_requested)
   and not relay.earlier_request_is_in_question(operation_id)
returning operation_id, claim_token as token, relay.unknown_request(operation_id) as repeats, dispatch_no, kind, owner_id, provider, account, profile_digest,
          specification_hash, payload, payload_ref, payload_sha256, payload_bytes, payload_version, max_cost, cost_unit, cancel_requested

-- name: look
select phase, dispatch_no, version, relay.earlier_request_is_in_question(operation_id)
  from relay.operation where operation_id = %(operation_id)s

-- name: paused
select paused_reason from relay.provider_account
 where provider = %(provider)s and account = %(account)s and paused_at is not null

-- name: reserve
-- Null when it is done, else what it does not fit.
select relay.reserve_unless_replayed(%(operation_id)s, %(token)s)

-- name: hold
update relay.operation set phase = 'held', phase_reason = %(hold)s
 where operation_id = %(operation_id)s and phase = 'claimed' and claim_token = %(token)s

-- name: unreplay
-- What a replay was to find out is unknown as before.
update relay.operation set phase = 'uncertain', phase_reason = %(reason)s
 where operation_id = %(operation_id)s and phase = 'claimed' and claim_token = %(token)s

-- name: cancel
update relay.operation set phase = 'cancelled', phase_reason = 'cancel'
 where operation_id = %(operation_id)s and phase = 'claimed' and claim_token = %(token)s

-- name: open_incident
insert into relay.incident (operation_id, attempt_id, boundary, what, evidence)
values (%(operation_id)s, %(attempt_id)s, %(boundary)s, %(what)s, %(evidence)s)

-- name: durable
-- A weaker setting of the application's must not lose the one commit that stands before the first byte.
select set_config('synchronous_commit',
         case when current_setting('synchronous_commit') in ('on', 'remote_apply')
              then current_setting('synchronous_commit') else 'on' end, true),
       set_config('lock_timeout', %(timeout_ms)s, true),
       set_config('statement_timeout', %(timeout_ms)s, true)

-- name: insert_attempt
insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker, first_sent_at, request_sha256,
                           idempotency_key, spool, late_delivery_until)
values (%(token)s, %(operation_id)s, 'submit', %(dispatch_no)s, %(worker)s, relay.now(), %(request_sha256)s,
        %(idempotency_key)s, %(spool)s, relay.now() + make_interval(secs => %(late_delivery_s)s))

-- name: submit
update relay.operation o
   set phase = 'submitting', phase_reason = 'sending',
       lease_expires_at = relay.now() + make_interval(secs => %(lease_s)s)
 where o.operation_id = %(operation_id)s and o.phase = 'claimed' and o.claim_token = %(token)s
   and o.lease_expires_at > relay.now() and not o.cancel_requested
   and relay.dispatch_gate() is null
   and not relay.earlier_request_is_in_question(o.operation_id)
   and not exists (select 1 from relay.provider_account a
                    where a.provider = o.provider and a.account = o.account and a.paused_at is not null)
returning o.lease_expires_at

-- name: earlier_request
select request_sha256 from relay.attempt
 where operation_id = %(operation_id)s and action = 'submit' and outcome <> 'unsent'
   and request_sha256 is not null and request_sha256 <> %(request_sha256)s
 limit 1
