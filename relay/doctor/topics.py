"""Checks of the topics: what each would do to the records that the relay gives it. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from relay.doctor.cluster import GOOD_REPLICATION
from relay.doctor.finding import Finding, error, length, note, ok, size, unseen, warning

Role = Literal["event", "checkpoint", "dead letters"]

RECORD_ROOM_BYTES: Final = 16 * 1024
"""What a record of the native outbox may carry beside its payload: headers (at most 8 kB of the row's, of
which only `traceparent` travels) and framing."""
_LATE_S: Final = 7 * 86_400.0
"""How late an event may reach Kafka after an outage and must still be taken."""

_NEEDED: Final[Mapping[Role, frozenset[str]]] = {
    "event": frozenset({"WRITE", "DESCRIBE"}),
    "checkpoint": frozenset({"WRITE", "READ", "DESCRIBE"}),
    "dead letters": frozenset({"WRITE", "DESCRIBE"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Counts of replicas, and of those in sync."""

    number: int
    replicas: int
    in_sync: int
    has_leader: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic; `exists` is False where there is none, `refused` says why it couldn't be looked at."""

    name: str
    role: Role
    exists: bool = True
    refused: str = ""
    partitions: tuple[Partition, ...] = ()
    config: Mapping[str, str] | None = field(default=None)
    """None where we may not see it."""
    operations: frozenset[str] | None = None
    """What this client may do with it (ACL operations); None where the broker doesn't say."""

    @property
    def retention_s(self) -> float | None:
        """None is for ever."""
        ms = int((self.config or {}).get("retention.ms", "-1"))
        return None if ms < 0 else ms / 1000

    @property
    def min_isr(self) -> int:
        return int((self.config or {}).get("min.insync.replicas", "1"))


def check(
    topics: Mapping[str, TopicFacts], *, brokers: int, payload_limit_bytes: int | None
) -> Iterator[Finding]:
    """Everything of this realm but the retention, which the outbox must be known for."""
    for topic in topics.values():
        yield from check_topic(topic, brokers=brokers, payload_limit_bytes=payload_limit_bytes)


def check_changed(known: int, changed: Mapping[str, str]) -> Iterator[Finding]:
    """`changed` says of each topic that isn't what the relay recorded what happened to it."""
    for name, what in changed.items():
        yield error(
            "topics.changed",
            f"The topic {name} {what}.",
            "`relay run` stops with status 17: records may be lost, or keys may be on other partitions.",
            f"`relay outbox repair` for what it lost, or `relay topics accept {name}`",
        )
    if not changed:
        yield ok("topics.changed", f"{known} topics are what the relay recorded")


def check_topic(topic: TopicFacts, *, brokers: int, payload_limit_bytes: int | None) -> Iterator[Finding]:
    if topic.refused:
        yield error(
            "topics.access",
            f"The topic {topic.name} can't be looked at: {topic.refused}",
            "`relay run` looks at it as well, and stops or waits.",
            f"{_acl(topic)} --operation Describe",
        )
        return
    if not topic.exists:
        yield note(
            "topics.exists",
            f"{topic.name} isn't there yet",
            "`relay run` makes it at its start, unless it had it before (see topics.changed).",
            "`relay run`",
        )
        return
    yield check_access(topic)
    yield check_in_sync(topic)
    yield check_replication(topic, brokers)
    if topic.role == "checkpoint" and len(topic.partitions) != 1:
        yield warning(
            "topics.checkpoint_partitions",
            f"{topic.name} has {len(topic.partitions)} partitions.",
            "The checkpoint is always in the first; the others show that somebody made or changed the topic.",
            "See who did (`relay status` still reads the checkpoint).",
        )
    if topic.config is None:
        yield unseen(
            "topics.config",
            f"the configuration of {topic.name}",
            f"{_acl(topic)} --operation DescribeConfigs",
        )
        return
    yield check_cleanup(topic, topic.config)
    yield check_unclean(topic, topic.config)
    if topic.role == "event":
        yield check_message_size(topic, topic.config, payload_limit_bytes)
        yield check_late(topic, topic.config)


def check_access(topic: TopicFacts) -> Finding:
    name = "topics.access"
    if topic.operations is None:
        return unseen(name, f"the broker doesn't say what this client may do with {topic.name}")
    missing = sorted(_NEEDED[topic.role] - topic.operations)
    if not missing:
        return ok(name, f"{topic.name}: this client may write and describe it")
    granted = " ".join(f"--operation {operation.capitalize()}" for operation in missing)
    return error(
        name,
        f"This client may not {' or '.join(missing).lower()} {topic.name}.",
        "The relay's own client must: as it is, no event gets there.",
        f"{_acl(topic)} {granted}",
    )


def check_in_sync(topic: TopicFacts) -> Finding:
    name = "topics.in_sync"
    dead = [p.number for p in topic.partitions if not p.has_leader]
    refusing = [p.number for p in topic.partitions if p.in_sync < topic.min_isr]
    behind = [p.number for p in topic.partitions if p.in_sync < p.replicas]
    if dead or refusing:
        said = f"have no leader: {dead}" if dead else f"have fewer than {topic.min_isr} in sync: {refusing}"
        return error(
            name,
            f"{topic.name}: partitions {said}.",
            "They take no record, and the relay waits with everything.",
            "Start the brokers that are away; kafka-topics.sh --describe --unavailable-partitions",
        )
    if behind:
        return warning(
            name,
            f"{topic.name}: partitions have replicas out of sync: {behind}.",
            "One broker more, and they take no record or lose some.",
            "kafka-topics.sh --describe --under-replicated-partitions; start the broker that is away.",
        )
    return ok(name, f"{topic.name}: {len(topic.partitions)} partitions, all replicas in sync")


