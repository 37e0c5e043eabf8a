-- name: phases
select kind, phase, count(*) from relay.operation group by kind, phase order by kind, phase

-- name: moving
-- What moves without a person; given_up is what is still asked for, and has a review because it takes too long.
select o.operation_id,
       o.phase = 'accepted' and exists (
         select 1 from relay.review r
          where r.operation_id = o.operation_id and r.kind = 'job_unknown' and r.state = 'open') as given_up
  from relay.operation o where o.phase in ('prepared', 'claimed', 'submitting', 'accepted')

-- name: waiting
-- Held until something outside changes: a limit that is raised, a provider account that is resumed.
select phase_reason, count(*) from relay.operation
 where phase = 'held' and phase_reason in ('allowance', 'paused') group by phase_reason order by phase_reason

-- name: submitting
select operation_id, claimed_by from relay.operation where phase = 'submitting'

-- name: paused
select provider || '/' || account, paused_reason from relay.provider_account where paused_at is not null
