-- The table of Debezium's outbox event router, its payload already encoded: what is carried through unchanged.

create table public.outbox_event (
  id uuid primary key,
  aggregatetype varchar(255) not null,
  aggregateid varchar(255) not null,
  type varchar(255) not null,
  payload bytea
);

-- The row's number, the moment of the insert in microseconds, and filler that begins with 'bench'.
create function public.bench_payload(n bigint, payload_bytes integer) returns bytea
  language sql volatile parallel unsafe
  return int8send(n) || int8send((extract(epoch from clock_timestamp()) * 1000000)::bigint)
    || decode('62656e6368' || repeat('a7', payload_bytes - 21), 'hex');

create procedure public.bench_insert(first bigint, last bigint, payload_bytes integer)
  language sql
  begin atomic
    insert into public.outbox_event (id, aggregatetype, aggregateid, type, payload)
    select gen_random_uuid(), 'bench', public.bench_key(n)::text, 'bench.event', public.bench_payload(n, payload_bytes)
    from generate_series(first, last) n;
  end;
