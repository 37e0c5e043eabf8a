-- What applications and consumers call, and who may do what.

-- SHA-256 over a versioned, length-prefixed encoding: each field is four bytes of length, big-endian, then its
-- UTF-8 bytes; an absent field is ffffffff. consumers/operations/specification.py computes the same.
create function relay.hashed_field(field text) returns bytea
  language sql immutable
as $$
  select case when field is null then '\xffffffff'::bytea
              else int4send(octet_length(convert_to(field, 'UTF8'))) || convert_to(field, 'UTF8') end
$$;

create function relay.specification_hash(p_kind text, p_provider text, p_profile_digest text,
    p_payload_version integer, p_max_cost numeric, p_cost_unit text, p_payload text) returns text
  language sql immutable set search_path = pg_catalog, pg_temp
as $$
  select encode(sha256(
    relay.hashed_field('outbox-relay/specification/1') || relay.hashed_field(p_kind)
    || relay.hashed_field(p_provider) || relay.hashed_field(p_profile_digest)
    || relay.hashed_field(p_payload_version::text)
    || relay.hashed_field(trim_scale(p_max_cost::numeric(20, 6))::text) || relay.hashed_field(p_cost_unit)
    || relay.hashed_field('payload') || relay.hashed_field(p_payload)), 'hex')
$$;

-- Prepare an operation in the caller's own transaction and return its row. Called again with the same owner,
-- kind, key and specification it returns the existing row, whatever its phase; with another specification it
-- raises OR001, which names both hashes. A profile that was pushed in between changes nothing: the repeat is
-- compared under the digest that the operation was approved with. Under REPEATABLE READ or SERIALIZABLE a
-- concurrent call gives 40001: retry the whole transaction.
create function relay.prepare_operation(
    kind text, owner_id text, operation_key text, payload jsonb, provider text, max_cost numeric,
    cost_unit text default 'credit', payload_version integer default 1, account text default 'default',
    source_ref text default null, not_before timestamptz default null, requested_by text default null,
    traceparent text default null) returns relay.operation
  language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  lifecycle text;
  current_digest text;
  canonical text := $4::text;
  found_row relay.operation;
  wanted_hash text;
begin
  if $2 is null or $3 is null or $4 is null or $6 is null then
    raise exception 'owner_id, operation_key, payload and max_cost must not be null' using errcode = '22004';
  end if;
  if $6 < 0 or $6 = 'NaN' then
    raise exception 'max_cost % is not an amount', $6 using errcode = '22003';
  elsif round($6, 6) <> $6 then
    raise exception 'max_cost % has more than six decimals', $6 using errcode = '22003';
  end if;
  select k.lifecycle into lifecycle from relay.operation_kind k where k.kind = $1;
  if not found then
    raise exception 'the kind % is not registered in relay.operation_kind', $1 using errcode = 'OR003';
  elsif lifecycle = 'delivery' then
    raise exception 'a % is prepared by its parent''s success alone', $1 using errcode = 'OR003';
  end if;
  select a.current_digest into current_digest from relay.provider_account a
   where a.provider = $5 and a.account = $9;
  if not found then
    raise exception 'the provider % has no account % here', $5, $9
      using errcode = 'OR002', hint = 'relay init registers the profiles it finds in RELAY_PROFILES.';
  end if;
  wanted_hash := relay.specification_hash($1, $5, current_digest, $8, $6, $7, canonical);

  insert into relay.operation (kind, owner_id, operation_key, specification_hash, payload, payload_version,
      max_cost, cost_unit, provider, account, profile_digest, source_ref, requested_by, traceparent, not_before,
      phase, phase_reason)
  values ($1, $2, $3, wanted_hash, canonical, $8, $6, $7, $5, $9, current_digest, $10,
      coalesce($12, relay.context('actor'), session_user), $13, case when $11 > relay.now() then $11 end,
      'prepared', 'approved')
  on conflict (owner_id, kind, operation_key) do nothing
  returning * into found_row;
  if found then
    return found_row;
  end if;

  -- A second statement, with a snapshot of its own: the row that won may be younger than the first's.
  select * into strict found_row from relay.operation o
   where o.owner_id = $2 and o.kind = $1 and o.operation_key = $3;
  wanted_hash := relay.specification_hash($1, $5, found_row.profile_digest, $8, $6, $7, canonical);
  if found_row.specification_hash <> wanted_hash then
    raise exception 'the key % of owner % (%) already has the specification %, and this call has %',
        $3, $2, $1, found_row.specification_hash, wanted_hash
      using errcode = 'OR001', detail = 'operation ' || found_row.operation_id,
            hint = 'Another revision needs another operation key.';
  end if;
  return found_row;
end;
$$;

-- The delivery of a succeeded operation's outputs: its owner, unique per parent. Call it in the transaction
-- that records the success.
create function relay.prepare_delivery(p_parent uuid) returns uuid
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  parent relay.operation;
  content text;
  made uuid;
