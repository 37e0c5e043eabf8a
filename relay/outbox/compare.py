"""The outbox beside its topics: for each row, whether Kafka has it, and if not, why.

It reads the outbox in the caller's transaction, so that audit and repair each choose what they see; and it
decides nothing about what to do.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, cast

import psycopg
from psycopg import sql

from relay.kafka.contents import Contents, Record
from relay.kafka.partitioner import partition_of
from relay.kafka.spans import Place, Span
from relay.outbox.event import Schemas, dead_letter_topic, event_uuid, topic_of, topics_from_start
from relay.outbox.mapping import OutboxMapping

BATCH_ROWS: Final = 2_000


class Verdict(StrEnum):
    PRESENT = "present"
    MISSING = "missing"
    EXPIRED = "expired"
    """Older than what its partition still has: retention took it, or it never came; nobody can tell."""
    PARKED = "parked"


class Row(NamedTuple):
    """What is needed of an outbox row to look for it."""

    event_id: str
    seq: int | None
    event_type: str
    route: str
    key: str | None
    occurred_at_ms: int | None


class Horizon(NamedTuple):
    """What a partition has forgotten: rows older than this. Compared by `seq` where both have one."""

    seq: int | None
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """How rows are routed, and where their records may be."""

    mapping: OutboxMapping
    prefix: str
    one_topic: str | None
    relay_id: uuid.UUID
    schemas: Schemas | None = None
    """Whose topics are looked at as well: a rewound outbox may have no row left of an event type."""

    @property
    def dead_letters(self) -> str:
        return dead_letter_topic(self.prefix)

    def of(self, row: Row) -> str:
        return topic_of(self.mapping, self.prefix, self.one_topic, event_type=row.event_type, route=row.route)

    def read(self, connection: psycopg.Connection[Any]) -> list[str]:
        """Every topic that a row of the outbox may be in, or may have been; dead letters included."""
        columns = self.mapping.columns
        query = sql.SQL("select distinct {}::text, {} from {}").format(
            sql.Identifier(columns.event_type), _text(columns.route), self._table()
        )
        rows = connection.execute(query).fetchall()
        kinds = (Row("", None, kind, route or "", None, None) for kind, route in rows if kind is not None)
        start = (
            topics_from_start(self.mapping, self.schemas, self.prefix, self.one_topic) if self.schemas else ()
        )
        return sorted({self.dead_letters, *start, *(self.of(kind) for kind in kinds)})

    def _table(self) -> sql.Identifier:
        return sql.Identifier(self.mapping.schema, self.mapping.table)


def horizon(span: Span, first: Record | None, first_seq: int | None, published_seq: int) -> Horizon | None:
    """What a partition has forgotten; None when it has everything from its beginning.

    `first` is its first record, `first_seq` that event's `seq` in the outbox; `published_seq` is the
    checkpoint's, which stands in for a partition that has nothing left.
    """
    if span.first == 0:
        return None
    if first is None:
        return Horizon(published_seq + 1, None)
    return Horizon(first_seq, first.timestamp_ms)


def is_expired(row: Row, forgotten: Horizon | None) -> bool:
    """Whether the row is older than what its partition still has."""
    if forgotten is None:
        return False
    if forgotten.seq is not None and row.seq is not None:
        return row.seq < forgotten.seq
    if forgotten.timestamp_ms is not None and row.occurred_at_ms is not None:
        return row.occurred_at_ms < forgotten.timestamp_ms
    return False


def compare(
    connection: psycopg.Connection[Any],
    topics: Topics,
    contents: Contents,
    *,
    published_seq: int,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[tuple[Row, Verdict]]:
    """Every row of the outbox that `connection`'s transaction sees, in order of `seq`, with its verdict.

    `contents` must have been collected from `Topics.read`'s topics, after the transaction took its snapshot
    or while nobody publishes. Raises psycopg.Error.
    """
    horizons: dict[Place, Horizon | None] = {}
    partitions: dict[str, int] = {}
    for topic, partition in contents.spans:
        partitions[topic] = max(partitions.get(topic, 0), partition + 1)

    def forgotten(row: Row) -> Horizon | None:
        topic = topics.of(row)
        if topic not in partitions or row.key is None:
            return None
        place = (topic, partition_of(row.key.encode(), partitions[topic]))
        if place not in horizons:
            first = contents.first_of(place)
            seq = None if first is None else _seq_of(connection, topics.mapping, first.event_id)
            horizons[place] = horizon(contents.spans[place], first, seq, published_seq)
        return horizons[place]

    for rows in _batches(connection, topics.mapping, batch_rows):
        ids = [row.event_id for row in rows]
        present = contents.has(ids, except_topic=topics.dead_letters)
        absent = [event_id for event_id in ids if event_id not in present]
        parked = _parked(connection, topics.relay_id, absent) if absent else set()
        for row in rows:
            if row.event_id in present:
                yield row, Verdict.PRESENT
            elif row.event_id in parked:
                yield row, Verdict.PARKED
            else:
                yield row, Verdict.EXPIRED if is_expired(row, forgotten(row)) else Verdict.MISSING


def known_ids(
    connection: psycopg.Connection[Any], mapping: OutboxMapping, event_ids: Sequence[str]
) -> set[str]:
    """Those of `event_ids` that the outbox has."""
    query = sql.SQL("select {id}::text from {table} where {id} = any(%s)").format(
        id=sql.Identifier(mapping.columns.event_id), table=sql.Identifier(mapping.schema, mapping.table)
    )
    return {row[0] for row in connection.execute(query, [list(event_ids)])}


def _batches(connection: psycopg.Connection[Any], mapping: OutboxMapping, size: int) -> Iterator[list[Row]]:
    columns = mapping.columns
    occurred = columns.occurred_at
    query = sql.SQL("select {}::text, {}, {}::text, {}, {}::text, {} from {} order by {}").format(
        sql.Identifier(columns.event_id),
        sql.SQL("null::bigint") if columns.seq is None else sql.Identifier(columns.seq),
        sql.Identifier(columns.event_type),
        _text(columns.route),
        sql.Identifier(columns.operation_id),
        sql.SQL("null::bigint")
        if occurred is None
        else sql.SQL("(extract(epoch from {}) * 1000)::bigint").format(sql.Identifier(occurred)),
        sql.Identifier(mapping.schema, mapping.table),
        sql.Identifier(columns.seq or occurred or columns.event_id),
    )
    with connection.cursor(name="outbox_compare") as cursor:
        cursor.execute(query)
        while rows := cursor.fetchmany(size):
            yield [Row(i, seq, kind or "", route or "", key, at) for i, seq, kind, route, key, at in rows]


def _text(column: str | None) -> sql.Composable:
    return sql.SQL("null::text") if column is None else sql.SQL("{}::text").format(sql.Identifier(column))


def _seq_of(connection: psycopg.Connection[Any], mapping: OutboxMapping, event_id: str) -> int | None:
    if mapping.columns.seq is None or not event_id:
        return None
    query = sql.SQL("select {} from {} where {} = %s").format(
        sql.Identifier(mapping.columns.seq),
        sql.Identifier(mapping.schema, mapping.table),
        sql.Identifier(mapping.columns.event_id),
    )
    row = connection.execute(query, [event_id]).fetchone()
    return None if row is None else cast(int, row[0])


def _parked(connection: psycopg.Connection[Any], relay_id: uuid.UUID, event_ids: Sequence[str]) -> set[str]:
    """Those of `event_ids` that were parked, and not republished since."""
    known: Mapping[uuid.UUID, str] = {
        event_uuid(event_id.encode(), relay_id, ""): event_id for event_id in event_ids
    }
    rows = connection.execute(
        "select event_id from relay.parked_event"
        " where relay_id = %s and event_id = any(%s) and state <> 'republished'",
        [relay_id, list(known)],
    )
    return {known[row[0]] for row in rows}
