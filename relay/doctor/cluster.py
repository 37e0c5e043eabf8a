"""Checks of the Kafka cluster: what its brokers would do to what they acknowledged. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from relay.doctor.finding import Finding, error, note, ok, unseen, warning

GOOD_REPLICATION: Final = 3
_CONFIGS: Final = "kafka-configs.sh --bootstrap-server … --alter --entity-type brokers --entity-default"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What the brokers say of themselves."""

    brokers: int
    embedded: bool
    config: Mapping[str, str] | None
    """The controller's configuration; None where we may not see it."""
    config_refused: str = ""
    exactly_once: bool
    transaction_timeout_ms: int
    """Ours."""
    topic_replication: int
    """RELAY_TOPIC_REPLICATION; -1: the broker's default."""


def check(facts: ClusterFacts) -> Iterator[Finding]:
    """Everything of this realm."""
    yield ok("kafka.reachable", f"Kafka answers, with {facts.brokers} broker{'s' * (facts.brokers != 1)}")
    if facts.embedded:
        yield note(
            "kafka.embedded",
            "this is librdkafka's embedded broker",
            "It is for a demo: it forgets everything, and shows uncommitted records to everybody.",
            "Set RELAY_KAFKA_BOOTSTRAP to an Apache Kafka.",
        )
        return
    yield check_brokers(facts)
    yield check_replication_setting(facts)
    if facts.config is None:
        yield unseen(
            "kafka.config",
            facts.config_refused,
            "kafka-acls.sh --bootstrap-server … --add --allow-principal User:… --operation DescribeConfigs"
            " --cluster",
        )
        return
    yield check_unclean(facts.config)
    yield check_auto_create(facts.config)
    if facts.exactly_once:
        yield check_transaction_timeout(facts, facts.config)
        yield check_transaction_log(facts, facts.config)


def check_unreachable(reason: str) -> Finding:
    return error(
        "kafka.reachable",
        reason,
        "Nothing of Kafka could be looked at; events wait in the WAL until it answers.",
        "Check RELAY_KAFKA_BOOTSTRAP, RELAY_KAFKA_SECURITY_PROTOCOL and the brokers.",
    )


def check_brokers(facts: ClusterFacts) -> Finding:
    if facts.brokers >= GOOD_REPLICATION:
        return ok("kafka.brokers", f"{facts.brokers} brokers")
    return warning(
        "kafka.brokers",
        f"The cluster has {facts.brokers} broker{'s' * (facts.brokers != 1)}.",
        "With fewer than three, the loss of one loses acknowledged events or stops the relay.",
        "Add brokers, then raise the replication of the topics (kafka-reassign-partitions.sh).",
    )


def check_replication_setting(facts: ClusterFacts) -> Finding:
    name, wanted = "kafka.topic_replication", facts.topic_replication
    if wanted > facts.brokers:
        return error(
            name,
            f"RELAY_TOPIC_REPLICATION = {wanted}, and there are {facts.brokers} brokers.",
            "Kafka refuses to make the topics, and `relay run` stops.",
            f"Set RELAY_TOPIC_REPLICATION={facts.brokers}, or start the brokers that are missing.",
        )
    default = int((facts.config or {}).get("default.replication.factor", "1")) if facts.config else None
    factor = default if wanted == -1 else wanted
    if factor is not None and factor < min(facts.brokers, GOOD_REPLICATION):
        return warning(
            name,
            f"Topics that the relay makes get replication factor {factor}, on {facts.brokers} brokers.",
            "The loss of one broker loses events that Kafka acknowledged.",
            f"Set RELAY_TOPIC_REPLICATION={min(facts.brokers, GOOD_REPLICATION)}",
        )
    return ok(name, f"new topics get replication factor {'(the default)' if factor is None else factor}")


def check_unclean(config: Mapping[str, str]) -> Finding:
    name = "kafka.unclean_leader_election"
    if config.get("unclean.leader.election.enable", "false") != "true":
        return ok(name, "unclean.leader.election.enable = false")
    return error(
        name,
        "unclean.leader.election.enable = true.",
        "A replica that lacks acknowledged records may become leader: events, or the checkpoint, are lost in"
        " silence.",
        f"{_CONFIGS} --add-config unclean.leader.election.enable=false",
    )


def check_auto_create(config: Mapping[str, str]) -> Finding:
    name = "kafka.auto_create_topics"
    if config.get("auto.create.topics.enable", "false") != "true":
        return ok(name, "auto.create.topics.enable = false")
    return warning(
        name,
        "auto.create.topics.enable = true.",
        "Whoever asks for a topic that is gone makes it anew, with the broker's defaults: a deleted or"
        " misspelt topic isn't noticed.",
        "auto.create.topics.enable=false in each server.properties, then restart the brokers one by one.",
    )


def check_transaction_timeout(facts: ClusterFacts, config: Mapping[str, str]) -> Finding:
    name = "kafka.transaction_timeout"
    most = int(config.get("transaction.max.timeout.ms", "900000"))
    ours = facts.transaction_timeout_ms
    if most >= ours:
        return ok(name, f"transaction.max.timeout.ms = {most}, ours is {ours}")
    return error(
        name,
        f"transaction.max.timeout.ms = {most}, and the relay's transactions have {ours}.",
        "The broker refuses the relay's producer: nothing is published.",
        f"transaction.max.timeout.ms={ours} in each server.properties, then restart the brokers one by one.",
    )


def check_transaction_log(facts: ClusterFacts, config: Mapping[str, str]) -> Finding:
    name = "kafka.transaction_log"
    factor = int(config.get("transaction.state.log.replication.factor", "3"))
    isr = int(config.get("transaction.state.log.min.isr", "2"))
    said = f"transaction.state.log.replication.factor = {factor}, min.isr = {isr}"
    if facts.brokers < GOOD_REPLICATION and factor > facts.brokers:
        return error(
            name,
            f"{said}, on {facts.brokers} broker{'s' * (facts.brokers != 1)}.",
            "The transactions' own topic can't be made: nothing is published.",
            "Start the brokers that are missing.",
        )
    if facts.brokers >= GOOD_REPLICATION and (factor < GOOD_REPLICATION or isr < 2):
        return warning(
            name,
            f"{said}.",
            "The loss of one broker loses the state of transactions: what was committed may seem open or"
            " aborted.",
            "kafka-reassign-partitions.sh for __transaction_state, and kafka-configs.sh --alter --topic"
            " __transaction_state --add-config min.insync.replicas=2",
        )
    return ok(name, said)
