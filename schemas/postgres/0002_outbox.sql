-- The outbox, and what the relay remembers in Postgres. Nothing here knows what an operation is.

create table relay.outbox (
  event_id uuid primary key default gen_random_uuid(),
  seq bigint generated always as identity unique,
  event_type text not null check (event_type ~ '^[A-Za-z0-9._-]{1,150}$'),
  schema_version integer not null check (schema_version > 0),
  operation_id uuid not null,
  version integer check (version > 0),
  payload jsonb not null,
  headers jsonb not null default '{}' check (jsonb_typeof(headers) = 'object'),
  occurred_at timestamptz not null default relay.now(),
  -- What can't be sent can't be committed: Kafka's default message.max.bytes is 1,048,588, and a record
  -- carries headers and framing beside the payload.
  constraint outbox_payload_fits check (octet_length(payload::text) <= 900000),
  constraint outbox_headers_fit check (octet_length(headers::text) <= 8192)
);
comment on table relay.outbox is 'Insert-only. The relay reads its inserts from the WAL.';
comment on column relay.outbox.operation_id is 'The Kafka key.';
comment on column relay.outbox.version is 'The operation''s version; orders its events across topics.';

select relay.forbid('relay.outbox', 'update or delete', 'the outbox is insert-only; rows leave it by pruning alone');

-- What the source was when the relay last knew it (design-relay, section 4). One row per relay.
create table relay.source_identity (
  relay_id uuid primary key,
  slot_name text not null unique,
  publication text not null,
  outbox_table text not null,
  epoch integer not null check (epoch > 0),
  state text not null check (state in ('new', 'running', 'repairing')),
  system_identifier text not null,
  timeline integer not null,
  consistent_point pg_lsn not null,
  -- The highest seq that was visible when the slot was made: rows up to it may never come by in the stream.
  baseline_seq bigint not null default 0,
  -- Written by the relay after it matched Kafka's checkpoint; dispatch works only while this is true.
  verified_system_identifier text,
  verified_timeline integer,
  verified_server_started_at timestamptz,
  verified_at timestamptz,
  created_at timestamptz not null default relay.now()
);

-- Events that could not be sent. The row is committed before the dead-letter record is produced.
create table relay.parked_event (
  relay_id uuid not null,
  event_id uuid not null,
  event_type text not null,
  schema_version integer,
  operation_key text not null,
  commit_lsn pg_lsn not null,
  commit_index bigint not null,
  relay_epoch integer not null,
  reason_code text not null,
  reason text not null,
  topic text,
  payload text,
  payload_bytes bigint not null,
  parked_at timestamptz not null default relay.now(),
  state text not null default 'parked' check (state in ('parked', 'republished', 'discarded')),
  primary key (relay_id, event_id)
);

-- The inbox: what each consumer group was handed, and how it ended. A delivery is not an attempt.
create table relay.event_delivery (
  group_id text not null,
  event_id uuid not null,
  topic text not null,
  partition integer not null,
  "offset" bigint not null,
  first_seen_at timestamptz not null default relay.now(),
  last_seen_at timestamptz not null default relay.now(),
  times_seen integer not null default 1,
  last_outcome text not null check (last_outcome in ('handled', 'parked', 'retrying')),
  detail text,
  primary key (group_id, event_id)
);

-- The application may write events of its own; the operations' events are written by triggers alone.
grant insert (event_id, event_type, schema_version, operation_id, version, payload, headers) on relay.outbox to relay_app;
grant select on relay.outbox, relay.source_identity, relay.parked_event, relay.event_delivery
  to relay_replicator, relay_worker, relay_operator, relay_reader;
grant insert, update on relay.source_identity, relay.parked_event to relay_replicator;
grant update (state) on relay.parked_event to relay_operator;
grant insert, update on relay.event_delivery to relay_worker;
