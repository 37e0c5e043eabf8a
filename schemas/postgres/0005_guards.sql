-- The database refuses what the design forbids. Every guard is ENABLE ALWAYS; each error says what and why.

-- Events ---------------------------------------------------------------------------------------------------

-- Write the event that the operation's phase calls for, and set when it is looked at again. Null: this phase
-- calls for none. An event never carries a payload, an output's URL or an answer's bytes.
create function relay.emit(p_operation_id uuid) returns uuid
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  subject relay.operation;
  kind relay.operation_kind;
  body jsonb;
  event uuid;
  type text;
  type_version integer := 1;
begin
  -- The operation's row is locked first, so that seq is commit order per operation.
  select * into subject from relay.operation where operation_id = p_operation_id for update;
  if not found then
    raise exception 'there is no operation %', p_operation_id using errcode = 'OR004';
  end if;
  select * into kind from relay.operation_kind k where k.kind = subject.kind;
  if subject.phase = 'prepared' then
    type := kind.event_type;
    type_version := kind.event_version;
    body := jsonb_build_object(
      'operation_id', subject.operation_id, 'owner_id', subject.owner_id, 'kind', subject.kind,
      'dispatch_no', subject.dispatch_no);
    body := body || case
      when kind.lifecycle = 'delivery' then jsonb_build_object('parent_operation_id', subject.parent_operation_id)
      else jsonb_build_object('provider', subject.provider, 'specification_hash', subject.specification_hash,
                              'source_ref', subject.source_ref)
    end;
  elsif subject.phase = 'accepted' then
    type := 'collection.requested';
    body := jsonb_build_object('operation_id', subject.operation_id, 'job_id', subject.job_id);
  else
    return null;
  end if;
  insert into relay.outbox (event_type, schema_version, operation_id, version, payload, headers)
  values (type, type_version, subject.operation_id, subject.version, body,
          case when subject.traceparent is null then '{}'
               else jsonb_build_object('traceparent', subject.traceparent) end)
  returning event_id into event;
  update relay.operation set next_action_at = relay.now() + kind.reemit_after where operation_id = p_operation_id;
  return event;
end;
$$;

-- An application may write events of its own, and none that speaks for an operation. Not SECURITY DEFINER:
-- current_user tells the schema's own functions from everybody else.
create function relay.guard_outbox() returns trigger
  language plpgsql
as $$
begin
  if not pg_has_role(current_user, (select c.relowner from pg_class c where c.oid = tg_relid), 'usage')
     and (new.event_type in ('operation.transitioned', 'collection.requested')
          or exists (select 1 from relay.operation_kind k where k.event_type = new.event_type)) then
    raise exception 'the event type % is written by the transitions of operations alone', new.event_type
      using errcode = 'OR010';
  end if;
  return new;
end;
$$;
create trigger b_guard before insert on relay.outbox
  for each row execute function relay.guard_outbox();
alter table relay.outbox enable always trigger b_guard;

create function relay.write_journal(p_operation relay.operation, p_from text, p_cause text, p_reason text,
                                    p_actor text, p_attempt uuid, p_review uuid) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  moment timestamptz := relay.now();
begin
  insert into relay.journal (operation_id, version, from_phase, to_phase, cause, reason, actor, attempt_id,
                             review_id, job_id, dispatch_no, at)
  values (p_operation.operation_id, p_operation.version, p_from, p_operation.phase, p_cause, p_reason, p_actor,
          p_attempt, p_review, p_operation.job_id, p_operation.dispatch_no, moment);
  insert into relay.outbox (event_type, schema_version, operation_id, version, payload, headers)
  values ('operation.transitioned', 1, p_operation.operation_id, p_operation.version, jsonb_build_object(
            'operation_id', p_operation.operation_id, 'owner_id', p_operation.owner_id, 'kind', p_operation.kind,
            'version', p_operation.version, 'from_phase', p_from, 'to_phase', p_operation.phase,
            'cause', p_cause, 'reason', p_reason, 'actor', p_actor, 'attempt_id', p_attempt,
            'review_id', p_review, 'job_id', p_operation.job_id, 'dispatch_no', p_operation.dispatch_no,
            'specification_hash', p_operation.specification_hash, 'transitioned_at', moment),
          case when p_operation.traceparent is null then '{}'
               else jsonb_build_object('traceparent', p_operation.traceparent) end);
