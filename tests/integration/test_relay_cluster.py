"""Brokers restarted, killed and frozen under the relay: it goes on by itself, and nothing is lost."""

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from apache_kafka import ApacheKafka
from fix_kafka import Kafka
from fix_postgres import Database
from fix_process import Process, RunProcess
from fix_relay import EVENT_TYPE, RelayUnderTest
from fix_versions import measured
from fix_waiting import PATIENCE_S, eventually
from kafka_cluster import KafkaCluster
from relay.kafka import checkpoint as checkpoints

pytestmark = pytest.mark.slow

PROMISED_BYTES = 150 * 1000 * 1000
SHORT = {"RELAY_KAFKA_TRANSACTION_TIMEOUT_MS": "6000"}
"""The lowered transaction timeout; the default is a minute."""


@pytest.fixture
def relay(
    kafka_cluster: KafkaCluster, database: Database, topic_prefix: str, run_process: RunProcess
) -> Iterator[RelayUnderTest]:
    kafka = Kafka(kafka_cluster.bootstrap, kafka_cluster.version, real=True)
    under_test = RelayUnderTest(database, kafka, topic_prefix, run_process)
    under_test.initialise()
    try:
        yield under_test
    finally:
        under_test.owner.close()


class Writer:
    """Commits small transactions all the time, on a connection of its own."""

    def __init__(self, relay: RelayUnderTest) -> None:
        self.events: list[str] = []
        self._relay = relay
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        with self._relay.database.connect() as connection:
            while not self._ending.wait(0.02):
                self.events += self._relay.emit(5, connection=connection)


def topics_of(relay: RelayUnderTest) -> tuple[str, str]:
    relay_id = relay.one("select relay_id from relay.source_identity")
    return f"{relay.prefix}.{EVENT_TYPE}", checkpoints.topic(relay.prefix, relay_id)


def settled(cluster: KafkaCluster, relay: RelayUnderTest) -> None:
    """Every replica of the relay's topics and of Kafka's own is back."""
    names = [*topics_of(relay), "__transaction_state"]
    eventually(lambda: cluster.in_sync(*names), "all replicas are in sync")


def goes_on(relay: RelayUnderTest, process: Process) -> None:
    """What is committed from now on is published and confirmed, by the same process."""
    end = relay.insert_lsn()
    relay.emit(1)
    relay.wait_confirmed(end + 1, process)


def published_once(relay: RelayUnderTest) -> None:
    rows = {str(row[0]) for row in relay.owner.execute("select event_id from relay.outbox").fetchall()}
    records = [record.event_id for record in relay.read()]
    assert len(records) == len(rows)
    assert set(records) == rows
    relay.assert_clean()


@pytest.mark.parametrize("ending", [ApacheKafka.stop, ApacheKafka.kill], ids=["restarted", "killed"])
def test_while_each_broker_in_turn_is_gone_the_relay_drains_on(
    ending: Callable[[ApacheKafka], None],
    kafka_cluster: KafkaCluster,
    relay: RelayUnderTest,
    pytestconfig: pytest.Config,
    request: pytest.FixtureRequest,
) -> None:
    """Each leads something: the checkpoint's partition, the transactions' coordinator, the controllers."""
    process = relay.start()
    led = 0
    with Writer(relay) as writer:
        goes_on(relay, process)
        for broker in kafka_cluster.brokers:
            settled(kafka_cluster, relay)
            led += kafka_cluster.leader(topics_of(relay)[1]) is broker
            ending(broker)
            goes_on(relay, process)  # with two of three
            broker.start()
        settled(kafka_cluster, relay)
    relay.wait_published(process)
    assert len(writer.events) > 100
    assert led > 0, "the leader of the checkpoint's partition was among those that went"
    name = request.node.callspec.id
    peak = process.peak_bytes
    starts = process.output().count('"event": "starting over"')
    figures = f"{len(writer.events)} events, started over {starts} times, peak {peak / 1e6:.0f} MB"
    measured(pytestconfig, f"each of three brokers {name}", figures)
    assert peak < PROMISED_BYTES
    assert process.stop() == 0, process.output()
    published_once(relay)


def test_an_outage_longer_than_the_transactions_timeout_is_recovered_from_without_anybody(
    kafka_cluster: KafkaCluster, relay: RelayUnderTest, pytestconfig: pytest.Config
) -> None:
    process = relay.start(**SHORT)
    goes_on(relay, process)
    settled(kafka_cluster, relay)
    relay.wait_published(process)
    frozen = kafka_cluster.brokers[1:]
    for broker in frozen:
        os.kill(broker.pid, signal.SIGSTOP)
    try:
        # Nothing was open before, and one broker of three takes no write: this can't be committed.
        events = [event for _ in range(20) for event in relay.emit(5)]
        process.wait_for('"event": "starting over"')
    finally:
        for broker in frozen:
            os.kill(broker.pid, signal.SIGCONT)
    events += relay.emit(5)
    relay.wait_published(process)
    starts = process.output().count('"event": "starting over"')
    figures = f"{len(events)} events, started over {starts} times, peak {process.peak_bytes / 1e6:.0f} MB"
    measured(pytestconfig, "an outage longer than the transaction's timeout", figures)
    assert process.peak_bytes < PROMISED_BYTES
    assert process.stop() == 0, process.output()
    settled(kafka_cluster, relay)
    published_once(relay)
