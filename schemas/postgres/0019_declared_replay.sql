-- Declared idempotency: where a profile says that its provider keeps a request's key, an unknown submission is sent
-- again with the same key and the same bytes, while the provider certainly knows the key, and not a microsecond after.
--
-- Changed: check_cause (goes on under another name, behind one that knows `replay` and `unreplayed`; a declared
-- replay may follow a request of which nothing is known, and is paid from its reservation), request_cancel (an
-- operation with such a request isn't over by a cancel).

-- What a profile declares, as numbers (seconds): written with the document, and immutable like it. Null: nothing is
-- declared, and nothing is ever replayed.
alter table relay.provider_profile add column idempotency jsonb
  constraint provider_profile_idempotency check (idempotency is null or (
    (idempotency ->> 'retention_s')::numeric > (idempotency ->> 'request_s')::numeric
    and (idempotency ->> 'request_s')::numeric > 0 and (idempotency ->> 'min_s')::numeric > 0
    and (idempotency ->> 'max_s')::numeric >= (idempotency ->> 'min_s')::numeric
    and (idempotency ->> 'factor')::numeric >= 1));

insert into relay.lifecycle_edge (lifecycle, from_phase, to_phase, cause) values
  ('generation', 'uncertain', 'prepared', 'replay'),
  -- It could not be sent again after all, or the answer proves nothing: what was unknown is unknown.
  ('generation', 'prepared', 'uncertain', 'unreplayed'),
  ('generation', 'claimed', 'uncertain', 'unreplayed'),
  ('generation', 'submitting', 'uncertain', 'unreplayed');

-- The first request of the operation of which nobody knows whether it made a job, but p_token's own. Null: there is
-- none, and what is sent next is no replay.
create function relay.unknown_request(p_operation_id uuid, p_token uuid default null) returns uuid
  language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select a.attempt_id from relay.attempt a
   where a.operation_id = p_operation_id and a.action = 'submit' and a.outcome in ('open', 'unknown')
     and a.released_by_review is null and a.attempt_id is distinct from p_token
   order by a.started_at, a.attempt_id limit 1
$$;

-- Until when a replay may begin: first send + retention - (deadline + margin). Null: none is declared.
create function relay.replay_until(p_operation_id uuid) returns timestamptz
  language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select min(a.first_sent_at) + make_interval(secs => ((p.idempotency ->> 'retention_s')::numeric
                                                       - (p.idempotency ->> 'request_s')::numeric)::double precision)
    from relay.operation o
    join relay.provider_profile p on p.provider = o.provider and p.digest = o.profile_digest
    join relay.attempt a on a.operation_id = o.operation_id and a.action = 'submit'
   where o.operation_id = p_operation_id and p.idempotency is not null
     and a.idempotency_key is not null and a.outcome <> 'unsent'
   group by p.idempotency
$$;

-- Why the operation's unknown requests may not be sent again now; null: they may. p_token is the attempt that would.
create function relay.why_no_replay(p_operation_id uuid, p_token uuid default null) returns text
  language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  subject relay.operation;
  until timestamptz := relay.replay_until(p_operation_id);
begin
  select * into subject from relay.operation where operation_id = p_operation_id;
  if until is null then
    return 'its profile declares no replay';
  elsif relay.now() >= until then
    return 'its provider may have forgotten the key: a replay had to begin before ' || until;
  elsif subject.cancel_requested then
    return 'a cancel was requested';
  elsif exists (select 1 from relay.attempt a
                 where a.operation_id = p_operation_id and a.action = 'submit' and a.released_by_review is null
                   and a.attempt_id is distinct from p_token
                   and (a.outcome in ('open', 'accepted') or (a.outcome = 'unknown' and (
                          not coalesce((a.idempotency_key, a.request_sha256) = (
                               select f.idempotency_key, f.request_sha256 from relay.attempt f
                                where f.attempt_id = coalesce(p_token, relay.unknown_request(p_operation_id))),
                             false))))) then
    return 'an earlier request of it had another key or other bytes, or is under way';
  elsif exists (select 1 from relay.remote_job j where j.operation_id = p_operation_id) then
    return 'an id was seen for it';
  elsif exists (select 1 from relay.review r where r.operation_id = p_operation_id and r.state = 'open'
                   and r.kind in ('candidate_id', 'second_id', 'id_collision', 'contradiction')) then
    return 'a review asks about an id of it';
  end if;
  return null;
end;
$$;

-- Whether p_token's request is the declared replay of p_earlier.
create function relay.replays(p_token uuid, p_earlier relay.attempt) returns boolean
  language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select exists (select 1 from relay.attempt a
                  where a.attempt_id = p_token and a.operation_id = p_earlier.operation_id
                    and a.idempotency_key = p_earlier.idempotency_key
                    and a.request_sha256 = p_earlier.request_sha256 and p_earlier.outcome = 'unknown')
     and relay.why_no_replay(p_earlier.operation_id, p_token) is null
$$;

-- Whose reservation pays for a request: its own, or that of the one that it repeats. One key is one job.
create function relay.paying_attempt(p_attempt_id uuid) returns uuid
  language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    (select r.attempt_id from relay.reservation r where r.attempt_id = p_attempt_id),
    (select e.attempt_id
       from relay.attempt me
       join relay.attempt e on e.operation_id = me.operation_id and e.action = 'submit'
                           and e.idempotency_key = me.idempotency_key
       join relay.reservation r on r.attempt_id = e.attempt_id and r.state <> 'released'
      where me.attempt_id = p_attempt_id and e.released_by_review is null
      order by e.started_at, e.attempt_id limit 1),
    p_attempt_id)
