-- Rows for the relay's own outbox: jsonb that is expanded into bench.event version 1.

-- The text of a row with an empty note has about 185 bytes.
create function public.bench_payload(n bigint, payload_bytes integer) returns jsonb
  language sql volatile parallel unsafe
  return jsonb_build_object(
    'n', n,
    'stamped_at', clock_timestamp(),
    'frame_id', gen_random_uuid(),
    'cost', (n % 100000)::numeric / 100,
    'attempt', n % 5,
    'urgent', n % 7 = 0,
    'phase', 'submitted',
    'note', repeat('n', greatest(payload_bytes - 185, 0)));

create procedure public.bench_insert(first bigint, last bigint, payload_bytes integer)
  language sql
  begin atomic
    insert into relay.outbox (event_type, schema_version, operation_id, version, payload)
    select 'bench.event', 1, public.bench_key(n), 1, public.bench_payload(n, payload_bytes)
    from generate_series(first, last) n;
  end;
