-- What a review asks and which answers it takes are data, like the lifecycles: a decision that the table doesn't
-- have is refused. A person may choose another job of an accepted operation, and every incident has its decision.
--
-- Replaced, from 0005: check_cause (accepted → accepted by `choose-primary`), guard_operation and after_operation
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

create or replace function relay.check_cause(p_old relay.operation, p_new relay.operation, p_cause text) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  moment timestamptz := relay.now();
  try relay.attempt;
  judged relay.review;
begin
  case
    when p_cause = 'claim' then
      if p_new.claim_token is null or p_new.claimed_by is null or p_new.lease_expires_at <= moment then
        perform relay.not_backed(p_cause, 'a claim needs a token, a worker and a lease that is still to come');
      elsif p_old.not_before > moment then
        perform relay.not_backed(p_cause, 'the operation may not be claimed before ' || p_old.not_before);
      elsif exists (select 1 from relay.attempt a where a.attempt_id = p_new.claim_token) then
        perform relay.not_backed(p_cause, 'the token was used by an earlier attempt');
      end if;
    when p_cause = 'submit' then
      if p_new.claim_token is distinct from p_old.claim_token then
        perform relay.not_backed(p_cause, 'a submission keeps its claim''s token');
      elsif p_old.lease_expires_at <= moment or p_new.lease_expires_at <= moment then
        perform relay.not_backed(p_cause, 'the lease has run out');
      elsif p_new.cancel_requested then
        perform relay.not_backed(p_cause, 'a cancel was requested');
      elsif not exists (select 1 from relay.attempt a where a.attempt_id = p_old.claim_token
          and a.operation_id = p_old.operation_id and a.action = 'submit' and a.outcome = 'open'
          and a.dispatch_no = p_old.dispatch_no) then
        perform relay.not_backed(p_cause, 'no open submit attempt under this claim');
      elsif exists (select 1 from relay.attempt a where a.operation_id = p_old.operation_id
          and a.action = 'submit' and a.attempt_id <> p_old.claim_token
          and a.outcome not in ('unsent', 'refused') and a.released_by_review is null) then
        perform relay.not_backed(p_cause, 'an earlier attempt may have reached the provider');
      elsif exists (select 1 from relay.remote_job j where j.operation_id = p_old.operation_id
          and j.role = 'primary') then
        perform relay.not_backed(p_cause, 'the operation already has a job');
      elsif not exists (select 1 from relay.reservation r where r.attempt_id = p_old.claim_token
          and r.operation_id = p_old.operation_id and r.state = 'reserved') then
        perform relay.not_backed(p_cause, 'no money is reserved for this attempt');
      end if;
    when p_cause in ('answer', 'late_answer', 'rule', 'refused', 'unsent', 'unknown', 'retry')
      or p_cause in ('observation', 'download') then
      select * into try from relay.attempt a where a.attempt_id = relay.context('attempt_id')::uuid;
      if try.attempt_id is null or try.operation_id <> p_old.operation_id then
        perform relay.not_backed(p_cause, 'relay.attempt_id names no attempt of this operation');
      elsif not (case p_cause
          when 'answer' then try.action = 'submit' and try.outcome = 'accepted' and try.attempt_id = p_old.claim_token
          when 'late_answer' then try.action = 'submit' and try.outcome = 'accepted'
          when 'rule' then try.action = 'submit' and try.outcome = 'refused'
          when 'refused' then try.action = 'submit' and try.outcome = 'refused' and try.attempt_id = p_old.claim_token
          when 'unsent' then try.action = 'submit' and try.outcome = 'unsent' and try.attempt_id = p_old.claim_token
          when 'unknown' then try.action = 'submit' and try.outcome = 'unknown' and try.attempt_id = p_old.claim_token
          when 'observation' then try.action = 'observe' and try.outcome = 'accepted'
          when 'download' then try.action = 'download' and try.attempt_id = p_old.claim_token
            and try.outcome = case p_new.phase when 'stored' then 'accepted' else 'refused' end
          when 'retry' then try.action = 'download' and try.attempt_id = p_old.claim_token
            and try.outcome in ('unsent', 'unknown')
        end) then
        perform relay.not_backed(p_cause, format('the attempt is %s, %s', try.action, try.outcome));
      elsif p_cause = 'rule' and p_old.phase = 'uncertain' and exists (select 1 from relay.attempt a
          where a.operation_id = p_old.operation_id and a.action = 'submit' and a.attempt_id <> try.attempt_id
            and a.outcome not in ('unsent', 'refused') and a.released_by_review is null) then
        perform relay.not_backed(p_cause, 'another request may have reached the provider');
      end if;
    when p_cause = 'lease_expired' then
      if p_old.lease_expires_at is null or p_old.lease_expires_at > moment then
        perform relay.not_backed(p_cause, 'the lease is still running');
      elsif p_old.phase = 'submitting' and not exists (select 1 from relay.attempt a
          where a.attempt_id = p_old.claim_token and a.outcome = 'unknown') then
        perform relay.not_backed(p_cause, 'the attempt is not recorded as unknown');
      end if;
    when p_cause = 'review' then
      select * into judged from relay.review r where r.review_id = relay.context('review_id')::uuid;
      if judged.review_id is null or judged.operation_id <> p_old.operation_id or judged.state <> 'resolved'
         or judged.resolved_xid is distinct from pg_current_xact_id_if_assigned() then
        perform relay.not_backed(p_cause, 'relay.review_id names no review resolved in this transaction');
      elsif judged.resolution is distinct from (case p_new.phase
          when 'accepted' then case when p_old.phase = 'accepted' then 'choose-primary' else 'accepted' end
          when 'prepared' then
            case when p_old.phase = 'held' then 'release' else 'not-accepted:resubmit' end
          when 'rejected' then case when p_old.phase = 'held' then 'reject' else 'not-accepted:reject' end
          when 'cancelled' then case when p_old.phase = 'held' then 'cancel' else 'not-accepted:cancel' end
          when 'abandoned' then 'abandon' when 'lost' then 'lost' end) then
        perform relay.not_backed(p_cause, format('the review was resolved as %s', judged.resolution));
      elsif judged.resolution like 'not-accepted:%' and exists (
          select 1 from relay.attempt a where a.operation_id = p_old.operation_id and a.action = 'submit'
            and a.outcome in ('open', 'unknown') and a.late_delivery_until > moment) then
        perform relay.not_backed(p_cause, 'a request that was given up may still arrive at the provider');
      elsif p_old.phase = 'uncertain' and p_new.phase = 'prepared' and exists (
          select 1 from relay.attempt a where a.operation_id = p_old.operation_id and a.action = 'submit'
            and a.outcome not in ('unsent', 'refused') and a.released_by_review is null) then
        perform relay.not_backed(p_cause, 'the review released no attempt');
      end if;
    when p_cause = 'release' then
      if p_old.phase_reason not in ('allowance', 'paused') then
        perform relay.not_backed(p_cause, 'only a hold for allowance or pause is released without a review');
      end if;
    when p_cause = 'cancel' then
      if not p_new.cancel_requested then
        perform relay.not_backed(p_cause, 'nobody requested a cancel');
      end if;
    when p_cause = 'operator' then
      if not pg_has_role(session_user, 'relay_operator', 'usage') then
        perform relay.not_backed(p_cause, session_user || ' is not an operator');
      end if;
    when p_cause = 'hold' then
      if exists (select 1 from relay.attempt a where a.attempt_id = p_old.claim_token and a.outcome = 'open') then
        perform relay.not_backed(p_cause, 'the attempt is open');
      end if;
    else
      perform relay.not_backed(p_cause, 'this release knows no such cause');
  end case;
