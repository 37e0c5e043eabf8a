-- name: batches
select batch_id, owner_id, batch_key, unit, max_cost, max_in_flight, members, open_members, in_flight, reserved,
       disputed, settled, created_at, created_by, sealed_at, completed_at
  from relay.batch
 where (%(owner_id)s::text is null or owner_id = %(owner_id)s)
   and (%(batch_id)s::uuid is null or batch_id = %(batch_id)s)
   and (not %(open)s or completed_at is null)
 order by created_at desc, batch_id
 limit %(limit)s

-- name: phases
select phase, case when phase = 'held' then phase_reason end as held_for, count(*)::integer as operations
  from relay.operation where batch_id = %(batch_id)s and parent_operation_id is null
 group by 1, 2 order by 1, 2

-- name: deliveries
select phase, count(*)::integer from relay.operation
 where batch_id = %(batch_id)s and parent_operation_id is not null group by phase order by phase

-- name: open_members
-- What keeps the batch open, the longest standing first.
select o.operation_id, o.operation_key, coalesce(d.phase, o.phase) as phase,
       coalesce(d.phase_reason, o.phase_reason) as reason, coalesce(d.open_reviews, o.open_reviews) as open_reviews,
       d.operation_id as delivery, coalesce(d.updated_at, o.updated_at) as since
  from relay.operation o
  left join relay.operation d on d.parent_operation_id = o.operation_id and o.phase = 'succeeded'
 where o.batch_id = %(batch_id)s and o.parent_operation_id is null
   and (not o.is_final or (o.phase = 'succeeded' and not coalesce(d.is_final, false)))
 order by since, o.operation_id limit %(limit)s

-- name: history
select history from relay.batch where batch_id = %(batch_id)s

-- name: set_limits
select relay.set_batch_limits(%(batch_id)s, %(max_cost)s, %(max_in_flight)s, %(reason)s)

-- name: say_actor
select set_config('relay.actor', %(actor)s, true)
