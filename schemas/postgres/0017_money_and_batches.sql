-- Money that can be corrected and adds up, and batches: sealed membership with limits of their own.
--
-- Changes what 0004 to 0006 defined:
--   * every function that moves money locks in the order operation, batch, allowance, review (0004's settle and
--     dispute locked the allowance before the operation, and could meet a claim in a deadlock);
--   * an amount with a seventh decimal is refused instead of rounded;
--   * the ledger says what each entry changed, so that its sums are the allowance's columns;
--   * an overrun stays until the limit is raised above what is booked, or a refund or correction undoes it;
--   * a job that becomes known after its money was given back is booked again, without a check, as an overrun;
--   * what is reserved for a job whose price nothing will tell is `unsettled`, also beside other attempts;
--   * `held` for a batch's limits is released by schedule. That is put into the text of three functions as they are
--     when this migration runs, so that it replaces nothing that another migration put there.

-- Amounts --------------------------------------------------------------------------------------------------

create function relay.require_amount(p_amount numeric, p_what text) returns void
  language plpgsql immutable
as $$
begin
  if p_amount is null or p_amount < 0 or p_amount in ('NaN', 'Infinity') or p_amount >= 1e14 then
    raise exception '% % is not an amount: zero or more, below 10^14', p_what, coalesce(p_amount::text, 'null')
      using errcode = '22003';
  elsif round(p_amount, 6) <> p_amount then
    raise exception '% % has more than six decimals', p_what, p_amount using errcode = '22003';
  end if;
end;
$$;

-- Batches --------------------------------------------------------------------------------------------------

create table relay.batch (
  batch_id uuid primary key default gen_random_uuid(),
  owner_id text not null check (length(owner_id) between 1 and 200),
  batch_key text not null check (length(batch_key) between 1 and 300),
  unit text not null check (length(unit) between 1 and 40),
  -- Its own limits, beside the owner's allowance; null: none.
  max_cost numeric(20, 6) check (max_cost >= 0 and max_cost <> 'NaN'),
  max_in_flight integer check (max_in_flight > 0),
  -- The limits that it was made with: an operator may change them, a repeated call means the same batch.
  asked text not null,
  members integer not null default 0 check (members >= 0),
  -- A member is open until it is final; one that succeeded, until its delivery is.
  open_members integer not null default 0 check (open_members between 0 and members),
  -- Members that are claimed, submitting, uncertain or accepted: a job may run for each.
  in_flight integer not null default 0 check (in_flight >= 0),
  reserved numeric(30, 6) not null default 0 check (reserved >= 0),
  disputed numeric(30, 6) not null default 0 check (disputed >= 0),
  settled numeric(30, 6) not null default 0,
  created_at timestamptz not null default relay.now(),
  created_by text not null,
  sealed_at timestamptz,
  completed_at timestamptz,
  -- Who changed its limits, when and why.
  history jsonb not null default '[]',
  unique (owner_id, batch_key),
  unique (batch_id, owner_id)
);
comment on column relay.batch.completed_at is 'When open_members first reached 0 after the seal. Set once, with its event.';
select relay.forbid('relay.batch', 'delete', 'a batch is the record of what was approved together');
create index batch_open on relay.batch (created_at) where completed_at is null;

alter table relay.operation
  add column batch_id uuid,
  add constraint operation_batch_of_owner foreign key (batch_id, owner_id) references relay.batch (batch_id, owner_id);
create index operation_of_batch on relay.operation (batch_id) where batch_id is not null;
create index operation_prepared_in_batch on relay.operation (batch_id) where phase = 'prepared' and batch_id is not null;
create index operation_held_for_batch on relay.operation (batch_id, held_at, operation_id)
  where phase = 'held' and phase_reason = 'batch';
create index operation_held_for_allowance on relay.operation (owner_id, cost_unit, max_cost)
  where phase = 'held' and phase_reason = 'allowance';

