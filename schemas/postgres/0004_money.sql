-- Money: allowances per owner and unit, a reservation per attempt, and a ledger that only grows.
--
-- reserved + disputed + settled <= limit governs new reservations, under the allowance row's lock. The lock
-- order everywhere is operation, allowance, review.

create table relay.allowance (
  owner_id text not null check (length(owner_id) between 1 and 200),
  unit text not null check (length(unit) between 1 and 40),
  limit_amount numeric(20, 6) not null check (limit_amount >= 0 and limit_amount <> 'NaN'),
  -- Wider than an amount: what providers charged is booked past any limit, and its sum must always have room.
  reserved numeric(30, 6) not null default 0 check (reserved >= 0),
  disputed numeric(30, 6) not null default 0 check (disputed >= 0),
  settled numeric(30, 6) not null default 0,
  -- Set by an overrun: the owner's claims stop until a person raises the limit or clears it.
  overrun boolean not null default false,
  updated_at timestamptz not null default relay.now(),
  primary key (owner_id, unit)
);

create table relay.reservation (
  attempt_id uuid primary key,
  operation_id uuid not null references relay.operation,
  owner_id text not null,
  unit text not null,
  amount numeric(20, 6) not null check (amount >= 0),
  state text not null check (state in ('reserved', 'settled', 'released', 'disputed')),
  settled_amount numeric(20, 6),
  created_at timestamptz not null default relay.now(),
  updated_at timestamptz not null default relay.now(),
  check ((state = 'settled') = (settled_amount is not null)),
  foreign key (owner_id, unit) references relay.allowance (owner_id, unit)
);
create index reservation_of_operation on relay.reservation (operation_id);

create table relay.ledger (
  entry_id bigint generated always as identity primary key,
  owner_id text not null,
  unit text not null,
  operation_id uuid references relay.operation,
  attempt_id uuid,
  entry text not null check (entry in ('limit', 'reserve', 'release', 'settle', 'dispute', 'overrun')),
  amount numeric(20, 6) not null,
  reason text not null,
  actor text not null,
  at timestamptz not null default relay.now()
);
create index ledger_of_operation on relay.ledger (operation_id);

select relay.forbid('relay.ledger', 'update or delete', 'the ledger is append-only');
select relay.forbid('relay.allowance', 'delete', 'an allowance is the ledger''s head');
select relay.forbid('relay.reservation', 'delete', 'a reservation ends by settling or release');

-- What an operation's reservations add up to in one word: an open dispute first, then what is still reserved.
create function relay.accounting_of(p_operation_id uuid) returns text
  language sql stable
as $$
  select case when bool_or(r.state = 'disputed') then 'disputed' when bool_or(r.state = 'reserved') then 'reserved'
              when bool_or(r.state = 'settled') then 'settled' else 'none' end
    from relay.reservation r where r.operation_id = p_operation_id
$$;

create function relay.book(p_reservation relay.reservation, p_entry text, p_amount numeric, p_reason text) returns void
  language sql
as $$
  insert into relay.ledger (owner_id, unit, operation_id, attempt_id, entry, amount, reason, actor)
  values (p_reservation.owner_id, p_reservation.unit, p_reservation.operation_id, p_reservation.attempt_id,
          p_entry, p_amount, p_reason, coalesce(relay.context('actor'), session_user))
$$;

-- Reserve the operation's max_cost for the attempt that this claim may make. False: it doesn't fit, or there
-- is no allowance, or an overrun stopped the owner. Call it in the claim's transaction, the operation locked.
create function relay.reserve(p_operation_id uuid, p_attempt_id uuid) returns boolean
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  wanted relay.operation;
  made relay.reservation;
begin
  select * into wanted from relay.operation where operation_id = p_operation_id for update;
  if not found then
    raise exception 'there is no operation %', p_operation_id using errcode = 'OR004';
  elsif wanted.phase <> 'claimed' or wanted.claim_token <> p_attempt_id then
    raise exception 'operation %: money is reserved for the attempt of a living claim', p_operation_id
      using errcode = 'OR012';
  end if;
  update relay.allowance
     set reserved = reserved + wanted.max_cost, updated_at = relay.now()
   where owner_id = wanted.owner_id and unit = wanted.cost_unit and not overrun
     and reserved + disputed + settled + wanted.max_cost <= limit_amount;
  if not found then
    return false;
  end if;
  insert into relay.reservation (attempt_id, operation_id, owner_id, unit, amount, state)
  values (p_attempt_id, p_operation_id, wanted.owner_id, wanted.cost_unit, wanted.max_cost, 'reserved')
  returning * into made;
  perform relay.book(made, 'reserve', made.amount, 'claim');
  update relay.operation set accounting = relay.accounting_of(p_operation_id) where operation_id = p_operation_id;
  return true;
