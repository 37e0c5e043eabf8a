-- What a second reading of 0013 to 0029 found.

-- A login's own temporary table is never mistaken for the catalog's, in a guard that runs as its caller either.
do $$
declare
  guard regprocedure;
begin
  for guard in select p.oid::regprocedure from pg_proc p
                where p.pronamespace = 'relay'::regnamespace and p.prorettype = 'trigger'::regtype and p.proconfig is null
  loop
    execute format('alter function %s set search_path = pg_catalog, pg_temp', guard);
  end loop;
end;
$$;

-- What a delivery copies from its parent was approved, whatever its length: it must not keep a paid job from its end.
drop trigger a_words on relay.operation;
create trigger a_words before insert on relay.operation
  for each row when (new.parent_operation_id is null) execute function relay.guard_words();
alter table relay.operation enable always trigger a_words;

-- Asked with the owner's allowance locked, and by each screen of a review.
create index review_by_operation on relay.review (operation_id, attempt_id);
create index operation_of_parent on relay.operation (parent_operation_id) where parent_operation_id is not null;

-- An id that was a candidate, and becomes the job, costs as much as one that was the job from the first.
create trigger c_money_role after update of role on relay.remote_job
  for each row when (old.role = 'candidate' and new.role <> 'candidate' and new.attempt_id is not null)
  execute function relay.rebook();
alter table relay.remote_job enable always trigger c_money_role;

-- By the operation's own key and policy, row by row: the list of all that an owner ever had doesn't fit in memory.
alter policy own on relay.journal using (
  exists (select 1 from relay.operation o where o.operation_id = journal.operation_id));
alter policy own on relay.output using (
  exists (select 1 from relay.operation o where o.operation_id = output.operation_id));

-- Decisions from before 0015 were held to the phase alone, and stay as they were taken.
alter table relay.review add column answers_its_kind boolean not null default false;
alter table relay.review alter column answers_its_kind set default true;
