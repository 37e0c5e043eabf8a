"""Each reason to stop ends the real process with its own status and a remedy, and confirms nothing."""

import json
import socket

import pytest
from confluent_kafka.admin import AdminClient

from fix_kafka import Kafka
from fix_postgres import Database, clone, make_template
from fix_process import Process, RunProcess
from fix_relay import EVENT_TYPE, RelayUnderTest
from relay.embedded_postgres import EmbeddedPostgres


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


def test_a_lost_checkpoint_stops(relay: RelayUnderTest) -> None:
    ran(relay)
    before = relay.confirmed()
    relay.prefix += "-elsewhere"
    stopped(relay.run(), 10)
    assert relay.confirmed() == before


def test_a_slot_that_somebody_advanced_stops(relay: RelayUnderTest) -> None:
    ran(relay)
    relay.emit(1)
    relay.write_elsewhere()
    relay.owner.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", [relay.slot])
    stopped(relay.run(), 10)


def test_a_slot_that_was_made_anew_stops(relay: RelayUnderTest) -> None:
    ran(relay)
    relay.emit(1)
    relay.owner.execute("select pg_drop_replication_slot(%s)", [relay.slot])
    relay.owner.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [relay.slot])
    stopped(relay.run(), 10)


def test_another_cluster_stops(relay: RelayUnderTest) -> None:
    ran(relay)
    relay.owner.execute("update relay.source_identity set system_identifier = '1'")
    stopped(relay.run(), 11)


def test_an_outbox_without_the_last_event_stops(relay: RelayUnderTest) -> None:
    ran(relay)
    relay.owner.execute("alter table relay.outbox disable trigger all")
    relay.owner.execute("delete from relay.outbox")
    stopped(relay.run(), 13)


def test_a_dropped_slot_stops(relay: RelayUnderTest) -> None:
    ran(relay)
    relay.owner.execute("select pg_drop_replication_slot(%s)", [relay.slot])
    stopped(relay.run(), 14)


def test_a_repair_under_way_stops(relay: RelayUnderTest) -> None:
    ran(relay)
    relay.owner.execute("update relay.source_identity set state = 'repairing'")
    stopped(relay.run(), 20)


@pytest.mark.slow  # topics are compared every ten seconds
def test_a_topic_that_is_deleted_while_it_runs_stops(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    topic = f"{relay.prefix}.{EVENT_TYPE}"
    admin = AdminClient({"bootstrap.servers": relay.kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    stopped(process, 17)


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
