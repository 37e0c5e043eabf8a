"""Servers that die, freeze or vanish under the relay: it waits, goes on, and doubles and loses nothing."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from apache_kafka import ApacheKafka
from fix_kafka import Kafka
from fix_postgres import Database, clone, make_template
from fix_process import RunProcess
from fix_proxy import TcpProxy
from fix_relay import RelayUnderTest
from fix_versions import measured
from relay.embedded_postgres import EmbeddedPostgres


@pytest.mark.slow
def test_a_broker_that_is_killed_and_comes_back_has_each_event_once(
    own_kafka: Callable[[], ApacheKafka], database: Database, topic_prefix: str, run_process: RunProcess
) -> None:
    broker = own_kafka()
    broker.start()
    relay = RelayUnderTest(
        database, Kafka(broker.bootstrap, broker.version, real=True), topic_prefix, run_process
    )
    with relay.owner:
        relay.initialise()
        process = relay.start()
        events = relay.emit(5)
        relay.wait_published(process)
        broker.kill()
        events += [event for _ in range(20) for event in relay.emit(3)]
        broker.start()
        events += relay.emit(5)
        relay.wait_published(process)
        assert process.stop() == 0, process.output()
        assert sorted(record.event_id for record in relay.read()) == sorted(events)


@pytest.mark.slow
def test_a_postgres_that_stops_while_kafka_is_frozen_is_let_go_and_found_again(
    own_postgres: EmbeddedPostgres,
    own_kafka: Callable[[], ApacheKafka],
    topic_prefix: str,
    run_process: RunProcess,
    pytestconfig: pytest.Config,
) -> None:
    broker = own_kafka()
    broker.start()
    database = clone(own_postgres, make_template(own_postgres))
    kafka = Kafka(broker.bootstrap, broker.version, real=True)
    relay = RelayUnderTest(database, kafka, topic_prefix, run_process)
    relay.initialise()
    process = relay.start()
    events = relay.emit(3)
    relay.wait_published(process)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        events += relay.emit(2)
        relay.write_elsewhere()
        relay.owner.close()
        # A fast stop waits for the walsender, and that one for us: the stop itself must come to an end.
        began = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(own_postgres.stop, "fast").result(60)
        took_s = time.monotonic() - began
        measured(pytestconfig, "a fast stop of Postgres with Kafka frozen", f"{took_s:.1f} s (promised: 10)")
        assert took_s < 30
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    own_postgres.start()
    process.wait_for('"event": "active"', times=2)
    with database.connect() as relay.owner:
        verified = relay.one(
            "select verified_server_started_at = pg_postmaster_start_time() from relay.source_identity"
        )
        assert verified, "dispatch may go on only after this server start was verified"
        events += relay.emit(3)
        relay.wait_published(process)
    assert sorted(record.event_id for record in relay.read()) == sorted(events)


@pytest.mark.slow
def test_a_postgres_that_vanishes_is_noticed_and_a_new_connection_is_made(
    relay: RelayUnderTest, tcp_proxy: Callable[[str, int], TcpProxy]
) -> None:
    proxy = tcp_proxy("127.0.0.1", relay.database.server.port)
    direct = relay.environment()["RELAY_DATABASE_URL"]
    through = direct.replace(f":{relay.database.server.port}/", f":{proxy.port}/")
    assert through != direct
    process = relay.start(RELAY_DATABASE_URL=through)
    events = relay.emit(1)
    relay.wait_published(process)
    # A broker that is still electing leaders makes it start over as well: count from here.
    before = process.output()
    proxy.blackhole()
    process.wait_for("starting over", times=before.count("starting over") + 1)
    proxy.resume()
    process.wait_for('"event": "active"', times=before.count('"event": "active"') + 1)
    events += relay.emit(1)
    relay.wait_published(process)
    assert sorted(record.event_id for record in relay.read()) == sorted(events)