def check_replication(topic: TopicFacts, brokers: int) -> Finding:
    name = "topics.replication"
    factor = min((p.replicas for p in topic.partitions), default=0)
    wanted = min(brokers, GOOD_REPLICATION)
    if factor < wanted:
        return warning(
            name,
            f"{topic.name} has replication factor {factor}, on {brokers} brokers.",
            "The loss of one broker loses events that Kafka acknowledged.",
            "kafka-reassign-partitions.sh --execute (a replica list of three for each partition)",
        )
    if topic.config is not None and factor > 1:
        alter = f"{_configs(topic)} min.insync.replicas={factor - 1}"
        if topic.min_isr >= factor:
            return warning(
                name,
                f"{topic.name} has min.insync.replicas = {topic.min_isr} of {factor} replicas.",
                "One broker that restarts, and it takes no record.",
                alter,
            )
        if topic.min_isr < 2 <= factor - 1:
            return warning(
                name,
                f"{topic.name} has min.insync.replicas = {topic.min_isr} of {factor} replicas.",
                "A record that one broker alone has counts as acknowledged; with that broker it is lost.",
                alter,
            )
    return ok(name, f"{topic.name}: replication factor {factor}, min.insync.replicas {topic.min_isr}")


def check_cleanup(topic: TopicFacts, config: Mapping[str, str]) -> Finding:
    name, policy = "topics.cleanup_policy", config.get("cleanup.policy", "delete")
    if topic.role == "checkpoint":
        if policy == "compact":
            return ok(name, f"{topic.name}: cleanup.policy = compact")
        return error(
            name,
            f"{topic.name} has cleanup.policy = {policy}.",
            "Kafka forgets where the relay is, and the relay stops.",
            f"{_configs(topic)} cleanup.policy=compact",
        )
    if "compact" not in policy:
        return ok(name, f"{topic.name}: cleanup.policy = {policy}")
    return error(
        name,
        f"{topic.name} has cleanup.policy = {policy}.",
        "Of each operation only the newest event stays: consumers that come later miss the others.",
        f"{_configs(topic)} cleanup.policy=delete",
    )


def check_unclean(topic: TopicFacts, config: Mapping[str, str]) -> Finding:
    name = "topics.unclean_leader_election"
    if config.get("unclean.leader.election.enable", "false") != "true":
        return ok(name, f"{topic.name}: only a replica in sync becomes leader")
    return error(
        name,
        f"{topic.name} has unclean.leader.election.enable = true.",
        "A replica that lacks acknowledged records may become leader: they are lost in silence.",
        f"{_configs(topic)} unclean.leader.election.enable=false",
    )


def check_message_size(
    topic: TopicFacts, config: Mapping[str, str], payload_limit_bytes: int | None
) -> Finding:
    name, most = "topics.message_size", int(config.get("max.message.bytes", "1048588"))
    if payload_limit_bytes is None:
        return note(
            name,
            f"{topic.name} takes {size(most)}, and the outbox has no limit",
            "An event that is larger is committed, then parked.",
            "ALTER TABLE … ADD CHECK (octet_length(payload::text) <= 900000) NOT VALID;",
        )
    needed = payload_limit_bytes + RECORD_ROOM_BYTES
    if most >= needed:
        return ok(name, f"{topic.name} takes {size(most)}, the outbox at most {size(payload_limit_bytes)}")
    return warning(
        name,
        f"{topic.name} takes {size(most)}, and the outbox payloads of up to {size(payload_limit_bytes)}.",
        "An event in between is committed, then parked: its consumers don't hear of it.",
        f"{_configs(topic)} max.message.bytes={max(1_048_588, needed)}",
    )


def check_late(topic: TopicFacts, config: Mapping[str, str]) -> Finding:
    """KIP-937: a broker may refuse records by their timestamp, which is the commit's."""
    name = "topics.timestamps"
    if config.get("message.timestamp.type") == "LogAppendTime":
        return note(
            name,
            f"{topic.name} has message.timestamp.type = LogAppendTime",
            "Its records carry the broker's time instead of the commit's; `ce_time` has the event's.",
        )
    before_s = int(config.get("message.timestamp.before.max.ms", str(2**63 - 1))) / 1000
    if before_s >= _LATE_S:
        return ok(name, f"{topic.name} takes events that come late")
    return warning(
        name,
        f"{topic.name} refuses records that are older than {length(before_s)}.",
        "A record carries its commit's time: after an outage of the relay that is longer, every event is"
        " refused and parked.",
        f"{_configs(topic)} message.timestamp.before.max.ms={2**63 - 1}",
    )


def check_open_transaction(topic: str, reason: str, remedy: str) -> Finding:
    return warning(
        "topics.open_transaction",
        reason,
        "A transaction is open there. If it isn't one of this relay's that is very large, it hangs: until it"
        f" ends, no relay can read {topic}, and so none can start.",
        remedy,
    )


def _configs(topic: TopicFacts) -> str:
    return f"kafka-configs.sh --bootstrap-server … --alter --topic {topic.name} --add-config"


def _acl(topic: TopicFacts) -> str:
    return f"kafka-acls.sh --bootstrap-server … --add --allow-principal User:… --topic {topic.name}"
