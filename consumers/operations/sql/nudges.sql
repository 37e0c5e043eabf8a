-- name: find
select o.operation_id, o.provider, o.profile_digest
  from relay.remote_job j join relay.operation o on o.operation_id = j.operation_id and o.job_id = j.job_id
 where j.job_id = %(job_id)s and j.provider_account = %(provider)s || '/' || %(account)s
   and o.phase = 'accepted'

-- name: nudge
-- Never sooner than the least pace, a place in line, or the end of an outage allow. Where an event is on its way
-- already, that one asks.
update relay.operation o
   set nudged_at = clock.now,
       next_action_at = case when o.unanswered > 0 then o.next_action_at else least(o.next_action_at, greatest(
         clock.now, o.observed_at + make_interval(secs => %(min_s)s), o.waits_until, a.poll_not_before)) end
  from (select relay.now() as now) clock, relay.provider_account a
 where o.operation_id = %(operation_id)s and o.phase = 'accepted' and a.provider = o.provider and a.account = o.account
