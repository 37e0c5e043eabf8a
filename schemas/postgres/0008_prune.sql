-- Rows leave the outbox by relay.prune alone, and only once Kafka has everything that was committed with them.

-- What is being pruned, and what was. Only the functions below write it.
create table relay.pruning (
  outbox_table text primary key,
  -- The transaction that deletes now: the trigger lets its rows go and nobody else's.
  deleting xid8,
  -- The youngest occurred_at that was pruned. An event up to it which only Kafka has may be a pruned one; a younger
  -- one never is.
  pruned_to timestamptz,
  pruned_rows bigint not null default 0,
  pruned_at timestamptz
);
insert into relay.pruning (outbox_table) values ('relay.outbox');

-- Rows chosen to go, and the WAL position that was read after they were chosen: they committed below it.
create table relay.prune_batch (
  batch_id bigint primary key generated always as identity,
  event_ids uuid[] not null,
  chosen_lsn pg_lsn not null,
  chosen_at timestamptz not null default relay.now()
);
comment on table relay.prune_batch is 'Emptied by relay.prune; what an interrupted prune left, the next one chooses again.';

drop trigger a_forbidden on relay.outbox;
create trigger a_forbidden before update on relay.outbox for each row
  execute function relay.refuse('the outbox is insert-only; rows leave it by pruning alone');
alter table relay.outbox enable always trigger a_forbidden;

create function relay.guard_outbox_delete() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if not exists (select 1 from relay.pruning p where p.deleting = pg_current_xact_id_if_assigned()) then
    raise exception 'DELETE on relay.outbox is refused: rows leave it by relay outbox prune alone'
      using errcode = 'OR010';
  end if;
  return old;
end;
$$;
create trigger a_pruned_only before delete on relay.outbox for each row execute function relay.guard_outbox_delete();
alter table relay.outbox enable always trigger a_pruned_only;

-- Raises OR010 unless every relay of relay.outbox is one that nothing can be lost behind. Returns how far they all
-- have confirmed. Holds their rows: a repair that begins waits until this transaction has ended.
create function relay.require_prunable(p_slot text) returns pg_lsn
  language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
  known relay.source_identity;
  slot pg_replication_slots;
  this_timeline integer;
  confirmed pg_lsn;
  asked_for boolean := false;
begin
  if pg_is_in_recovery() then
    raise exception 'this server is a standby'
      using errcode = 'OR010', hint = 'Point RELAY_DATABASE_URL at the primary.';
  end if;
  this_timeline := ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer;
  for known in
    select * from relay.source_identity i where i.outbox_table = 'relay.outbox' order by i.slot_name for share
  loop
    asked_for := asked_for or known.slot_name = p_slot;
    if known.state <> 'running' then
      raise exception 'relay % (slot %) is %', known.relay_id, known.slot_name, known.state
        using errcode = 'OR010', detail = 'What Kafka has of the outbox isn''t settled.',
              hint = case known.state when 'new' then 'Start `relay run`, then prune.'
                else 'Let the repair end, or run `relay outbox repair` again; then prune.' end;
    end if;
    if (known.verified_system_identifier, known.verified_timeline, known.verified_server_started_at)
       is distinct from
       ((select c.system_identifier::text from pg_control_system() c), this_timeline, pg_postmaster_start_time()) then
      raise exception 'relay % (slot %) hasn''t compared this server with Kafka since it started',
          known.relay_id, known.slot_name
        using errcode = 'OR010', detail = 'It may have been restored or promoted, and Kafka may lack its rows.',
              hint = 'Start `relay run`, which compares; then prune.';
    end if;
    select * into slot from pg_replication_slots s where s.slot_name = known.slot_name;
    if not found or slot.plugin <> 'pgoutput' or slot.database <> current_database()
       or slot.confirmed_flush_lsn is null or slot.wal_status not in ('reserved', 'extended') then
      raise exception 'the replication slot % is %', known.slot_name,
          case when slot.slot_name is null then 'gone'
               when slot.plugin is distinct from 'pgoutput' or slot.database is distinct from current_database()
                 then 'not the one of relay ' || known.relay_id
               else format('in danger (wal_status = %s)', slot.wal_status) end
        using errcode = 'OR010', detail = 'The rows may be the only copy of events that Kafka doesn''t have.',
              hint = case when slot.wal_status = 'unreserved' then 'See `relay status`: let the relay catch up first.'
                else '`relay outbox repair` first, then prune.' end;
    end if;
    confirmed := least(confirmed, slot.confirmed_flush_lsn);
  end loop;
  if not asked_for then
    raise exception 'no relay of relay.outbox has the slot %', p_slot
      using errcode = 'OR004', hint = 'Set RELAY_SLOT to the relay''s slot, or run `relay init` once.';
  end if;
  return confirmed;
