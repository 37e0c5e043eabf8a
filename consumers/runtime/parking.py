"""Parking: a record that can't be handled goes, whole and with its reason, to ``{topic}.{group}.dlq``.

It returns only when every in-sync replica has the record: the offset that follows may then be committed. It
never drops a record; one that is too large for the parking topic goes without its value, which stays in its
own topic. What people give back goes to ``{topic}.{group}.retry``.
"""

import asyncio
import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from consumers.runtime.record import Record
from consumers.runtime.retry import UNAVAILABLE_CEILING_S
from relay.errors import Unavailable
from relay.settings import MIB, Settings

PARKED_BYTES: Final = 16 * MIB
"""Most that a parked record may have: what any sensible topic allows, with room for the headers added
here."""
DELIVERY_S: Final = 10.0
"""How long the brokers may take for one record before it is sent anew."""
_REASON_CHARACTERS: Final = 2_000

_ADMIN_S: Final = 10.0
# librdkafka's broker for demo and tests (rdkafka_mock.c): it makes topics on first use and knows no
# CreateTopics.
_EMBEDDED_CLUSTER: Final = "mockCluster"

Headers = list[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a record is parked: a code for programs, words for people, and how often it was tried."""

    code: str
    words: str
    attempts: int


RETRY_OF: Final = "retry_of"
"""Header of a record that is given back: its place among the parked ones."""
RETRY_NO: Final = "retry_no"
"""The how-manieth time it is given back, from 1."""
_ORIGIN: Final = ("topic", "partition", "offset", "timestamp_ms")


def parking_topic(topic: str, group_id: str) -> str:
    return f"{topic}.{group_id}.dlq"


def retry_topic(topic: str, group_id: str) -> str:
    """Which that group alone reads, beside `topic`."""
    return f"{topic}.{group_id}.retry"


def origin(record: Record) -> Record:
    """The record as its group met it first: a parked one that was given back names its place then."""
    kept = tuple((name, value) for name, value in record.headers if not name.startswith("retry_"))
    if record.header(RETRY_OF) is None:
        return record
    topic, *numbers = ((record.header(f"retry_{name}") or b"").decode(errors="replace") for name in _ORIGIN)
    if not (topic and all(one.isascii() and one.isdigit() for one in numbers)):
        return record  # somebody wrote headers of our names by hand
    partition, offset, timestamp_ms = map(int, numbers)
    return Record(topic, partition, offset, record.key, record.value, kept, timestamp_ms)


def provenance(record: Record, group_id: str, reason: Reason, parked_at: datetime) -> list[tuple[str, bytes]]:
    """The headers that a parked record has besides its own."""
    return [
        ("dlq_topic", record.topic.encode()),
        ("dlq_partition", str(record.partition).encode()),
        ("dlq_offset", str(record.offset).encode()),
        ("dlq_timestamp_ms", str(record.timestamp_ms).encode()),
        ("dlq_group", group_id.encode()),
        ("dlq_reason_code", reason.code.encode()),
        ("dlq_reason", reason.words[:_REASON_CHARACTERS].encode(errors="replace")),
        ("dlq_attempts", str(reason.attempts).encode()),
        ("dlq_parked_at", parked_at.isoformat(timespec="microseconds").encode()),
    ]


class Parking:
    """The parking topics of one consumer group."""

    def __init__(self, settings: Settings, group_id: str, log: structlog.typing.FilteringBoundLogger) -> None:
        self._group_id = group_id
        self._log = log
        self._sender = Sender(settings, log)

    async def park(self, record: Record, reason: Reason) -> str:
        """The topic that has the record now. Tries for as long as Kafka is away."""
        delay_s = 0.2
        while True:
            try:
                topic = await asyncio.to_thread(self._send, origin(record), reason)
            except (Unavailable, KafkaException) as error:
                self._log.warning("parking waits for kafka", error=str(error))
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, UNAVAILABLE_CEILING_S)
            else:
                return topic

    def _send(self, record: Record, reason: Reason) -> str:
        topic = parking_topic(record.topic, self._group_id)
        headers: Headers = [
            *record.headers,
            *provenance(record, self._group_id, reason, datetime.now(UTC)),
        ]
        error = self._sender.send(topic, record.key, record.value, headers)
        if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            size = str(len(record.value or b"")).encode()
            error = self._sender.send(topic, record.key, None, [*headers, ("dlq_value_omitted_bytes", size)])
        if error is not None:
            raise Unavailable(f"The parking topic {topic} didn't take a record: {error.str()}.")
        return topic


class Retrying:
    """Gives parked records back to one consumer group, and to it alone."""

    def __init__(self, settings: Settings, group_id: str) -> None:
        self._group_id = group_id
        self._sender = Sender(settings, structlog.get_logger())

    def send(self, record: Record, from_topic: str, place: str, times: int) -> str:
        """The topic that has the record now; `place` is where it is parked. Raises Unavailable, and then it
        may be there all the same."""
        parked = {name: record.header(f"dlq_{name}") for name in _ORIGIN}
        own = {
            "topic": record.topic.encode(),
            "partition": str(record.partition).encode(),
            "offset": str(record.offset).encode(),
            "timestamp_ms": str(record.timestamp_ms).encode(),
        }
        headers: Headers = [
            *((name, value) for name, value in record.headers if not name.startswith(("dlq_", "retry_"))),
            (RETRY_OF, place.encode()),
            (RETRY_NO, str(times).encode()),
            *((f"retry_{name}", parked[name] or own[name]) for name in _ORIGIN),
        ]
        topic = retry_topic(from_topic, self._group_id)
        error = self._sender.send(topic, record.key, record.value, headers)
        if error is not None:
            raise Unavailable(
                f"The topic {topic} didn't take a record: {error.str()}.",
                meaning="It was asked for, and the next replay looks whether it arrived.",
            )
        return topic


class Sender:
    """A producer for topics of one partition, which it makes, so that what they hold stays in order; kept
    until somebody decides."""

    def __init__(self, settings: Settings, log: structlog.typing.FilteringBoundLogger) -> None:
        self._settings = settings
        self._log = log
        self._one_at_a_time = threading.Lock()
        self._producer: Producer | None = None
        self._topics_made: set[str] = set()

    def send(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> KafkaError | None:
        """What Kafka refuses it for, or None once every in-sync replica has it. Raises Unavailable."""
        with self._one_at_a_time:
            self._make_topic(topic)
            error = self._produce(topic, key, value, headers)
            if error is not None and error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                # An idempotent producer that failed may not go on: the next attempt has a new one.
                self._producer = None
            return error

    def _produce(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers
    ) -> KafkaError | None:
        if self._producer is None:
            self._producer = Producer(
                {
                    "linger.ms": 0,
                    **self._settings.require_kafka(),
                    "enable.idempotence": True,
                    "acks": "all",
                    "partitioner": "murmur2_random",
                    "message.max.bytes": PARKED_BYTES,
                    "delivery.timeout.ms": int(DELIVERY_S * 1000),
                },
                logger=logging.getLogger("relay.librdkafka"),
            )
        outcome: list[KafkaError | None] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            outcome.append(error)

        try:
            self._producer.produce(topic, value, key, headers=headers, on_delivery=delivered)
        except KafkaException as error:
            refused = error.args[0]
            if isinstance(refused, KafkaError):
                return refused
            raise
        self._producer.flush(DELIVERY_S + 1)
        if not outcome:
            raise Unavailable(f"The topic {topic} didn't answer within {DELIVERY_S:g} s.")
        return outcome[0]

    def _make_topic(self, topic: str) -> None:
        if topic in self._topics_made:
            return
        admin = AdminClient(dict(self._settings.require_kafka()))
        cluster = admin.list_topics(timeout=_ADMIN_S)
        if topic not in cluster.topics and not str(cluster.cluster_id).startswith(_EMBEDDED_CLUSTER):
            wanted = NewTopic(
                topic,
                num_partitions=1,
                replication_factor=self._settings.topic_replication,
                config={"retention.ms": "-1", "max.message.bytes": str(PARKED_BYTES)},
            )
            try:
                admin.create_topics([wanted], request_timeout=_ADMIN_S)[topic].result(_ADMIN_S + 1)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    # It may exist and be writable all the same; if not, producing says so.
                    self._log.warning("may not create the topic", topic=topic)
                elif error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        self._topics_made.add(topic)