begin
  select * into parent from relay.operation where operation_id = p_parent for update;
  if not found then
    raise exception 'there is no operation %', p_parent using errcode = 'OR004';
  elsif parent.phase <> 'succeeded' then
    raise exception 'operation % is %, not succeeded', p_parent, parent.phase using errcode = 'OR012';
  end if;
  select jsonb_build_object('outputs', count(*))::text into content from relay.output o where o.operation_id = p_parent;
  insert into relay.operation (kind, owner_id, operation_key, specification_hash, payload, payload_version,
      max_cost, cost_unit, requested_by, traceparent, parent_operation_id, source_ref, phase, phase_reason)
  values ('delivery', parent.owner_id, parent.operation_id::text,
      relay.specification_hash('delivery', null, null, 1, 0, parent.cost_unit, content),
      content, 1, 0, parent.cost_unit, coalesce(relay.context('actor'), session_user), parent.traceparent,
      parent.operation_id, parent.source_ref, 'prepared', 'parent succeeded')
  on conflict (owner_id, kind, operation_key) do nothing
  returning operation_id into made;
  return made;
end;
$$;

-- Ask for a cancel. What hasn't been claimed is cancelled at once; the dispatcher's hook obeys the flag; after
-- that only the provider can.
create function relay.request_cancel(p_operation_id uuid, p_reason text) returns text
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  result text;
begin
  perform set_config('relay.actor', coalesce(relay.context('actor'), session_user), true),
          set_config('relay.cause', 'cancel', true), set_config('relay.reason', p_reason, true),
          set_config('relay.attempt_id', '', true), set_config('relay.review_id', '', true);
  update relay.operation set cancel_requested = true,
         phase = case when phase in ('prepared', 'held') then 'cancelled' else phase end,
         phase_reason = case when phase in ('prepared', 'held') then 'cancel' else phase_reason end
   where operation_id = p_operation_id and not is_final returning phase into result;
  if not found then
    select phase into result from relay.operation where operation_id = p_operation_id;
    if not found then
      raise exception 'there is no operation %', p_operation_id using errcode = 'OR004';
    end if;
  end if;
  return result;
end;
$$;

-- Why nothing may be claimed, or null when dispatch is open: the database must be the very one that the relay
-- matched with Kafka's checkpoint (same cluster, same timeline, same start of the server).
create function relay.dispatch_gate() returns text
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
  if known.state <> 'running' then
    return 'the relay is ' || known.state;
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

-- Grants ---------------------------------------------------------------------------------------------------

revoke execute on all functions in schema relay from public;
grant execute on function relay.now(), relay.context(text)
  to relay_app, relay_replicator, relay_worker, relay_operator, relay_reader;

grant select on all tables in schema relay to relay_worker, relay_operator, relay_reader;
grant select on relay.operation, relay.journal, relay.output, relay.allowance, relay.operation_kind to relay_app;
grant execute on function relay.prepare_operation, relay.request_cancel to relay_app, relay_operator;

grant update (phase, phase_reason, job_id, claim_token, claimed_by, lease_expires_at, not_before, next_action_at,
              observed_at, observations, accounting) on relay.operation to relay_worker, relay_operator;
grant insert (attempt_id, operation_id, action, dispatch_no, worker, first_sent_at, finished_at, outcome,
              outcome_reason, http_status, request_sha256, idempotency_key, spool, late_delivery_until, evidence)
  on relay.attempt to relay_worker;
grant update (finished_at, outcome, outcome_reason, charged, http_status, evidence) on relay.attempt to relay_worker;
grant update (outcome, outcome_reason, released_by_review, evidence) on relay.attempt to relay_operator;
grant insert, update (state, cost, role) on relay.remote_job to relay_worker, relay_operator;
grant insert on relay.output to relay_worker;
grant update (url, content_type, expected_bytes, expected_sha256, stored_key, stored_bytes, stored_sha256, stored_at)
  on relay.output to relay_worker;
grant insert (operation_id, attempt_id, kind, deadline, evidence, severity) on relay.review to relay_worker, relay_operator;
grant update (evidence, severity) on relay.review to relay_worker;
grant update (state, resolution, resolution_reason, resolved_by, evidence, severity) on relay.review to relay_operator;
grant insert on relay.incident to relay_worker, relay_operator;
grant update (paused_at, paused_reason, failure_reason, failures_in_a_row) on relay.provider_account
  to relay_worker, relay_operator;
grant execute on function relay.emit, relay.reserve, relay.settle, relay.prepare_delivery, relay.dispatch_gate,
  relay.specification_hash, relay.hashed_field to relay_worker;
grant execute on function relay.emit, relay.settle, relay.dispute, relay.set_allowance, relay.dispatch_gate,
  relay.specification_hash, relay.hashed_field to relay_operator;
grant execute on function relay.dispatch_gate to relay_reader;