end;
$$;

-- Rows older than p_older_than. Parked ones are the only copy of their event. Unpublished ones were there before
-- their relay's slot and no backfill or repair, each of which raises the epoch, has compared them with Kafka since.
-- A date that RFC 3339 can't say is no age: such rows stay.
create function relay.old_rows(p_older_than interval)
  returns table (event_id uuid, seq bigint, parked boolean, unpublished boolean)
  language sql stable
as $$
  select o.event_id, o.seq,
         exists (select 1 from relay.parked_event e
                  where e.event_id = o.event_id and e.state not in ('republished', 'discarded')),
         exists (select 1 from relay.source_identity i
                  where i.outbox_table = 'relay.outbox' and i.epoch = 1 and o.seq <= i.baseline_seq)
    from relay.outbox o
   where o.occurred_at < relay.now() - p_older_than and o.occurred_at >= timestamptz '0001-01-01 00:00:00+00'
$$;

-- Choose up to p_limit old rows, in batches of p_batch, in place of what was chosen before. Returns how many, and
-- below which WAL position they were committed.
create function relay.prune_choose(p_slot text, p_older_than interval, p_limit integer default 100000,
    p_batch integer default 10000, p_unpublished boolean default false)
  returns table (chosen bigint, chosen_lsn pg_lsn)
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if p_older_than is null or p_older_than < interval '0' or coalesce(least(p_limit, p_batch), 0) < 1 then
    raise exception 'an age that is not negative, and a limit and a batch above 0 are needed'
      using errcode = '22023';
  end if;
  perform relay.require_prunable(p_slot);
  perform 1 from relay.pruning p where p.outbox_table = 'relay.outbox' for update;
  delete from relay.prune_batch;
  insert into relay.prune_batch (event_ids, chosen_lsn)
  select array_agg(r.event_id), 'FFFFFFFF/FFFFFFFF'
    from (select o.event_id, row_number() over (order by o.seq) - 1 as place
            from relay.old_rows(p_older_than) o
           where not o.parked and (p_unpublished or not o.unpublished)
           order by o.seq limit p_limit) r
   group by r.place / p_batch order by r.place / p_batch;
  -- Read after the choice: whatever was seen was committed below it.
  update relay.prune_batch b set chosen_lsn = pg_current_wal_insert_lsn();
  return query select coalesce(sum(cardinality(b.event_ids)), 0)::bigint, max(b.chosen_lsn) from relay.prune_batch b;
end;
$$;

-- Delete one chosen batch that every slot, and Kafka's checkpoints up to p_confirmed, have passed; but p_keep, the
-- checkpoints' events, and what was parked since. Returns how many rows went, or null when no batch may go (yet).
-- Call it in a transaction of its own.
create function relay.prune(p_slot text, p_confirmed pg_lsn, p_keep uuid[]) returns bigint
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  confirmed pg_lsn := least(relay.require_prunable(p_slot), p_confirmed);
  batch relay.prune_batch;
  gone bigint;
  youngest timestamptz;
begin
  if p_confirmed is null or p_keep is null then
    raise exception 'what Kafka''s checkpoint confirms, and the events to keep, must not be null'
      using errcode = '22004';
  end if;
  update relay.pruning p set deleting = pg_current_xact_id() where p.outbox_table = 'relay.outbox';
  delete from relay.prune_batch b
   where b.batch_id = (select min(c.batch_id) from relay.prune_batch c where c.chosen_lsn <= confirmed)
   returning b.* into batch;
  with pruned as (
    delete from relay.outbox o
     where o.event_id = any (batch.event_ids) and o.event_id <> all (p_keep)
       and not exists (select 1 from relay.parked_event e
                        where e.event_id = o.event_id and e.state not in ('republished', 'discarded'))
    returning o.occurred_at)
  select count(*), max(occurred_at) into gone, youngest from pruned;
  update relay.pruning p
     set deleting = null, pruned_to = greatest(p.pruned_to, youngest), pruned_rows = p.pruned_rows + gone,
         pruned_at = case when gone > 0 then relay.now() else p.pruned_at end
   where p.outbox_table = 'relay.outbox';
  return case when batch.batch_id is not null then gone end;
end;
$$;

revoke execute on function relay.guard_outbox_delete(), relay.require_prunable(text), relay.old_rows(interval),
  relay.prune_choose(text, interval, integer, integer, boolean), relay.prune(text, pg_lsn, uuid[]) from public;
grant execute on function relay.old_rows(interval),
  relay.prune_choose(text, interval, integer, integer, boolean), relay.prune(text, pg_lsn, uuid[]) to relay_operator;
grant select on relay.pruning, relay.prune_batch to relay_operator, relay_reader, relay_replicator, relay_worker;
