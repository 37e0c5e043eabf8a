-- Whose operations a login may see and touch; a cancel that the provider has to confirm; redaction, the one permitted
-- change to what has ended.
--
-- Replaced: request_cancel of 0006 (for the login's own owners alone). Where a guard of 0005 has to let a redaction or a
-- cancel's attempt through, its text is edited as it is when this migration runs, so that what other migrations put
-- there stays.

-- Owners ---------------------------------------------------------------------------------------------------

-- `role` is a login or a group that it is a member of. An owner of '*' is every owner: until somebody takes that row
-- away, members of relay_app act for everybody, as they did before.
create table relay.app_owner (
  role text not null,
  owner_id text not null check (length(owner_id) between 1 and 200),
  primary key (role, owner_id)
);
comment on table relay.app_owner is 'Which logins of relay_app act for which owners; ''*'' is all. Written by the schema''s owner.';
insert into relay.app_owner (role, owner_id) values ('relay_app', '*');

-- The owners that this session's login acts for. The login counts and no role that it has set: a function that runs
-- with more rights asks for the same.
create function relay.owners_of_login() returns setof text
  language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select a.owner_id from relay.app_owner a join pg_roles r on r.rolname = a.role
   where pg_has_role(session_user, r.oid, 'member')
$$;

-- Whether it acts for p_owner_id. Workers and operators act for everybody, and so does whoever owns the tables.
create function relay.acts_for(p_owner_id text) returns boolean
  language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select pg_has_role(session_user, 'relay_worker', 'member') or pg_has_role(session_user, 'relay_operator', 'member')
      or pg_has_role(session_user, (select c.relowner from pg_class c where c.oid = 'relay.operation'::regclass), 'member')
      or exists (select 1 from relay.owners_of_login() o where o in ('*', p_owner_id))
$$;

create function relay.guard_owner() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if not relay.acts_for(new.owner_id) then
    raise exception 'the login % may not act for the owner %', session_user, new.owner_id
      using errcode = '42501', hint = 'The schema''s owner binds it: insert into relay.app_owner (role, owner_id) values (…).';
  end if;
  return new;
end;
$$;
-- Before the row is looked for among those that are there: a key of somebody else's tells nothing.
create trigger a_owner before insert on relay.operation for each row execute function relay.guard_owner();
alter table relay.operation enable always trigger a_owner;
create trigger a_owner before insert on relay.batch for each row execute function relay.guard_owner();
alter table relay.batch enable always trigger a_owner;

-- What a login may join or cancel must be its own: what is somebody else's isn't there for it.
create function relay.guard_own_member() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if not relay.acts_for(new.owner_id) then
    raise exception 'there is no operation %', new.operation_id using errcode = 'OR004';
  end if;
  return new;
end;
$$;
create trigger a_owner_update before update on relay.operation
  for each row when (new.batch_id is distinct from old.batch_id or new.cancel_requested is distinct from old.cancel_requested)
  execute function relay.guard_own_member();
alter table relay.operation enable always trigger a_owner_update;

alter table relay.operation enable row level security;
alter table relay.journal enable row level security;
alter table relay.output enable row level security;
alter table relay.allowance enable row level security;
alter table relay.batch enable row level security;

do $$
declare
  guarded text;
begin
  foreach guarded in array array['operation', 'journal', 'output', 'allowance', 'batch'] loop
    execute format('create policy services on relay.%I to relay_replicator, relay_worker, relay_operator, relay_reader'
                   ' using (true) with check (true)', guarded);
    -- Both subqueries stand alone: they are asked once for a statement, not for a row.
    execute format('create policy own on relay.%I for select to relay_app using (%s)', guarded,
      case when guarded in ('journal', 'output')
        then 'operation_id in (select o.operation_id from relay.operation o)'
        else '''*'' in (select relay.owners_of_login()) or owner_id in (select relay.owners_of_login())' end);
  end loop;
end;
$$;

-- Cancel ---------------------------------------------------------------------------------------------------

-- Ask for a cancel. What hasn't been claimed is cancelled at once; the dispatcher's hook obeys the flag; after
-- that only the provider can: relay ops cancel asks it, where its profile has a way.
create or replace function relay.request_cancel(p_operation_id uuid, p_reason text) returns text
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  result text;
begin
  perform 1 from relay.operation where operation_id = p_operation_id and relay.acts_for(owner_id);
  if not found then
    raise exception 'there is no operation %', p_operation_id using errcode = 'OR004';
  end if;
  perform set_config('relay.actor', coalesce(relay.context('actor'), session_user), true),
          set_config('relay.cause', 'cancel', true), set_config('relay.reason', p_reason, true),
          set_config('relay.attempt_id', '', true), set_config('relay.review_id', '', true);
  update relay.operation set cancel_requested = true,
         phase = case when phase in ('prepared', 'held') then 'cancelled' else phase end,
         phase_reason = case when phase in ('prepared', 'held') then 'cancel' else phase_reason end
   where operation_id = p_operation_id and not is_final returning phase into result;
  if not found then
    select phase into result from relay.operation where operation_id = p_operation_id;
  end if;
  return result;
end;
$$;

alter table relay.attempt drop constraint attempt_action_check;
alter table relay.attempt add constraint attempt_action_check check (action in ('submit', 'observe', 'download', 'cancel'));

-- Recorded before the first byte of the request that asks the provider to cancel. Refused unless the operation is
-- accepted with p_job_id, and when the provider was asked before, unless p_again says that this is known.
create function relay.begin_cancel(p_operation_id uuid, p_attempt_id uuid, p_job_id text, p_worker text,
    p_request_sha256 text, p_again boolean, p_reason text) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  subject relay.operation;
  earlier relay.attempt;
begin
  select * into subject from relay.operation where operation_id = p_operation_id for update;
  if not found then
    raise exception 'there is no operation %', p_operation_id using errcode = 'OR004';
  elsif subject.phase <> 'accepted' or subject.job_id is distinct from p_job_id then
    raise exception 'operation % is % with the job %: only the job that an accepted operation has is cancelled',
        p_operation_id, subject.phase, coalesce(subject.job_id, 'none') using errcode = 'OR012';
  end if;
  select * into earlier from relay.attempt a where a.operation_id = p_operation_id and a.action = 'cancel'
     and a.outcome in ('open', 'unknown', 'accepted') order by a.started_at desc limit 1;
  if found and not p_again then
    raise exception 'the provider was asked to cancel the job % at % already, and it is %', p_job_id,
        earlier.started_at, case earlier.outcome when 'accepted' then 'on it' else 'not known whether it heard' end
      using errcode = 'OR010', hint = format('See `relay ops show %s`; if it is to be asked once more, say --again.', p_operation_id);
  end if;
  perform relay.request_cancel(p_operation_id, p_reason);
  insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker, first_sent_at, request_sha256)
  values (p_attempt_id, p_operation_id, 'cancel', subject.dispatch_no, p_worker, relay.now(), p_request_sha256);
end;
$$;

-- What came of it. The operation stays as it is, and is observed next: what became of its job only that says.
create function relay.finish_cancel(p_attempt_id uuid, p_outcome text, p_reason text, p_http_status integer,
    p_evidence jsonb) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  of_operation uuid;
begin
  select operation_id into of_operation from relay.attempt where attempt_id = p_attempt_id and action = 'cancel';
  perform 1 from relay.operation where operation_id = of_operation for update;
  update relay.attempt
     set outcome = p_outcome, outcome_reason = p_reason, http_status = p_http_status, evidence = p_evidence,
         finished_at = coalesce(finished_at, relay.now())
   where attempt_id = p_attempt_id and action = 'cancel';
  if not found then
    raise exception 'there is no cancel %', p_attempt_id using errcode = 'OR004';
  end if;
  if p_outcome in ('accepted', 'unknown') then
    -- Asked for at once, however short a while ago it was observed; null where the operation has ended meanwhile.
    update relay.operation set observed_at = null where operation_id = of_operation and phase = 'accepted';
    perform relay.emit(of_operation) from relay.operation where operation_id = of_operation and phase = 'accepted';
  end if;
end;
$$;

-- Redaction ------------------------------------------------------------------------------------------------

alter table relay.operation
  alter column payload drop not null,
  add column redacted_at timestamptz,
  -- The transaction that redacts: the guards let it blank what they guard, and nobody else.
  add column redacted_xid xid8;

create function relay.redacting(p_operation_id uuid) returns boolean
  language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select exists (select 1 from relay.operation
                  where operation_id = p_operation_id and redacted_xid = pg_current_xact_id_if_assigned())
$$;

-- Whether this update of an operation is a redaction. Raises when it says so and does more, or less.
create function relay.is_redaction(p_old relay.operation, p_new relay.operation) returns boolean
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  blanked constant text[] := array['payload', 'payload_ref'];
  moved constant text[] := array['redacted_at', 'redacted_xid', 'version', 'updated_at'];
begin
  if (p_new.redacted_at, p_new.redacted_xid) is not distinct from (p_old.redacted_at, p_old.redacted_xid) then
    return false;
  end if;
  if not p_old.is_final or p_old.open_reviews > 0 or p_new.version <> p_old.version + 1 or p_new.redacted_at is null
     or p_new.redacted_xid is distinct from pg_current_xact_id_if_assigned()
     or exists (select 1 from jsonb_each(to_jsonb(p_new)) n where n.key = any (blanked) and n.value <> 'null')
     or to_jsonb(p_new) - blanked - moved is distinct from to_jsonb(p_old) - blanked - moved then
    raise exception 'operation %: a redaction blanks what has ended, and changes nothing else', p_old.operation_id
      using errcode = 'OR010';
  end if;
  return true;
end;
$$;

-- Whether this update blanks the evidence of an operation that is being redacted, and nothing else.
create function relay.blanks_evidence(p_operation_id uuid, p_old jsonb, p_new jsonb) returns boolean
  language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select p_old - 'evidence' = p_new - 'evidence' and p_new -> 'evidence' = '{}' and relay.redacting(p_operation_id)
$$;

drop trigger a_forbidden on relay.incident;
create trigger a_forbidden before delete on relay.incident
  for each row execute function relay.refuse('an incident is a record');
alter table relay.incident enable always trigger a_forbidden;
create function relay.guard_incident() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if not relay.blanks_evidence(old.operation_id, to_jsonb(old), to_jsonb(new)) then
    raise exception 'UPDATE on relay.incident is refused: an incident is a record' using errcode = 'OR010';
  end if;
  return new;
end;
$$;
create trigger b_guard before update on relay.incident for each row execute function relay.guard_incident();
alter table relay.incident enable always trigger b_guard;

-- Blank what an ended operation's payload, evidence and output locations say. Its identity, hashes, ids, money and
-- journal stay, and the journal says who did it and why. Returns where its files are: they are somebody's to delete.
create function relay.redact_operation(p_operation_id uuid, p_reason text) returns text[]
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  subject relay.operation;
  files text[];
begin
  if coalesce(btrim(p_reason), '') = '' then
    raise exception 'a redaction says why' using errcode = '22004';
  end if;
  select * into subject from relay.operation where operation_id = p_operation_id for update;
  if not found then
    raise exception 'there is no operation %', p_operation_id using errcode = 'OR004';
  elsif not subject.is_final then
    raise exception 'operation % is %, and only what has ended is redacted', p_operation_id, subject.phase
      using errcode = 'OR010', hint = format('relay ops cancel %s, or wait until it has ended.', p_operation_id);
  elsif subject.open_reviews > 0 then
    raise exception 'operation % has % open reviews, which are decided by its evidence', p_operation_id,
        subject.open_reviews using errcode = 'OR010', hint = format('relay review show %s', p_operation_id);
  elsif relay.accounting_of(p_operation_id) in ('reserved', 'unsettled', 'disputed') then
    raise exception 'the money of operation % is %, which is decided by its evidence', p_operation_id,
        relay.accounting_of(p_operation_id)
      using errcode = 'OR010', hint = 'relay budget show --open lists it: settle or refund it first.';
  elsif exists (select 1 from relay.operation d where d.parent_operation_id = p_operation_id and not d.is_final) then
    raise exception 'the outputs of operation % are still being delivered', p_operation_id using errcode = 'OR010';
  end if;
  update relay.operation
     set payload = null, payload_ref = null, redacted_at = relay.now(), redacted_xid = pg_current_xact_id(),
         version = version + 1, updated_at = relay.now()
   where operation_id = p_operation_id returning * into subject;
  select array_agg(o.stored_key order by o.ordinal) into files
    from relay.output o where o.operation_id = p_operation_id and o.stored_key is not null;
  update relay.attempt set evidence = '{}' where operation_id = p_operation_id and evidence <> '{}';
  update relay.review set evidence = '{}' where operation_id = p_operation_id and evidence <> '{}';
  update relay.incident set evidence = '{}' where operation_id = p_operation_id and evidence <> '{}';
  update relay.output set url = 'redacted', name = 'redacted', stored_key = null where operation_id = p_operation_id;
  perform relay.write_journal(subject, subject.phase, 'redaction', p_reason,
                              coalesce(relay.context('actor'), session_user), null, null);
  return coalesce(files, '{}');
end;
$$;

do $$
declare
  edit record;
  was text;
begin
  for edit in
    select * from (values
      ('relay.guard_operation()'::regprocedure,
       'if (new.operation_id, new.kind, new.owner_id,',
       E'if relay.is_redaction(old, new) then\n    return new;\n  end if;\n  if (new.operation_id, new.kind, new.owner_id,'),
      ('relay.guard_review()'::regprocedure,
       'if old.state <> ''open'' then',
       E'if relay.blanks_evidence(old.operation_id, to_jsonb(old), to_jsonb(new)) then\n    return new;\n  end if;\n  if old.state <> ''open'' then'),
      ('relay.guard_attempt()'::regprocedure,
       'new.action <> ''observe''', 'new.action not in (''observe'', ''cancel'')')
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

revoke execute on function relay.owners_of_login, relay.acts_for, relay.guard_owner, relay.guard_own_member,
  relay.begin_cancel, relay.finish_cancel, relay.redacting, relay.is_redaction, relay.blanks_evidence,
  relay.guard_incident, relay.redact_operation from public;
grant execute on function relay.owners_of_login to relay_app;
grant execute on function relay.begin_cancel, relay.finish_cancel, relay.redact_operation to relay_operator;
grant select on relay.app_owner to relay_worker, relay_operator, relay_reader;
