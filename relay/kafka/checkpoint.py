"""The checkpoint: where the relay is in the WAL, kept in Kafka in the same transaction as the events.

One compacted topic per relay, always partition 0. Reading it must never stop early: a stale checkpoint would
make events a second time.
"""

import time
import uuid
from collections.abc import Mapping
from typing import Final

import msgspec
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import EarliestSpec, LatestSpec, OffsetSpec  # not exported

from relay.errors import CheckpointUnreadable, DecodeError, Unavailable
from relay.kafka.client import make, words
from relay.wal.lsn import format_lsn, parse_lsn

PARTITION: Final = 0
"""The embedded broker makes four; the checkpoint is always in the first."""

FORMAT: Final = 1

_PARTITION_EOF: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 librdkafka's own codes have a leading _

REQUEST_TIMEOUT_S: Final = 10.0
PROGRESS_TIMEOUT_S: Final = 60.0
"""As long as `transaction.timeout.ms`: whatever is open longer than that is hanging."""

_FIRST_WINDOW: Final = 512
"""Offsets read from the end at first; doubled back while no checkpoint is found in them."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Everything up to event `index` of the commit at `commit_lsn` is in Kafka."""

    epoch: int
    system_identifier: str
    timeline: int
    commit_lsn: int
    """0 before the first event."""
    index: int
    """-1 before the first event."""
    event_id: str | None
    seq: int
    """The highest `seq` streamed; 0 where the table has none."""
    confirmed_lsn: int
    """The slot's `confirmed_flush` never passes this."""


class _Wire(msgspec.Struct, kw_only=True):
    format: int
    epoch: int
    system_identifier: str
    timeline: int
    commit_lsn: str
    index: int
    event_id: str | None
    seq: int
    confirmed_lsn: str


def topic(prefix: str, relay_id: uuid.UUID) -> str:
    """Derives from the relay's id, never from the slot's name: two databases may use the same slot name."""
    return f"{prefix}.relay-checkpoint.{relay_id}"


def encode(checkpoint: Checkpoint) -> bytes:
    """JSON, with LSNs as Postgres prints them, so that a person can read the topic."""
    return msgspec.json.encode(
        _Wire(
            format=FORMAT,
            epoch=checkpoint.epoch,
            system_identifier=checkpoint.system_identifier,
            timeline=checkpoint.timeline,
            commit_lsn=format_lsn(checkpoint.commit_lsn),
            index=checkpoint.index,
            event_id=checkpoint.event_id,
            seq=checkpoint.seq,
            confirmed_lsn=format_lsn(checkpoint.confirmed_lsn),
        )
    )


def decode(data: bytes) -> Checkpoint:
    """Raises DecodeError for bytes that are not a checkpoint that this release can read."""
    try:
        wire = msgspec.json.decode(data, type=_Wire)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(f"The checkpoint is not one: {error}.") from None
    if wire.format != FORMAT:
        raise DecodeError(
            f"The checkpoint has format {wire.format}, and this release reads format {FORMAT}.",
            remedy="Run the release that wrote it.",
        )
    return Checkpoint(
        epoch=wire.epoch,
        system_identifier=wire.system_identifier,
        timeline=wire.timeline,
        commit_lsn=parse_lsn(wire.commit_lsn),
        index=wire.index,
        event_id=wire.event_id,
        seq=wire.seq,
        confirmed_lsn=parse_lsn(wire.confirmed_lsn),
    )


def read(
    properties: Mapping[str, str], prefix: str, relay_id: uuid.UUID, *, timeout_s: float = PROGRESS_TIMEOUT_S
) -> Checkpoint | None:
    """The last committed checkpoint, read up to the true end of the partition; None when there is none.

    The true end is `list_offsets` with READ_UNCOMMITTED: with another producer's transaction open, a
    read_committed reader meets an end before our own record. Raises Unavailable when Kafka doesn't answer,
    and CheckpointUnreadable when a hanging transaction hides the end, or when it isn't a checkpoint.
    """
    name = topic(prefix, relay_id)
    start, end = _bounds(properties, name)
    consumer = make(
        Consumer,
        {
            **properties,
            "group.id": f"{prefix}.relay-checkpoint-reader",  # never joined: partitions are assigned
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
        },
    )
    try:
        window = _FIRST_WINDOW
        while end > start:
            first = max(start, end - window)
            found = _last(consumer, name, relay_id, first, end, timeout_s)
            if found is not None:
                try:
                    return decode(found)
                except DecodeError as error:
                    raise CheckpointUnreadable(
                        error.message,
                        meaning="The relay doesn't know what Kafka has, so it publishes nothing.",
                        remedy=error.remedy or f"Look at the last record of {name}, partition {PARTITION}.",
                    ) from None
            if first == start:
                break
            window *= 2
        return None
    finally:
        consumer.close()


def _bounds(properties: Mapping[str, str], name: str) -> tuple[int, int]:
    admin = make(AdminClient, properties)
    try:
        # All of them: to ask for one by its name would make it, with the broker's defaults.
        known = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics.get(name)
        if known is None or known.error is not None or PARTITION not in known.partitions:
            return 0, 0
        offsets = []
        specs: tuple[OffsetSpec, ...] = (EarliestSpec(), LatestSpec())  # type: ignore[no-untyped-call]
        for spec in specs:
            asked = admin.list_offsets(
                {TopicPartition(name, PARTITION): spec},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=REQUEST_TIMEOUT_S,
            )
            offsets.append(next(iter(asked.values())).result(2 * REQUEST_TIMEOUT_S).offset)
    except (KafkaException, TimeoutError) as error:
        raise Unavailable(
            f"Kafka doesn't say where {name} ends: {words(error)}",
            remedy="Check RELAY_KAFKA_BOOTSTRAP and the brokers.",
        ) from error
    return offsets[0], offsets[1]


def _last(
    consumer: Consumer, name: str, relay_id: uuid.UUID, first: int, end: int, timeout_s: float
) -> bytes | None:
    """The value of our last record in [`first`, `end`), markers and aborted records passed over."""
    consumer.assign([TopicPartition(name, PARTITION, first)])
    reached, last = first, None
    deadline = time.monotonic() + timeout_s
    while reached < end:
        if time.monotonic() > deadline:
            raise CheckpointUnreadable(
                f"{name}, partition {PARTITION}, ends at {end}, and reading stands still at {reached}.",
                meaning="Another producer's transaction hangs there; until it ends, nobody can say which "
                "checkpoint is the last, so the relay publishes nothing.",
                remedy=f"`kafka-transactions.sh find-hanging --topic {name} --partition {PARTITION}`, then "
                "`kafka-transactions.sh abort` the one it names.",
            )
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        offset = message.offset()
        if error is None and offset is not None:
            if message.key() == relay_id.bytes:
                last = message.value()
            at = offset + 1
        elif error is not None and error.code() == _PARTITION_EOF and offset is not None:
            at = offset
        else:
            said = "a record without an offset." if error is None else words(error)
            raise Unavailable(f"Kafka can't read {name}: {said}")
        if at > reached:
            reached, deadline = at, time.monotonic() + timeout_s
    return last
