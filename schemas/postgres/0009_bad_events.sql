-- What an operator does with events that could not be sent, and events that come as logical messages.
--
-- Anybody who may connect can emit a logical message, with any prefix. So a message alone publishes nothing: the
-- relay believes it only where an operator's request, made by the functions below, stands in the event's row.

alter table relay.parked_event
  -- The row's other columns as text, by our names: what a republished record needs beside its payload.
  add column parts jsonb not null default '{}',
  add column correction text,
  add column request_no integer not null default 0,
  add column requested_at timestamptz,
  add column requested_by text,
  add column requested_epoch integer,
  -- Where in the WAL it is published again. Written before Kafka's commit: whether that happened, the checkpoint says.
  add column published_epoch integer,
  add column published_lsn pg_lsn,
  add column published_index bigint,
  add column settled_at timestamptz,
  add column history jsonb not null default '[]';
comment on column relay.parked_event.payload is
  'As it came; a correction never replaces it. NULL where it was too large, or is no text.';
comment on column relay.parked_event.request_no is 'The last request; a message of an earlier one is ignored.';
comment on column relay.parked_event.history is 'Who asked for what, when, why, and with which correction.';

-- Hash: a key may be longer than a btree takes.
create index parked_event_key on relay.parked_event using hash (operation_key) where state = 'parked';

-- Only the functions below: with the column alone an operator could say "republished" of what never was.
revoke update (state) on relay.parked_event from relay_operator;

-- The row, locked, if something can be asked for it now.
create function relay.parked_for_request(p_relay_id uuid, p_event_id uuid) returns relay.parked_event
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  found_row relay.parked_event;
begin
  if exists (select 1 from relay.source_identity s where s.relay_id = p_relay_id and s.state = 'repairing') then
    raise exception 'relay % is under repair: what is asked for now, its new slot may not bring', p_relay_id
      using errcode = 'OR010', hint = 'Ask when the repair has ended: relay status shows it.';
  end if;
  select * into found_row from relay.parked_event p
   where p.relay_id = p_relay_id and p.event_id = p_event_id for update;
  if not found then
    raise exception 'relay % has parked no event %', p_relay_id, p_event_id using errcode = 'OR004';
  elsif found_row.state <> 'parked' then
    raise exception 'event % is % already, since %', p_event_id, found_row.state, found_row.settled_at
      using errcode = 'OR010';
  elsif found_row.requested_at is not null and found_row.requested_epoch =
        (select s.epoch from relay.source_identity s where s.relay_id = p_relay_id) then
    raise exception 'event % is on its way already: % asked for it at %', p_event_id, found_row.requested_by,
        found_row.requested_at using errcode = 'OR010';
  end if;
  return found_row;
end;
$$;

-- Ask the running relay to publish a parked event again: the message stands in the WAL where this transaction
-- commits, and the relay publishes the event there, with its own checkpoint. `p_payload` corrects the payload
-- (`p_why` must say why); the event's id and the payload that came stay. Returns the request's number.
create function relay.republish_parked(p_relay_id uuid, p_event_id uuid, p_who text, p_why text default null,
    p_payload text default null) returns integer
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  known relay.parked_event := relay.parked_for_request(p_relay_id, p_event_id);
begin
  if p_payload is not null and coalesce(btrim(p_why), '') = '' then
    raise exception 'a correction says why' using errcode = '22004';
  end if;
  update relay.parked_event p
     set correction = coalesce(p_payload, p.correction),
         request_no = known.request_no + 1,
         requested_at = relay.now(),
         requested_by = coalesce(p_who, session_user),
         requested_epoch = (select s.epoch from relay.source_identity s where s.relay_id = p_relay_id),
         published_epoch = null, published_lsn = null, published_index = null,
         history = p.history || jsonb_build_object('action', 'republish', 'at', relay.now(),
           'who', coalesce(p_who, session_user), 'login', session_user, 'why', p_why, 'payload', p_payload)
   where p.relay_id = p_relay_id and p.event_id = p_event_id;
  perform pg_logical_emit_message(true, 'relay.republish', json_build_object('relay_id', p_relay_id,
    'event_id', p_event_id, 'request', known.request_no + 1)::text);
  return known.request_no + 1;
end;
$$;

-- Give a parked event up. Events of its key that wait behind it may then go: the message tells the relay where.
create function relay.discard_parked(p_relay_id uuid, p_event_id uuid, p_who text, p_why text) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  known relay.parked_event := relay.parked_for_request(p_relay_id, p_event_id);
begin
  if coalesce(btrim(p_why), '') = '' then
    raise exception 'to discard an event says why' using errcode = '22004';
  end if;
  update relay.parked_event p
     set state = 'discarded', settled_at = relay.now(), request_no = known.request_no + 1,
         history = p.history || jsonb_build_object('action', 'discard', 'at', relay.now(),
           'who', coalesce(p_who, session_user), 'login', session_user, 'why', p_why)
   where p.relay_id = p_relay_id and p.event_id = p_event_id;
  perform pg_logical_emit_message(true, 'relay.republish', json_build_object('relay_id', p_relay_id,
    'event_id', p_event_id, 'request', known.request_no + 1)::text);
end;
$$;

-- An event without a table, in the caller's own transaction: for a relay with RELAY_OUTBOX_SOURCE = message.
-- Returns the event's id. What can't be sent can't be committed: the payload has the same bound as the outbox's.
create function relay.emit_event(event_type text, operation_id text, payload jsonb,
    schema_version integer default 1, version integer default null, headers jsonb default '{}',
    event_id uuid default gen_random_uuid(), occurred_at timestamptz default null) returns uuid
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  at timestamptz := coalesce($8, relay.now());
begin
  if $1 is null or $2 is null or $3 is null or $4 is null or $7 is null then
    raise exception 'event_type, operation_id, payload, schema_version and event_id must not be null'
      using errcode = '22004';
  elsif $1 !~ '^[A-Za-z0-9._-]{1,150}$' then
    raise exception 'the event type % has a character that no topic may have, or more than 150', $1
      using errcode = '22023';
  elsif octet_length($3::text) > 900000 or octet_length($6::text) > 8192 or octet_length($2) > 8192 then
    raise exception 'the event is too large: payload 900000 bytes, headers and operation_id 8192 each at most'
      using errcode = '54000';
  elsif jsonb_typeof($6) <> 'object' then
    raise exception 'headers must be an object' using errcode = '22023';
  end if;
  -- The payload goes in as its text: json_build_object keeps it so.
  perform pg_logical_emit_message(true, 'outbox', json_build_object(
    'event_id', $7, 'event_type', $1, 'schema_version', $4, 'operation_id', $2, 'version', $5,
    'occurred_at', to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    'headers', $6, 'payload', $3)::text);
  return $7;
end;
$$;

revoke execute on function relay.parked_for_request, relay.republish_parked, relay.discard_parked, relay.emit_event
  from public;
grant execute on function relay.republish_parked, relay.discard_parked to relay_operator;
grant execute on function relay.emit_event to relay_app;
