-- name: durable
-- What is recorded before the first byte must not be lost to a weaker setting of the server's.
select set_config('synchronous_commit',
         case when current_setting('synchronous_commit') in ('on', 'remote_apply')
              then current_setting('synchronous_commit') else 'on' end, true)

-- name: say_actor
select set_config('relay.actor', %(actor)s, true)

-- name: request
select relay.request_cancel(%(operation_id)s, %(reason)s)

-- name: begin
select relay.begin_cancel(%(operation_id)s, %(attempt_id)s, %(job_id)s, %(actor)s, %(request_sha256)s, %(again)s,
                          %(reason)s)

-- name: finish
select relay.finish_cancel(%(attempt_id)s, %(outcome)s, %(reason)s, %(status)s, %(evidence)s)

-- name: redact
select relay.redact_operation(%(operation_id)s, %(reason)s)
