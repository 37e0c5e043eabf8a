"""Events that Kafka has and the outbox doesn't: pruned, or lost by a rewind, which consumers acted on.

It only lists them, and tells the pruned ones apart as far as that can be known.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import psycopg

from relay.errors import PhantomEvents, Unavailable
from relay.kafka import spans
from relay.kafka.contents import Contents, Record
from relay.kafka.since import Published, published_since
from relay.outbox.compare import known_ids
from relay.outbox.event import DEBEZIUM_TOPIC, Schemas, dead_letter_topic, topics_from_start
from relay.outbox.mapping import NATIVE_OUTBOX, OutboxMapping

IN_MESSAGE: Final = 10
"""Events that the message itself names."""

IN_LOG: Final = 1_000
"""Events that get a line of the log each."""

Position = tuple[int, int, int]

_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Places(NamedTuple):
    """Where a relay's records may be."""

    properties: Mapping[str, str]
    mapping: OutboxMapping
    schemas: Schemas
    prefix: str
    one_topic: str | None
    source: str
    """The relay's `ce_source`."""
    epoch: int

    def topics(self) -> list[str]:
        """The lost rows can't be asked: a rewound outbox may not know the topics of what it lost."""
        start = topics_from_start(self.mapping, self.schemas, self.prefix, self.one_topic)
        routed = self.mapping.columns.route is not None and self.one_topic is None
        known = spans.names(self.properties) if routed else []
        return [
            *start,
            *(name for name in known if name.startswith(DEBEZIUM_TOPIC)),
            dead_letter_topic(self.prefix),
        ]


def named(stop: PhantomEvents, places: Places, tell: Callable[[Published], None]) -> PhantomEvents:
    """`stop`, with the events that a promotion lost by name; `tell` gets up to `IN_LOG` of them.

    What can't be read (Kafka is away, somebody's transaction hangs) is said; the stop stays one.
    """
    count = 0
    first: list[str] = []
    unread = ""
    try:
        found = published_since(
            places.properties,
            places.topics(),
            source=places.source,
            epoch=places.epoch,
            lsn=stop.switch_lsn,
        )
        for count, event in enumerate(found, start=1):
            if count <= IN_MESSAGE:
                first.append(f"\n    {event}")
            if count <= IN_LOG:
                tell(event)
    except (Unavailable, spans.Stalled) as error:
        unread = f"\n    (not all could be read: {error})"
    more = f"\n    … and {count - IN_MESSAGE} more" if count > IN_MESSAGE else ""
    all_of_them = "`relay outbox audit --all` lists every one. " if places.mapping.rows_kept else ""
    return PhantomEvents(
        f"{stop.message} Events that only Kafka has: {count}.{''.join(first)}{more}{unread}",
        switch_lsn=stop.switch_lsn,
        meaning=stop.meaning,
        remedy=f"{all_of_them}{stop.remedy}",
    )


def lost(
    connection: psycopg.Connection[Any],
    mapping: OutboxMapping,
    contents: Contents,
    *,
    dead_letters: str,
    epoch: int | None,
) -> Iterator[Record]:
    """Records whose event the outbox doesn't have, and which come after every one that it has.

    The WAL is lost from its end, so what is missing before the last event that is left was pruned. `epoch` is
    the checkpoint's: an interrupted repair has a later one, and what it published says nothing here.
    """
    last = _last_known(connection, mapping, contents, dead_letters, epoch)
    for records, known in _batches(connection, mapping, contents, dead_letters, epoch):
        for record in records:
            if record.event_id not in known and record.position > last:
                yield record


def absent(
    connection: psycopg.Connection[Any], mapping: OutboxMapping, contents: Contents, *, dead_letters: str
) -> Iterator[tuple[Record, bool]]:
    """Each record whose event the outbox doesn't have, and whether pruning may have taken the row.

    `relay.prune` goes by `occurred_at`, which is the record's `ce_time`, and keeps the youngest that it took:
    a younger record is no pruned one. What owners delete from a table of their own nobody counts: there, what
    comes before the last event that is left passes for pruned. `connection` is in autocommit: each look is a
    fresh one.
    """
    native = mapping.name == NATIVE_OUTBOX
    last = (0, 0, 0) if native else _last_known(connection, mapping, contents, dead_letters, None)
    for records, known in _batches(connection, mapping, contents, dead_letters, None):
        gone = [record for record in records if record.event_id not in known]
        if not gone:
            continue
        # After the look at the rows: a prune that runs now is counted with what it has taken by then.
        pruned_to = _pruned_to_us(connection) if native else 0
        for record in gone:
            if native:
                yield record, record.occurred_at_us is not None and record.occurred_at_us <= pruned_to
            else:
                yield record, record.position <= last


def _last_known(
    connection: psycopg.Connection[Any],
    mapping: OutboxMapping,
    contents: Contents,
    dead_letters: str,
    epoch: int | None,
) -> Position:
    last: Position = (0, 0, 0)
    for records, known in _batches(connection, mapping, contents, dead_letters, epoch):
        last = max([last, *(record.position for record in records if record.event_id in known)])
    return last


def _pruned_to_us(connection: psycopg.Connection[Any]) -> int:
    """The youngest `occurred_at` that pruning took, in microseconds of Unix time; before all time if none."""
    row = connection.execute(
        "select pruned_to from relay.pruning where outbox_table = %s", [NATIVE_OUTBOX]
    ).fetchone()
    if row is None or row[0] is None:
        return -(1 << 62)
    return int((row[0] - _UNIX) // _MICROSECOND)


def _batches(
    connection: psycopg.Connection[Any],
    mapping: OutboxMapping,
    contents: Contents,
    dead_letters: str,
    epoch: int | None,
) -> Iterator[tuple[list[Record], set[str]]]:
    for batch in contents.batches():
        records = [
            record
            for record in batch
            if record.topic != dead_letters
            and record.event_id
            and record.origin != "republish"
            and (epoch is None or record.epoch <= epoch)
        ]
        yield records, known_ids(connection, mapping, [record.event_id for record in records])
