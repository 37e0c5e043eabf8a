-- Late and double answers: what an id that comes after the end does to attempts, money and the next request.
--
-- Replaced, from 0005: guard_attempt (an attempt that counted as refused or unsent, and then turns out to have made
-- a job, becomes accepted). Everything else is new, in triggers of its own.

create or replace function relay.guard_attempt() returns trigger
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
      old.outcome = 'open' or (old.outcome = 'unknown' and new.outcome in ('accepted', 'refused'))
      -- An id outranks a refusal: then it must be there, and no other request may have been sent on that ground.
      or (old.action = 'submit' and old.outcome in ('refused', 'unsent') and new.outcome = 'accepted'
          -- A declared replay's job (0019) is booked to the request that it repeats.
          and exists (select 1 from relay.remote_job j
                       where j.attempt_id in (old.attempt_id, relay.paying_attempt(old.attempt_id)))
          and not exists (select 1 from relay.attempt a
                where a.operation_id = old.operation_id and a.action = 'submit' and a.attempt_id <> old.attempt_id
                  and a.outcome in ('open', 'unknown', 'accepted') and a.released_by_review is null))) then
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

-- The next request -------------------------------------------------------------------------------------------

-- Whether a person was asked about an earlier request of this operation, or an id of it: until that is answered,
-- another request could pay for the same job once more.
create function relay.earlier_request_is_in_question(p_operation_id uuid) returns boolean
  -- Volatile: asked again of a row that somebody has just changed, it must see what they committed.
  language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select exists (select 1 from relay.review r
                  where r.operation_id = p_operation_id and r.state = 'open'
                    and r.kind in ('uncertain_submission', 'candidate_id', 'second_id', 'id_collision', 'contradiction'))
$$;

create function relay.guard_next_request() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if relay.earlier_request_is_in_question(new.operation_id) then
    raise exception 'attempt %: a review of operation % asks about an earlier request, and nothing is sent before',
      new.attempt_id, new.operation_id using errcode = 'OR012';
  end if;
  return new;
end;
$$;
create trigger b_next_request before insert on relay.attempt
  for each row when (new.action = 'submit' and new.outcome = 'open') execute function relay.guard_next_request();
alter table relay.attempt enable always trigger b_next_request;

-- One request's refusal ends what that very request was sent for, and nothing that another one has in flight.
create function relay.guard_own_refusal() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if relay.context('cause') = 'rule' and relay.context('attempt_id')::uuid is distinct from old.claim_token then
    perform relay.not_backed('rule', 'the refused request is not the one in flight');
  end if;
  return new;
end;
$$;
create trigger b_own_refusal before update on relay.operation
  for each row when (old.phase = 'submitting' and new.phase = 'rejected') execute function relay.guard_own_refusal();
alter table relay.operation enable always trigger b_own_refusal;

-- What was asked about a request whose operation had gone on, and the provider's own answer has come: asked no more.
-- An operation that waits for a decision keeps its question; it ends when the operation moves.
create function relay.after_late_answer() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  update relay.review r set state = 'superseded', revision = r.revision + 1
   where r.operation_id = new.operation_id and r.attempt_id = new.attempt_id and r.state = 'open'
     and (r.kind = 'uncertain_submission' or (r.kind = 'candidate_id' and new.outcome = 'accepted'))
     and not exists (select 1 from relay.operation o
                      where o.operation_id = new.operation_id and o.phase = 'uncertain');
  return null;
end;
$$;
create trigger d_late_answer after update on relay.attempt
  for each row when (new.action = 'submit' and old.outcome = 'unknown' and new.outcome in ('accepted', 'refused')
                     -- A person's decision resolves its own review.
                     and new.outcome_reason is distinct from 'review')
  execute function relay.after_late_answer();
alter table relay.attempt enable always trigger d_late_answer;

-- Money ------------------------------------------------------------------------------------------------------

-- A person had decided without proof and the money was disputed; now a rule of the profile says that this request
-- was refused and cost nothing. (relay.refund is 0017's. A job that becomes known after all is booked there, too.)
create function relay.after_late_refusal() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if exists (select 1 from relay.reservation r where r.attempt_id = new.attempt_id and r.state = 'disputed') then
    perform relay.refund(new.attempt_id, null, 'refused after all, and not charged');
  end if;
  return null;
end;
$$;
create trigger d_late_refusal after update on relay.attempt
  for each row when (new.action = 'submit' and old.outcome = 'unknown' and new.outcome = 'refused'
                     and new.charged is false) execute function relay.after_late_refusal();
alter table relay.attempt enable always trigger d_late_refusal;

revoke execute on function relay.earlier_request_is_in_question, relay.guard_next_request, relay.guard_own_refusal,
  relay.after_late_answer, relay.after_late_refusal from public;
grant execute on function relay.earlier_request_is_in_question to relay_worker;
