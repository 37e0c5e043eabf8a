"""Each reason to stop ends the real process with its own status and a remedy, and confirms nothing."""

import json
import re
import socket
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from fix_commands import Command
from fix_kafka import Kafka
from fix_postgres import Database, clone, make_template
from fix_process import Process, RunProcess
from fix_relay import EVENT_TYPE, RelayUnderTest
from fix_repair import require_exactly_once_in_order
from relay.embedded_postgres import EmbeddedPostgres
from relay.kafka import checkpoint as checkpoints


def ran(relay: RelayUnderTest) -> None:
    """The relay has published something and was stopped."""
    process = relay.start()
    relay.emit(2)
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    relay.wait_slot_free()


def stopped(process: Process, status: int) -> None:
    assert process.wait() == status, process.output()
    assert "what to do:" in process.output()


def test_without_init_it_says_so(database: Database, relay: RelayUnderTest) -> None:
    relay.slot = f"unknown_{database.name}"
    stopped(relay.run(), 2)


def lose_checkpoint(relay: RelayUnderTest) -> None:
    relay_id = relay.one("select relay_id from relay.source_identity")
    topic = checkpoints.topic(relay.prefix, relay_id)
    admin = AdminClient({"bootstrap.servers": relay.kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(30)


def garble_checkpoint(relay: RelayUnderTest) -> None:
    relay_id = relay.one("select relay_id from relay.source_identity")
    producer = Producer({"bootstrap.servers": relay.kafka.bootstrap})
    producer.produce(checkpoints.topic(relay.prefix, relay_id), b"not one", relay_id.bytes, partition=0)
    assert producer.flush(30) == 0


def advance_slot(relay: RelayUnderTest) -> None:
    relay.owner.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", [relay.slot])


def drop_slot(relay: RelayUnderTest) -> None:
    relay.owner.execute("select pg_drop_replication_slot(%s)", [relay.slot])


def make_slot_anew(relay: RelayUnderTest) -> None:
    drop_slot(relay)
    relay.owner.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [relay.slot])


def interrupt_repair(relay: RelayUnderTest) -> None:
    process = relay._run_process(
        ["outbox", "repair"],
        relay.environment(RELAY_FAILPOINTS="repair.slot_dropped=kill", RELAY_ALLOW_FAILPOINTS="1"),
    )
    assert process.wait() == -9, process.output()


def drop_publication(relay: RelayUnderTest) -> None:
    relay.owner.execute("drop publication outbox_relay")


def leave_outbox_out(relay: RelayUnderTest) -> None:
    relay.owner.execute("alter publication outbox_relay drop table relay.outbox")


def filter_rows(relay: RelayUnderTest) -> None:
    relay.owner.execute("alter publication outbox_relay set table relay.outbox where (seq > 1000)")


def publish_updates_alone(relay: RelayUnderTest) -> None:
    relay.owner.execute("alter publication outbox_relay set (publish = 'update')")


STATEMENT = re.compile(r"`((?:CREATE|ALTER|DROP) PUBLICATION [^`]*)`")


@pytest.mark.parametrize(
    ("broken", "status", "said"),
    [
        (lose_checkpoint, 10, "It says where the relay is"),
        (advance_slot, 10, "made the slot anew or advanced it"),
        (make_slot_anew, 10, "made the slot anew or advanced it"),
        (drop_slot, 14, "is gone"),
        (drop_publication, 15, "is gone"),
        (leave_outbox_out, 15, "doesn't have the outbox"),
        (filter_rows, 15, "has a row filter"),
        (publish_updates_alone, 15, "doesn't send inserts"),
        (garble_checkpoint, 18, "is no checkpoint"),
        (interrupt_repair, 20, "was interrupted"),
    ],
)
def test_a_stop_names_what_mends_it_and_after_that_nothing_is_missing(
    exactly_once: RelayUnderTest,
    command: Command,
    broken: Callable[[RelayUnderTest], None],
    status: int,
    said: str,
) -> None:
    """What was committed before and after it broke is there once, in order, and the relay runs again."""
    relay = exactly_once
    ran(relay)
    relay.emit(1)
    broken(relay)
    relay.emit(1)
    process = relay.run()
    stopped(process, status)
    output = process.output()
    assert said in output
    assert "what it means:" in output
    for statement in STATEMENT.findall(output):
        relay.owner.execute(statement.encode())
    assert "`relay outbox repair`" in output
    repaired = command("outbox", "repair", env=relay.environment())
    assert repaired.status == 0, repaired.err
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    require_exactly_once_in_order(relay)
    audit = command("outbox", "audit", env=relay.environment())
    assert audit.status == 0, audit.out


def test_another_cluster_stops(relay: RelayUnderTest) -> None:
    ran(relay)
    relay.owner.execute("update relay.source_identity set system_identifier = '1'")
    stopped(relay.run(), 11)


def test_an_outbox_without_the_last_event_stops(relay: RelayUnderTest) -> None:
    ran(relay)
    relay.owner.execute("alter table relay.outbox disable trigger all")
    relay.owner.execute("delete from relay.outbox")
    stopped(relay.run(), 13)


@pytest.mark.slow  # topics are compared every ten seconds
def test_a_topic_that_is_deleted_while_it_runs_stops_and_what_it_held_is_brought_back(
    exactly_once: RelayUnderTest, command: Command
) -> None:
    relay = exactly_once
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    topic = f"{relay.prefix}.{EVENT_TYPE}"
    admin = AdminClient({"bootstrap.servers": relay.kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    stopped(process, 17)
    assert "`relay outbox repair`" in process.output()
    repaired = command("outbox", "repair", env=relay.environment())
    assert repaired.status == 0, repaired.err
    assert "1 published as repair" in repaired.out
    require_exactly_once_in_order(relay)


def test_another_producer_with_its_id_fences_it(exactly_once: RelayUnderTest) -> None:
    from relay.kafka.publisher import Transactional

    relay = exactly_once
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    relay_id = relay.one("select relay_id from relay.source_identity")
    other = Transactional(
        {"bootstrap.servers": relay.kafka.bootstrap},
        prefix=relay.prefix,
        relay_id=relay_id,
        batch_bytes=1_000_000,
    )
    other.start()
    relay.emit(1)
    stopped(process, 19)
    other.discard()


def test_a_name_that_matches_the_synchronous_standbys_stops(
    own_postgres: EmbeddedPostgres, kafka: Kafka, topic_prefix: str, run_process: RunProcess
) -> None:
    relay = RelayUnderTest(clone(own_postgres, make_template(own_postgres)), kafka, topic_prefix, run_process)
    with relay.owner:
        relay.initialise()
        environment = relay.environment()  # makes the login, while commits still need nobody
        relay.owner.execute("set synchronous_commit = local")
        relay.owner.execute("alter system set synchronous_standby_names = '*'")
        relay.owner.execute("select pg_reload_conf()")
        stopped(run_process(["run"], environment), 21)


def test_status_tells_a_program_where_the_relay_is(relay: RelayUnderTest, run_process: RunProcess) -> None:
    ran(relay)
    shown = run_process(["status", "--json"], relay.environment())
    assert shown.wait() == 0, shown.output()
    document = json.loads(shown.output())
    assert document["relay"]["state"] == "running"
    assert document["slot"]["lag_bytes"] >= 0
    assert document["checkpoint"]["seq"] == 2
    assert document["parked"] == {"events": 0}


def test_status_makes_nothing_and_may_be_asked_before_the_first_run(
    relay: RelayUnderTest, run_process: RunProcess
) -> None:
    shown = run_process(["status", "--json"], relay.environment())
    assert shown.wait() == 0, shown.output()
    assert json.loads(shown.output())["checkpoint"] is None
    ran(relay)


def test_status_shows_what_postgres_says_while_kafka_is_away(
    relay: RelayUnderTest, run_process: RunProcess
) -> None:
    away = {**relay.environment(), "RELAY_KAFKA_BOOTSTRAP": "127.0.0.1:1"}
    shown = run_process(["status"], away)
    assert shown.wait() == 1
    assert f"name: {relay.slot}" in shown.output()
    assert "Kafka doesn't say where" in shown.output()
    assert "RELAY_KAFKA_BOOTSTRAP" in shown.output()


@pytest.mark.parametrize("status", ["10", "14", "19", "22"])
def test_help_lists_the_exit_statuses(status: str, run_process: RunProcess) -> None:
    shown = run_process(["run", "--help"])
    assert shown.wait() == 0
    assert f"  {status}  " in shown.output()


def test_a_login_without_replication_is_told_so_and_not_tried_for_ever(
    relay: RelayUnderTest, run_process: RunProcess
) -> None:
    environment = {**relay.environment(), "RELAY_DATABASE_URL": relay.database.url_as("relay_worker")}
    process = run_process(["run"], environment)
    stopped(process, 2)
    assert "REPLICATION" in process.output()


def test_a_metrics_port_that_is_taken_is_wrong_use(relay: RelayUnderTest, run_process: RunProcess) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        stopped(run_process(["run"], {**relay.environment(), "RELAY_METRICS_PORT": port}), 2)
