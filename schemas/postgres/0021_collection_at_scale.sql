-- Collection at scale: permits and rates that all processes of an account share, polls that an outage slows down, and
-- one outstanding event of each job however long nobody reads it.
--
-- Changed, in its text as it is: emit (a collection event that nobody answers is written again after twice the time).
-- operation_due is replaced by an index that has the phase first.

alter table relay.operation
  -- Collection events written since the provider was last asked: more than one only when one was lost, or is waited for.
  add column unanswered integer not null default 0 check (unanswered >= 0),
  -- When the provider last knew the job. Null: ask the attempts (of before this migration).
  add column seen_at timestamptz,
  -- When a webhook last said that there is something to see.
  add column nudged_at timestamptz,
  -- Its place in the line of those that a limit of the account makes wait.
  add column waits_until timestamptz;

create index operation_due_by_phase on relay.operation (phase, next_action_at) where next_action_at is not null;
drop index relay.operation_due;
-- A webhook names a job, and nothing else.
create index remote_job_by_id on relay.remote_job (job_id, provider_account);

alter table relay.provider_account
  add column polls_failed integer not null default 0,
  add column poll_not_before timestamptz;
comment on column relay.provider_account.poll_not_before is
  'After failures in a row one GET at a time asks whether the provider is back; the others wait until then.';

create function relay.forget_waiting() returns trigger
  language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  new.unanswered := 0;
  new.nudged_at := null;
  new.waits_until := null;
  return new;
end;
$$;
create trigger b_forget_waiting before update on relay.operation
  for each row when (old.phase <> new.phase) execute function relay.forget_waiting();
alter table relay.operation enable always trigger b_forget_waiting;

do $$
declare
  routine constant regprocedure := 'relay.emit(uuid)'::regprocedure;
  found constant text := 'update relay.operation set next_action_at = relay.now() + kind.reemit_after where operation_id = p_operation_id;';
  put constant text := '-- Nothing is lost in Kafka: written again it would only make a line longer that nobody works off.
  update relay.operation
     set next_action_at = relay.now() + kind.reemit_after
                          * case when subject.phase = ''accepted'' then 2 ^ least(subject.unanswered, 6) else 1 end,
         unanswered = case when subject.phase = ''accepted'' then subject.unanswered + 1 else 0 end
   where operation_id = p_operation_id;';
  was constant text := pg_get_functiondef(routine);
begin
  if (length(was) - length(replace(was, found, ''))) <> length(found) then
    raise exception '% does not have "%" once', routine, found;
  end if;
  execute replace(was, found, put);
end;
$$;

-- Limits of an account ---------------------------------------------------------------------------------------

-- One row for each account and action that has a limit. It is the lock under which permits are given.
create table relay.account_pace (
  provider text not null,
  account text not null,
  action text not null check (action in ('submit', 'poll')),
  -- When the rate next has room.
  free_at timestamptz not null default '-infinity',
  -- The next place in the line of those that were told to come again.
  line_ends_at timestamptz not null default '-infinity',
  -- How long a permit is held, smoothed: how soon the next one can be expected.
  held_s double precision not null default 1,
  primary key (provider, account, action),
  foreign key (provider, account) references relay.provider_account (provider, account)
);

-- A permit ends when it is given back, or when its time is over: its holder was killed then.
create table relay.permit (
  permit_id uuid primary key,
  provider text not null,
  account text not null,
  action text not null,
  holder text not null,
  taken_at timestamptz not null,
  expires_at timestamptz not null,
  foreign key (provider, account, action) references relay.account_pace (provider, account, action)
);
create index permit_of_account on relay.permit (provider, account, action);

-- Ask for a permit: `granted`, to be used after `wait_s` seconds, or come again after `wait_s`. Who came again
-- (p_waited) goes before who comes for the first time, so that nobody waits for ever. p_patience_s is how long the
-- caller would wait where it stands. No limit where p_at_once or p_per_s is null.
create function relay.take_permit(p_provider text, p_account text, p_action text, p_permit uuid, p_holder text,
    p_lease_s double precision, p_at_once integer, p_per_s double precision, p_waited boolean,
    p_patience_s double precision, out granted boolean, out wait_s double precision)
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  pace relay.account_pace;
  moment timestamptz;
  room_from timestamptz;
  step interval;
  taken integer;
begin
  loop
    select * into pace from relay.account_pace a
     where a.provider = p_provider and a.account = p_account and a.action = p_action for update;
    exit when found;
    insert into relay.account_pace (provider, account, action) values (p_provider, p_account, p_action)
    on conflict do nothing;
  end loop;
  -- After the lock: whoever had it read its clock earlier.
  moment := relay.now();
  delete from relay.permit p
   where p.provider = p_provider and p.account = p_account and p.action = p_action and p.expires_at <= moment;
  select count(*) into taken from relay.permit p
   where p.provider = p_provider and p.account = p_account and p.action = p_action;
  room_from := greatest(pace.free_at, moment);
  -- How far apart permits become free, by whichever limit is the narrower.
  step := make_interval(secs => greatest(coalesce(1 / p_per_s, 0), coalesce(pace.held_s / p_at_once, 0)));
  granted := (p_at_once is null or taken < p_at_once)
             and (p_per_s is null or room_from <= moment + make_interval(secs => p_patience_s))
             and (p_waited or pace.line_ends_at <= moment + make_interval(secs => p_patience_s));
  if granted then
    wait_s := extract(epoch from room_from - moment);
    if p_per_s is not null then
      update relay.account_pace a set free_at = room_from + make_interval(secs => 1 / p_per_s)
       where a.provider = p_provider and a.account = p_account and a.action = p_action;
    end if;
    insert into relay.permit (permit_id, provider, account, action, holder, taken_at, expires_at)
    values (p_permit, p_provider, p_account, p_action, p_holder, moment,
            moment + make_interval(secs => wait_s + p_lease_s));
    return;
  end if;
  if p_waited then
    -- Its turn has come, and somebody is slow: it stays at the head of the line.
    wait_s := greatest(extract(epoch from room_from - moment), extract(epoch from step), 0.1);
    return;
  end if;
  -- Its place: when there is room, or behind the last who waits.
  room_from := greatest(pace.line_ends_at, room_from, case when taken >= p_at_once then moment + step end);
  update relay.account_pace a set line_ends_at = room_from + step
   where a.provider = p_provider and a.account = p_account and a.action = p_action;
  wait_s := extract(epoch from room_from - moment);
end;
$$;

create function relay.give_permit_back(p_permit uuid) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  was relay.permit;
begin
  -- In the order in which take_permit locks.
  select * into was from relay.permit where permit_id = p_permit;
  if not found then
    return;
  end if;
  update relay.account_pace a
     set held_s = least(3600, greatest(0.01, 0.8 * a.held_s + 0.2 * extract(epoch from relay.now() - was.taken_at)))
   where a.provider = was.provider and a.account = was.account and a.action = was.action;
  delete from relay.permit where permit_id = p_permit;
end;
$$;

-- Grants ---------------------------------------------------------------------------------------------------

revoke execute on function relay.forget_waiting, relay.take_permit, relay.give_permit_back from public;
grant select on relay.account_pace, relay.permit to relay_worker, relay_operator, relay_reader;
grant update (unanswered, seen_at, nudged_at, waits_until) on relay.operation to relay_worker;
grant update (polls_failed, poll_not_before) on relay.provider_account to relay_worker, relay_operator;
grant execute on function relay.take_permit, relay.give_permit_back to relay_worker;
