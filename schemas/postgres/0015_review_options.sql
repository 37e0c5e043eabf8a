-- What a review asks and which answers it takes are data, like the lifecycles: a decision that the table doesn't
-- have is refused. A person may choose another job of an accepted operation, and every incident has its decision.
--
-- Changed, of 0005: check_cause (accepted → accepted by `choose-primary`), guard_operation and after_operation
-- (another job of an accepted operation is a step with an edge, a journal entry and an event).

insert into relay.lifecycle_edge (lifecycle, from_phase, to_phase, cause) values
  -- A person names the job of an earlier request while the operation has gone on (design-operations, section 2).
  ('generation', 'prepared', 'accepted', 'review'),
  ('generation', 'claimed', 'accepted', 'review'),
  ('generation', 'submitting', 'accepted', 'review'),
  ('generation', 'held', 'accepted', 'review'),
  ('generation', 'accepted', 'accepted', 'review');

-- The answers ------------------------------------------------------------------------------------------------

-- to_phase '' leaves the operation as it is. consumers/operations/resolutions.py says the same to people.
create table relay.review_option (
  kind text not null,
  resolution text not null,
  from_phase text not null,
  to_phase text not null,
  primary key (kind, resolution, from_phase)
);

insert into relay.review_option (kind, resolution, from_phase, to_phase)
select kind, resolution, from_phase, to_phase
  from (values
  ('{hold}', 'release',
   '{held}', 'prepared'),
  ('{hold}', 'reject',
   '{held}', 'rejected'),
  ('{hold}', 'cancel',
   '{held}', 'cancelled'),
  ('{uncertain_submission,candidate_id,id_collision,contradiction}', 'accepted',
   '{accepted,succeeded,failed,lost}', ''),
  ('{uncertain_submission,candidate_id,id_collision,contradiction}', 'accepted',
   '{cancelled,prepared,claimed,submitting,held,uncertain,rejected,abandoned}', 'accepted'),
  ('{uncertain_submission,candidate_id,id_collision}', 'not-accepted:resubmit',
   '{uncertain}', 'prepared'),
  ('{uncertain_submission,candidate_id,id_collision}', 'not-accepted:reject',
   '{uncertain}', 'rejected'),
  ('{uncertain_submission,candidate_id,id_collision}', 'not-accepted:cancel',
   '{uncertain}', 'cancelled'),
  ('{uncertain_submission,candidate_id,id_collision}', 'not-accepted:stay',
   '{prepared,claimed,submitting,held,accepted,succeeded,failed,rejected,cancelled,abandoned,lost}', ''),
  ('{uncertain_submission,candidate_id,id_collision}', 'abandon',
   '{uncertain}', 'abandoned'),
  ('{uncertain_submission,candidate_id,id_collision}', 'abandon',
   '{prepared,claimed,submitting,held,accepted,succeeded,failed,rejected,cancelled,abandoned,lost}', ''),
  ('{uncertain_submission,candidate_id,id_collision}', 'settle',
   '{prepared,claimed,submitting,held,accepted,succeeded,failed,rejected,cancelled,abandoned,lost}', ''),
  ('{id_with_error,second_id}', 'settle',
   '{accepted,succeeded,failed,rejected,cancelled,abandoned,lost}', ''),
  ('{candidate_id,second_id,id_collision,job_unknown,contradiction}', 'choose-primary',
   '{accepted}', 'accepted'),
  ('{candidate_id,second_id,id_collision,contradiction}', 'choose-primary',
   '{succeeded,failed,rejected,cancelled,abandoned,lost}', ''),
  ('{id_collision,job_unknown}', 'lost',
   '{accepted}', 'lost'),
  ('{job_unknown}', 'settle',
   '{accepted}', ''),
  ('{output_expired}', 'refetch',
   '{failed}', 'prepared'),
  ('{output_expired}', 'lost',
   '{failed}', ''),
  ('{contradiction}', 'settle',
   '{uncertain,prepared,claimed,submitting,held,accepted,succeeded,failed,rejected,cancelled,abandoned,lost}', '')
       ) as answers (kinds, resolution, from_phases, to_phase),
       unnest(kinds::text[]) as kind, unnest(from_phases::text[]) as from_phase;

