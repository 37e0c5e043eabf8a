-- Roles, time, and the words that every later migration uses.
--
-- No service role owns a table. Each is a group without login: grant it to the login that your process uses
-- (`grant relay_worker to dispatch_login`). REPLICATION is not inherited, so it belongs on the relay's own
-- login (Postgres manual, CREATE ROLE).

do $$
declare
  role_name text;
begin
  foreach role_name in array array['relay_app', 'relay_replicator', 'relay_worker', 'relay_operator', 'relay_reader']
  loop
    begin
      execute format('create role %I nologin', role_name);
    exception when duplicate_object or unique_violation then
      null;  -- roles belong to the cluster: another database's migration made it
    end;
  end loop;
end;
$$;

revoke all on schema relay from public;
grant usage on schema relay to relay_app, relay_replicator, relay_worker, relay_operator, relay_reader;

-- The only clock of operations. A test replaces this function; nothing else asks for the time.
create function relay.now() returns timestamptz
  language sql volatile parallel safe
as $$ select clock_timestamp() $$;

-- Who, why and on what ground: said by the caller with set_config('relay.<name>', …, true).
create function relay.context(name text) returns text
  language sql stable
as $$ select nullif(current_setting('relay.' || name, true), '') $$;

-- SQLSTATEs of class OR are this schema's own:
--   OR001 another specification under this key   OR002 unknown provider      OR003 unregistered kind
--   OR004 not found                              OR010 forbidden change      OR011 no such edge
--   OR012 cause not backed                       OR013 context missing       OR014 nothing would wake it
create function relay.refuse() returns trigger
  language plpgsql
as $$
begin
  raise exception '% on %.% is refused: %', tg_op, tg_table_schema, tg_table_name, tg_argv[0]
    using errcode = 'OR010';
end;
$$;

-- ENABLE ALWAYS: session_replication_role = replica would switch an ordinary trigger off.
create function relay.forbid(p_table regclass, p_operations text, p_why text) returns void
  language plpgsql
as $$
begin
  if p_operations <> 'truncate' then
    execute format(
      'create trigger a_forbidden before %s on %s for each row execute function relay.refuse(%L)',
      p_operations, p_table, p_why);
    execute format('alter table %s enable always trigger a_forbidden', p_table);
  end if;
  execute format(
    'create trigger a_truncate_forbidden before truncate on %s for each statement execute function relay.refuse(%L)',
    p_table, p_why);
  execute format('alter table %s enable always trigger a_truncate_forbidden', p_table);
end;
$$;

revoke execute on all functions in schema relay from public;
grant execute on function relay.now(), relay.context(text)
  to relay_app, relay_replicator, relay_worker, relay_operator, relay_reader;
