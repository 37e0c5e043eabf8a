"""The oldest supported PostgreSQL: the same promises, and the two things that are different there."""

import json
from collections.abc import Iterator

import pytest

from fix_kafka import Kafka
from fix_operations import PROVIDER, register_provider
from fix_postgres import Database, oldest_bindir
from fix_process import RunProcess
from fix_relay import RelayUnderTest
from fix_standby import RelayOnPair, running_pair

pytestmark = pytest.mark.slow


@pytest.fixture
def relay(
    old_database: Database, real_kafka: Kafka, topic_prefix: str, run_process: RunProcess
) -> Iterator[RelayUnderTest]:
    under_test = RelayUnderTest(old_database, real_kafka, topic_prefix, run_process)
    try:
        under_test.initialise()
        yield under_test
    finally:
        under_test.owner.close()


def test_on_the_oldest_postgres_a_relay_killed_at_each_boundary_has_each_event_once(
    relay: RelayUnderTest, run_process: RunProcess
) -> None:
    assert relay.owner.info.server_version // 10_000 == 15
    for failpoint in ("transaction_read", "before_kafka_commit", "kafka_committed", "feedback_sent"):
        relay.emit(3)
        process = relay.failing(f"relay.{failpoint}=kill")
        assert process.wait() == -9, process.output()
        relay.wait_slot_free()
    process = relay.start()
    relay.emit(2)
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    for command in (["status"], ["outbox", "audit"]):
        shown = run_process(command, relay.environment())
        assert shown.wait() == 0, shown.output()
    examined = run_process(["doctor", "--json"], relay.environment())
    examined.wait()
    found = json.loads(examined.output().splitlines()[-1])
    assert {finding["check"] for finding in found if finding["severity"] == "error"} == {"postgres.fsync"}
    assert {"failover.version", "replication.slot", "topics.in_sync"} <= {one["check"] for one in found}
    published = [record.event_id for record in relay.read()]
    assert len(published) == len(set(published)) == 14
    relay.assert_clean()


def test_on_the_oldest_postgres_an_application_prepares_an_operation_and_its_event_arrives(
    relay: RelayUnderTest,
) -> None:
    process = relay.start()
    register_provider(relay.owner)
    operation = relay.one(
        """
        select operation_id from relay.prepare_operation(
          kind => 'generation', owner_id => 'studio', operation_key => 'k', payload => '{"prompt": "dawn"}',
          provider => %s, max_cost => 5)
        """,
        PROVIDER,
    )
    relay.wait_published(process)
    keys = {record.key for record in relay.read("operation.transitioned", "generation.requested")}
    assert keys == {str(operation).encode()}
    relay.assert_clean()


def test_on_the_oldest_postgres_a_missing_publication_stops_until_the_repair(
    relay: RelayUnderTest,
) -> None:
    """An error of the stream's there; from Postgres 18 on only a warning."""
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    before = relay.confirmed()
    relay.owner.execute("drop publication outbox_relay")
    relay.emit(1)
    assert process.wait() == 15, process.output()
    process = relay.run()
    assert process.wait() == 15, process.output()
    assert relay.confirmed() == before
    relay.initialise()
    process = relay.run()
    # The log is read with the catalog of its time: for that row the publication is missing for ever.
    assert process.wait() == 15, process.output()
    assert "`relay outbox repair`" in process.output()
    repaired = relay.command("outbox", "repair")
    assert repaired.wait() == 0, repaired.output()
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    assert len(relay.read()) == 3
    relay.assert_clean()


def test_before_postgres_17_a_promotion_stops_and_repair_is_the_path(
    real_kafka: Kafka, topic_prefix: str, run_process: RunProcess
) -> None:
    with running_pair(oldest_bindir()) as pair:
        relay = RelayOnPair(pair, real_kafka, topic_prefix, run_process)
        try:
            relay.initialise()
            process = relay.start()
            relay.emit(3)
            relay.wait_published(process)
            pair.wait_caught_up()
            pair.primary.stop("immediate")
            pair.promote()
            relay.move()
            relay.emit(3)
            assert process.wait() == 14, process.output()
            assert "`relay outbox repair`" in process.output()
            repaired = relay.command("outbox", "repair")
            assert repaired.wait() == 0, repaired.output()
            process = relay.start()
            relay.emit(1)
            relay.wait_published(process)
            assert sorted(record.event_id for record in relay.read()) == relay.ids()
            relay.assert_clean()
        finally:
            relay.owner.close()
