-- Restore and promotion: what a database that lost commits must not do, and how it is put right.
--
-- Changes relay.dispatch_gate (0007): it also names the tables that the relay verified, and the next command.
-- relay.check_cause (0005) goes on under another name, behind one that knows the cause `restored`.

alter table relay.source_identity
  -- A dump that was put back into the running server has another database, or other tables: same cluster, same
  -- timeline, same start. Written whenever the relay writes what it verified.
  add column verified_database oid,
  add column verified_operations oid,
  add column reconciled_at timestamptz,
  add column reconciled_by text;

-- Told again from Kafka's history or a spool after a restore: the row that the database had is lost.
alter table relay.attempt add column restored boolean not null default false;

-- An operation that only Kafka knows has no row that an incident could name.
alter table relay.incident
  alter column operation_id drop not null,
  add column phantom_operation_id uuid,
  add constraint incident_of_one check ((operation_id is null) <> (phantom_operation_id is null));
create unique index incident_of_phantom on relay.incident (phantom_operation_id)
  where phantom_operation_id is not null;

insert into relay.lifecycle_edge (lifecycle, from_phase, to_phase, cause) values
  ('generation', 'prepared', 'uncertain', 'restored'),
  ('generation', 'claimed', 'uncertain', 'restored'),
  ('generation', 'held', 'uncertain', 'restored');

-- The gate ---------------------------------------------------------------------------------------------------

create function relay.note_verified() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if new.verified_at is not null and (tg_op = 'UPDATE' or new.verified_database is null) then
    select d.oid into new.verified_database from pg_database d where d.datname = current_database();
    new.verified_operations := 'relay.operation'::regclass::oid;
  end if;
  return new;
end;
$$;
create trigger b_verified before insert or update of verified_at on relay.source_identity
  for each row execute function relay.note_verified();
alter table relay.source_identity enable always trigger b_verified;

update relay.source_identity set verified_at = verified_at where verified_at is not null;

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
  -- Of any relay: a new slot's identity doesn't tell what the operations lost.
  elsif exists (select 1 from relay.source_identity s
                 where s.outbox_table = 'relay.outbox' and s.unreconciled_since is not null) then
    return 'a rewind was accepted, and nobody has reconciled the operations since; run relay ops reconcile';
  elsif known.verified_system_identifier is distinct from (select system_identifier::text from pg_control_system()) then
    return 'the relay verified another cluster';
  elsif known.verified_timeline is distinct from this_timeline then
    return 'the relay verified another timeline';
  elsif known.verified_server_started_at is distinct from pg_postmaster_start_time() then
    return 'the server was started since the relay verified it';
  elsif known.verified_database is distinct from (select d.oid from pg_database d where d.datname = current_database())
     or known.verified_operations is distinct from 'relay.operation'::regclass::oid then
    return 'the tables were restored since the relay verified them';
  end if;
  return null;
end;
$$;

-- The moment a rewind is accepted ----------------------------------------------------------------------------

-- What could be submitted again is held until relay ops reconcile has looked for an earlier submission.
-- What a person holds already stays with that person: nothing but a review releases it.
create function relay.hold_restored() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  -- In one order, before their money: an answer that is being written holds one of them, and waits for none.
  perform 1 from relay.operation o
   where not o.is_final and o.phase in ('prepared', 'claimed', 'held') order by o.operation_id for update;
  perform set_config('relay.actor', 'relay init --accept-rewind', true), set_config('relay.attempt_id', '', true),
          set_config('relay.review_id', '', true), set_config('relay.review_deadline_s', '', true),
          set_config('relay.cause', 'release', true), set_config('relay.reason', 'held as restored instead', true);
  update relay.operation o set phase = 'prepared', phase_reason = 'restored'
    from relay.operation_kind k
   where k.kind = o.kind and k.lifecycle = 'generation' and o.phase = 'held' and o.open_reviews = 0
     and o.next_action_at is not null;
  perform set_config('relay.cause', 'hold', true),
          set_config('relay.reason', 'it may have been submitted before the restore: relay ops reconcile', true);
  update relay.operation o set phase = 'held', phase_reason = 'restored'
    from relay.operation_kind k
   where k.kind = o.kind and k.lifecycle = 'generation' and o.phase in ('prepared', 'claimed')
     and not exists (select 1 from relay.attempt a where a.attempt_id = o.claim_token and a.outcome = 'open');
  return null;
end;
$$;
create trigger c_hold_restored after update of unreconciled_since on relay.source_identity
  for each row when (old.unreconciled_since is null and new.unreconciled_since is not null
                     and new.outbox_table = 'relay.outbox')
  execute function relay.hold_restored();
alter table relay.source_identity enable always trigger c_hold_restored;

-- What is told again -----------------------------------------------------------------------------------------

create function relay.require_reconciling(p_what text) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if not pg_has_role(session_user, 'relay_operator', 'usage') then
    raise exception '%: % is not an operator', p_what, session_user using errcode = 'OR012';
  elsif not exists (select 1 from relay.source_identity s
                     where s.outbox_table = 'relay.outbox' and s.unreconciled_since is not null) then
    raise exception '%: no accepted rewind waits to be reconciled', p_what using errcode = 'OR012';
  end if;
end;
$$;

alter function relay.check_cause(relay.operation, relay.operation, text) rename to check_cause_in_life;