end;
$$;

create or replace function relay.guard_operation() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  line text;
  why text := relay.context('cause');
  kind relay.operation_kind;
begin
  if tg_op = 'INSERT' then
    if new.phase <> 'prepared' or new.version <> 1 or new.dispatch_no <> 1 or new.is_final or new.job_id is not null then
      raise exception 'an operation begins prepared, at version 1' using errcode = 'OR011';
    end if;
    select * into kind from relay.operation_kind k where k.kind = new.kind;
    new.next_action_at := coalesce(new.not_before, relay.now() + kind.reemit_after);
    return new;
  end if;

  if (new.operation_id, new.kind, new.owner_id, new.operation_key, new.specification_hash, new.payload,
      new.payload_version, new.max_cost, new.cost_unit, new.created_at, new.requested_by)
     is distinct from
     (old.operation_id, old.kind, old.owner_id, old.operation_key, old.specification_hash, old.payload,
      old.payload_version, old.max_cost, old.cost_unit, old.created_at, old.requested_by)
     or (new.provider, new.account, new.profile_digest, new.source_ref, new.parent_operation_id, new.traceparent)
     is distinct from
     (old.provider, old.account, old.profile_digest, old.source_ref, old.parent_operation_id, old.traceparent)
  then
    raise exception 'operation %: what was approved can''t change', old.operation_id using errcode = 'OR010';
  end if;
  if new.cancel_requested is distinct from old.cancel_requested and not new.cancel_requested then
    raise exception 'operation %: a requested cancel can''t be taken back', old.operation_id using errcode = 'OR010';
  end if;

  -- Another job of the same operation is a step like any other: it has its edge, its cause and its entry.
  if new.phase = old.phase and not (new.phase = 'accepted' and new.job_id is distinct from old.job_id) then
    if (new.version, new.dispatch_no, new.job_id, new.claim_token, new.claimed_by, new.lease_expires_at,
        new.held_at, new.is_final, new.phase_reason)
       is distinct from
       (old.version, old.dispatch_no, old.job_id, old.claim_token, old.claimed_by, old.lease_expires_at,
        old.held_at, old.is_final, old.phase_reason) then
      raise exception 'operation %: claim, job, version and reason move only with the phase', old.operation_id
        using errcode = 'OR010';
    end if;
    return new;
  end if;

  if why is null or relay.context('actor') is null or relay.context('reason') is null then
    raise exception 'operation %: a transition needs relay.actor, relay.cause and relay.reason', old.operation_id
      using errcode = 'OR013';
  end if;
  select * into kind from relay.operation_kind k where k.kind = old.kind;
  select lifecycle into line from relay.lifecycle_edge e
   where e.lifecycle = kind.lifecycle and e.from_phase = old.phase and e.to_phase = new.phase and e.cause = why;
  if not found then
    raise exception 'operation %: there is no edge % → % by %', old.operation_id, old.phase, new.phase, why
      using errcode = 'OR011';
  end if;
  if new.job_id is distinct from old.job_id and new.phase <> 'accepted' then
    raise exception 'operation %: a job is set by becoming accepted', old.operation_id using errcode = 'OR010';
  end if;
  perform relay.check_cause(old, new, why);

  select p.is_final into new.is_final from relay.lifecycle_phase p
   where p.lifecycle = kind.lifecycle and p.phase = new.phase;
  new.version := old.version + 1;
  new.updated_at := relay.now();
  new.held_at := case when new.phase = 'held' then new.updated_at end;
  if new.phase not in ('claimed', 'submitting') then
    new.claim_token := null;
    new.claimed_by := null;
    new.lease_expires_at := null;
  end if;
  -- A claim that never became a submission holds no money.
  if old.phase = 'claimed' and new.phase <> 'submitting' and relay.release_reservation(old.claim_token, why) then
    new.accounting := relay.accounting_of(old.operation_id);
  end if;
  if new.phase = 'prepared' then
    new.dispatch_no := old.dispatch_no + 1;
    if new.not_before <= new.updated_at then
      new.not_before := null;
    end if;
    new.next_action_at := coalesce(new.not_before, new.updated_at + kind.reemit_after);
  elsif new.phase = 'accepted' then
    new.not_before := null;
    if not exists (select 1 from relay.remote_job j where j.operation_id = new.operation_id
        and j.job_id = new.job_id and j.role = 'primary') then
      raise exception 'operation %: accepted needs its job in remote_job', old.operation_id using errcode = 'OR012';
    end if;
    new.next_action_at := new.updated_at + kind.reemit_after;
  elsif new.phase in ('claimed', 'submitting', 'uncertain') or new.is_final then
    new.next_action_at := null;
  elsif new.phase = 'held' then
    new.next_action_at := case when new.phase_reason in ('allowance', 'paused')
      then coalesce(new.next_action_at, new.updated_at + kind.reemit_after) end;
  end if;
  return new;
