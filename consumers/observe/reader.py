"""Reads topics from outside every group: it joins none, commits nothing and never writes.

`read_committed`, so that it sees what the workers see; it stops at the end that the topics had for such a
reader, or follows them.
"""

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from consumers.runtime.record import Record, from_message
from relay.errors import Unavailable
from relay.kafka.client import make, words
from relay.settings import Settings

ANSWER_S: Final = 30.0
"""A broker that says nothing for so long, neither a record nor the end, is away."""
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin on every partition: the first record, an offset, or the first record since a time."""

    offset: int | None = None
    since: datetime | None = None


class TopicReader:
    """Records of several topics, each partition in its order. Use it in a `with`."""

    def __init__(self, settings: Settings, topics: Sequence[str], start: Start) -> None:
        """Raises Unavailable when no broker answers, UsageError for settings that aren't accepted."""
        properties: dict[str, Any] = {
            **settings.require_kafka(),
            # Demanded by librdkafka; with assign() and without commits no broker hears of it.
            "group.id": f"{settings.topic_prefix}.observe.{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
        self._kafka = make(Consumer, properties)
        try:
            self.missing_topics, partitions = self._partitions(topics, start)
            self._kafka.assign(partitions)
        except KafkaException as error:
            self._kafka.close()
            raise Unavailable(
                f"Kafka doesn't answer at {properties['bootstrap.servers']}: {words(error)}",
                remedy="Check RELAY_KAFKA_BOOTSTRAP and the brokers.",
            ) from error
        self._unfinished = {(each.topic, each.partition) for each in partitions}

    def __enter__(self) -> "TopicReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.close()

    def records(self, *, follow: bool) -> Iterator[Record]:
        """Until the end of every partition, or for ever. Raises Unavailable when the broker falls silent."""
        heard_at = time.monotonic()
        while follow or self._unfinished:
            message = self._kafka.poll(_POLL_S)
            if message is None:
                if not follow and time.monotonic() - heard_at > ANSWER_S:
                    raise Unavailable(
                        f"Kafka said nothing for {ANSWER_S:g} s, before the end of "
                        + ", ".join(f"{topic}[{number}]" for topic, number in sorted(self._unfinished))
                        + ".",
                        meaning="A transaction that hangs has this effect as well.",
                    )
                continue
            if message.error() is None:
                heard_at = time.monotonic()
                yield from_message(message)
            else:
                self._take_error(message)

    def _take_error(self, message: Message) -> None:
        error = message.error()
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's name for it
            topic, number = message.topic(), message.partition()
            if topic is not None and number is not None:
                self._unfinished.discard((topic, number))
        elif error.fatal() or not error.retriable():
            raise Unavailable(f"Kafka refuses to be read: {error.str()}.")

    def _partitions(self, topics: Sequence[str], start: Start) -> tuple[list[str], list[TopicPartition]]:
        existing = self._kafka.list_topics(timeout=ANSWER_S).topics
        missing = [topic for topic in topics if topic not in existing or not existing[topic].partitions]
        partitions = [
            TopicPartition(topic, number, OFFSET_BEGINNING)
            for topic in topics
            if topic not in missing
            for number in sorted(existing[topic].partitions)
        ]
        if start.offset is not None:
            for each in partitions:
                first, end = self._kafka.get_watermark_offsets(each, timeout=ANSWER_S)
                # Outside of them Kafka would go to the start without a word.
                each.offset = min(max(start.offset, first), end)
        if start.since is not None and partitions:
            for each in partitions:
                each.offset = int(start.since.timestamp() * 1000)
            # Beyond the last record of a partition the answer is its end.
            partitions = self._kafka.offsets_for_times(partitions, timeout=ANSWER_S)
        return missing, partitions
