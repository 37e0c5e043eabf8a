"""Reads partitions from an offset to their true end, once, outside every consumer group.

The true end is `list_offsets` with READ_UNCOMMITTED: with another producer's transaction open, a
read_committed reader meets an end before records that are committed already.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import EarliestSpec, LatestSpec, OffsetSpec  # not exported

from relay.errors import Unavailable
from relay.kafka.client import make, words

REQUEST_TIMEOUT_S: Final = 10.0
PROGRESS_TIMEOUT_S: Final = 60.0
"""As long as `transaction.timeout.ms`: whatever is open longer than that is hanging."""

PATIENT_TIMEOUT_S: Final = PROGRESS_TIMEOUT_S + 30.0
"""For who reads without having shut out the relay first: a killed one leaves its transaction open, and Kafka
ends it in one of its rounds after the timeout."""

_PARTITION_EOF: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 librdkafka's own codes have a leading _
_NO_LEADER_YET: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
_POLL_S: Final = 0.2
_POLL_MOST: Final = 100
"""Records taken at once: a million bytes each at most."""
_QUEUE_KIB: Final = 8 * 1024
"""What librdkafka fetches ahead, of all partitions together."""
_QUEUE_MESSAGES: Final = 5_000
"""What it fetches ahead of each partition: beside its bytes a record takes some 500 of librdkafka's."""

Place = tuple[str, int]
"""Topic and partition."""


class Span(NamedTuple):
    """Offsets [`first`, `end`) of a partition; offsets have holes where markers stand."""

    first: int
    end: int


class Stalled(Exception):
    """A partition can't be read to its end: somebody's transaction hangs there."""

    def __init__(self, place: Place, reached: int, end: int) -> None:
        self.topic, self.partition = place
        self.reached = reached
        super().__init__(
            f"{self.topic}, partition {self.partition}, ends at {end}, and reading stands still at "
            f"{reached}, where a transaction began that is still open."
        )

    @property
    def remedy(self) -> str:
        """What ends such a transaction."""
        place = f"--topic {self.topic} --partition {self.partition}"
        return (
            f"`kafka-transactions.sh describe-producers {place}` names its producer: end that one, or "
            f"`kafka-transactions.sh abort {place} --start-offset {self.reached}`; then start again."
        )


def names(properties: Mapping[str, str]) -> list[str]:
    """Every topic that this login may see. Raises Unavailable when Kafka doesn't answer."""
    try:
        return sorted(make(AdminClient, properties).list_topics(timeout=REQUEST_TIMEOUT_S).topics)
    except KafkaException as error:
        raise Unavailable(
            f"Kafka doesn't say which topics it has: {words(error)}",
            remedy="Check RELAY_KAFKA_BOOTSTRAP and the brokers.",
        ) from error


def find(properties: Mapping[str, str], topics: Iterable[str]) -> dict[Place, Span]:
    """Where each partition of the topics begins and truly ends; a topic that doesn't exist has none.

    Raises Unavailable when Kafka doesn't answer. A topic just made, or one whose leader changes, has
    no leader for a moment: that is waited for.
    """
    admin = make(AdminClient, properties)
    wanted = sorted(set(topics))
    until = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        try:
            return _find(admin, wanted)
        except (KafkaException, TimeoutError) as error:
            if time.monotonic() < until and _has_no_leader(error):
                time.sleep(_POLL_S)
                continue
            raise Unavailable(
                f"Kafka doesn't say where {', '.join(wanted)} end{'s' * (len(wanted) == 1)}: {words(error)}",
                remedy="Check RELAY_KAFKA_BOOTSTRAP and the brokers.",
            ) from error


def _find(admin: AdminClient, wanted: list[str]) -> dict[Place, Span]:
    # All of them: to ask for one by its name would make it, with the broker's defaults.
    known = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
    for name in wanted:
        if name in known and (error := known[name].error) is not None:
            raise KafkaException(error)  # it exists: not to know where it ends must never look like no topic
    places = [
        (name, partition) for name in wanted if name in known for partition in sorted(known[name].partitions)
    ]
    if not places:
        return {}
    first, end = (_offsets(admin, places, spec) for spec in _specs())
    return {place: Span(first[place], end[place]) for place in places}


def _has_no_leader(error: Exception) -> bool:
    reason = error.args[0] if isinstance(error, KafkaException) else None
    return isinstance(reason, KafkaError) and reason.code() in _NO_LEADER_YET


def read(
    properties: Mapping[str, str], spans: Mapping[Place, Span], *, timeout_s: float = PROGRESS_TIMEOUT_S
) -> Iterator[Message]:
    """Every committed record in `spans`, in order of offset within a partition.

    Raises Stalled after `timeout_s` without progress, and Unavailable for an error of Kafka's.
    """
    left = {place: span for place, span in spans.items() if span.end > span.first}
    if not left:
        return
    consumer = make(
        Consumer,
        {
            **properties,
            "group.id": "relay-reader",  # never joined: partitions are assigned
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "queued.min.messages": _QUEUE_MESSAGES,
            "queued.max.messages.kbytes": _QUEUE_KIB,
            "fetch.max.bytes": _QUEUE_KIB * 1024,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
        },
    )
    reached = {place: span.first for place, span in left.items()}
    try:
        consumer.assign([TopicPartition(*place, span.first) for place, span in left.items()])
        deadline = time.monotonic() + timeout_s
        while left:
            for message in consumer.consume(_POLL_MOST, _POLL_S):
                place, at = _position(message)
                if at > reached.get(place, at):
                    deadline = time.monotonic() + timeout_s
                    reached[place] = at
                span = left.get(place)
                if span is None:
                    continue
                if message.error() is None and at <= span.end:
                    yield message
                if at >= span.end:
                    del left[place]
                    consumer.pause([TopicPartition(*place)])
            if left and time.monotonic() > deadline:
                stuck = next(iter(left))
                raise Stalled(stuck, reached[stuck], left[stuck].end)
    finally:
        consumer.close()


def _specs() -> tuple[OffsetSpec, OffsetSpec]:
    return EarliestSpec(), LatestSpec()  # type: ignore[no-untyped-call]


def _offsets(admin: AdminClient, places: Iterable[Place], spec: OffsetSpec) -> dict[Place, int]:
    asked = admin.list_offsets(
        {TopicPartition(*place): spec for place in places},
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=REQUEST_TIMEOUT_S,
    )
    return {
        (p.topic, p.partition): future.result(2 * REQUEST_TIMEOUT_S).offset for p, future in asked.items()
    }


def _position(message: Message) -> tuple[Place, int]:
    """The message's place, and the offset that is reached with it. Raises Unavailable for an error."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    error = message.error()
    if topic is None or partition is None or offset is None:
        said = "a record without an offset." if error is None else words(error)
        raise Unavailable(f"Kafka can't read {topic}: {said}")
    if error is None:
        return (topic, partition), offset + 1
    if error.code() == _PARTITION_EOF:
        return (topic, partition), offset
    raise Unavailable(f"Kafka can't read {topic}: {words(error)}")