end;
$$;

create or replace function relay.after_operation() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  seconds text;
begin
  if tg_op = 'INSERT' then
    perform relay.write_journal(new, null, 'requested', new.phase_reason, new.requested_by, null, null);
  elsif new.phase = old.phase and new.job_id is not distinct from old.job_id then
    return null;
  else
    perform relay.write_journal(new, old.phase, relay.context('cause'), relay.context('reason'),
      relay.context('actor'), relay.context('attempt_id')::uuid, relay.context('review_id')::uuid);
    -- What was under review has moved: the reviewer's sight is stale, and some questions are answered.
    update relay.review set revision = revision + 1,
        state = case when (old.phase = 'held' and kind = 'hold')
                       or (old.phase = 'uncertain' and kind in ('uncertain_submission', 'candidate_id'))
                       or (old.phase = 'accepted' and kind = 'job_unknown')
                     then 'superseded' else state end
     where operation_id = new.operation_id and state = 'open';
    if new.phase = 'uncertain' or (new.phase = 'held' and new.phase_reason not in ('allowance', 'paused')) then
      seconds := coalesce(relay.context('review_deadline_s'), '86400');
      insert into relay.review (operation_id, attempt_id, kind, deadline)
      values (new.operation_id, relay.context('attempt_id')::uuid,
        case when new.phase = 'held' then 'hold' when new.phase_reason = 'candidate_id' then 'candidate_id'
             when new.phase_reason = 'job_id_collision' then 'id_collision' else 'uncertain_submission' end,
        relay.now() + make_interval(secs => seconds::double precision));
    end if;
  end if;
  -- Every entry into prepared writes its event now, or leaves it to schedule when not_before has passed.
  if new.phase = 'accepted' or (new.phase = 'prepared' and new.not_before is null) then
    perform relay.emit(new.operation_id);
  end if;
  return null;
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