-- Raises unless the row that `p_cause` names proves it. Life's own causes are in check_cause_in_life.
create function relay.check_cause(p_old relay.operation, p_new relay.operation, p_cause text) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if p_cause <> 'restored' then
    perform relay.check_cause_in_life(p_old, p_new, p_cause);
    return;
  end if;
  perform relay.require_reconciling(format('operation %s', p_old.operation_id));
  if not exists (select 1 from relay.attempt a
                  where a.attempt_id = relay.context('attempt_id')::uuid and a.operation_id = p_old.operation_id
                    and a.action = 'submit' and a.restored) then
    perform relay.not_backed(p_cause, 'relay.attempt_id names no restored submission of this operation');
  end if;
end;
$$;

-- A restored submission has no claim that is alive: Kafka or a spool is its witness, and an operator its teller.
create function relay.guard_restored_attempt() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform relay.require_reconciling(format('attempt %s', new.attempt_id));
  if new.action <> 'submit' or new.outcome <> 'unknown' or new.released_by_review is not null then
    raise exception 'attempt %: what is restored is a submission whose outcome is unknown', new.attempt_id
      using errcode = 'OR010';
  end if;
  return new;
end;
$$;
drop trigger b_guard on relay.attempt;
create trigger b_guard before insert or update on relay.attempt
  for each row when (not new.restored) execute function relay.guard_attempt();
create trigger b_guard_restored before update on relay.attempt
  for each row when (new.restored) execute function relay.guard_attempt();
create trigger b_guard_restoring before insert on relay.attempt
  for each row when (new.restored) execute function relay.guard_restored_attempt();
alter table relay.attempt enable always trigger b_guard;
alter table relay.attempt enable always trigger b_guard_restored;
alter table relay.attempt enable always trigger b_guard_restoring;

-- A submission that the database has lost, and its money: booked whatever the limit, since it may be charged.
-- False: the attempt is there already. Call it with the operation locked.
create function relay.restore_attempt(p_operation_id uuid, p_attempt_id uuid, p_dispatch_no integer, p_worker text,
    p_sent_at timestamptz, p_spool text, p_late_delivery_until timestamptz, p_reason text, p_evidence jsonb)
  returns boolean
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  subject relay.operation;
  was relay.reservation;
  over numeric;
begin
  select * into subject from relay.operation where operation_id = p_operation_id for update;
  if not found then
    raise exception 'there is no operation %', p_operation_id using errcode = 'OR004';
  elsif exists (select 1 from relay.attempt where attempt_id = p_attempt_id) then
    return false;
  end if;
  insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker, started_at, first_sent_at,
                             finished_at, outcome, outcome_reason, spool, late_delivery_until, evidence, restored)
  values (p_attempt_id, p_operation_id, 'submit', p_dispatch_no, p_worker, coalesce(p_sent_at, relay.now()), p_sent_at,
          relay.now(),
          'unknown', p_reason, p_spool, p_late_delivery_until, p_evidence, true);
  if not exists (select 1 from relay.allowance where owner_id = subject.owner_id and unit = subject.cost_unit) then
    perform relay.set_allowance(subject.owner_id, subject.cost_unit, 0, 'restored: it had none');
  end if;
  was := relay.lock_money(p_attempt_id);
  if was.attempt_id is null then
    perform 1 from relay.batch b where b.batch_id = subject.batch_id for no key update;
    perform 1 from relay.allowance a where a.owner_id = subject.owner_id and a.unit = subject.cost_unit for no key update;
    insert into relay.reservation (attempt_id, operation_id, owner_id, unit, amount, state)
    values (p_attempt_id, p_operation_id, subject.owner_id, subject.cost_unit, subject.max_cost, 'reserved')
    returning * into was;
    perform relay.book(was, 'reserve', was.amount, 'restored: sent before the restore', p_reserved => was.amount);
  elsif was.state = 'released' then
    -- The claim's own, given back when the restored claim was ended.
    update relay.reservation set state = 'disputed', updated_at = relay.now() where attempt_id = p_attempt_id;
    perform relay.book(was, 'rebook', was.amount, 'restored: sent before the restore', p_disputed => was.amount);
  end if;
  select greatest(a.reserved + a.disputed + a.settled - a.limit_amount, 0) into over from relay.allowance a
   where a.owner_id = was.owner_id and a.unit = was.unit;
  if over > 0 then
    perform relay.book(was, 'overrun', least(over, was.amount), 'restored: sent before the restore');
    perform relay.note_overrun(was, true);
  end if;
  update relay.operation set accounting = relay.accounting_of(p_operation_id) where operation_id = p_operation_id;
  return true;
end;
$$;

-- Dispatch opens again. False: somebody has ended it, or accepted another rewind, or a repair is under way.
create function relay.end_reconciliation(p_since timestamptz, p_actor text) returns boolean
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform relay.require_reconciling('the reconciliation');
  update relay.source_identity
     set unreconciled_since = null, reconciled_at = relay.now(), reconciled_by = p_actor
   where outbox_table = 'relay.outbox' and unreconciled_since = p_since and state = 'running';
  return found;
end;
$$;

revoke execute on function relay.note_verified, relay.hold_restored, relay.require_reconciling, relay.check_cause,
  relay.check_cause_in_life, relay.guard_restored_attempt, relay.restore_attempt, relay.end_reconciliation from public;
grant execute on function relay.restore_attempt, relay.end_reconciliation to relay_operator;
-- What applying an answer asks (0019).
grant execute on function relay.paying_attempt, relay.unknown_request to relay_operator;
-- What a history or a spool tells of an attempt is applied by the operator who reconciles, or imports.
grant update (finished_at, charged, http_status) on relay.attempt to relay_operator;
grant insert (phantom_operation_id) on relay.incident to relay_operator;