create function relay.guard_batch() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'INSERT' then
    if (new.members, new.open_members, new.in_flight, new.reserved, new.disputed, new.settled) is distinct from
       (0, 0, 0, 0::numeric, 0::numeric, 0::numeric) or new.sealed_at is not null or new.completed_at is not null then
      raise exception 'a batch begins open and empty' using errcode = 'OR010';
    end if;
    return new;
  end if;
  if (new.batch_id, new.owner_id, new.batch_key, new.unit, new.asked, new.created_at, new.created_by) is distinct from
     (old.batch_id, old.owner_id, old.batch_key, old.unit, old.asked, old.created_at, old.created_by)
     or (old.sealed_at is not null and new.sealed_at is distinct from old.sealed_at)
     or (old.sealed_at is not null and new.members <> old.members) then
    raise exception 'batch %: what was sealed can''t change', old.batch_id using errcode = 'OR010';
  end if;
  if old.completed_at is not null and new.completed_at is distinct from old.completed_at then
    raise exception 'batch %: it completed already, and does so once', old.batch_id using errcode = 'OR010';
  end if;
  return new;
end;
$$;
create trigger b_guard before insert or update on relay.batch
  for each row execute function relay.guard_batch();
alter table relay.batch enable always trigger b_guard;

-- Complete the batch if its last member has ended; its row is locked by the caller.
create function relay.complete_batch(p_batch_id uuid) returns boolean
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  done relay.batch;
begin
  update relay.batch set completed_at = relay.now()
   where batch_id = p_batch_id and sealed_at is not null and open_members = 0 and completed_at is null
  returning * into done;
  if not found then
    return false;
  end if;
  insert into relay.outbox (event_type, schema_version, operation_id, payload)
  select 'batch.completed', 1, done.batch_id, jsonb_build_object(
           'batch_id', done.batch_id, 'owner_id', done.owner_id, 'batch_key', done.batch_key,
           'members', done.members, 'completed_at', done.completed_at,
           'succeeded', (select count(*) from relay.operation o where o.batch_id = done.batch_id
                          and o.parent_operation_id is null and o.phase = 'succeeded'),
           'stored', (select count(*) from relay.operation o where o.batch_id = done.batch_id
                       and o.parent_operation_id is not null and o.phase = 'stored'));
  return true;
end;
$$;

-- A delivery belongs to its parent's batch, and keeps the parent's place open. Else a batch is joined once, before
-- anything was done: relay.in_batch.
create function relay.guard_membership() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'INSERT' then
    if new.parent_operation_id is not null then
      select p.batch_id into new.batch_id from relay.operation p where p.operation_id = new.parent_operation_id;
    end if;
  elsif new.batch_id is distinct from old.batch_id
    and (old.batch_id is not null or old.version <> 1 or old.phase <> 'prepared' or new.phase <> 'prepared') then
    raise exception 'operation %: a batch is joined once, before anything was done, and never left', old.operation_id
      using errcode = 'OR010';
  end if;
  return new;
end;
$$;
create trigger a_membership before insert or update on relay.operation
  for each row execute function relay.guard_membership();
alter table relay.operation enable always trigger a_membership;

-- What the operation counts for in its batch. All of it is 0 for most updates: they don't touch the batch.
create function relay.count_member() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  counts boolean := new.parent_operation_id is null;
  joined integer := 0;
  opened integer := 0;
  flown integer := 0;
  lifecycle text;
begin
  if new.batch_id is null then
    return null;
  end if;
  select k.lifecycle into lifecycle from relay.operation_kind k where k.kind = new.kind;
  if counts then
    if tg_op = 'INSERT' or old.batch_id is null then
      joined := 1;
      opened := 1;
    else
      -- One that succeeded hands its place on to its delivery.
      opened := (not new.is_final or (lifecycle = 'generation' and new.phase = 'succeeded'))::integer
              - (not old.is_final or (lifecycle = 'generation' and old.phase = 'succeeded'))::integer;
      flown := (new.phase in ('claimed', 'submitting', 'uncertain', 'accepted'))::integer
             - (old.phase in ('claimed', 'submitting', 'uncertain', 'accepted'))::integer;
    end if;
  elsif tg_op = 'UPDATE' then
    opened := old.is_final::integer - new.is_final::integer;
  end if;
  if (joined, opened, flown) = (0, 0, 0) then
    return null;
  end if;
  -- Locks the batch's row until this transaction ends: of two last members that end together, one comes second.
  update relay.batch
     set members = members + joined, open_members = open_members + opened, in_flight = in_flight + flown
   where batch_id = new.batch_id and (joined = 0 or sealed_at is null);
  if not found then
    raise exception 'batch % is sealed: nothing joins it any more', new.batch_id using errcode = 'OR010';
  end if;
  perform relay.complete_batch(new.batch_id);
  return null;
