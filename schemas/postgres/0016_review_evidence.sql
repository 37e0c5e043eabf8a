-- Each review has the deadline that its profile declares for its kind, whoever opens it; and what can be asked of the
-- provider is asked at once: the event evidence.requested goes out with the review, and schedule repeats it when due.

-- Deadlines --------------------------------------------------------------------------------------------------

-- Seconds until a review of this kind is urgent; `default` for the others. Written when a profile is registered.
create table relay.review_deadline (
  provider text not null,
  digest text not null,
  kind text not null check (length(kind) between 1 and 63),
  seconds double precision not null check (seconds > 0),
  primary key (provider, digest, kind),
  foreign key (provider, digest) references relay.provider_profile (provider, digest)
);
select relay.forbid('relay.review_deadline', 'update or delete', 'a released profile is immutable; push a new one');

-- Evidence ---------------------------------------------------------------------------------------------------

-- When the provider is to be asked (again); null: there is nothing to ask.
alter table relay.review add column next_evidence_at timestamptz,
                         add column evidence_asked integer not null default 0;
create index review_evidence_due on relay.review (next_evidence_at)
  where state = 'open' and next_evidence_at is not null;

create function relay.begin_review() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  about record;
  allowed double precision;
begin
  -- A delivery has its parent's provider.
  select coalesce(o.provider, p.provider) as provider, coalesce(o.profile_digest, p.profile_digest) as digest,
         o.provider is not null as asks
    into about
    from relay.operation o left join relay.operation p on p.operation_id = o.parent_operation_id
   where o.operation_id = new.operation_id;
  select d.seconds into allowed from relay.review_deadline d
   where d.provider = about.provider and d.digest = about.digest and d.kind in (new.kind, 'default')
   order by d.kind = 'default' limit 1;
  if found then
    -- Ten years: what is longer has no date in every client.
    new.deadline := new.opened_at + make_interval(secs => least(allowed, 315360000));
  end if;
  if about.asks and new.kind not in ('hold', 'output_expired') then
    new.next_evidence_at := new.opened_at;
  end if;
  return new;
end;
$$;
create trigger a_begin before insert on relay.review
  for each row execute function relay.begin_review();
alter table relay.review enable always trigger a_begin;

-- Ask for evidence about an open review: its event is written, and it is repeated later and later until somebody
-- says when to look again. Null: the review is closed, or there is nothing to ask.
create function relay.emit_evidence(p_review_id uuid) returns uuid
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  about relay.operation;
  asked integer;
  event uuid;
begin
  -- The operation before its review, as everywhere; and seq is commit order per operation.
  select o.* into about from relay.operation o
   where o.operation_id = (select r.operation_id from relay.review r where r.review_id = p_review_id) for update;
  if not found then
    raise exception 'there is no review %', p_review_id using errcode = 'OR004';
  end if;
  update relay.review
     set evidence_asked = evidence_asked + 1,
         next_evidence_at = relay.now() + interval '1 minute' * power(2, least(evidence_asked, 6))
   where review_id = p_review_id and state = 'open' and next_evidence_at is not null
   returning evidence_asked into asked;
  if not found then
    return null;
  end if;
  insert into relay.outbox (event_type, schema_version, operation_id, version, payload, headers)
  values ('evidence.requested', 1, about.operation_id, about.version,
          jsonb_build_object('operation_id', about.operation_id, 'review_id', p_review_id),
          case when about.traceparent is null then '{}'
               else jsonb_build_object('traceparent', about.traceparent) end)
  returning event_id into event;
  return event;
end;
$$;

create function relay.after_review_opened() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if new.next_evidence_at is not null then
    perform relay.emit_evidence(new.review_id);
  end if;
  return null;
end;
$$;
create trigger d_evidence after insert on relay.review
  for each row execute function relay.after_review_opened();
alter table relay.review enable always trigger d_evidence;

-- An application writes no event that asks for evidence either.
create function relay.guard_evidence_event() returns trigger
  language plpgsql
as $$
begin
  -- Not in the trigger's condition: a column that stands there can't change its type.
  if not pg_has_role(current_user, (select c.relowner from pg_class c where c.oid = tg_relid), 'usage')
     and new.event_type = 'evidence.requested' then
    raise exception 'the event type % is written with the reviews of operations alone', new.event_type
      using errcode = 'OR010';
  end if;
  return new;
end;
$$;
create trigger b_guard_evidence before insert on relay.outbox
  for each row execute function relay.guard_evidence_event();
alter table relay.outbox enable always trigger b_guard_evidence;

-- What is prepared -------------------------------------------------------------------------------------------

-- Says in words what the columns' constraints would refuse by their names: whatever prepares operations, the
-- application reads one sentence.
create function relay.guard_words() returns trigger
  language plpgsql
as $$
declare
  said text;
begin
  said := case
    when new.owner_id is null or new.owner_id !~ '[^[:space:]]' then
      'owner_id is empty: it says whose operation this is, in 1 to 200 characters'
    when length(new.owner_id) > 200 then
      format('owner_id has %s characters, and at most 200 are kept', length(new.owner_id))
    when new.operation_key is null or new.operation_key !~ '[^[:space:]]' then
      'operation_key is empty: it makes a repeated call the same operation, in 1 to 300 characters'
    when length(new.operation_key) > 300 then
      format('operation_key has %s characters, and at most 300 are kept', length(new.operation_key))
    when new.payload_version is null or new.payload_version < 1 then
      format('payload_version is %s: versions begin at 1', coalesce(new.payload_version::text, 'null'))
    when new.max_cost is null or new.max_cost < 0 or new.max_cost = 'NaN' then
      format('max_cost is %s, which is not an amount', coalesce(new.max_cost::text, 'null'))
    when new.cost_unit is null or new.cost_unit !~ '[^[:space:]]' or length(new.cost_unit) > 40 then
      format('cost_unit is %L: it names the unit of max_cost, in 1 to 40 characters', left(new.cost_unit, 60))
    when octet_length(new.payload) > 16777216 then
      format('the payload has %s bytes, and at most 16777216 are kept', octet_length(new.payload))
    when length(new.source_ref) > 2000 then
      format('source_ref has %s characters, and at most 2000 are kept', length(new.source_ref))
    when length(new.traceparent) > 512 then
      format('traceparent has %s characters, and at most 512 are kept', length(new.traceparent))
    when length(new.requested_by) > 200 then
      format('requested_by has %s characters, and at most 200 are kept', length(new.requested_by))
    when not isfinite(new.not_before) then
      format('not_before is %s, which never comes', new.not_before)
  end;
  if said is not null then
    raise exception '%', said using errcode = '22023', hint = 'Nothing was prepared.';
  end if;
  return new;
end;
$$;
create trigger a_words before insert on relay.operation
  for each row execute function relay.guard_words();
alter table relay.operation enable always trigger a_words;

-- Grants -----------------------------------------------------------------------------------------------------

revoke execute on function relay.begin_review(), relay.emit_evidence(uuid), relay.after_review_opened(),
  relay.guard_evidence_event(), relay.guard_words() from public;
grant select on relay.review_deadline to relay_worker, relay_operator, relay_reader;
grant update (next_evidence_at) on relay.review to relay_worker, relay_operator;
grant execute on function relay.emit_evidence to relay_worker, relay_operator;

-- Reviews that are open already: the provider is asked about them too.
update relay.review r set next_evidence_at = relay.now()
 where r.state = 'open' and r.next_evidence_at is null and r.kind not in ('hold', 'output_expired')
   and exists (select 1 from relay.operation o where o.operation_id = r.operation_id and o.provider is not null);