end;
$$;

-- Transitions ----------------------------------------------------------------------------------------------

create function relay.not_backed(p_cause text, p_what text) returns void
  language plpgsql
as $$
begin
  raise exception 'the cause % is not backed: %', p_cause, p_what using errcode = 'OR012';
end;
$$;

-- Raises unless the row that `p_cause` names proves it.
create function relay.check_cause(p_old relay.operation, p_new relay.operation, p_cause text) returns void
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
          when 'accepted' then 'accepted' when 'prepared' then
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

create function relay.guard_operation() returns trigger
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

  if new.phase = old.phase then
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
create trigger b_guard before insert or update on relay.operation
  for each row execute function relay.guard_operation();
alter table relay.operation enable always trigger b_guard;

create function relay.after_operation() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  seconds text;
begin
  if tg_op = 'INSERT' then
    perform relay.write_journal(new, null, 'requested', new.phase_reason, new.requested_by, null, null);
  elsif new.phase = old.phase then
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
create trigger c_journal after insert or update on relay.operation
  for each row execute function relay.after_operation();
alter table relay.operation enable always trigger c_journal;

-- Nothing is ever without a waker. Checked at commit, when the transaction has said all it has to say.
create function relay.check_waker() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  now_is relay.operation;
begin
  select * into now_is from relay.operation where operation_id = new.operation_id;
  if found and not now_is.is_final and now_is.lease_expires_at is null and now_is.next_action_at is null
     and now_is.open_reviews = 0 then
    raise exception 'operation % would be % with no lease, no next action and no open review',
      now_is.operation_id, now_is.phase using errcode = 'OR014';
  end if;
  return null;
end;
$$;
create constraint trigger d_waker after insert or update on relay.operation
  deferrable initially deferred for each row execute function relay.check_waker();
alter table relay.operation enable always trigger d_waker;

-- Attempts -------------------------------------------------------------------------------------------------

create function relay.guard_attempt() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'INSERT' then
    if new.outcome not in ('open', 'unsent') or new.released_by_review is not null then
      raise exception 'an attempt begins open, or is recorded as unsent' using errcode = 'OR010';
    end if;
    -- A submit or download attempt belongs to a claim that is alive, and has its id.
    if new.action <> 'observe' and not exists (select 1 from relay.operation o
        where o.operation_id = new.operation_id and o.phase = 'claimed' and o.claim_token = new.attempt_id
          and o.dispatch_no = new.dispatch_no) then
      raise exception 'attempt %: operation % has no such claim', new.attempt_id, new.operation_id
        using errcode = 'OR012';
    end if;
    return new;
  end if;
  if (new.attempt_id, new.operation_id, new.action, new.dispatch_no, new.worker, new.started_at,
      new.idempotency_key, new.request_sha256, new.first_sent_at)
     is distinct from
     (old.attempt_id, old.operation_id, old.action, old.dispatch_no, old.worker, old.started_at,
      old.idempotency_key, old.request_sha256, old.first_sent_at) then
    raise exception 'attempt %: what was sent can''t change', old.attempt_id using errcode = 'OR010';
  end if;
  if new.outcome <> old.outcome and not (
      old.outcome = 'open' or (old.outcome = 'unknown' and new.outcome in ('accepted', 'refused'))) then
    raise exception 'attempt %: % can''t become %', old.attempt_id, old.outcome, new.outcome using errcode = 'OR010';
  end if;
  if old.released_by_review is not null and new.released_by_review is distinct from old.released_by_review then
    raise exception 'attempt %: a review released it already', old.attempt_id using errcode = 'OR010';
  end if;
  if new.released_by_review is distinct from old.released_by_review and not exists (
      select 1 from relay.review r where r.review_id = new.released_by_review
        and r.operation_id = old.operation_id and r.resolution like 'not-accepted:%'
        and r.resolved_xid = pg_current_xact_id_if_assigned()) then
    raise exception 'attempt %: no review resolved in this transaction releases it', old.attempt_id
      using errcode = 'OR012';
  end if;
  return new;
end;
$$;
create trigger b_guard before insert or update on relay.attempt
  for each row execute function relay.guard_attempt();
alter table relay.attempt enable always trigger b_guard;

