"""What `relay doctor` makes of each fact of Kafka and of the schemas; readers are tested on a real broker."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from fastavro.schema import parse_schema

from consumers.observe.doctor import check_history
from relay.avro.catalog import Catalog
from relay.avro.compatibility import why_unreadable
from relay.doctor import cluster, schemas, topics
from relay.doctor.cluster import ClusterFacts
from relay.doctor.finding import Finding, Severity
from relay.doctor.topics import Partition, TopicFacts

BROKER: Final = {
    "unclean.leader.election.enable": "false",
    "auto.create.topics.enable": "false",
    "transaction.max.timeout.ms": "900000",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
}
CLUSTER: Final = ClusterFacts(
    brokers=3,
    embedded=False,
    config=BROKER,
    exactly_once=True,
    transaction_timeout_ms=60_000,
    topic_replication=-1,
)
CONFIG: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
}
IN_SYNC: Final = Partition(number=0, replicas=3, in_sync=3, has_leader=True)
TOPIC: Final = TopicFacts(
    name="relay.collection.requested",
    role="event",
    partitions=(IN_SYNC,),
    config=CONFIG,
    operations=frozenset({"READ", "WRITE", "DESCRIBE"}),
)
CHECKPOINT: Final = replace(
    TOPIC, name="relay.relay-checkpoint.x", role="checkpoint", config={**CONFIG, "cleanup.policy": "compact"}
)


def wrong(findings: Any) -> list[tuple[str, str]]:
    found: list[Finding] = [finding for finding in findings if finding.severity is not Severity.OK]
    for finding in found:
        if finding.severity is not Severity.NOTE:
            assert finding.why, finding
            assert finding.command, finding
    return [(finding.check, finding.severity.value) for finding in found]


def of(topic: TopicFacts, *, brokers: int = 3, limit: int | None = 900_000) -> list[tuple[str, str]]:
    return wrong(topics.check({topic.name: topic}, brokers=brokers, payload_limit_bytes=limit))


def test_a_healthy_kafka_has_no_finding() -> None:
    assert wrong(cluster.check(CLUSTER)) == []
    assert of(TOPIC) == []
    assert of(CHECKPOINT) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"embedded": True}, ("kafka.embedded", "note")),
        ({"config": None, "config_refused": "not allowed."}, ("kafka.config", "note")),
        ({"topic_replication": 4}, ("kafka.topic_replication", "error")),
        ({"topic_replication": 2}, ("kafka.topic_replication", "warning")),
        ({"config": {**BROKER, "default.replication.factor": "1"}}, ("kafka.topic_replication", "warning")),
        (
            {"config": {**BROKER, "unclean.leader.election.enable": "true"}},
            ("kafka.unclean_leader_election", "error"),
        ),
        (
            {"config": {**BROKER, "auto.create.topics.enable": "true"}},
            ("kafka.auto_create_topics", "warning"),
        ),
        (
            {"config": {**BROKER, "transaction.max.timeout.ms": "30000"}},
            ("kafka.transaction_timeout", "error"),
        ),
        (
            {"config": {**BROKER, "transaction.state.log.replication.factor": "1"}},
            ("kafka.transaction_log", "warning"),
        ),
    ],
)
def test_each_fault_of_the_cluster_is_one_finding(changed: dict[str, Any], expected: tuple[str, str]) -> None:
    assert wrong(cluster.check(replace(CLUSTER, **changed))) == [expected]


def test_a_single_broker_is_a_warning_and_cannot_hold_three_copies_of_the_transactions() -> None:
    assert wrong(cluster.check(replace(CLUSTER, brokers=1))) == [
        ("kafka.brokers", "warning"),
        ("kafka.transaction_log", "error"),
    ]


def test_at_least_once_needs_no_transactions() -> None:
    facts = replace(CLUSTER, exactly_once=False, config={**BROKER, "transaction.max.timeout.ms": "1"})
    assert wrong(cluster.check(facts)) == []


def config(**changed: str) -> dict[str, str]:
    return {**CONFIG, **{name.replace("_", "."): value for name, value in changed.items()}}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"exists": False}, ("topics.exists", "note")),
        ({"refused": "not allowed."}, ("topics.access", "error")),
        ({"operations": frozenset({"DESCRIBE"})}, ("topics.access", "error")),
        ({"operations": None}, ("topics.access", "note")),
        ({"config": None}, ("topics.config", "note")),
        ({"partitions": (replace(IN_SYNC, has_leader=False),)}, ("topics.in_sync", "error")),
        ({"partitions": (replace(IN_SYNC, in_sync=1),)}, ("topics.in_sync", "error")),
        ({"partitions": (replace(IN_SYNC, in_sync=2),)}, ("topics.in_sync", "warning")),
        ({"partitions": (replace(IN_SYNC, replicas=2, in_sync=2),)}, ("topics.replication", "warning")),
        ({"config": config(min_insync_replicas="1")}, ("topics.replication", "warning")),
        ({"config": config(min_insync_replicas="3")}, ("topics.replication", "warning")),
        ({"config": config(cleanup_policy="compact,delete")}, ("topics.cleanup_policy", "error")),
        (
            {"config": config(unclean_leader_election_enable="true")},
            ("topics.unclean_leader_election", "error"),
        ),
        ({"config": config(max_message_bytes="900000")}, ("topics.message_size", "warning")),
        ({"config": config(message_timestamp_type="LogAppendTime")}, ("topics.timestamps", "note")),
        (
            {"config": config(message_timestamp_before_max_ms="3600000")},
            ("topics.timestamps", "warning"),
        ),
    ],
)
def test_each_fault_of_a_topic_is_one_finding(changed: dict[str, Any], expected: tuple[str, str]) -> None:
    assert of(replace(TOPIC, **changed)) == [expected]


def test_an_outbox_without_a_bound_is_a_note() -> None:
    assert of(TOPIC, limit=None) == [("topics.message_size", "note")]


def test_the_checkpoint_needs_compaction_one_partition_and_the_right_to_read() -> None:
    two = (IN_SYNC, replace(IN_SYNC, number=1))
    assert of(replace(CHECKPOINT, partitions=two)) == [("topics.checkpoint_partitions", "warning")]
    assert of(replace(CHECKPOINT, config=CONFIG)) == [("topics.cleanup_policy", "error")]
    writes = frozenset({"WRITE", "DESCRIBE"})
    assert of(replace(CHECKPOINT, operations=writes)) == [("topics.access", "error")]


def test_the_history_of_operations_is_kept_for_ever() -> None:
    assert wrong([check_history(TOPIC)]) == [("operations.history", "warning")]
    assert wrong([check_history(replace(TOPIC, config=config(retention_ms="-1", retention_bytes="9")))])
    assert wrong([check_history(replace(TOPIC, config=config(retention_ms="-1")))]) == []


# Schemas ----------------------------------------------------------------------------------------------------


def record(*fields: dict[str, Any], name: str = "Thing") -> Any:
    return parse_schema({"type": "record", "name": name, "fields": list(fields)}, _write_hint=False)


OLD: Final = record({"name": "a", "type": "int"})


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (OLD, OLD),
        (record({"name": "a", "type": "long"}), OLD),
        (record({"name": "a", "type": ["null", "int"]}), OLD),
        (record({"name": "a", "type": "int"}, {"name": "b", "type": "string", "default": ""}), OLD),
        (record(), OLD),
        (record({"name": "b", "type": "int", "aliases": ["a"]}), OLD),
        (
            record({"name": "a", "type": {"type": "enum", "name": "E", "symbols": ["X"], "default": "X"}}),
            record({"name": "a", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}}),
        ),
        (
            record({"name": "next", "type": ["null", "Thing"], "default": None}),
            record({"name": "next", "type": ["null", "Thing"], "default": None}),
        ),
    ],
)
def test_what_a_newer_schema_can_read(reader: Any, writer: Any) -> None:
    assert why_unreadable(reader, writer) is None


@pytest.mark.parametrize(
    ("reader", "writer", "path"),
    [
        (record({"name": "a", "type": "string"}), OLD, "a: int became string"),
        (record({"name": "a", "type": "int"}, {"name": "b", "type": "int"}), OLD, "b: it is new"),
        (OLD, record({"name": "a", "type": "long"}), "a: long became int"),
        (OLD, record({"name": "a", "type": ["null", "int"]}), "a: null became int"),
        (record({"name": "a", "type": ["null", "string"]}), OLD, "a: no branch reads int"),
        (
            record({"name": "a", "type": {"type": "array", "items": "string"}}),
            record({"name": "a", "type": {"type": "array", "items": "int"}}),
            "a[]: int became string",
        ),
        (
            record({"name": "a", "type": {"type": "map", "values": "string"}}),
            record({"name": "a", "type": {"type": "map", "values": "int"}}),
            "a{}: int became string",
        ),
        (
            record({"name": "a", "type": {"type": "enum", "name": "E", "symbols": ["X"]}}),
            record({"name": "a", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}}),
            "a: the symbols Y are gone",
        ),
        (
            record({"name": "a", "type": {"type": "fixed", "name": "F", "size": 4}}),
            record({"name": "a", "type": {"type": "fixed", "name": "F", "size": 8}}),
            "a: its size changed",
        ),
        (
            record({"name": "a", "type": {"type": "long", "logicalType": "timestamp-micros"}}),
            record({"name": "a", "type": {"type": "long", "logicalType": "timestamp-millis"}}),
            "a: its logical type changed",
        ),
        (
            record({"name": "a", "type": record({"name": "b", "type": "int"}, name="Inner")}),
            record({"name": "a", "type": record(name="Inner")}),
            "a.b: it is new",
        ),
    ],
)
def test_what_a_newer_schema_cannot_read_is_named_with_its_path(reader: Any, writer: Any, path: str) -> None:
    assert path in str(why_unreadable(reader, writer))


def test_the_shipped_schemas_can_read_what_they_wrote() -> None:
    assert wrong(schemas.check_compatible(Catalog.load())) == []


def test_a_version_that_cannot_read_the_one_before_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "thing.happened"
    folder.mkdir()
    version = '{"type": "record", "name": "Happened", "fields": [{"name": "%s", "type": "string"}]}'
    (folder / "v1.avsc").write_text(version % "a")
    (folder / "v2.avsc").write_text(version % "b")
    found = list(schemas.check_compatible(Catalog.load([tmp_path])))
    assert wrong(found) == [("schemas.compatible", "error")]
    assert "thing.happened v2 can't read what v1 wrote: b: it is new and has no default." in found[0].what


def test_an_event_in_the_outbox_needs_a_schema() -> None:
    catalog = Catalog.load()
    assert wrong([schemas.check_known(catalog, [("collection.requested", 1)])]) == []
    assert wrong([schemas.check_known(catalog, [("nobody.knows", 1)])]) == [("schemas.known", "warning")]
    assert wrong([schemas.check_known(catalog, [("collection.requested", 99)])])
