"""Two relays on one slot: one works, one waits, and whoever was taken over from can write nothing more."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from apache_kafka import ApacheKafka
from fix_kafka import Kafka
from fix_postgres import Database, clone, make_template
from fix_process import Process, RunProcess
from fix_proxy import TcpProxy
from fix_relay import RelayUnderTest, ends_of
from fix_versions import measured
from fix_waiting import eventually
from relay.embedded_postgres import EmbeddedPostgres
from relay.kafka import checkpoint as checkpoints
from relay.kafka.publisher import Transactional
from relay.wal.stream import SENDER_TIMEOUT_S

TAKEOVER_S = 5.0
"""What is promised on a machine that has time; a test's own limit is ten times as wide."""

TAKEN_OVER = '"event": "active"'


TookOver = Callable[[Process, float, float, str], None]


@pytest.fixture
def took_over(pytestconfig: pytest.Config) -> TookOver:
    """Waits until a standby publishes, and keeps how long that took."""

    def wait(standby: Process, since: float, promised_s: float, after: str) -> None:
        standby.wait_for(TAKEN_OVER, 10 * promised_s)
        seconds = time.monotonic() - since
        measured(pytestconfig, f"takeover after {after}", f"{seconds:.1f} s (promised {promised_s:.0f} s)")

    return wait


def ended_fenced(process: Process) -> None:
    assert process.wait() == 19, process.output()
    said = process.output()
    assert "Another relay has taken over" in said
    assert "it waits as a standby" in said


def cut_off(relay: RelayUnderTest) -> None:
    """The server ends the walsender, as it does by itself when a frozen relay's time is up."""
    relay.owner.execute(
        "select pg_terminate_backend(pid) from pg_stat_replication where application_name = %s",
        [f"outbox-relay-{relay.slot}"],
    )
    relay.wait_slot_free()


def published_once(relay: RelayUnderTest, events: list[str]) -> None:
    assert sorted(record.event_id for record in relay.read()) == sorted(events)
    relay.assert_clean()


def test_a_standby_never_touches_kafka_and_takes_over_from_a_killed_relay(
    exactly_once: RelayUnderTest, tcp_proxy: Callable[[str, int], TcpProxy], took_over: TookOver
) -> None:
    relay = exactly_once
    host, port = relay.kafka.bootstrap.split(":")
    proxy = tcp_proxy(host, int(port))
    active = relay.start()
    standby = relay.run('"event": "standby"', RELAY_KAFKA_BOOTSTRAP=f"{proxy.host}:{proxy.port}")
    events = relay.emit(5)
    relay.wait_published(active)
    # It looks at the slot, again and again, and at nothing else.
    looked_at = """
        select max(query_start) from pg_stat_activity where application_name = %s and query like %s
    """
    its_look = (f"outbox-relay-{relay.slot}-sql", "%active_pid%pg_postmaster_start_time%")
    first = relay.one(looked_at, *its_look)
    eventually(lambda: relay.one(looked_at, *its_look) not in {None, first}, "the standby looks again")
    assert proxy.accepted == 0, "a standby has no business with Kafka"
    assert '"event": "active"' not in standby.output()

    active.kill()
    killed_at = time.monotonic()
    events += relay.emit(5)
    took_over(standby, killed_at, TAKEOVER_S, "SIGKILL")
    assert proxy.accepted > 0
    relay.wait_published(standby)
    published_once(relay, events)


@pytest.mark.slow
def test_a_relay_frozen_in_the_middle_of_a_commit_is_taken_over_from_and_fenced(
    exactly_once: RelayUnderTest, took_over: TookOver
) -> None:
    relay = exactly_once
    frozen = relay.failing("relay.before_kafka_commit=stop@2")
    frozen.wait_for('"event": "active"')
    standby = relay.run('"event": "standby"')
    events = relay.emit(3)
    frozen.wait_until_stopped()
    frozen_at = time.monotonic()
    events += relay.emit(3)
    took_over(standby, frozen_at, SENDER_TIMEOUT_S + TAKEOVER_S, "SIGSTOP")
    relay.wait_published(standby)
    os.kill(frozen.pid, signal.SIGCONT)
    ended_fenced(frozen)
    events += relay.emit(3)
    relay.wait_published(standby)
    published_once(relay, events)


