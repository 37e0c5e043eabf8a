-- name: accounts
select a.provider, a.account, a.current_digest, a.paused_at, a.paused_reason, a.failure_reason, a.failures_in_a_row,
       (select count(*) from relay.operation o
         where o.provider = a.provider and o.account = a.account and o.phase = 'held' and o.phase_reason = 'paused')
         as waiting
  from relay.provider_account a
 where %(provider)s::text is null or a.provider = %(provider)s
 order by a.provider, a.account

-- name: pause
update relay.provider_account
   set paused_at = coalesce(paused_at, relay.now()), paused_reason = %(reason)s
 where provider = %(provider)s and account = %(account)s

-- name: resume
update relay.provider_account
   set paused_at = null, paused_reason = null, failure_reason = null, failures_in_a_row = 0
 where provider = %(provider)s and account = %(account)s
