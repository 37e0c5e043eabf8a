-- Operations: the durable record of what was approved, what was tried, and what is known.

-- Lifecycles are data -------------------------------------------------------------------------------------

create table relay.lifecycle_phase (
  lifecycle text not null,
  phase text not null,
  is_final boolean not null,
  primary key (lifecycle, phase)
);

-- from_phase is '' for the creation. A cause says which row must back the edge (0005 checks it).
create table relay.lifecycle_edge (
  lifecycle text not null,
  from_phase text not null,
  to_phase text not null,
  cause text not null,
  primary key (lifecycle, from_phase, to_phase, cause),
  foreign key (lifecycle, to_phase) references relay.lifecycle_phase (lifecycle, phase)
);

create table relay.operation_kind (
  kind text primary key check (kind ~ '^[a-z][a-z0-9_.-]{0,62}$'),
  lifecycle text not null,
  event_type text not null,
  event_version integer not null,
  -- An operation that stays prepared, or accepted without an observation, is emitted again after this.
  reemit_after interval not null default interval '60 seconds' check (reemit_after > interval '0')
);

insert into relay.lifecycle_phase (lifecycle, phase, is_final) values
  ('generation', 'prepared', false), ('generation', 'claimed', false), ('generation', 'submitting', false),
  ('generation', 'uncertain', false), ('generation', 'held', false), ('generation', 'accepted', false),
  ('generation', 'succeeded', true), ('generation', 'failed', true), ('generation', 'rejected', true),
  ('generation', 'cancelled', true), ('generation', 'abandoned', true), ('generation', 'lost', true),
  ('delivery', 'prepared', false), ('delivery', 'claimed', false), ('delivery', 'held', false),
  ('delivery', 'stored', true), ('delivery', 'failed', true), ('delivery', 'cancelled', true);

insert into relay.lifecycle_edge (lifecycle, from_phase, to_phase, cause) values
  ('generation', '', 'prepared', 'requested'),
  ('generation', 'prepared', 'claimed', 'claim'),
  ('generation', 'prepared', 'held', 'hold'),
  ('generation', 'prepared', 'cancelled', 'cancel'),
  ('generation', 'claimed', 'submitting', 'submit'),
  ('generation', 'claimed', 'prepared', 'lease_expired'),
  ('generation', 'claimed', 'prepared', 'unsent'),
  ('generation', 'claimed', 'held', 'hold'),
  ('generation', 'claimed', 'held', 'unsent'),
  ('generation', 'claimed', 'cancelled', 'cancel'),
  ('generation', 'submitting', 'accepted', 'answer'),
  ('generation', 'submitting', 'accepted', 'late_answer'),
  ('generation', 'submitting', 'rejected', 'rule'),
  ('generation', 'submitting', 'prepared', 'refused'),
  ('generation', 'submitting', 'prepared', 'unsent'),
  ('generation', 'submitting', 'held', 'refused'),
  ('generation', 'submitting', 'held', 'unsent'),
  ('generation', 'submitting', 'uncertain', 'unknown'),
  ('generation', 'submitting', 'uncertain', 'lease_expired'),
  ('generation', 'uncertain', 'accepted', 'late_answer'),
  ('generation', 'uncertain', 'accepted', 'review'),
  ('generation', 'uncertain', 'rejected', 'rule'),
  ('generation', 'uncertain', 'rejected', 'review'),
  ('generation', 'uncertain', 'prepared', 'review'),
  ('generation', 'uncertain', 'cancelled', 'review'),
  ('generation', 'uncertain', 'abandoned', 'review'),
  ('generation', 'held', 'prepared', 'release'),
  ('generation', 'held', 'prepared', 'review'),
  ('generation', 'held', 'rejected', 'review'),
  ('generation', 'held', 'cancelled', 'review'),
  ('generation', 'held', 'cancelled', 'cancel'),
  ('generation', 'prepared', 'accepted', 'late_answer'),
  ('generation', 'held', 'accepted', 'late_answer'),
  ('generation', 'claimed', 'accepted', 'late_answer'),
  ('generation', 'accepted', 'succeeded', 'observation'),
  ('generation', 'accepted', 'failed', 'observation'),
  ('generation', 'accepted', 'cancelled', 'observation'),
  ('generation', 'accepted', 'lost', 'review'),
  ('generation', 'abandoned', 'accepted', 'review'),
  ('generation', 'rejected', 'accepted', 'review'),
  ('generation', 'cancelled', 'accepted', 'review'),
  ('delivery', '', 'prepared', 'requested'),
  ('delivery', 'prepared', 'claimed', 'claim'),
  ('delivery', 'prepared', 'cancelled', 'cancel'),
  ('delivery', 'claimed', 'stored', 'download'),
  ('delivery', 'claimed', 'failed', 'download'),
  ('delivery', 'claimed', 'prepared', 'lease_expired'),
  ('delivery', 'claimed', 'prepared', 'retry'),
  ('delivery', 'claimed', 'held', 'hold'),
  ('delivery', 'claimed', 'cancelled', 'cancel'),
  ('delivery', 'held', 'prepared', 'review'),
  ('delivery', 'held', 'cancelled', 'cancel'),
  ('delivery', 'held', 'cancelled', 'review'),
  ('delivery', 'failed', 'prepared', 'operator');