$$;

-- Causes -----------------------------------------------------------------------------------------------------

do $$
declare
  edit record;
  was text;
begin
  for edit in
    select p.oid::regprocedure as routine, of.found, of.put
      from pg_proc p
      join pg_namespace n on n.oid = p.pronamespace and n.nspname = 'relay'
      join (values
        ('check_cause%',
         E'and a.outcome not in (''unsent'', ''refused'') and a.released_by_review is null) then\n        perform relay.not_backed(p_cause, ''an earlier attempt may have reached the provider'')',
         E'and a.outcome not in (''unsent'', ''refused'') and a.released_by_review is null\n          and not relay.replays(p_old.claim_token, a)) then\n        perform relay.not_backed(p_cause, ''an earlier attempt may have reached the provider'')'),
        ('check_cause%',
         'where r.attempt_id = p_old.claim_token',
         'where r.attempt_id = relay.paying_attempt(p_old.claim_token)'),
        ('request_cancel',
         'when phase in (''prepared'', ''held'') then ''cancelled''',
         'when phase in (''prepared'', ''held'') and relay.unknown_request(operation_id) is null then ''cancelled'''),
        ('request_cancel',
         'when phase in (''prepared'', ''held'') then ''cancel''',
         'when phase in (''prepared'', ''held'') and relay.unknown_request(operation_id) is null then ''cancel''')
      ) as of (routine, found, put) on p.proname like of.routine and strpos(p.prosrc, of.found) > 0
  loop
    was := pg_get_functiondef(edit.routine);
    execute replace(was, edit.found, edit.put);
  end loop;
  if (select count(*) from pg_proc p join pg_namespace n on n.oid = p.pronamespace and n.nspname = 'relay'
       where p.prosrc like '%relay.replays(p_old.claim_token, a)%relay.paying_attempt(p_old.claim_token)%') <> 1
     or not exists (select 1 from pg_proc p join pg_namespace n on n.oid = p.pronamespace and n.nspname = 'relay'
       where p.proname = 'request_cancel' and p.prosrc like '%unknown_request%unknown_request%') then
    raise exception 'relay.check_cause or relay.request_cancel is not what this migration changes';
  end if;
end;
$$;

alter function relay.check_cause(relay.operation, relay.operation, text) rename to check_cause_but_replay;

create function relay.check_cause(p_old relay.operation, p_new relay.operation, p_cause text) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  why text;
begin
  if p_cause = 'replay' then
    why := relay.why_no_replay(p_old.operation_id);
    if why is not null then
      perform relay.not_backed(p_cause, why);
    elsif relay.unknown_request(p_old.operation_id) is null then
      perform relay.not_backed(p_cause, 'nothing was sent of which the outcome is unknown');
    end if;
  elsif p_cause = 'unreplayed' then
    if relay.unknown_request(p_old.operation_id, p_old.claim_token) is null then
      perform relay.not_backed(p_cause, 'no earlier request of it is unknown');
    elsif exists (select 1 from relay.attempt a
                   where a.attempt_id = p_old.claim_token and a.outcome in ('open', 'accepted')) then
      perform relay.not_backed(p_cause, 'the request under its claim is under way, or was accepted');
    end if;
  else
    perform relay.check_cause_but_replay(p_old, p_new, p_cause);
  end if;
end;
$$;