end;
$$;
-- Before c_journal, which touches reviews: batch, then review.
create trigger b_batch after insert or update on relay.operation
  for each row execute function relay.count_member();
alter table relay.operation enable always trigger b_batch;

-- Make a batch, or return the one that the owner's key has already. Members join with relay.in_batch, in this or
-- another transaction, until relay.seal_batch. They are dispatched as they commit; the seal only says that no other
-- will come.
create function relay.prepare_batch(owner_id text, batch_key text, unit text default 'credit',
    max_cost numeric default null, max_in_flight integer default null, requested_by text default null)
  returns relay.batch
  language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  wanted text := format('unit %s, max_cost %s, max_in_flight %s', $3, coalesce(trim_scale($4)::text, 'none'),
                        coalesce($5::text, 'none'));
  found_row relay.batch;
begin
  if $4 is not null then
    perform relay.require_amount($4, 'max_cost');
  end if;
  insert into relay.batch (owner_id, batch_key, unit, max_cost, max_in_flight, asked, created_by)
  values ($1, $2, $3, $4, $5, wanted, coalesce($6, relay.context('actor'), session_user))
  on conflict (owner_id, batch_key) do nothing
  returning * into found_row;
  if found then
    return found_row;
  end if;
  select * into strict found_row from relay.batch b where b.owner_id = $1 and b.batch_key = $2;
  if found_row.asked <> wanted then
    raise exception 'the batch key % of owner % was made with %, and this call has %', $2, $1, found_row.asked, wanted
      using errcode = 'OR001', detail = 'batch ' || found_row.batch_id,
            hint = 'Another batch needs another key; an operator changes the limits of this one.';
  end if;
  return found_row;
end;
$$;

-- Let an operation join a batch; best in the statement that prepares it:
--   select operation_id from relay.in_batch(batch, relay.prepare_operation(kind => …));
-- Repeated, it returns the operation as it is.
create function relay.in_batch(batch_id uuid, operation relay.operation) returns relay.operation
  language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  member relay.operation;
  joined relay.batch;
begin
  select * into member from relay.operation o where o.operation_id = $2.operation_id for update;
  -- Whose login may touch what is 0018's.
  if not found or not relay.acts_for(member.owner_id) then
    raise exception 'there is no operation %', $2.operation_id using errcode = 'OR004';
  elsif member.batch_id = $1 then
    return member;
  elsif member.batch_id is not null then
    raise exception 'operation % is in the batch % already', member.operation_id, member.batch_id
      using errcode = 'OR010';
  elsif member.version <> 1 then
    raise exception 'operation % is % already: a batch is joined before anything was done', member.operation_id,
        member.phase using errcode = 'OR010';
  end if;
  select * into joined from relay.batch b where b.batch_id = $1;
  if not found or joined.owner_id <> member.owner_id then
    raise exception 'the owner % has no batch %', member.owner_id, $1 using errcode = 'OR004';
  elsif joined.unit <> member.cost_unit then
    raise exception 'the batch % counts in %, and operation % costs %: nothing is converted', $1, joined.unit,
        member.operation_id, member.cost_unit using errcode = 'OR010';
  end if;
  update relay.operation o set batch_id = $1 where o.operation_id = member.operation_id returning * into member;
  return member;
end;
$$;

-- No other member will come. `members` refuses the seal unless there are exactly so many. A batch whose members have
-- all ended completes here.
create function relay.seal_batch(batch_id uuid, members integer default null) returns relay.batch
  language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  sealed relay.batch;
