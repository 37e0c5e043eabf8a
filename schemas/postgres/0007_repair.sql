-- Repair and backfill: what one that is under way was asked for, so that an interrupted one ends as it began.

alter table relay.source_identity
  add column repair_origin text check (repair_origin in ('repair', 'backfill')),
  add column repair_began_at timestamptz,
  -- A person has accepted this source, though Kafka knew another; a repair that goes on doesn't ask again.
  add column source_accepted boolean not null default false,
  -- Since a rewind was accepted: an operation that looks prepared here may have been submitted before it.
  add column unreconciled_since timestamptz;

-- As in 0006, and closed after an accepted rewind until a person has compared the operations.
create or replace function relay.dispatch_gate() returns text
  language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  known relay.source_identity;
  this_timeline integer;
begin
  select * into known from relay.source_identity where outbox_table = 'relay.outbox'
   order by verified_at desc nulls last limit 1;
  if not found then
    return 'no relay is initialised for relay.outbox';
  end if;
  if pg_is_in_recovery() then
    return 'this server is a standby';
  end if;
  -- The first eight digits of a WAL file's name are its timeline; pg_control_checkpoint() may lag after promotion.
  this_timeline := ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer;
  if known.state = 'repairing' then
    return 'a repair of the relay has not ended; if nobody runs it, run relay outbox repair again';
  elsif known.state <> 'running' then
    return 'the relay is ' || known.state;
  elsif known.unreconciled_since is not null then
    return 'a rewind was accepted, and nobody has reconciled the operations since';
  elsif known.verified_system_identifier is distinct from (select system_identifier::text from pg_control_system()) then
    return 'the relay verified another cluster';
  elsif known.verified_timeline is distinct from this_timeline then
    return 'the relay verified another timeline';
  elsif known.verified_server_started_at is distinct from pg_postmaster_start_time() then
    return 'the server was started since the relay verified it';
  end if;
  return null;
end;
$$;