create function relay.guard_resolution() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  now_is text;
begin
  -- The operation's row comes before its reviews in the order of locks: whoever decides has it locked.
  select phase into now_is from relay.operation where operation_id = new.operation_id;
  if not exists (select 1 from relay.review_option a
      where a.kind = new.kind and a.resolution = new.resolution and a.from_phase = now_is) then
    raise exception 'review %: a review of the kind % can''t be resolved as % while its operation is %',
      old.review_id, new.kind, new.resolution, now_is using errcode = 'OR012';
  end if;
  return new;
end;
$$;
create trigger b_resolution before update on relay.review
  for each row when (old.state = 'open' and new.state = 'resolved' and new.resolution is not null)
  execute function relay.guard_resolution();
alter table relay.review enable always trigger b_resolution;

-- A request that was given up may still be read by the provider, whatever becomes of its operation.
create function relay.guard_release() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if old.late_delivery_until > relay.now() then
    raise exception 'attempt %: it may still arrive at the provider until %, so no review releases it before',
      old.attempt_id, old.late_delivery_until using errcode = 'OR012';
  end if;
  return new;
end;
$$;
create trigger b_release before update on relay.attempt
  for each row when (old.released_by_review is null and new.released_by_review is not null
                     and old.outcome in ('open', 'unknown'))
  execute function relay.guard_release();
alter table relay.attempt enable always trigger b_release;

-- Transitions ------------------------------------------------------------------------------------------------

-- Put into the functions' text as it is when this migration runs, so that nothing is replaced that another one put
-- there: another job of an accepted operation is a step with its edge, its cause, its entry and its event.
do $$
declare
  edit record;
  was text;
begin
  for edit in
    select * from (values
      ('relay.check_cause(relay.operation, relay.operation, text)'::regprocedure,
       'when ''accepted'' then ''accepted'' when',
       'when ''accepted'' then case p_old.phase when ''accepted'' then ''choose-primary'' else ''accepted'' end when'),
      ('relay.guard_operation()'::regprocedure,
       'if new.phase = old.phase then',
       'if new.phase = old.phase and not (new.phase = ''accepted'' and new.job_id is distinct from old.job_id) then'),
      ('relay.after_operation()'::regprocedure,
       'elsif new.phase = old.phase then',
       'elsif new.phase = old.phase and new.job_id is not distinct from old.job_id then')
    ) as of (routine, found, put)
  loop
    was := pg_get_functiondef(edit.routine);
    if strpos(was, edit.put) = 0 then
      if (length(was) - length(replace(was, edit.found, ''))) <> length(edit.found) then
        raise exception '% does not have "%" once', edit.routine, edit.found;
      end if;
      execute replace(was, edit.found, edit.put);
    end if;
  end loop;
end;
$$;

-- Incidents --------------------------------------------------------------------------------------------------

-- What was decided about an incident, by whom and why: once, and kept like the incident itself.
create table relay.incident_decision (
  incident_id uuid primary key references relay.incident,
  decision text not null check (decision ~ '[^[:space:]]' and length(decision) <= 4000),
  decided_by text not null check (length(decided_by) between 1 and 200),
  review_id uuid references relay.review,
  decided_at timestamptz not null default relay.now()
);
select relay.forbid('relay.incident_decision', 'update or delete', 'a decision is a record');
create index incident_of_operation on relay.incident (operation_id);
create index incident_opened on relay.incident (opened_at);

create function relay.guard_incident_decision() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if not pg_has_role(session_user, 'relay_operator', 'usage') then
    raise exception 'incident %: % is not an operator', new.incident_id, session_user using errcode = 'OR012';
  end if;
  return new;
end;
$$;
create trigger b_guard before insert on relay.incident_decision
  for each row execute function relay.guard_incident_decision();
alter table relay.incident_decision enable always trigger b_guard;

-- Grants -----------------------------------------------------------------------------------------------------

revoke execute on function relay.guard_resolution(), relay.guard_release(), relay.guard_incident_decision() from public;
grant select on relay.review_option, relay.incident_decision to relay_worker, relay_operator, relay_reader;
grant insert (incident_id, decision, decided_by, review_id) on relay.incident_decision to relay_operator;
-- To wait is to look again at a later deadline.
grant update (deadline) on relay.review to relay_operator;