-- What may have made a job stays unknown: no hold, cancel or refusal of a later request ends its operation.
create function relay.guard_unknown_request() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if relay.unknown_request(new.operation_id, old.claim_token) is not null
     and not (new.phase = 'held' and new.phase_reason = 'restored') then
    raise exception 'operation %: an earlier request of it may have made a job: it becomes uncertain again, and not %',
      new.operation_id, new.phase using errcode = 'OR012';
  end if;
  return new;
end;
$$;
create trigger b_unknown_request before update on relay.operation
  for each row when (old.phase in ('prepared', 'claimed', 'submitting', 'held') and old.phase <> new.phase
                     and new.phase in ('held', 'cancelled', 'rejected'))
  execute function relay.guard_unknown_request();
alter table relay.operation enable always trigger b_unknown_request;

-- An uncertain operation that may be replayed is looked at again: by schedule, which replays it. After b_guard.
create function relay.set_next_replay() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  pace jsonb;
  repeats integer;
begin
  if relay.why_no_replay(new.operation_id) is null and relay.unknown_request(new.operation_id) is not null then
    select p.idempotency into pace from relay.provider_profile p
     where p.provider = new.provider and p.digest = new.profile_digest;
    select count(*) - 1 into repeats from relay.attempt a
     where a.operation_id = new.operation_id and a.action = 'submit' and a.idempotency_key is not null
       and a.outcome <> 'unsent';
    new.next_action_at := relay.now() + make_interval(secs => (1 + 0.2 * random()) * least(
      (pace ->> 'max_s')::double precision,
      (pace ->> 'min_s')::double precision
        * power((pace ->> 'factor')::double precision, least(greatest(repeats, 0), 60))));
  end if;
  return new;
end;
$$;
create trigger b_replay before update on relay.operation
  for each row when (new.phase = 'uncertain' and old.phase <> 'uncertain') execute function relay.set_next_replay();
alter table relay.operation enable always trigger b_replay;

-- One key is one job, one reservation and one question -------------------------------------------------------------

create function relay.name_paying_attempt() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  new.attempt_id := relay.paying_attempt(new.attempt_id);
  return new;
end;
$$;
create trigger a_paying before insert on relay.remote_job
  for each row when (new.attempt_id is not null) execute function relay.name_paying_attempt();
alter table relay.remote_job enable always trigger a_paying;
create trigger a_paying before insert on relay.review
  for each row when (new.attempt_id is not null and new.kind = 'uncertain_submission')
  execute function relay.name_paying_attempt();
alter table relay.review enable always trigger a_paying;

-- As in 0005, but of requests with one key: while one of them may have made the job, its reservation stays, and it
-- is given back when the last of them is known to have made none.
create or replace function relay.after_attempt() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  pays uuid;
begin
  if new.action <> 'submit' or (tg_op = 'UPDATE' and new.outcome = old.outcome) then
    return null;
  end if;
  pays := relay.paying_attempt(new.attempt_id);
  if new.outcome = 'unsent' or (new.outcome = 'refused' and new.charged is false) then
    if not exists (select 1 from relay.attempt a
                    where a.operation_id = new.operation_id and a.action = 'submit' and a.attempt_id <> new.attempt_id
                      and a.idempotency_key = new.idempotency_key and a.released_by_review is null
                      and (a.attempt_id = pays or not exists (
                             select 1 from relay.reservation r where r.attempt_id = a.attempt_id))
                      and not (a.outcome = 'unsent' or (a.outcome = 'refused' and a.charged is false)))
       and relay.release_reservation(pays, new.outcome) then
      update relay.operation set accounting = relay.accounting_of(operation_id) where operation_id = new.operation_id;
    end if;
  elsif new.outcome = 'refused' then
    perform relay.dispute(pays, 'refused, and not declared as uncharged');
  end if;
  return null;
end;
$$;

-- Null when it is done, else what it does not fit. A replay needs no more than its first request holds already.
create function relay.reserve_unless_replayed(p_operation_id uuid, p_attempt_id uuid) returns text
  language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select case when relay.unknown_request(p_operation_id, p_attempt_id) is null
              then relay.reserve_or_why(p_operation_id, p_attempt_id) end
$$;

revoke execute on function relay.unknown_request, relay.replay_until, relay.why_no_replay, relay.replays,
  relay.paying_attempt, relay.guard_unknown_request, relay.set_next_replay, relay.name_paying_attempt,
  relay.reserve_unless_replayed, relay.check_cause, relay.check_cause_but_replay from public;
grant execute on function relay.unknown_request, relay.why_no_replay, relay.paying_attempt,
  relay.reserve_unless_replayed to relay_worker;