begin
  select * into sealed from relay.batch b where b.batch_id = $1 for no key update;
  if not found or not relay.acts_for(sealed.owner_id) then
    raise exception 'there is no batch %', $1 using errcode = 'OR004';
  elsif $2 is not null and sealed.members <> $2 then
    raise exception 'the batch % has % members, and % were to be sealed', $1, sealed.members, $2
      using errcode = 'OR010';
  end if;
  if sealed.sealed_at is null then
    update relay.batch b set sealed_at = relay.now() where b.batch_id = $1;
    perform relay.complete_batch($1);
  end if;
  select * into sealed from relay.batch b where b.batch_id = $1;
  return sealed;
end;
$$;

-- Null: no limit. What is booked or in flight already stays; a lower limit only stops new claims.
create function relay.set_batch_limits(p_batch_id uuid, p_max_cost numeric, p_max_in_flight integer, p_reason text)
  returns relay.batch
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  result relay.batch;
begin
  if p_max_cost is not null then
    perform relay.require_amount(p_max_cost, 'a batch''s limit of');
  end if;
  update relay.batch b
     set max_cost = p_max_cost, max_in_flight = p_max_in_flight,
         history = b.history || jsonb_build_object('at', relay.now(), 'reason', p_reason,
           'who', coalesce(relay.context('actor'), session_user), 'max_cost', p_max_cost,
           'max_in_flight', p_max_in_flight)
   where b.batch_id = p_batch_id returning * into result;
  if not found then
    raise exception 'there is no batch %', p_batch_id using errcode = 'OR004';
  end if;
  return result;
end;
$$;

-- Money ----------------------------------------------------------------------------------------------------

alter table relay.ledger drop constraint ledger_entry_check;
alter table relay.ledger
  add constraint ledger_entry_check check (entry in
    ('limit', 'reserve', 'release', 'settle', 'dispute', 'overrun', 'refund', 'correct', 'rebook')),
  -- What the entry changed of the allowance.
  add column reserved_change numeric(30, 6) not null default 0,
  add column disputed_change numeric(30, 6) not null default 0,
  add column settled_change numeric(30, 6) not null default 0;

-- Entries from before this migration: a release and a dispute took what was reserved, a settlement what the entries
-- before it had left.
alter table relay.ledger disable trigger a_forbidden;
update relay.ledger l
   set reserved_change = case l.entry when 'reserve' then l.amount when 'settle' then was.reserved else -l.amount end,
       disputed_change = case l.entry when 'dispute' then l.amount when 'settle' then was.disputed else 0 end,
       settled_change = case l.entry when 'settle' then l.amount else 0 end
  from (select s.entry_id,
               -coalesce(sum(b.amount) filter (where b.entry = 'reserve'), 0)
                 + coalesce(sum(b.amount) filter (where b.entry in ('release', 'dispute')), 0) as reserved,
               -coalesce(sum(b.amount) filter (where b.entry = 'dispute'), 0) as disputed
          from relay.ledger s
          left join relay.ledger b on b.operation_id = s.operation_id and b.attempt_id = s.attempt_id
                                  and b.entry_id < s.entry_id
         where s.entry in ('reserve', 'release', 'settle', 'dispute')
         group by s.entry_id) was
 where was.entry_id = l.entry_id;
alter table relay.ledger enable always trigger a_forbidden;

-- Its cost went beyond what was reserved for it, and nobody has raised the limit or undone that since.
alter table relay.reservation add column overrun boolean not null default false;
create index reservation_overrun on relay.reservation (owner_id, unit) where overrun;
create index reservation_unsettled on relay.reservation (owner_id, unit) where state in ('reserved', 'disputed');

-- The attempt's reservation, with all that its money touches locked in the one order. Null: it has none.
create function relay.lock_money(p_attempt_id uuid) returns relay.reservation
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  held relay.reservation;
  of_batch uuid;
begin
  select * into held from relay.reservation r where r.attempt_id = p_attempt_id;
  if not found then
    return null;
  end if;
  select o.batch_id into of_batch from relay.operation o where o.operation_id = held.operation_id for no key update;
  perform 1 from relay.batch b where b.batch_id = of_batch for no key update;
  perform 1 from relay.allowance a where a.owner_id = held.owner_id and a.unit = held.unit for no key update;
  select * into held from relay.reservation r where r.attempt_id = p_attempt_id for no key update;
  return held;
