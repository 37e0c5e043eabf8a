"""Read what a subject put out, record by record: from a topic as a read_committed consumer, or from a stream.

A reader judges nothing: it hands over key, mark and the moment of receipt, and `bench.tally` counts.
"""

import os
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Consumer, Message, TopicPartition

from bench.shape import SHAPES, Mark
from bench.tally import Broken
from bench.topics import PARTITIONS, client

_POLL_S: Final = 0.1
_BATCH: Final = 10_000
_CHUNK_BYTES: Final = 64 * 1024


class Received(NamedTuple):
    key: bytes
    mark: Mark
    at_us: int
    """Microseconds since 1970."""
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class TopicReader:
    """Every record of a topic from its start, as soon as a read_committed consumer gets it."""

    bootstrap: str
    topic: str
    shape: str

    def read(self) -> Iterator[Received | None]:
        """One by one, for what is timed; None whenever nothing came for a while."""
        mark = SHAPES[self.shape].mark
        consumer = self._consumer()
        try:
            while True:
                message = consumer.poll(_POLL_S)
                at_us = time.time_ns() // 1000
                if message is None:
                    yield None
                    continue
                key, value, partition, offset = _parts(message)
                yield Received(key, mark(value), at_us, partition, offset)
        finally:
            consumer.close()

    def read_in_batches(self) -> Iterator[Received | None]:
        """The same in batches, for what is only counted."""
        mark = SHAPES[self.shape].mark
        consumer = self._consumer()
        try:
            while True:
                messages = consumer.consume(_BATCH, _POLL_S)
                for message in messages:
                    key, value, partition, offset = _parts(message)
                    yield Received(key, mark(value), 0, partition, offset)
                if not messages:
                    yield None
        finally:
            consumer.close()

    def _consumer(self) -> Consumer:
        consumer = Consumer(
            {
                **client(self.bootstrap),
                "group.id": "never-joined",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(self.topic, number, 0) for number in range(PARTITIONS)])
        return consumer


def _parts(message: Message) -> tuple[bytes, bytes, int, int]:
    key, value, partition, offset = message.key(), message.value(), message.partition(), message.offset()
    if message.error() is not None:
        raise Broken(f"The topic can't be read: {message.error()}.")
    if not isinstance(key, bytes) or not isinstance(value, bytes) or partition is None or offset is None:
        raise Broken("A record has no key or no value.")
    return key, value, partition, offset


@dataclass(frozen=True, slots=True)
class StreamReader:
    """Every row of what `pg_recvlogical` writes into a pipe: raw pgoutput, a line end after each message."""

    pipe: Path
    shape: str

    def read(self) -> Iterator[Received | None]:
        """Ends when the writer has."""
        shape = SHAPES[self.shape]
        kept = b""
        with self.pipe.open("rb", buffering=0) as stream:
            while True:
                if not select.select([stream], [], [], _POLL_S)[0]:
                    yield None
                    continue
                chunk = os.read(stream.fileno(), _CHUNK_BYTES)
                if not chunk:
                    return
                at_us = time.time_ns() // 1000
                kept += chunk
                end = 0
                for found in shape.in_stream.finditer(kept):
                    end = found.end()
                    yield Received(found[1], shape.mark_in_stream(found[2], found[3]), at_us, 0, 0)
                kept = kept[end:]
