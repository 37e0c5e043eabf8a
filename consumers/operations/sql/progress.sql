-- name: phases
select kind, phase, count(*) from relay.operation group by kind, phase order by kind, phase

-- name: busy
-- What moves without a person. A stuck job's operation goes on being asked for, and its review is open.
select count(*) from relay.operation o
 where o.phase in ('prepared', 'claimed', 'submitting')
    or (o.phase = 'accepted' and not exists (
          select 1 from relay.review r
           where r.operation_id = o.operation_id and r.kind = 'job_unknown' and r.state = 'open'))

-- name: waiting
-- Held until something outside changes: a limit that is raised, a provider account that is resumed.
select phase_reason, count(*) from relay.operation
 where phase = 'held' and phase_reason in ('allowance', 'paused') group by phase_reason order by phase_reason

-- name: submitting
select operation_id, claimed_by from relay.operation where phase = 'submitting'

-- name: paused
select provider || '/' || account, paused_reason from relay.provider_account where paused_at is not null