insert into relay.operation_kind (kind, lifecycle, event_type, event_version) values
  ('generation', 'generation', 'generation.requested', 2),
  ('delivery', 'delivery', 'delivery.requested', 1);

-- Providers ------------------------------------------------------------------------------------------------

create table relay.provider_profile (
  provider text not null,
  digest text not null check (digest ~ '^[0-9a-f]{64}$'),
  document text not null,
  pushed_at timestamptz not null default relay.now(),
  primary key (provider, digest),
  check (encode(sha256(convert_to(document, 'UTF8')), 'hex') = digest)
);
select relay.forbid('relay.provider_profile', 'update or delete', 'a released profile is immutable; push a new one');

create table relay.provider_account (
  provider text not null,
  account text not null default 'default',
  current_digest text not null,
  paused_at timestamptz,
  paused_reason text,
  -- Three equal generic failures in a row pause the account.
  failure_reason text,
  failures_in_a_row integer not null default 0,
  primary key (provider, account),
  foreign key (provider, current_digest) references relay.provider_profile (provider, digest)
);

-- The operation --------------------------------------------------------------------------------------------

create table relay.operation (
  operation_id uuid primary key default gen_random_uuid(),
  kind text not null references relay.operation_kind,
  owner_id text not null check (length(owner_id) between 1 and 200),
  operation_key text not null check (length(operation_key) between 1 and 300),
  specification_hash text not null check (specification_hash ~ '^[0-9a-f]{64}$'),
  -- As canonicalised once, by jsonb::text. Workers hash these bytes and never write them again.
  payload text not null check (octet_length(payload) <= 16777216),
  payload_version integer not null check (payload_version > 0),
  max_cost numeric(20, 6) not null check (max_cost >= 0 and max_cost <> 'NaN'),
  cost_unit text not null check (length(cost_unit) between 1 and 40),
  provider text,
  account text,
  profile_digest text,
  source_ref text,
  requested_by text not null,
  traceparent text,

  phase text not null,
  phase_reason text not null,
  is_final boolean not null default false,
  job_id text,
  dispatch_no integer not null default 1,
  version integer not null default 1,

  claim_token uuid,
  claimed_by text,
  lease_expires_at timestamptz,
  not_before timestamptz,
  next_action_at timestamptz,
  held_at timestamptz,
  open_reviews integer not null default 0 check (open_reviews >= 0),
  observed_at timestamptz,
  observations integer not null default 0,
  accounting text not null default 'none'
    check (accounting in ('none', 'reserved', 'unsettled', 'settled', 'disputed')),
  cancel_requested boolean not null default false,

  parent_operation_id uuid,
  created_at timestamptz not null default relay.now(),
  updated_at timestamptz not null default relay.now(),

  unique (owner_id, kind, operation_key),
  unique (operation_id, owner_id),
  foreign key (parent_operation_id, owner_id) references relay.operation (operation_id, owner_id),
  foreign key (provider, profile_digest) references relay.provider_profile (provider, digest),
  check ((provider is null) = (profile_digest is null) and (provider is null) = (account is null)),
  check ((claim_token is null) = (lease_expires_at is null) and (claim_token is null) = (claimed_by is null)),
  check ((claim_token is not null) = (phase in ('claimed', 'submitting')))
);
create unique index operation_one_delivery on relay.operation (parent_operation_id) where kind = 'delivery';
create index operation_due on relay.operation (next_action_at) where next_action_at is not null;
create index operation_leased on relay.operation (lease_expires_at) where lease_expires_at is not null;
create index operation_open on relay.operation (phase, held_at) where not is_final;