end;
$$;

-- Give a reservation back. Only the triggers of 0005 call it, when nothing can have been charged.
create function relay.release_reservation(p_attempt_id uuid, p_reason text) returns boolean
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  held relay.reservation;
begin
  perform 1 from relay.allowance a join relay.reservation r using (owner_id, unit)
    where r.attempt_id = p_attempt_id for update of a;
  update relay.reservation set state = 'released', updated_at = relay.now()
   where attempt_id = p_attempt_id and state = 'reserved' returning * into held;
  if not found then
    return false;
  end if;
  update relay.allowance set reserved = reserved - held.amount, updated_at = relay.now()
   where owner_id = held.owner_id and unit = held.unit;
  perform relay.book(held, 'release', held.amount, p_reason);
  return true;
end;
$$;

-- Settle an attempt with its real cost, once; the cost may differ from the reservation, and a larger one, or
-- one that comes after the release, is an overrun: booked without a check, and the owner's claims stop.
create function relay.settle(p_attempt_id uuid, p_cost numeric, p_reason text) returns boolean
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  was relay.reservation;
  over boolean;
begin
  if p_cost is null or p_cost < 0 or p_cost = 'NaN' then
    raise exception 'a cost of % can''t be settled', p_cost using errcode = 'OR010';
  end if;
  perform 1 from relay.allowance a join relay.reservation r using (owner_id, unit)
    where r.attempt_id = p_attempt_id for update of a;
  select * into was from relay.reservation where attempt_id = p_attempt_id for update;
  if not found or was.state = 'settled' then
    return false;
  end if;
  over := p_cost > was.amount or was.state = 'released';
  update relay.reservation set state = 'settled', settled_amount = p_cost, updated_at = relay.now()
   where attempt_id = p_attempt_id;
  update relay.allowance
     set reserved = reserved - case when was.state = 'reserved' then was.amount else 0 end,
         disputed = disputed - case when was.state = 'disputed' then was.amount else 0 end,
         settled = settled + p_cost, overrun = overrun or over, updated_at = relay.now()
   where owner_id = was.owner_id and unit = was.unit;
  perform relay.book(was, 'settle', p_cost, p_reason);
  if over then
    perform relay.book(was, 'overrun', p_cost - case when was.state = 'released' then 0 else was.amount end, p_reason);
  end if;
  update relay.operation set accounting = relay.accounting_of(operation_id) where operation_id = was.operation_id;
  -- An error came with the id, and the question was what the job costs: that is answered.
  update relay.review set state = 'superseded', revision = revision + 1
   where operation_id = was.operation_id and attempt_id = p_attempt_id and kind = 'id_with_error' and state = 'open';
  return true;
end;
$$;

-- A person decided without proof, or the cost is unknown: the money stays booked until it is settled.
create function relay.dispute(p_attempt_id uuid, p_reason text) returns boolean
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  held relay.reservation;
begin
  perform 1 from relay.allowance a join relay.reservation r using (owner_id, unit)
    where r.attempt_id = p_attempt_id for update of a;
  update relay.reservation set state = 'disputed', updated_at = relay.now()
   where attempt_id = p_attempt_id and state = 'reserved' returning * into held;
  if not found then
    return false;
  end if;
  update relay.allowance
     set reserved = reserved - held.amount, disputed = disputed + held.amount, updated_at = relay.now()
   where owner_id = held.owner_id and unit = held.unit;
  perform relay.book(held, 'dispute', held.amount, p_reason);
  update relay.operation set accounting = 'disputed' where operation_id = held.operation_id;
  return true;
end;
$$;

-- Allow an owner to spend up to p_limit, everything already reserved, disputed or settled included.
create function relay.set_allowance(p_owner_id text, p_unit text, p_limit numeric, p_reason text)
  returns relay.allowance
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  result relay.allowance;
begin
  insert into relay.allowance (owner_id, unit, limit_amount) values (p_owner_id, p_unit, p_limit)
  on conflict (owner_id, unit) do update
    set limit_amount = excluded.limit_amount, overrun = false, updated_at = relay.now()
  returning * into result;
  insert into relay.ledger (owner_id, unit, entry, amount, reason, actor)
  values (p_owner_id, p_unit, 'limit', p_limit, p_reason, coalesce(relay.context('actor'), session_user));
  return result;
end;
$$;
