-- name: allowances
select owner_id, unit, limit_amount, reserved, disputed, settled,
       limit_amount - reserved - disputed - settled as available, overrun, updated_at
  from relay.allowance
 where (%(owner_id)s::text is null or owner_id = %(owner_id)s)
   and (%(unit)s::text is null or unit = %(unit)s)
 order by owner_id, unit

-- name: held
-- What waits for money: an owner without an allowance is told of here too.
select owner_id, cost_unit as unit, count(*) as operations, sum(max_cost) as amount
  from relay.operation
 where phase = 'held' and phase_reason = 'allowance'
   and (%(owner_id)s::text is null or owner_id = %(owner_id)s)
 group by owner_id, cost_unit order by owner_id, cost_unit

-- name: say_actor
select set_config('relay.actor', %(actor)s, true)

-- name: set
select owner_id, unit, limit_amount, reserved, disputed, settled,
       limit_amount - reserved - disputed - settled as available, overrun, updated_at
  from relay.set_allowance(%(owner_id)s, %(unit)s, %(limit)s, %(reason)s)
