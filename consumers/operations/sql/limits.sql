-- name: take
select granted, wait_s
  from relay.take_permit(%(provider)s, %(account)s, %(action)s, %(permit)s, %(holder)s, %(lease_s)s, %(at_once)s,
                         %(per_s)s, %(waited)s, %(patience_s)s)

-- name: give_back
select relay.give_permit_back(%(permit)s)

-- name: defer_in_line
-- It keeps its phase, its dispatch and its event's meaning; schedule writes the event again when its turn has come.
update relay.operation set next_action_at = turn.at, waits_until = turn.at, unanswered = 0
  from (select relay.now() + make_interval(secs => %(delay_s)s) as at) turn
 where operation_id = %(operation_id)s and phase = %(phase)s

-- name: defer_while_away
update relay.operation
   set next_action_at = greatest(relay.now(), %(not_before)s) + make_interval(secs => %(delay_s)s), unanswered = 0
 where operation_id = %(operation_id)s and phase = 'accepted'

-- name: probe
-- One of those who find the wait over asks; for the others it goes on, and longer, unless the answer ends it.
update relay.provider_account
   set polls_failed = polls_failed + 1, poll_not_before = relay.now() + make_interval(secs => %(wait_s)s)
 where provider = %(provider)s and account = %(account)s and polls_failed = %(failed)s
   and poll_not_before <= relay.now()
returning poll_not_before

-- name: account_away
select poll_not_before from relay.provider_account where provider = %(provider)s and account = %(account)s

-- name: poll_failed
-- Once an account counts as away only its probes count on; what was under way then says nothing new.
update relay.provider_account
   set polls_failed = case when %(retry_after_s)s::double precision is null then polls_failed + 1
                           else greatest(polls_failed, %(away_after)s::integer) end,
       poll_not_before = case when %(retry_after_s)s::double precision is null and polls_failed + 1 < %(away_after)s::integer
                              then poll_not_before
                              else relay.now() + make_interval(secs => coalesce(%(retry_after_s)s::double precision, %(wait_s)s)) end
 where provider = %(provider)s and account = %(account)s
   and (polls_failed < %(away_after)s::integer
        or (%(retry_after_s)s::double precision is not null
            and coalesce(poll_not_before, relay.now()) < relay.now() + make_interval(secs => %(retry_after_s)s::double precision)))

-- name: poll_answered
update relay.provider_account set polls_failed = 0, poll_not_before = null
 where provider = %(provider)s and account = %(account)s and polls_failed > 0
