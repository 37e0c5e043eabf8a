-- A redaction blanks the place of a payload that is elsewhere, too; its digest and length stay (0018, 0023).

create or replace function relay.guard_reference() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if (new.payload_ref, new.payload_sha256, new.payload_bytes) is distinct from
     (old.payload_ref, old.payload_sha256, old.payload_bytes)
     -- That a redaction leaves digest and length alone, relay.is_redaction has seen.
     and not relay.is_redaction(old, new) then
    raise exception 'operation %: what was approved can''t change', old.operation_id using errcode = 'OR010';
  end if;
  return new;
end;
$$;
