-- What both shapes share; applied first.

create sequence public.bench_n minvalue 0 start 0;

-- A thousand keys, in turn.
create function public.bench_key(n bigint) returns uuid
  language sql immutable parallel safe
  return lpad(to_hex(n % 1000), 32, '0')::uuid;

-- rows 0 to `rows` - 1, committed in order.
create procedure public.bench_backlog(rows bigint, rows_per_transaction bigint, payload_bytes integer)
  language plpgsql as $$
declare
  first bigint := 0;
begin
  while first < rows loop
    call public.bench_insert(first, least(first + rows_per_transaction, rows) - 1, payload_bytes);
    commit;
    first := first + rows_per_transaction;
  end loop;
end
$$;