-- Money follows the outcome: what provably cost nothing is given back, what was charged unasked is disputed.
create function relay.after_attempt() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if new.action <> 'submit' or (tg_op = 'UPDATE' and new.outcome = old.outcome) then
    return null;
  end if;
  if new.outcome = 'unsent' or (new.outcome = 'refused' and new.charged is false) then
    if relay.release_reservation(new.attempt_id, new.outcome) then
      update relay.operation set accounting = relay.accounting_of(operation_id) where operation_id = new.operation_id;
    end if;
  elsif new.outcome = 'refused' then
    perform relay.dispute(new.attempt_id, 'refused, and not declared as uncharged');
  end if;
  return null;
end;
$$;
create trigger c_money after insert or update on relay.attempt
  for each row execute function relay.after_attempt();
alter table relay.attempt enable always trigger c_money;

create function relay.guard_remote_job() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'INSERT' then
    if new.attempt_id is not null and not exists (select 1 from relay.attempt a
        where a.attempt_id = new.attempt_id and a.operation_id = new.operation_id) then
      raise exception 'job % of operation %: the attempt is another operation''s', new.job_id, new.operation_id
        using errcode = 'OR012';
    end if;
    return new;
  end if;
  if old.role = 'primary' and new.role <> 'primary' and not pg_has_role(session_user, 'relay_operator', 'usage') then
    raise exception 'job % of operation %: % is not an operator, who may choose another', old.job_id,
        old.operation_id, session_user using errcode = 'OR012';
  end if;
  if (new.provider_account, new.job_id, new.operation_id, new.attempt_id, new.first_seen_at) is distinct from
     (old.provider_account, old.job_id, old.operation_id, old.attempt_id, old.first_seen_at) then
    raise exception 'job % of operation %: an id that was seen can''t change', old.job_id, old.operation_id
      using errcode = 'OR010';
  end if;
  return new;
end;
$$;
create trigger b_guard before insert or update on relay.remote_job
  for each row execute function relay.guard_remote_job();
alter table relay.remote_job enable always trigger b_guard;

-- Reviews --------------------------------------------------------------------------------------------------

create function relay.guard_review() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'INSERT' then
    if new.state <> 'open' or new.resolution is not null or new.resolved_xid is not null then
      raise exception 'a review begins open' using errcode = 'OR010';
    end if;
    return new;
  end if;
  if old.state <> 'open' then
    raise exception 'review % is % already', old.review_id, old.state using errcode = 'OR010';
  end if;
  if (new.review_id, new.operation_id, new.attempt_id, new.kind, new.opened_at) is distinct from
     (old.review_id, old.operation_id, old.attempt_id, old.kind, old.opened_at) then
    raise exception 'review %: what it is about can''t change', old.review_id using errcode = 'OR010';
  end if;
  if new.state = 'resolved' then
    if new.resolution is null or new.resolution_reason is null or new.resolved_by is null then
      raise exception 'review %: a resolution says what, why and who', old.review_id using errcode = 'OR010';
    end if;
    if not pg_has_role(session_user, 'relay_operator', 'usage') then
      raise exception 'review %: % is not an operator', old.review_id, session_user using errcode = 'OR012';
    end if;
    new.resolved_at := relay.now();
    new.resolved_xid := pg_current_xact_id();
  elsif (new.resolution, new.resolved_by, new.resolved_at, new.resolved_xid) is distinct from
        (old.resolution, old.resolved_by, old.resolved_at, old.resolved_xid) then
    raise exception 'review %: only a resolution writes these', old.review_id using errcode = 'OR010';
  elsif new.evidence is distinct from old.evidence then
    new.revision := old.revision + 1;
  end if;
  return new;
end;
$$;
create trigger b_guard before insert or update on relay.review
  for each row execute function relay.guard_review();
alter table relay.review enable always trigger b_guard;

create function relay.after_review() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'INSERT' then
    update relay.operation set open_reviews = open_reviews + 1 where operation_id = new.operation_id;
  elsif old.state = 'open' and new.state <> 'open' then
    update relay.operation set open_reviews = open_reviews - 1 where operation_id = new.operation_id;
  end if;
  return null;
end;
$$;
create trigger c_count after insert or update on relay.review
  for each row execute function relay.after_review();
alter table relay.review enable always trigger c_count;
