"""Consumer groups as Kafka knows them: members, how far each partition is, and moving that of a group at
rest. It joins none.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from relay.errors import RelayError, Unavailable, UsageError
from relay.kafka import spans
from relay.kafka.client import make, words
from relay.settings import Settings

_ANSWER_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    group: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`committed`: the first offset that the group isn't done with; None: it has none, and begins at the
    start. `lag` counts offsets, which have holes."""

    topic: str
    partition: int
    first: int
    committed: int | None
    end: int
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    group: str
    state: str
    members: list[str]
    partitions: list[Progress]

    @property
    def at_rest(self) -> bool:
        return not self.members


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    topic: str
    partition: int
    was: int | None
    to: int


def listed(settings: Settings) -> list[Listed]:
    """The groups of this prefix. Raises Unavailable."""
    admin = _admin(settings)  # held until it has answered: its end would be the answer
    found = _ask(admin.list_consumer_groups(request_timeout=_ANSWER_S))
    if found.errors:
        raise Unavailable(f"Kafka doesn't say which groups it has: {words(found.errors[0])}")
    prefix = f"{settings.topic_prefix}."
    return sorted(
        (Listed(group=one.group_id, state=one.state.name.lower()) for one in found.valid
         if one.group_id.startswith(prefix)),
        key=lambda one: one.group,
    )  # fmt: skip


def look(settings: Settings, group: str) -> Group:
    """Raises UsageError when Kafka knows no such group, Unavailable when it doesn't answer."""
    known = [one.group for one in listed(settings)]
    if group not in known:
        raise UsageError(
            f"Kafka knows no consumer group {group}.",
            meaning="A group exists once a member has joined it; until then it would begin at the start.",
            remedy=f"The groups of this prefix are: {', '.join(known) or 'none'}.",
        )
    admin = _admin(settings)
    described = _ask(admin.describe_consumer_groups([group], request_timeout=_ANSWER_S)[group])
    offsets = _ask(
        admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=_ANSWER_S)[
            group
        ]
    )
    committed = {
        (one.topic, one.partition): one.offset for one in offsets.topic_partitions if one.offset >= 0
    }
    assigned = {
        (one.topic, one.partition)
        for member in described.members
        if member.assignment is not None
        for one in member.assignment.topic_partitions
    }
    topics = {topic for topic, _ in [*committed, *assigned]}
    found = spans.find(settings.require_kafka(), topics)
    return Group(
        group=group,
        state=described.state.name.lower(),
        members=sorted(f"{one.client_id} at {one.host}" for one in described.members),
        partitions=[
            Progress(
                topic=place[0],
                partition=place[1],
                first=span.first,
                committed=committed.get(place),
                end=span.end,
                lag=span.end - max(committed.get(place, span.first), span.first),
            )
            for place, span in sorted(found.items())
        ],
    )


def moves(settings: Settings, group: Group, to: str | datetime, topic: str | None) -> list[Move]:
    """What it takes to begin at `to`: "start", "end", or the first record since a time."""
    chosen = [one for one in group.partitions if topic in (None, one.topic)]
    if isinstance(to, datetime):
        at = _since(settings, chosen, to)
    else:
        at = {(one.topic, one.partition): one.first if to == "start" else one.end for one in chosen}
    return [
        Move(topic=one.topic, partition=one.partition, was=one.committed, to=at[(one.topic, one.partition)])
        for one in chosen
        if one.committed != at[(one.topic, one.partition)]
    ]


def reset(settings: Settings, group: str, moved: list[Move]) -> None:
    """Raises RelayError when Kafka refuses: a member joined meanwhile."""
    wanted = [TopicPartition(one.topic, one.partition, one.to) for one in moved]
    admin = _admin(settings)
    try:
        asked = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, wanted)], request_timeout=_ANSWER_S
        )
        done = asked[group].result(_ANSWER_S + 1)
    except KafkaException as error:
        raise RelayError(
            f"Kafka refuses to move {group}: {words(error)}",
            meaning="Its offsets are as they were.",
            remedy=f"Stop its members; `relay groups show {group}` shows who is there.",
        ) from error
    refused = [one for one in done.topic_partitions if one.error is not None]
    if refused:
        raise RelayError(
            f"Kafka refuses to move {refused[0].topic}/{refused[0].partition}: {refused[0].error}.",
            remedy=f"`relay groups show {group}` shows how far it is now.",
        )


def _since(settings: Settings, chosen: list[Progress], at: datetime) -> dict[tuple[str, int], int]:
    consumer = make(Consumer, {**settings.require_kafka(), "group.id": "relay-reader"})
    try:
        asked = [TopicPartition(one.topic, one.partition, int(at.timestamp() * 1000)) for one in chosen]
        found = consumer.offsets_for_times(asked, timeout=_ANSWER_S) if asked else []
    except KafkaException as error:
        raise Unavailable(f"Kafka doesn't say what is where at that time: {words(error)}") from error
    finally:
        consumer.close()
    ends = {(one.topic, one.partition): one.end for one in chosen}
    return {
        (one.topic, one.partition): one.offset if one.offset >= 0 else ends[(one.topic, one.partition)]
        for one in found
    }


def _admin(settings: Settings) -> AdminClient:
    return make(AdminClient, settings.require_kafka())


def _ask(future: Any) -> Any:
    try:
        return future.result(_ANSWER_S + 1)
    except KafkaException as error:
        raise Unavailable(
            f"Kafka doesn't answer about its groups: {words(error)}",
            remedy="Check RELAY_KAFKA_BOOTSTRAP, the brokers, and this login's rights on groups.",
        ) from error
