"""The two kinds of outbox that are measured, and how a reader finds a row's number in what comes out of one.

`bytes` is Debezium's own table with a payload that is carried through; `native` is ours, expanded into Avro.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent
SCHEMAS: Final = HERE / "schemas"
SQL: Final = HERE / "sql"


class Mark(NamedTuple):
    """What every row carries: its number and when it was inserted, in microseconds since 1970."""

    n: int
    stamped_at_us: int


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    table: str
    columns: str
    """`RELAY_OUTBOX_COLUMNS`."""
    steady_insert: str
    """One row, for pgbench; a client's own key, so that its rows are in order by key."""
    mark: Callable[[bytes], Mark]
    """Reads the value of a Kafka record."""
    in_stream: re.Pattern[bytes]
    """Finds a row's key, number and stamp in the raw output of pgoutput."""
    mark_in_stream: Callable[[bytes, bytes], Mark]
    """Reads what `in_stream` found of number and stamp."""

    @property
    def sql(self) -> str:
        """What makes its tables and routines, in a database that has the relay's migrations."""
        parts = (SQL / "load.sql", SQL / f"{self.name}.sql")
        return "\n".join(part.read_text(encoding="utf-8") for part in parts)


_bytes_mark: Final = struct.Struct(">qq")


def _mark_of_bytes(value: bytes) -> Mark:
    return Mark(*_bytes_mark.unpack_from(value))


def _mark_of_avro(value: bytes) -> Mark:
    """The first two fields of bench.event, behind the ten bytes of Avro's single-object encoding."""
    n, at = _long(value, 10)
    stamped_at_us, _ = _long(value, at)
    return Mark(n, stamped_at_us)


def _long(value: bytes, at: int) -> tuple[int, int]:
    """Avro's zig-zag long at `at`, and where it ends."""
    shift = zigzag = 0
    while True:
        byte = value[at]
        at += 1
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (zigzag >> 1) ^ -(zigzag & 1), at
        shift += 7


def _mark_of_hex(n: bytes, stamp: bytes) -> Mark:
    return Mark(int(n, 16), int(stamp, 16))


def _mark_of_json(n: bytes, stamp: bytes) -> Mark:
    moment = datetime.fromisoformat(stamp.decode("ascii"))
    return Mark(int(n), round(moment.timestamp() * 1_000_000))


_CLIENT_KEY: Final = "lpad(to_hex(:client_id::bigint), 32, '0')::uuid"

BYTES: Final = Shape(
    name="bytes",
    table="public.outbox_event",
    columns="debezium",
    steady_insert=(
        "insert into public.outbox_event (id, aggregatetype, aggregateid, type, payload) values "
        f"(gen_random_uuid(), 'bench', {_CLIENT_KEY}::text, 'bench.event', "
        "public.bench_payload(nextval('public.bench_n'), :payload_bytes::integer));"
    ),
    mark=_mark_of_bytes,
    in_stream=re.compile(
        rb"([0-9a-f-]{36})t....bench\.eventt....\\x([0-9a-f]{16})([0-9a-f]{16})62656e6368", re.DOTALL
    ),
    mark_in_stream=_mark_of_hex,
)

NATIVE: Final = Shape(
    name="native",
    table="relay.outbox",
    columns="native",
    steady_insert=(
        "insert into relay.outbox (event_type, schema_version, operation_id, version, payload) values "
        f"('bench.event', 1, {_CLIENT_KEY}, 1, "
        "public.bench_payload(nextval('public.bench_n'), :payload_bytes::integer));"
    ),
    mark=_mark_of_avro,
    in_stream=re.compile(
        rb'([0-9a-f-]{36})t....1t....\{"n": (\d+),.{1,20000}?"stamped_at": "([^"]+)"\}', re.DOTALL
    ),
    mark_in_stream=_mark_of_json,
)

SHAPES: Final = {shape.name: shape for shape in (BYTES, NATIVE)}