end;
$$;

drop function relay.book(relay.reservation, text, numeric, text);

-- Write one entry, and move the sums of allowance and batch by what it changes. Everything is locked by the caller.
create function relay.book(p_of relay.reservation, p_entry text, p_amount numeric, p_reason text,
    p_reserved numeric default 0, p_disputed numeric default 0, p_settled numeric default 0) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if (p_reserved, p_disputed, p_settled) <> (0, 0, 0) then
    update relay.batch b
       set reserved = b.reserved + p_reserved, disputed = b.disputed + p_disputed, settled = b.settled + p_settled
     where b.batch_id = (select o.batch_id from relay.operation o where o.operation_id = p_of.operation_id);
    update relay.allowance a
       set reserved = a.reserved + p_reserved, disputed = a.disputed + p_disputed, settled = a.settled + p_settled,
           updated_at = relay.now()
     where a.owner_id = p_of.owner_id and a.unit = p_of.unit;
  end if;
  insert into relay.ledger (owner_id, unit, operation_id, attempt_id, entry, amount, reason, actor, reserved_change,
                            disputed_change, settled_change)
  values (p_of.owner_id, p_of.unit, p_of.operation_id, p_of.attempt_id, p_entry, p_amount, p_reason,
          coalesce(relay.context('actor'), session_user), p_reserved, p_disputed, p_settled);
end;
$$;

-- The owner is stopped while any reservation's overrun stands.
create function relay.note_overrun(p_of relay.reservation, p_stands boolean) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  update relay.reservation r set overrun = p_stands where r.attempt_id = p_of.attempt_id and r.overrun <> p_stands;
  if found then
    update relay.allowance a
       set overrun = exists (select 1 from relay.reservation r
                              where r.owner_id = a.owner_id and r.unit = a.unit and r.overrun),
           updated_at = relay.now()
     where a.owner_id = p_of.owner_id and a.unit = p_of.unit;
  end if;
end;
$$;
-- An overrun from before this migration is its reservation's.
update relay.reservation r set overrun = true
  from relay.allowance a
 where a.owner_id = r.owner_id and a.unit = r.unit and a.overrun
   and exists (select 1 from relay.ledger l where l.attempt_id = r.attempt_id and l.entry = 'overrun'
                  and l.entry_id > coalesce((select max(s.entry_id) from relay.ledger s where s.owner_id = r.owner_id
                                               and s.unit = r.unit and s.entry = 'limit'), 0));

-- As in 0004, and `unsettled`: reserved, and nothing that runs by itself will say what it cost.
create or replace function relay.accounting_of(p_operation_id uuid) returns text
  language sql stable
as $$
  select case when bool_or(r.state = 'disputed') then 'disputed'
              when bool_or(r.state = 'reserved' and (o.is_final or exists (
                     select 1 from relay.review w where w.operation_id = r.operation_id
                        and w.attempt_id = r.attempt_id and w.kind = 'id_with_error'))) then 'unsettled'
              when bool_or(r.state = 'reserved') then 'reserved'
              when bool_or(r.state = 'settled') then 'settled' else 'none' end
    from relay.reservation r join relay.operation o using (operation_id)
   where r.operation_id = p_operation_id
$$;

-- Reserve the operation's max_cost for the attempt that this claim may make. Null when that is done, else what it
-- didn't fit: `batch` or `allowance`. Call it in the claim's transaction; the claim is in flight already.
create function relay.reserve_or_why(p_operation_id uuid, p_attempt_id uuid) returns text
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  wanted relay.operation;
  made relay.reservation;
