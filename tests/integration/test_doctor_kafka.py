"""`relay doctor` on a real Kafka and with real schemas: each thing is broken for real and seen."""

import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType  # not exported
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

from apache_kafka import ApacheKafka, KafkaMissing
from fix_doctor import Examine
from fix_relay import RelayUnderTest
from fix_waiting import eventually
from relay.contracts import AVRO
from relay.doctor import examine as examination
from relay.kafka import checkpoint as checkpoints

ANONYMOUS: Final = "User:ANONYMOUS"
# Every default that loses or refuses events, in one broker.
ILL: Final = {
    "unclean.leader.election.enable": "true",
    "auto.create.topics.enable": "true",
    "transaction.max.timeout.ms": "30000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture
def ill_broker(tmp_path: Path) -> Iterator[ApacheKafka]:
    try:
        broker = ApacheKafka(tmp_path / "ill", settings=ILL)
    except KafkaMissing as missing:
        pytest.skip(f"this needs a real Kafka: {missing}")
    broker.start()
    yield broker
    broker.stop()


def alter(admin: AdminClient, topic: str, config: Mapping[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def make(admin: AdminClient, topic: str, partitions: int = 1, **config: str) -> None:
    dotted = {name.replace("_", "."): value for name, value in config.items()}
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dotted)
    admin.create_topics([new])[topic].result(30)


def permit(admin: AdminClient, topic: str, operation: AclOperation, how: AclPermissionType) -> None:
    acl = AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, ANONYMOUS, "*", operation, how)
    for future in admin.create_acls([acl]).values():
        future.result(30)


@pytest.mark.slow
def test_a_broker_and_topics_that_lose_or_refuse_events_are_found(
    relay: RelayUnderTest, ill_broker: ApacheKafka, examine: Examine
) -> None:
    admin = AdminClient({"bootstrap.servers": ill_broker.bootstrap})
    event, unwritable, closed = (
        f"{relay.prefix}.{name}"
        for name in ("collection.requested", "delivery.requested", "generation.requested")
    )
    make(
        admin,
        event,
        cleanup_policy="compact",
        max_message_bytes="10000",
        message_timestamp_before_max_ms="3600000",
        min_insync_replicas="2",
    )
    make(admin, unwritable)
    make(admin, closed)
    for topic in (unwritable, closed):
        permit(admin, topic, AclOperation.ALL, AclPermissionType.ALLOW)
    permit(admin, unwritable, AclOperation.WRITE, AclPermissionType.DENY)
    permit(admin, closed, AclOperation.DESCRIBE, AclPermissionType.DENY)
    env = relay.environment(RELAY_KAFKA_BOOTSTRAP=ill_broker.bootstrap, RELAY_TOPIC_REPLICATION="2")

    def denied() -> bool:
        return examine(env).severity("topics.access", closed) == "error"

    eventually(denied, "the broker heeds its access control list")
    found = examine(env)
    assert found.wrong("kafka.unclean_leader_election")[0] == "error"
    assert found.wrong("kafka.auto_create_topics")[0] == "warning"
    assert found.wrong("kafka.transaction_timeout", "30000")[0] == "error"
    assert found.wrong("kafka.topic_replication", "2")[0] == "error"
    assert found.wrong("kafka.brokers")[0] == "warning"
    assert found.wrong("topics.cleanup_policy", event)[0] == "error"
    assert found.wrong("topics.unclean_leader_election", event)[0] == "error"
    assert found.wrong("topics.message_size", event)[0] == "warning"
    assert found.wrong("topics.timestamps", event)[0] == "warning"
    assert found.wrong("topics.in_sync", event)[0] == "error"
    severity, command = found.wrong("topics.access", f"may not write {unwritable}")
    assert severity == "error"
    assert command.startswith("kafka-acls.sh --bootstrap-server … --add --allow-principal User:…")
    assert command.endswith(f"--topic {unwritable} --operation Write")
    assert "authorization" in found.of("topics.access", closed)["what"].lower()
    # It looked, and it made nothing, though this broker makes whatever is asked for.
    assert found.of("topics.exists", "relay-dlq")["severity"] == "note"
    assert f"{relay.prefix}.relay-dlq" not in admin.list_topics(timeout=10).topics


def test_topics_that_forget_are_found_and_their_commands_mend_them(
    exactly_once: RelayUnderTest, examine: Examine
) -> None:
    relay, env = exactly_once, exactly_once.environment()
    admin = AdminClient({"bootstrap.servers": relay.kafka.bootstrap})
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    assert process.stop() == 0
    history = f"{relay.prefix}.operation.transitioned"
    # The first by name of those that forget soonest.
    event = f"{relay.prefix}.batch.completed"
    topic = checkpoint_topic(relay)
    well = examine(env)
    assert well.severity("topics.retention") == "ok"
    assert {well.severity("topics.cleanup_policy", name) for name in (event, topic)} == {"ok"}
    # The relay makes it so; somebody's cleaning up of topics takes that away.
    assert well.severity("operations.history") == "ok"
    alter(admin, history, {"retention.ms": "86400000"})
    eventually(
        lambda: examine(env).severity("operations.history") == "warning", "the history is seen to forget"
    )
    relay.owner.execute(
        "insert into relay.outbox (event_type, schema_version, operation_id, version, payload, occurred_at,"
        " seq) overriding system value values ('collection.requested', 1, gen_random_uuid(), 1, '{}',"
        " now() - interval '30 days', 0)"
    )
    alter(admin, history, {"retention.ms": "-1"})
    alter(admin, topic, {"cleanup.policy": "delete"})

    def forgets() -> bool:
        return examine(env).severity("topics.cleanup_policy", topic) == "error"

    eventually(forgets, "the checkpoint's topic has its new configuration")
    found = examine(env)
    severity, command = found.wrong("topics.retention", event)
    assert (severity, "relay outbox prune --older-than 6d" in command) == ("warning", True)
    assert found.severity("operations.history") == "ok"
    # A topic that the relay has met and that is gone: `relay run` would stop with 17.
    assert well.severity("topics.changed") == "ok"
    gone = f"{relay.prefix}.delivery.requested"
    admin.delete_topics([gone])[gone].result(30)

    def noticed() -> bool:
        return examine(env).severity("topics.changed") == "error"

    eventually(noticed, "the topic is gone")
    severity, command = examine(env).wrong("topics.changed", gone)
    assert (severity, f"relay topics accept {gone}" in command) == ("error", True)
    assert "cleanup.policy=compact" in found.wrong("topics.cleanup_policy", topic)[1]


def test_a_transaction_that_hangs_on_the_checkpoint_is_named_with_the_tool_that_ends_it(
    exactly_once: RelayUnderTest, examine: Examine
) -> None:
    relay = exactly_once
    topic = checkpoint_topic(relay)
    admin = AdminClient({"bootstrap.servers": relay.kafka.bootstrap})
    make(admin, topic, partitions=2, cleanup_policy="compact")
    hanging = Producer(
        {"bootstrap.servers": relay.kafka.bootstrap, "transactional.id": f"{relay.prefix}-hanging"}
    )
    hanging.init_transactions(30)
    hanging.begin_transaction()
    hanging.produce(topic, b"x", b"y", partition=0)
    hanging.flush(30)
    found = examine(relay.environment())
    hanging.abort_transaction(30)
    severity, command = found.wrong("topics.open_transaction")
    assert severity == "warning"
    assert "`kafka-transactions.sh abort " in command
    assert f"--topic {topic} --partition 0 --start-offset 0`" in command
    assert found.wrong("topics.checkpoint_partitions")[0] == "warning"
    # Once it has ended the position can be told again.
    assert examine(relay.environment()).of("identity.checkpoint")["severity"] == "note"


def checkpoint_topic(relay: RelayUnderTest) -> str:
    relay_id = relay.one("select relay_id from relay.source_identity where slot_name = %s", relay.slot)
    return checkpoints.topic(relay.prefix, relay_id)


# Schemas and other packages ---------------------------------------------------------------------------------


def test_schemas_that_are_broken_or_cannot_read_the_past_are_found(
    relay: RelayUnderTest, examine: Examine, tmp_path: Path
) -> None:
    shutil.copytree(AVRO / "collection.requested", tmp_path / "collection.requested")
    newer = tmp_path / "collection.requested" / "v2.avsc"
    newer.write_text(
        '{"type": "record", "name": "Newer", "fields": [{"name": "must", "type": "string"}]}', "utf-8"
    )
    env = relay.environment(RELAY_SCHEMAS=str(tmp_path))
    severity, command = examine(env).wrong("schemas.compatible", "collection.requested v2")
    assert (severity, str(newer) in command) == ("error", True)
    newer.write_text("{}", "utf-8")
    found = examine(env)
    assert found.wrong("schemas.load", str(newer))[0] == "error"
    assert found.severity("kafka.reachable") == "ok"


def broken(_: Any) -> NoReturn:
    raise RuntimeError("a bug of theirs")


def test_another_packages_check_that_breaks_is_a_finding_with_its_name(
    relay: RelayUnderTest, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = EntryPoint("theirs", f"{__name__}:broken", examination.GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda entry: broken if entry is theirs else original(entry))
    monkeypatch.setattr(examination, "entry_points", lambda group: [theirs])
    found = examine(relay.environment())
    assert "a bug of theirs" in found.of("theirs.check")["what"]
    assert found.severity("theirs.check") == "error"
    assert found.severity("postgres.wal_level") == "ok"


original: Final = EntryPoint.load
