"""Events that Kafka has and a rewound outbox lost: consumers may have acted on what never was.

It only lists them. What was pruned from the outbox isn't among them: that is older than what is left.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import psycopg

from relay.errors import PhantomEvents, Unavailable
from relay.kafka import spans
from relay.kafka.contents import Contents, Record
from relay.kafka.since import Published, published_since
from relay.outbox.compare import known_ids
from relay.outbox.event import DEBEZIUM_TOPIC, Schemas, dead_letter_topic, topics_from_start
from relay.outbox.mapping import OutboxMapping

IN_MESSAGE: Final = 10
"""Events that the message itself names."""

IN_LOG: Final = 1_000
"""Events that get a line of the log each."""

Position = tuple[int, int, int]


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
    last: Position = (0, 0, 0)
    for records, known in _batches(connection, mapping, contents, dead_letters, epoch):
        last = max([last, *(record.position for record in records if record.event_id in known)])
    for records, known in _batches(connection, mapping, contents, dead_letters, epoch):
        for record in records:
            if record.event_id not in known and record.position > last:
                yield record


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
