-- A payload may be an immutable reference: where it is, the SHA-256 of its bytes, and how many there are. The
-- specification covers digest and length, so that the same bytes elsewhere are the same specification.
--
-- prepare_operation has three more arguments, at its end, and is otherwise that of 0006.

alter table relay.operation
  alter column payload drop not null,
  add column payload_ref text check (length(payload_ref) between 1 and 2048),
  add column payload_sha256 text check (payload_sha256 ~ '^[0-9a-f]{64}$'),
  -- As large as a payload in the row may be.
  add column payload_bytes bigint check (payload_bytes between 0 and 16777216),
  add constraint operation_payload_or_reference check (payload is null or payload_sha256 is null),
  add constraint operation_reference_whole check ((payload_sha256 is null) = (payload_bytes is null)
                                                  and (payload_ref is null or payload_sha256 is not null));
comment on column relay.operation.payload_ref is
  'file:///…, https://… or s3://bucket/key, without a credential. The specification doesn''t cover it.';

create function relay.reference_hash(p_kind text, p_provider text, p_profile_digest text,
    p_payload_version integer, p_max_cost numeric, p_cost_unit text, p_sha256 text, p_bytes bigint) returns text
  language sql immutable set search_path = pg_catalog, pg_temp
as $$
  select encode(sha256(
    relay.hashed_field('outbox-relay/specification/1') || relay.hashed_field(p_kind)
    || relay.hashed_field(p_provider) || relay.hashed_field(p_profile_digest)
    || relay.hashed_field(p_payload_version::text)
    || relay.hashed_field(trim_scale(p_max_cost::numeric(20, 6))::text) || relay.hashed_field(p_cost_unit)
    || relay.hashed_field('payload_ref') || relay.hashed_field(p_sha256) || relay.hashed_field(p_bytes::text)),
    'hex')
$$;

drop function relay.prepare_operation(text, text, text, jsonb, text, numeric, text, integer, text, text, timestamptz,
                                      text, text);

-- Prepare an operation in the caller's own transaction and return its row. Called again with the same owner,
-- kind, key and specification it returns the existing row, whatever its phase; with another specification it
-- raises OR001, which names both hashes. A profile that was pushed in between changes nothing: the repeat is
-- compared under the digest that the operation was approved with. Under REPEATABLE READ or SERIALIZABLE a
-- concurrent call gives 40001: retry the whole transaction.
--
-- Give `payload`, or `payload_ref` with `payload_sha256` and `payload_bytes`: the dispatcher then fetches the bytes
-- and sends nothing unless they are these.
create function relay.prepare_operation(
    kind text, owner_id text, operation_key text, payload jsonb default null, provider text default null,
    max_cost numeric default null, cost_unit text default 'credit', payload_version integer default 1,
    account text default 'default', source_ref text default null, not_before timestamptz default null,
    requested_by text default null, traceparent text default null, payload_ref text default null,
    payload_sha256 text default null, payload_bytes bigint default null) returns relay.operation
  language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  lifecycle text;
  current_digest text;
  canonical text := $4::text;
  digest text := lower($15);
  found_row relay.operation;
  wanted_hash text;
begin
  if $2 is null or $3 is null or $6 is null then
    raise exception 'owner_id, operation_key and max_cost must not be null' using errcode = '22004';
  elsif num_nonnulls($4, $14) <> 1 then
    raise exception 'give payload, or payload_ref with payload_sha256 and payload_bytes' using errcode = '22004';
  elsif $14 is null and num_nonnulls($15, $16) > 0 then
    raise exception 'payload_sha256 and payload_bytes belong to a payload_ref' using errcode = '22023';
  elsif $14 is not null and num_nonnulls($15, $16) <> 2 then
    raise exception 'a payload_ref needs payload_sha256 and payload_bytes: what is there later must be what was approved'
      using errcode = '22004';
  end if;
  if $14 is not null then
    -- Without the reference itself: an address may have a signature in it.
    if $14 !~ '^(file:///|https://[^/?#@[:space:]]+/|s3://[^/?#@[:space:]]+/)[^[:space:][:cntrl:]#]+$'
       or length($14) > 2048 then
      raise exception 'the payload_ref is not file:///…, https://host/… or s3://bucket/key, at most 2048 characters, without user, password or fragment'
        using errcode = '22023';
    elsif digest !~ '^[0-9a-f]{64}$' then
      raise exception 'payload_sha256 is not 64 hexadecimal digits' using errcode = '22023';
    elsif $16 not between 0 and 16777216 then
      raise exception 'payload_bytes is %, and a payload has at most 16777216', $16 using errcode = '22023';
    end if;
  end if;
  if $6 < 0 or $6 = 'NaN' then
    raise exception 'max_cost % is not an amount', $6 using errcode = '22003';
  elsif round($6, 6) <> $6 then
    raise exception 'max_cost % has more than six decimals', $6 using errcode = '22003';
  elsif $6 >= 1e14 then
    raise exception 'max_cost % is 10^14 or more, which no column holds', $6 using errcode = '22003';
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
  wanted_hash := case when $14 is null
    then relay.specification_hash($1, $5, current_digest, $8, $6, $7, canonical)
    else relay.reference_hash($1, $5, current_digest, $8, $6, $7, digest, $16) end;

  insert into relay.operation (kind, owner_id, operation_key, specification_hash, payload, payload_ref,
      payload_sha256, payload_bytes, payload_version, max_cost, cost_unit, provider, account, profile_digest,
      source_ref, requested_by, traceparent, not_before, phase, phase_reason)
  values ($1, $2, $3, wanted_hash, canonical, $14, digest, $16, $8, $6, $7, $5, $9, current_digest, $10,
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
  wanted_hash := case when $14 is null
    then relay.specification_hash($1, $5, found_row.profile_digest, $8, $6, $7, canonical)
    else relay.reference_hash($1, $5, found_row.profile_digest, $8, $6, $7, digest, $16) end;
  if found_row.specification_hash <> wanted_hash then
    raise exception 'the key % of owner % (%) already has the specification %, and this call has %',
        $3, $2, $1, found_row.specification_hash, wanted_hash
      using errcode = 'OR001', detail = 'operation ' || found_row.operation_id,
            hint = 'Another revision needs another operation key.';
  end if;
  return found_row;
end;
$$;

-- What was approved can't change: digest and length never, and the place of the bytes neither, since it is what a
-- person looked at.
create function relay.guard_reference() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if (new.payload_ref, new.payload_sha256, new.payload_bytes) is distinct from
     (old.payload_ref, old.payload_sha256, old.payload_bytes) then
    raise exception 'operation %: what was approved can''t change', old.operation_id using errcode = 'OR010';
  end if;
  return new;
end;
$$;
create trigger b_guard_reference before update on relay.operation
  for each row execute function relay.guard_reference();
alter table relay.operation enable always trigger b_guard_reference;

revoke execute on function relay.reference_hash, relay.prepare_operation, relay.guard_reference from public;
grant execute on function relay.prepare_operation to relay_app, relay_operator;
grant execute on function relay.reference_hash to relay_worker, relay_operator;
