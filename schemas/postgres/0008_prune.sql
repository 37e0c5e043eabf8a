-- Rows leave the outbox by relay.prune alone, and only once Kafka has everything that was committed with them.

-- What the audit must know: an event below this that the outbox doesn't have may have been pruned.
alter table relay.source_identity
  add column pruned_epoch integer not null default 0,
  add column pruned_lsn pg_lsn not null default '0/0';

-- Rows chosen to go, and the WAL position that was read after they were chosen: they committed below it.
create table relay.prune_batch (
  batch_id bigint primary key generated always as identity,
  relay_id uuid not null references relay.source_identity (relay_id),
  event_ids uuid[] not null,
  chosen_at timestamptz not null default relay.now(),
  chosen_lsn pg_lsn not null
);
comment on table relay.prune_batch is 'Emptied by relay.prune; what an interrupted prune left is taken up by the next.';

drop trigger a_forbidden on relay.outbox;
create trigger a_forbidden before update on relay.outbox for each row
  execute function relay.refuse('the outbox is insert-only');
alter table relay.outbox enable always trigger a_forbidden;

-- Inside relay.prune the current user is the table's owner, which nobody else can become; the setting keeps the
-- owner's own hand from a DELETE by mistake.
create function relay.guard_outbox_delete() returns trigger
  language plpgsql
as $$
begin
  if current_setting('relay.pruning', true) is distinct from 'on'
     or current_user <> (select pg_get_userbyid(c.relowner) from pg_class c where c.oid = tg_relid) then
    raise exception 'delete on relay.outbox is refused: rows leave it by relay outbox prune alone'
      using errcode = 'OR010';
  end if;
  return old;
end;
$$;
create trigger a_pruned_only before delete on relay.outbox for each row execute function relay.guard_outbox_delete();
alter table relay.outbox enable always trigger a_pruned_only;

-- The relay that has this slot, if its slot is one that nothing can be lost behind.
create function relay.prunable(p_slot text) returns relay.source_identity
  language plpgsql
as $$
declare
  recorded relay.source_identity;
  slot record;
begin
  select * into recorded from relay.source_identity i where i.slot_name = p_slot;
  if recorded.relay_id is null then
    raise exception 'no relay has the slot %', p_slot using errcode = 'OR004';
  end if;
  if recorded.state <> 'running' or recorded.outbox_table <> 'relay.outbox' then
    raise exception 'relay % is % and reads %', recorded.relay_id, recorded.state, recorded.outbox_table
      using errcode = 'OR010', hint = 'Only a running relay''s own outbox is pruned.';
  end if;
  select s.confirmed_flush_lsn, s.wal_status into slot from pg_replication_slots s where s.slot_name = p_slot;
  if slot.confirmed_flush_lsn is null or slot.wal_status not in ('reserved', 'extended') then
    raise exception 'the slot % is %', p_slot, coalesce('in state ' || slot.wal_status, 'gone')
      using errcode = 'OR010', hint = 'Rows may be the only copy of events that Kafka doesn''t have.';
  end if;
  return recorded;
end;
$$;

-- Choose up to p_limit rows older than p_older_than, never a parked one, in batches of p_batch. Returns how many,
-- and below which position they were committed. While chosen batches wait to go, those are returned.
create function relay.prune_choose(p_slot text, p_older_than interval, p_limit integer, p_batch integer)
returns table (chosen bigint, chosen_lsn pg_lsn)
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  recorded relay.source_identity := relay.prunable(p_slot);
begin
  if p_older_than is null or p_older_than < interval '0' or coalesce(least(p_limit, p_batch), 0) < 1 then
    raise exception 'an age that is not negative, and a limit and a batch above 0 are needed'
      using errcode = '22023';
  end if;
  if not exists (select 1 from relay.prune_batch b where b.relay_id = recorded.relay_id) then
    insert into relay.prune_batch (relay_id, event_ids, chosen_lsn)
    select recorded.relay_id, array_agg(r.event_id order by r.place), 'FFFFFFFF/FFFFFFFF'
      from (select o.event_id, row_number() over (order by o.seq) - 1 as place from relay.outbox o
             where o.occurred_at < relay.now() - p_older_than
               and not exists (select 1 from relay.parked_event e where e.relay_id = recorded.relay_id
                                and e.event_id = o.event_id and e.state = 'parked')
             order by o.seq limit p_limit) r
     group by r.place / p_batch order by r.place / p_batch;
    -- Read after the choice: whatever was seen was committed below it.
    update relay.prune_batch b set chosen_lsn = pg_current_wal_insert_lsn() where b.relay_id = recorded.relay_id;
  end if;
  return query
    select coalesce(sum(cardinality(b.event_ids)), 0)::bigint, max(b.chosen_lsn)
      from relay.prune_batch b where b.relay_id = recorded.relay_id;
end;
$$;

-- Delete one chosen batch that the slot has passed, but p_keep, the checkpoint's event. Returns how many rows
-- went, or null when no chosen batch may go yet.
create function relay.prune(p_slot text, p_keep uuid) returns bigint
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  recorded relay.source_identity := relay.prunable(p_slot);
  batch relay.prune_batch;
  gone bigint;
begin
  select b.* into batch from relay.prune_batch b
   where b.relay_id = recorded.relay_id
     and b.chosen_lsn <= (select s.confirmed_flush_lsn from pg_replication_slots s where s.slot_name = p_slot)
   order by b.batch_id limit 1 for update skip locked;
  if batch.batch_id is null then
    return null;
  end if;
  perform set_config('relay.pruning', 'on', true);
  delete from relay.outbox o
   where o.event_id = any(batch.event_ids) and o.event_id is distinct from p_keep
     and not exists (select 1 from relay.parked_event e
                      where e.relay_id = recorded.relay_id and e.event_id = o.event_id and e.state = 'parked');
  get diagnostics gone = row_count;
  perform set_config('relay.pruning', '', true);
  delete from relay.prune_batch b where b.batch_id = batch.batch_id;
  update relay.source_identity i
     set pruned_epoch = i.epoch, pruned_lsn = case when i.pruned_epoch = i.epoch
       then greatest(i.pruned_lsn, batch.chosen_lsn) else batch.chosen_lsn end
   where i.relay_id = recorded.relay_id;
  return gone;
end;
$$;

revoke execute on function relay.guard_outbox_delete(), relay.prunable(text),
  relay.prune_choose(text, interval, integer, integer), relay.prune(text, uuid) from public;
grant execute on function relay.prune_choose(text, interval, integer, integer), relay.prune(text, uuid) to relay_operator;
grant select on relay.prune_batch to relay_operator, relay_reader, relay_replicator, relay_worker;
