"""Topics: made before their first record, checked, and watched: one that is deleted, made anew or
repartitioned while the relay runs would lose records or break their order, so the relay stops.
"""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource  # the stub exports these nowhere else
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from relay.errors import TopicsChanged, Unavailable, UsageError
from relay.kafka.client import make, words

REQUEST_TIMEOUT_S: Final = 10.0
WATCH_EVERY_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.1

DEFAULT_LIMIT_BYTES: Final = 1_048_588
"""Kafka's default `max.message.bytes`."""

# The checkpoint gets a record with each transaction: small segments keep what a start has to read small.
_CHECKPOINT_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}
_DEAD_LETTER_CONFIG: Final = {"retention.ms": "-1"}

# librdkafka names its embedded cluster so (rdkafka_mock.c); it has neither CreateTopics nor DescribeConfigs.
_EMBEDDED_CLUSTER: Final = "mockCluster"


@dataclass(frozen=True, slots=True)
class Identity:
    """`topic_id` changes when a topic is deleted and made anew."""

    topic_id: str
    partitions: int


class Topics:
    """Blocking: call from a thread that may wait. `limit_bytes` alone answers at once."""

    def __init__(self, properties: Mapping[str, str], *, partitions: int, replication: int) -> None:
        self._properties = properties
        self._partitions = partitions
        self._replication = replication
        self._limits: dict[str, int] = {}
        self._seen: dict[str, Identity] = {}
        self._embedded: bool | None = None

    @cached_property
    def _admin(self) -> AdminClient:
        # Made when it is first needed: librdkafka connects at once, and a standby must not touch Kafka.
        return make(AdminClient, self._properties)

    @property
    def embedded(self) -> bool:
        """Whether this is librdkafka's own broker: it makes topics at first use and can't describe them."""
        return bool(self._embedded)

    def limit_bytes(self, topic: str) -> int:
        """The topic's `max.message.bytes`, as last seen."""
        return self._limits.get(topic, DEFAULT_LIMIT_BYTES)

    def smallest_limit_bytes(self) -> int:
        """Of the topics seen: a batch must fit into each."""
        return min(self._limits.values(), default=DEFAULT_LIMIT_BYTES)

    def ensure(self, names: Iterable[str], *, checkpoint: str | None = None, dead_letters: str = "") -> None:
        """Make what is missing of `names` and `checkpoint`, then remember what they are.

        Raises Unavailable, UsageError when Kafka refuses to make one, TopicsChanged when the checkpoint's
        topic would forget.
        """
        wanted = [*names, *([checkpoint] if checkpoint else [])]
        if self._embedded is None:
            self._embedded = self._is_embedded()
        if self._embedded:
            return
        missing = [name for name in wanted if name not in self._existing(wanted)]
        if missing:
            self._create(missing, checkpoint, dead_letters)
        self._describe_configs(wanted, checkpoint)
        self._seen.update(self._existing(wanted))

    def refresh_limits(self, names: Iterable[str]) -> None:
        """Ask again what topics take; what they are stays as it was seen. Raises Unavailable."""
        if not self._embedded:
            self._describe_configs(list(names), None)

    def compare(self) -> None:
        """Compare the topics with what they were. Raises TopicsChanged, or Unavailable."""
        if self._embedded or not self._seen:
            return
        now = self._existing(list(self._seen))
        for name, was in self._seen.items():
            found = now.get(name)
            if found == was:
                continue
            if found is None:
                what = "is gone"
            elif found.topic_id != was.topic_id:
                what = "was deleted and made anew"
            else:
                what = f"had {was.partitions} partitions and has {found.partitions}"
            raise TopicsChanged(
                f"The topic {name} {what}.",
                meaning="Records may be lost, or an operation's events may be on two partitions and arrive "
                "out of order; the relay publishes nothing more until somebody has looked.",
                remedy="When consumers have read what they need, start it again: it takes the topics as they"
                " are then. Where records are lost, stop it first and run `relay outbox repair`: it publishes"
                " what the topics lack.",
            )

    def _is_embedded(self) -> bool:
        try:
            metadata = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise Unavailable(f"Kafka doesn't answer: {words(error)}") from error
        return str(metadata.cluster_id).startswith(_EMBEDDED_CLUSTER)

    def _existing(self, names: list[str]) -> dict[str, Identity]:
        found: dict[str, Identity] = {}
        asked = self._admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_TIMEOUT_S)
        for name, future in asked.items():
            try:
                described = _result(future)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise Unavailable(f"Kafka can't describe the topic {name}: {words(error)}") from error
            found[name] = Identity(str(described.topic_id), len(described.partitions))
        return found

    def _create(self, names: list[str], checkpoint: str | None, dead_letters: str) -> None:
        new = []
        for name in names:
            config = {}
            if name == checkpoint:
                config = _CHECKPOINT_CONFIG
            elif name == dead_letters:
                config = _DEAD_LETTER_CONFIG
            partitions = 1 if name == checkpoint else self._partitions
            new.append(NewTopic(name, partitions, replication_factor=self._replication, config=dict(config)))
        made = self._admin.create_topics(
            new, operation_timeout=REQUEST_TIMEOUT_S, request_timeout=REQUEST_TIMEOUT_S
        )
        for name, future in made.items():
            try:
                _result(future)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                if _is_passing(reason):
                    raise Unavailable(f"Kafka couldn't make the topic {name}: {reason.str()}.") from error
                raise UsageError(
                    f"Kafka refuses to make the topic {name}: {reason.str()}.",
                    remedy="Make it yourself, or set RELAY_TOPIC_PARTITIONS and RELAY_TOPIC_REPLICATION.",
                ) from error

    def _describe_configs(self, names: list[str], checkpoint: str | None) -> None:
        until = time.monotonic() + REQUEST_TIMEOUT_S
        left = names
        while left:
            asked = self._admin.describe_configs(
                [ConfigResource(ResourceType.TOPIC, name) for name in left], request_timeout=REQUEST_TIMEOUT_S
            )
            left = []
            for resource, future in asked.items():
                try:
                    self._take_config(resource.name, _result(future), checkpoint)
                except KafkaException as error:
                    unknown = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                    if not unknown or time.monotonic() > until:
                        raise Unavailable(
                            f"Kafka can't describe the topic {resource.name}: {words(error)}"
                        ) from error
                    left.append(resource.name)
            if left:  # just made: not every broker knows them yet
                time.sleep(_LOOK_AGAIN_S)

    def _take_config(self, name: str, config: Any, checkpoint: str | None) -> None:
        self._limits[name] = int(config["max.message.bytes"].value)
        policy = config["cleanup.policy"].value
        if name == checkpoint and policy != "compact":
            raise TopicsChanged(
                f"The checkpoint's topic {checkpoint} has cleanup.policy={policy}.",
                meaning="Kafka would forget where the relay is, and it could not go on safely.",
                remedy=f"`kafka-configs.sh --alter --topic {checkpoint} --add-config cleanup.policy=compact`",
            )


def _is_passing(reason: KafkaError) -> bool:
    """librdkafka's own codes (time-outs, transport) are negative; the broker's are not."""
    return bool(reason.retriable()) or int(reason.code()) < 0


def _result(future: "Future[Any]") -> Any:
    try:
        return future.result(2 * REQUEST_TIMEOUT_S)
    except FutureTimeout as error:
        raise Unavailable("Kafka's controller doesn't answer.") from error
