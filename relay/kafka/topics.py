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

from relay.errors import REPAIR, CheckpointMissing, Stop, TopicsChanged, Unavailable, UsageError
from relay.kafka.client import make, words

REQUEST_TIMEOUT_S: Final = 10.0
WATCH_EVERY_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.1

_CHANGED_LOOKS: Final = 3
_CHANGED_LOOK_AGAIN_S: Final = 1.0
"""A broker that has just come up may not know yet what the others know: one sight of a change is none."""

DEFAULT_LIMIT_BYTES: Final = 1_048_588
"""Kafka's default `max.message.bytes`."""

# The checkpoint gets a record with each transaction: small segments keep what a start has to read small.
_CHECKPOINT_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}
_NAMED: Final = 10  # most topics that a message names

# For ever: what nobody has looked at yet, and the history that operations are rebuilt and reconciled from.
_KEPT_CONFIG: Final = {"retention.ms": "-1", "retention.bytes": "-1"}

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
        self._known: dict[str, Identity] = {}
        self._seen: dict[str, Identity] = {}
        self._checkpoint: str | None = None
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

    def remember(self, known: Mapping[str, Identity]) -> None:
        """What earlier runs have seen: `ensure` never makes such a topic anew, and compares them all."""
        self._known = dict(known)

    @property
    def known(self) -> dict[str, Identity]:
        """What is recorded."""
        return dict(self._known)

    @property
    def unrecorded(self) -> dict[str, Identity]:
        """What was seen and isn't what earlier runs have recorded: to be recorded now."""
        return {name: found for name, found in self._seen.items() if self._known.get(name) != found}

    def ensure(
        self, names: Iterable[str], *, checkpoint: str | None = None, kept: Iterable[str] = ()
    ) -> None:
        """Make what is missing of `names` and `checkpoint`, then remember what they are. Those that are
        `kept` keep their records for ever; what exists is left as somebody made it.

        Raises Unavailable, UsageError when Kafka refuses to make one, TopicsChanged when one is not what it
        was, or when the checkpoint's topic would forget, CheckpointMissing when that one is another.
        """
        wanted = [*names, *([checkpoint] if checkpoint else [])]
        self._checkpoint = checkpoint or self._checkpoint
        if self._embedded is None:
            self._embedded = self._is_embedded()
        if self._embedded:
            return
        existing = self._unchanged(self._known, wanted)
        missing = [name for name in wanted if name not in existing]
        if missing:
            self._create(missing, checkpoint, frozenset(kept))
        self._describe_configs(wanted, checkpoint)
        self._seen.update(self._existing([*wanted, *self._known]))

    def refresh_limits(self, names: Iterable[str]) -> None:
        """Ask again what topics take; what they are stays as it was seen. Raises Unavailable."""
        if not self._embedded:
            self._describe_configs(list(names), None)

    def compare(self) -> None:
        """Compare the topics with what they were. Raises TopicsChanged, CheckpointMissing or Unavailable."""
        if self._embedded or not self._seen:
            return
        try:
            self._unchanged(self._seen, [])
        except Unavailable:
            # librdkafka's idea of the controller is as old as the client; with that broker gone it would be
            # asked for five minutes more (topic.metadata.refresh.interval.ms).
            del self._admin
            raise

    def describe(self, names: Iterable[str]) -> dict[str, Identity]:
        """What those that exist are. Raises Unavailable; UsageError for the embedded broker."""
        if self._is_embedded():
            raise UsageError(
                "The embedded broker's topics have no ids.",
                remedy="Set RELAY_KAFKA_BOOTSTRAP to a real Kafka.",
            )
        return self._existing(sorted(set(names)))

    def _unchanged(self, were: Mapping[str, Identity], wanted: Iterable[str]) -> dict[str, Identity]:
        """What `were` and `wanted` are now. Raises TopicsChanged where one of the first isn't what it was."""
        names = sorted({*were, *wanted})
        looks = 0
        while True:
            now = self._existing(names) if names else {}
            changed = {name: now.get(name) for name in were if now.get(name) != were[name]}
            if not changed:
                return now
            looks += 1
            if looks == _CHANGED_LOOKS:
                raise _changed(were, changed, self._checkpoint)
            time.sleep(_CHANGED_LOOK_AGAIN_S)

    def _is_embedded(self) -> bool:
        try:
            metadata = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise Unavailable(f"Kafka doesn't answer: {words(error)}") from error
        return str(metadata.cluster_id).startswith(_EMBEDDED_CLUSTER)

    def _existing(self, names: Iterable[str]) -> dict[str, Identity]:
        found: dict[str, Identity] = {}
        each = sorted(set(names))  # Kafka refuses to describe one twice
        asked = self._admin.describe_topics(TopicCollection(each), request_timeout=REQUEST_TIMEOUT_S)
        for name, future in asked.items():
            try:
                described = _result(future)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise Unavailable(f"Kafka can't describe the topic {name}: {words(error)}") from error
            found[name] = Identity(str(described.topic_id), len(described.partitions))
        return found

    def _create(self, names: list[str], checkpoint: str | None, kept: frozenset[str]) -> None:
        new = []
        for name in names:
            config = {}
            if name == checkpoint:
                config = _CHECKPOINT_CONFIG
            elif name in kept:
                config = _KEPT_CONFIG
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


