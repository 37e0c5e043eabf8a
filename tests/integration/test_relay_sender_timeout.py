"""Postgres never gives the slot of a working relay away: feedback goes out, whatever keeps it busy."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import pytest

from apache_kafka import ApacheKafka
from fix_kafka import Kafka
from fix_postgres import Database
from fix_process import RunProcess
from fix_relay import RelayUnderTest
from fix_waiting import eventually
from relay import pipeline
from relay.avro.catalog import Catalog
from relay.health import Health
from relay.outbox.event import Encode
from relay.outbox.mapping import parse
from relay.settings import load
from relay.waking import Stopping, Waker

TIMEOUT: Final = {"RELAY_SENDER_TIMEOUT_S": "3"}


def walsender(relay: RelayUnderTest) -> tuple[int, object]:
    """Who serves the relay's replication connection, and since when: another one after each reconnect."""
    found: tuple[int, object] = relay.one(
        "select pid, backend_start from pg_stat_replication where application_name = %s",
        f"outbox-relay-{relay.slot}",
    )
    return found


def alive_for(relay: RelayUnderTest, seconds: float) -> None:
    """Until the server has heard the relay for so long: its own clock, by the feedback that it notes."""
    begun = relay.one("select clock_timestamp()")

    def heard() -> bool:
        return bool(
            relay.one(
                "select reply_time > %s + make_interval(secs => %s) from pg_stat_replication"
                " where application_name = %s",
                begun,
                seconds,
                f"outbox-relay-{relay.slot}",
            )
        )

    eventually(heard, f"the server hears the relay for {seconds:g} s")


@pytest.mark.slow
def test_a_broker_that_is_paused_for_long_costs_no_connection(
    database: Database,
    own_kafka: Callable[[], ApacheKafka],
    topic_prefix: str,
    run_process: RunProcess,
) -> None:
    broker = own_kafka()
    broker.start()
    kafka = Kafka(broker.bootstrap, broker.version, real=True)
    relay = RelayUnderTest(database, kafka, topic_prefix, run_process)
    with relay.owner:
        relay.initialise()
        process = relay.start(**TIMEOUT)
        relay.emit(1)
        relay.wait_published(process)
        before = walsender(relay)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            relay.emit(10)
            alive_for(relay, 30)
            assert walsender(relay) == before
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        relay.wait_published(process)
        assert walsender(relay) == before
        relay.assert_clean()


class SlowSchemas(Catalog):
    """Each payload takes its time, as one that is large and deep would; nothing else is pretended."""

    seconds = 0.05

    def encoder(self, event_type: str, schema_version: int) -> Encode:
        encode = super().encoder(event_type, schema_version)

        def slowly(payload: bytes) -> bytes:
            until = time.monotonic() + self.seconds
            while time.monotonic() < until:
                pass
            return encode(payload)

        return slowly


@contextmanager
def relaying(relay: RelayUnderTest, schemas: Catalog) -> Iterator[None]:
    """The relay in this process, with other schemas than the shipped ones."""
    settings = load(environ=relay.environment(**TIMEOUT)).settings
    mapping = parse(settings.outbox_table, settings.outbox_columns, settings.outbox_rows)
    waker = Waker()
    stopping = Stopping(waker)
    with ThreadPoolExecutor(1) as pool:
        health = Health(settings.unhealthy_after_s)
        running = pool.submit(pipeline.run, settings, mapping, schemas, stopping, waker, health)
        try:
            yield
        finally:
            stopping.ask()
            running.result()
            waker.close()


@pytest.mark.slow
def test_encoding_that_takes_twenty_seconds_costs_no_connection(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    slow = SlowSchemas.load()
    with relaying(relay, slow):
        relay.emit(1)
        relay.wait_published()
        before = walsender(relay)
        events = relay.emit(400)
        relay.wait_published()
        assert walsender(relay) == before
    assert len(relay.read()) == len(events) + 1