begin
  select * into wanted from relay.operation where operation_id = p_operation_id for no key update;
  if not found then
    raise exception 'there is no operation %', p_operation_id using errcode = 'OR004';
  elsif wanted.phase <> 'claimed' or wanted.claim_token <> p_attempt_id then
    raise exception 'operation %: money is reserved for the attempt of a living claim', p_operation_id
      using errcode = 'OR012';
  end if;
  if wanted.batch_id is not null then
    perform 1 from relay.batch b where b.batch_id = wanted.batch_id for no key update;
    perform 1 from relay.batch b
      where b.batch_id = wanted.batch_id
        and (b.max_cost is null or b.reserved + b.disputed + b.settled + wanted.max_cost <= b.max_cost)
        and (b.max_in_flight is null or b.in_flight <= b.max_in_flight);
    if not found then
      return 'batch';
    end if;
  end if;
  perform 1 from relay.allowance a where a.owner_id = wanted.owner_id and a.unit = wanted.cost_unit for no key update;
  perform 1 from relay.allowance a
    where a.owner_id = wanted.owner_id and a.unit = wanted.cost_unit and not a.overrun
      and a.reserved + a.disputed + a.settled + wanted.max_cost <= a.limit_amount;
  if not found then
    return 'allowance';
  end if;
  insert into relay.reservation (attempt_id, operation_id, owner_id, unit, amount, state)
  values (p_attempt_id, p_operation_id, wanted.owner_id, wanted.cost_unit, wanted.max_cost, 'reserved')
  returning * into made;
  perform relay.book(made, 'reserve', made.amount, 'claim', p_reserved => made.amount);
  update relay.operation set accounting = relay.accounting_of(p_operation_id) where operation_id = p_operation_id;
  return null;
end;
$$;

create or replace function relay.reserve(p_operation_id uuid, p_attempt_id uuid) returns boolean
  language sql security definer set search_path = pg_catalog, pg_temp
as $$ select relay.reserve_or_why(p_operation_id, p_attempt_id) is null $$;

create or replace function relay.release_reservation(p_attempt_id uuid, p_reason text) returns boolean
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  held relay.reservation := relay.lock_money(p_attempt_id);
begin
  if held.state is distinct from 'reserved' then
    return false;
  end if;
  update relay.reservation set state = 'released', updated_at = relay.now() where attempt_id = p_attempt_id;
  perform relay.book(held, 'release', held.amount, p_reason, p_reserved => -held.amount);
  return true;
end;
$$;

-- Settle an attempt with its real cost, once: a repeated answer changes nothing. The cost may differ from the
-- reservation, and a larger one, or one that comes after the release, is an overrun: booked without a check, and the
-- owner's claims stop. An operator's correction is relay.correct.
create or replace function relay.settle(p_attempt_id uuid, p_cost numeric, p_reason text) returns boolean
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  was relay.reservation;
  kept numeric;
begin
  perform relay.require_amount(p_cost, 'a cost of');
  was := relay.lock_money(p_attempt_id);
  if was.attempt_id is null or was.state = 'settled' then
    return false;
  end if;
  kept := case when was.state = 'released' then 0 else was.amount end;
  update relay.reservation set state = 'settled', settled_amount = p_cost, updated_at = relay.now()
   where attempt_id = p_attempt_id;
  perform relay.book(was, 'settle', p_cost, p_reason, p_settled => p_cost,
    p_reserved => case when was.state = 'reserved' then -was.amount else 0 end,
    p_disputed => case when was.state = 'disputed' then -was.amount else 0 end);
  if p_cost > kept then
    perform relay.book(was, 'overrun', p_cost - kept, p_reason);
    perform relay.note_overrun(was, true);
  else
    perform relay.note_overrun(was, false);
  end if;
  perform relay.money_answered(was);
  return true;
end;
$$;

-- What the money of an attempt was asked for is known: the operation says so, and the question is closed.
create function relay.money_answered(p_of relay.reservation) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  update relay.operation set accounting = relay.accounting_of(operation_id)
   where operation_id = p_of.operation_id and accounting is distinct from relay.accounting_of(operation_id);
  -- An error came with the id, and the question was what the job costs: that is answered.
  update relay.review set state = 'superseded', revision = revision + 1
   where operation_id = p_of.operation_id and attempt_id = p_of.attempt_id and kind = 'id_with_error' and state = 'open';
end;
$$;