def difference(was: Identity, now: Identity | None) -> str | None:
    """What happened to a topic, to stand behind its name; None when nothing did."""
    if now == was:
        return None
    if now is None:
        return "is gone"
    if now.topic_id != was.topic_id:
        return "was deleted and made anew"
    return f"had {was.partitions} partitions and has {now.partitions}"


def _changed(
    were: Mapping[str, Identity], changed: Mapping[str, Identity | None], checkpoint: str | None
) -> Stop:
    sentences = [f"The topic {name} {difference(were[name], now)}." for name, now in sorted(changed.items())]
    more = f" {len(sentences) - _NAMED} more topics changed." if len(sentences) > _NAMED else ""
    said = " ".join(sentences[:_NAMED]) + more
    if checkpoint is not None and checkpoint in changed:
        return CheckpointMissing(
            said,
            meaning="It says where the relay is; without it nobody knows what Kafka has, and events could "
            "be missing or published twice.",
            remedy="If this is the wrong Kafka, correct RELAY_KAFKA_BOOTSTRAP. If the topics were moved here "
            f"with all their records, `relay topics accept --all`. Else: {REPAIR}",
        )
    names = " ".join(sorted(changed))
    if all(now is not None and now.topic_id == were[name].topic_id for name, now in changed.items()):
        return TopicsChanged(
            said,
            meaning="An operation's later events go to another partition than its earlier ones, so consumers "
            "may meet them out of order. The relay publishes nothing more until somebody has looked.",
            remedy="When the consumer groups have read what was there before (`relay topics list` shows the "
            f"topics), `relay topics accept {names}`, then start again.",
        )
    return TopicsChanged(
        said,
        meaning="The records that it had are lost to consumers that had not read them. The relay publishes "
        "nothing more until somebody has looked, and makes no topic anew by itself.",
        remedy="If this is the wrong Kafka, correct RELAY_KAFKA_BOOTSTRAP. Else `relay outbox repair` brings "
        f"back what the outbox still has of it; to go on without, `relay topics accept {names}`.",
    )


def _is_passing(reason: KafkaError) -> bool:
    """librdkafka's own codes (time-outs, transport) are negative; the broker's are not."""
    return bool(reason.retriable()) or int(reason.code()) < 0


def _result(future: "Future[Any]") -> Any:
    try:
        return future.result(2 * REQUEST_TIMEOUT_S)
    except FutureTimeout as error:
        raise Unavailable("Kafka's controller doesn't answer.") from error
