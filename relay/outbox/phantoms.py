"""Events that Kafka has and a rewound outbox lost: consumers may have acted on what never was.

It only lists them. What was pruned from the outbox isn't among them: that is older than what is left.
"""

from collections.abc import Iterator
from typing import Any

import psycopg

from relay.kafka.contents import Contents, Record
from relay.outbox.compare import known_ids
from relay.outbox.mapping import OutboxMapping

Position = tuple[int, int, int]


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