def test_what_a_dead_relay_left_open_is_ended_before_the_checkpoint_is_read(
    exactly_once: RelayUnderTest,
) -> None:
    """Else its checkpoint would hide the end, or become visible behind the reader's back."""
    relay = exactly_once
    process = relay.start()
    events = relay.emit(1)
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    found = relay.checkpoint()
    assert found is not None
    relay_id = relay.one("select relay_id from relay.source_identity")
    kafka = {"bootstrap.servers": relay.kafka.bootstrap}
    dead = Transactional(kafka, prefix=relay.prefix, relay_id=relay_id, batch_bytes=1_000_000)
    dead.start()
    dead.open()
    topic = checkpoints.topic(relay.prefix, relay_id)
    before = ends_of(relay.kafka.bootstrap, [topic])
    dead.produce([(topic, checkpoints.encode(found), relay_id.bytes, [], 0)])
    eventually(lambda: ends_of(relay.kafka.bootstrap, [topic]) != before, "the record is in Kafka, open")

    events += relay.emit(1)
    process = relay.start()
    relay.wait_published(process)
    dead.discard()
    published_once(relay, events)


def test_a_relay_frozen_with_nothing_to_send_ends_fenced_as_well(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    frozen = relay.start()
    events = relay.emit(3)
    relay.wait_published(frozen)
    frozen.signal(signal.SIGSTOP)
    frozen.wait_until_stopped()
    cut_off(relay)
    other = relay.start()
    events += relay.emit(3)
    relay.wait_published(other)
    frozen.signal(signal.SIGCONT)
    ended_fenced(frozen)
    assert other.running, other.output()
    published_once(relay, events)


@pytest.mark.parametrize("failpoint", ["relay.transaction_read", "relay.encoded", "relay.kafka_committed"])
def test_wherever_it_was_frozen_nothing_of_it_comes_through(
    failpoint: str, exactly_once: RelayUnderTest
) -> None:
    relay = exactly_once
    # The first passage of kafka_committed is the first checkpoint's own.
    at = 2 if failpoint == "relay.kafka_committed" else 1
    frozen = relay.failing(f"{failpoint}=stop@{at}")
    frozen.wait_for('"event": "active"')
    events = relay.emit(3)
    frozen.wait_until_stopped()
    cut_off(relay)
    other = relay.start()
    events += relay.emit(3)
    relay.wait_published(other)
    os.kill(frozen.pid, signal.SIGCONT)
    ended_fenced(frozen)
    events += relay.emit(1)
    relay.wait_published(other)
    published_once(relay, events)


def test_a_late_checkpoint_of_a_frozen_relay_sets_nobody_back_without_transactions(
    relay: RelayUnderTest,
) -> None:
    """At least once has no fence: what was frozen comes through late, records and checkpoint."""
    delivery = {"RELAY_DELIVERY": "at_least_once"}
    frozen = relay.failing("relay.before_kafka_commit=stop@2", **delivery)
    frozen.wait_for('"event": "active"')
    events = relay.emit(3)
    frozen.wait_until_stopped()
    cut_off(relay)
    other = relay.start(**delivery)
    events += relay.emit(3)
    relay.wait_published(other)
    reached = relay.checkpoint()
    os.kill(frozen.pid, signal.SIGCONT)
    ended_fenced(frozen)
    assert other.stop() == 0, other.output()
    relay.wait_slot_free()
    found = relay.checkpoint()
    assert reached is not None
    assert found is not None
    assert found.confirmed_lsn >= reached.confirmed_lsn, "the slot is past the checkpoint"

    again = relay.start(**delivery)
    events += relay.emit(1)
    relay.wait_published(again)
    assert {record.event_id for record in relay.read()} == set(events)


def test_a_restart_of_postgres_under_two_relays_fences_neither(
    own_postgres: EmbeddedPostgres, real_kafka: Kafka, topic_prefix: str, run_process: RunProcess
) -> None:
    """Both lost their connection, and whoever is first works: no reason for anybody to end."""
    database = clone(own_postgres, make_template(own_postgres))
    relay = RelayUnderTest(database, real_kafka, topic_prefix, run_process)
    relay.initialise()
    first = relay.start()
    second = relay.run('"event": "standby"')
    relay.owner.close()
    own_postgres.stop("immediate")
    own_postgres.start()

    def came_back() -> bool:
        assert first.running, first.output()
        assert second.running, second.output()
        return (first.output() + second.output()).count(TAKEN_OVER) >= 2

    eventually(came_back, "one of them publishes again")
    with database.connect() as relay.owner:
        events = relay.emit(3)
        relay.wait_published()
        published_once(relay, events)
        assert first.running
        assert second.running


@pytest.fixture
def broker_and_proxy(
    own_kafka: Callable[[], ApacheKafka], tcp_proxy: Callable[[str, int], TcpProxy]
) -> tuple[ApacheKafka, TcpProxy]:
    """A broker with a second way to it, through the proxy from the first request to the last."""
    broker = own_kafka()
    proxy = tcp_proxy("127.0.0.1", broker.second_port)
    broker.second_advertised_port = proxy.port
    broker.start()
    return broker, proxy


@pytest.mark.slow
def test_a_relay_whose_machine_vanished_is_taken_over_from_and_fenced_when_it_is_back(
    broker_and_proxy: tuple[ApacheKafka, TcpProxy],
    database: Database,
    topic_prefix: str,
    run_process: RunProcess,
    tcp_proxy: Callable[[str, int], TcpProxy],
    took_over: TookOver,
) -> None:
    broker, to_kafka = broker_and_proxy
    kafka = Kafka(broker.bootstrap, broker.version, real=True)
    relay = RelayUnderTest(database, kafka, topic_prefix, run_process)
    with relay.owner:
        relay.initialise()
        to_postgres = tcp_proxy("127.0.0.1", database.server.port)
        direct = relay.environment()["RELAY_DATABASE_URL"]
        through = direct.replace(f":{database.server.port}/", f":{to_postgres.port}/")
        assert through != direct
        far = relay.start(
            RELAY_DATABASE_URL=through, RELAY_KAFKA_BOOTSTRAP=f"{to_kafka.host}:{to_kafka.port}"
        )
        events = relay.emit(3)
        relay.wait_published(far)
        standby = relay.run('"event": "standby"')
        # First Kafka, so that it has a transaction open and records on their way when it is cut off.
        to_kafka.blackhole()
        events += relay.emit(3)
        end = relay.insert_lsn()
        eventually(lambda: relay.read_to() >= end, "the relay has read what it can't publish")
        to_postgres.blackhole()
        gone_at = time.monotonic()
        took_over(standby, gone_at, SENDER_TIMEOUT_S + TAKEOVER_S, "a vanished machine")
        events += relay.emit(3)
        relay.wait_published(standby)
        to_kafka.resume()
        to_postgres.resume()
        ended_fenced(far)
        events += relay.emit(3)
        relay.wait_published(standby)
        published_once(relay, events)


def test_two_databases_with_the_same_slot_name_on_one_kafka_never_meet(
    exactly_once: RelayUnderTest, own_postgres: EmbeddedPostgres, run_process: RunProcess
) -> None:
    here = exactly_once
    database = clone(own_postgres, make_template(own_postgres))
    there = RelayUnderTest(database, here.kafka, here.prefix, run_process)
    there.slot = here.slot
    with there.owner:
        ids = {here.one("select relay_id from relay.source_identity"), there.initialise().relay_id}
        assert len(ids) == 2
        running = [here.start(), there.start()]
        events = [event for _ in range(5) for relay in (here, there) for event in relay.emit(2)]
        for relay, process in zip((here, there), running, strict=True):
            relay.wait_published(process)
        assert all(process.running for process in running)
        assert sorted(record.event_id for record in here.read()) == sorted(events)
        here.assert_clean()
        there.assert_clean()