-- A person decided without proof, or the cost is unknown: the money stays booked until it is settled or refunded.
create or replace function relay.dispute(p_attempt_id uuid, p_reason text) returns boolean
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  held relay.reservation := relay.lock_money(p_attempt_id);
begin
  if held.state is distinct from 'reserved' then
    return false;
  end if;
  update relay.reservation set state = 'disputed', updated_at = relay.now() where attempt_id = p_attempt_id;
  perform relay.book(held, 'dispute', held.amount, p_reason, p_reserved => -held.amount, p_disputed => held.amount);
  update relay.operation set accounting = 'disputed' where operation_id = held.operation_id;
  return true;
end;
$$;

-- Correct what an attempt was settled with; the difference, which may be negative, is booked. Returns it.
create function relay.correct(p_attempt_id uuid, p_cost numeric, p_reason text) returns numeric
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  was relay.reservation;
begin
  perform relay.require_amount(p_cost, 'a cost of');
  was := relay.lock_money(p_attempt_id);
  if was.state is distinct from 'settled' then
    raise exception 'attempt % is %: only what is settled can be corrected', p_attempt_id,
        coalesce(was.state, 'not booked') using errcode = 'OR010';
  end if;
  update relay.reservation set settled_amount = p_cost, updated_at = relay.now() where attempt_id = p_attempt_id;
  perform relay.book(was, 'correct', p_cost - was.settled_amount, p_reason, p_settled => p_cost - was.settled_amount);
  if p_cost > was.amount and p_cost > was.settled_amount then
    perform relay.book(was, 'overrun', p_cost - greatest(was.amount, was.settled_amount), p_reason);
    perform relay.note_overrun(was, true);
  elsif p_cost <= was.amount then
    perform relay.note_overrun(was, false);
  end if;
  return p_cost - was.settled_amount;
end;
$$;

-- The provider gave money back, or says that it never took any. Of what is reserved or disputed: all of it, the attempt
-- cost nothing. Of what is settled: p_amount, or all of it (null). Returns what came back.
create function relay.refund(p_attempt_id uuid, p_amount numeric, p_reason text) returns numeric
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  was relay.reservation;
  back numeric;
begin
  if p_amount is not null then
    perform relay.require_amount(p_amount, 'a refund of');
  end if;
  was := relay.lock_money(p_attempt_id);
  if was.attempt_id is null or was.state = 'released' then
    raise exception 'attempt % has nothing booked that could be refunded', p_attempt_id using errcode = 'OR010';
  end if;
  back := coalesce(p_amount, case when was.state = 'settled' then was.settled_amount else was.amount end);
  if was.state = 'settled' then
    if back = 0 or back > was.settled_amount then
      raise exception 'a refund of % is not possible: attempt % is settled with %', back, p_attempt_id,
          was.settled_amount using errcode = 'OR010';
    end if;
    update relay.reservation set settled_amount = was.settled_amount - back, updated_at = relay.now()
     where attempt_id = p_attempt_id;
    perform relay.book(was, 'refund', back, p_reason, p_settled => -back);
  else
    if back <> was.amount then
      raise exception 'attempt % is %: its whole % go back, or say what it cost', p_attempt_id, was.state, was.amount
        using errcode = 'OR010', hint = 'Settle it with its cost instead.';
    end if;
    update relay.reservation set state = 'settled', settled_amount = 0, updated_at = relay.now()
     where attempt_id = p_attempt_id;
    perform relay.book(was, 'refund', back, p_reason,
      p_reserved => case when was.state = 'reserved' then -back else 0 end,
      p_disputed => case when was.state = 'disputed' then -back else 0 end);
  end if;
  if was.state <> 'settled' or was.settled_amount - back <= was.amount then
    perform relay.note_overrun(was, false);
  end if;
  perform relay.money_answered(was);
  return back;
end;
$$;