-- One row per real outside action. A claim's token is the id of the one attempt that it may make.
create table relay.attempt (
  attempt_id uuid primary key,
  operation_id uuid not null references relay.operation,
  action text not null check (action in ('submit', 'observe', 'download')),
  dispatch_no integer not null,
  worker text not null,
  started_at timestamptz not null default relay.now(),
  first_sent_at timestamptz,
  finished_at timestamptz,
  outcome text not null default 'open' check (outcome in ('open', 'accepted', 'refused', 'unsent', 'unknown')),
  outcome_reason text,
  charged boolean,
  http_status integer,
  request_sha256 text,
  idempotency_key text,
  spool text,
  late_delivery_until timestamptz,
  released_by_review uuid,
  evidence jsonb not null default '{}',
  -- Until then a request that was given up may still be read by the provider: "not accepted" can't be decided.
  constraint attempt_may_arrive_late
    check (action <> 'submit' or outcome = 'unsent' or late_delivery_until is not null),
  constraint attempt_evidence_bounded check (octet_length(evidence::text) <= 65536)
);
create index attempt_of_operation on relay.attempt (operation_id, action, started_at);
-- Schedule looks for those that a process left open.
create index attempt_open on relay.attempt (started_at) where outcome = 'open';

-- Every id that a provider ever returned, even on an error, even late, even the second one.
create table relay.remote_job (
  -- A provider's and an account's name have 63 characters at most.
  provider_account text not null check (length(provider_account) between 1 and 127),
  job_id text not null check (length(job_id) between 1 and 512 and job_id !~ '[[:cntrl:]]'),
  operation_id uuid not null references relay.operation,
  attempt_id uuid references relay.attempt,
  role text not null check (role in ('primary', 'duplicate', 'candidate')),
  state text,
  cost numeric(20, 6) check (cost >= 0 and cost <> 'NaN'),
  first_seen_at timestamptz not null default relay.now(),
  primary key (provider_account, job_id, operation_id)
);
create unique index remote_job_one_primary on relay.remote_job (provider_account, job_id) where role = 'primary';
create index remote_job_of_operation on relay.remote_job (operation_id);

create table relay.output (
  operation_id uuid not null references relay.operation,
  ordinal integer not null check (ordinal >= 0),
  name text not null,
  url text not null,
  content_type text,
  expected_bytes bigint,
  expected_sha256 text,
  stored_key text,
  stored_bytes bigint,
  stored_sha256 text,
  stored_at timestamptz,
  recorded_at timestamptz not null default relay.now(),
  primary key (operation_id, ordinal)
);

-- The journal ----------------------------------------------------------------------------------------------

create table relay.journal (
  operation_id uuid not null references relay.operation,
  version integer not null check (version > 0),
  from_phase text,
  to_phase text not null,
  cause text not null,
  reason text not null,
  actor text not null,
  attempt_id uuid,
  review_id uuid,
  job_id text,
  dispatch_no integer not null,
  at timestamptz not null,
  primary key (operation_id, version)
);
select relay.forbid('relay.journal', 'update or delete', 'the journal is append-only');

-- Review and incident --------------------------------------------------------------------------------------

create table relay.review (
  review_id uuid primary key default gen_random_uuid(),
  operation_id uuid not null references relay.operation,
  attempt_id uuid references relay.attempt,
  kind text not null check (kind in (
    'hold', 'uncertain_submission', 'id_with_error', 'candidate_id', 'second_id', 'id_collision',
    'job_unknown', 'output_expired', 'contradiction')),
  state text not null default 'open' check (state in ('open', 'resolved', 'superseded')),
  severity integer not null default 1,
  revision integer not null default 1,
  opened_at timestamptz not null default relay.now(),
  deadline timestamptz not null,
  evidence jsonb not null default '{}' check (octet_length(evidence::text) <= 262144),
  resolution text,
  resolution_reason text,
  resolved_by text,
  resolved_at timestamptz,
  resolved_xid xid8
);
create index review_of_operation on relay.review (operation_id) where state = 'open';
create index review_open on relay.review (deadline) where state = 'open';

-- Each names the boundary that it crossed (docs/architecture.md draws them).
create table relay.incident (
  incident_id uuid primary key default gen_random_uuid(),
  operation_id uuid not null references relay.operation,
  attempt_id uuid references relay.attempt,
  boundary text not null check (boundary in (
    'application_commit', 'wal_to_kafka', 'claim', 'network', 'provider_reservation', 'id_commit')),
  what text not null,
  evidence jsonb not null default '{}' check (octet_length(evidence::text) <= 262144),
  opened_at timestamptz not null default relay.now()
);

select relay.forbid('relay.operation', 'delete', 'the operation is the durable record; pruning never touches it');
select relay.forbid('relay.attempt', 'delete', 'an attempt is evidence');
select relay.forbid('relay.remote_job', 'delete', 'nothing paid for is forgotten');
select relay.forbid('relay.output', 'delete', 'an output is evidence');
select relay.forbid('relay.review', 'delete', 'a review is a record');
select relay.forbid('relay.incident', 'update or delete', 'an incident is a record');