-- As in 0004; an overrun is lifted by a limit that what is booked fits into.
create or replace function relay.set_allowance(p_owner_id text, p_unit text, p_limit numeric, p_reason text)
  returns relay.allowance
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  result relay.allowance;
begin
  perform relay.require_amount(p_limit, 'a limit of');
  insert into relay.allowance (owner_id, unit, limit_amount) values (p_owner_id, p_unit, p_limit)
  on conflict (owner_id, unit) do update
    set limit_amount = excluded.limit_amount, updated_at = relay.now(),
        overrun = allowance.overrun and allowance.reserved + allowance.disputed + allowance.settled > excluded.limit_amount
  returning * into result;
  if not result.overrun then
    update relay.reservation set overrun = false where owner_id = p_owner_id and unit = p_unit and overrun;
  end if;
  insert into relay.ledger (owner_id, unit, entry, amount, reason, actor)
  values (p_owner_id, p_unit, 'limit', p_limit, p_reason, coalesce(relay.context('actor'), session_user));
  return result;
end;
$$;

-- A job became known of a request whose money was given back, or refunded as never charged: booked again without a
-- check, as an overrun, until a person or the job's own end says what it cost.
create function relay.rebook() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  was relay.reservation := relay.lock_money(new.attempt_id);
begin
  if was.state = 'released' or (was.state = 'settled' and was.settled_amount = 0 and exists (
       select 1 from relay.ledger l where l.attempt_id = was.attempt_id and l.operation_id = was.operation_id
          and l.entry = 'refund')) then
    update relay.reservation set state = 'disputed', settled_amount = null, updated_at = relay.now()
     where attempt_id = was.attempt_id;
    perform relay.book(was, 'rebook', was.amount, 'job ' || new.job_id || ' became known', p_disputed => was.amount);
    perform relay.book(was, 'overrun', was.amount, 'job ' || new.job_id || ' became known');
    perform relay.note_overrun(was, true);
    update relay.operation set accounting = 'disputed' where operation_id = was.operation_id;
  end if;
  return null;
end;
$$;
create trigger c_money after insert on relay.remote_job
  for each row when (new.attempt_id is not null) execute function relay.rebook();
alter table relay.remote_job enable always trigger c_money;

-- held(batch) is released by schedule, as held(allowance) is; nobody but the batch's completion says that it is over.
do $$
declare
  edit record;
  was text;
begin
  for edit in
    select * from (values
      ('relay.check_cause(relay.operation, relay.operation, text)'::regprocedure,
       'p_old.phase_reason not in (''allowance'', ''paused'')', 'p_old.phase_reason not in (''allowance'', ''batch'', ''paused'')'),
      ('relay.check_cause(relay.operation, relay.operation, text)'::regprocedure,
       'only a hold for allowance or pause is', 'only a hold for allowance, batch or pause is'),
      ('relay.guard_operation()'::regprocedure,
       'new.phase_reason in (''allowance'', ''paused'')', 'new.phase_reason in (''allowance'', ''batch'', ''paused'')'),
      ('relay.after_operation()'::regprocedure,
       'new.phase_reason not in (''allowance'', ''paused'')', 'new.phase_reason not in (''allowance'', ''batch'', ''paused'')'),
      ('relay.guard_outbox()'::regprocedure,
       '''collection.requested''', '''collection.requested'', ''batch.completed''')
    ) as of (routine, found, put)
  loop
    was := pg_get_functiondef(edit.routine);
    if strpos(was, edit.put) = 0 then
      if strpos(was, edit.found) = 0 then
        raise exception '% has no %', edit.routine, edit.found;
      end if;
      execute replace(was, edit.found, edit.put);
    end if;
  end loop;
end;
$$;

-- Grants ---------------------------------------------------------------------------------------------------

revoke execute on function relay.require_amount, relay.guard_batch, relay.complete_batch, relay.guard_membership,
  relay.count_member, relay.prepare_batch, relay.in_batch, relay.seal_batch, relay.set_batch_limits,
  relay.lock_money, relay.book, relay.note_overrun, relay.reserve_or_why, relay.money_answered, relay.correct,
  relay.refund, relay.rebook from public;
grant select on relay.batch to relay_app, relay_worker, relay_operator, relay_reader;
grant execute on function relay.prepare_batch, relay.in_batch, relay.seal_batch to relay_app, relay_operator;
grant execute on function relay.set_batch_limits, relay.correct, relay.refund to relay_operator;
grant execute on function relay.reserve_or_why to relay_worker;
