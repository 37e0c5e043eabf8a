"""`/healthz`, `/readyz` and `/metrics` of a real relay tell progress from mere life, and say why not."""

import os
import re
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from apache_kafka import ApacheKafka
from fix_kafka import Kafka
from fix_postgres import clone, make_template
from fix_process import Process, RunProcess
from fix_proxy import TcpProxy
from fix_relay import RelayUnderTest
from fix_waiting import eventually
from relay.embedded_postgres import EmbeddedPostgres

AFTER_S: Final = "2"


@dataclass(frozen=True, slots=True)
class Watched:
    """A relay with a port that answers."""

    process: Process
    port: int

    def get(self, path: str) -> httpx.Response:
        assert self.process.running, self.process.output()
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", trust_env=False, timeout=30)

    def metric(self, name: str) -> float | None:
        found = re.search(rf"^{name} (\S+)$", self.get("/metrics").text, re.MULTILINE)
        return None if found is None else float(found.group(1))

    def wait_for(self, path: str, status: int, reason: str) -> dict[str, Any]:
        """Until `path` answers with `status` and words that match `reason`; its document."""

        def look() -> dict[str, Any] | None:
            answer = self.get(path)
            document: dict[str, Any] = answer.json()
            matches = answer.status_code == status and re.search(reason, document["reason"])
            return document if matches else None

        found = eventually(look, f"{path} answers {status}: {reason}")
        assert found is not None
        return found


def watched(relay: RelayUnderTest, wait_for: str, **extra: str) -> Watched:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"RELAY_METRICS_PORT": str(port), "RELAY_UNHEALTHY_AFTER_S": AFTER_S, **extra}
    return Watched(relay.run(wait_for, **environment), port)


def test_a_standby_is_healthy_and_ready_says_that_it_waits_and_takes_over(relay: RelayUnderTest) -> None:
    first = watched(relay, '"event": "active"')
    second = watched(relay, '"event": "standby"')
    relay.emit(3)
    relay.wait_published(first.process)
    for path in ("/healthz", "/readyz"):
        first.wait_for(path, 200, "Everything that was read is in Kafka and confirmed")
        waiting = second.wait_for(path, 200, f"^Standby: another relay has the slot {relay.slot}")
        assert waiting["state"] == "standby"
    assert (first.metric("relay_active"), first.metric("relay_standby")) == (1, 0)
    assert (second.metric("relay_active"), second.metric("relay_standby")) == (0, 1)
    first.process.kill()
    second.process.wait_for('"event": "active"')
    second.wait_for("/readyz", 200, "Everything")
    assert second.metric("relay_standby") == 0
    assert second.get("/elsewhere").status_code == 404


@pytest.mark.slow
def test_a_relay_that_kafka_leaves_waiting_is_unhealthy_with_its_lag_and_recovers(
    freezable: tuple[RelayUnderTest, ApacheKafka],
) -> None:
    relay, broker = freezable
    one = watched(relay, '"event": "active"')
    relay.emit(1)
    relay.wait_published(one.process)
    eventually(lambda: one.metric("relay_lag_events") == 0, "nothing waits")
    one.wait_for("/healthz", 200, "Everything")
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        relay.emit(3)
        one.wait_for("/healthz", 503, "No progress for .* Kafka hasn't acknowledged what was sent to it")
        one.wait_for("/readyz", 503, "Kafka")
        assert one.metric("relay_healthy") == 0
        eventually(lambda: one.metric("relay_lag_events") == 3, "three events wait")
        eventually(lambda: (one.metric("relay_lag_seconds") or 0) > 2, "they have waited for a while")
        assert (one.metric("relay_lag_bytes") or 0) > 0
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    relay.wait_published(one.process)
    one.wait_for("/healthz", 200, "Everything")
    eventually(lambda: one.metric("relay_lag_events") == 0, "nothing waits any more")
    assert one.metric("relay_healthy") == 1


def test_a_relay_that_postgres_leaves_is_unhealthy_says_so_and_recovers(
    relay: RelayUnderTest, tcp_proxy: Callable[[str, int], TcpProxy]
) -> None:
    proxy = tcp_proxy("127.0.0.1", relay.database.server.port)
    direct = relay.environment()["RELAY_DATABASE_URL"]
    through = direct.replace(f":{relay.database.server.port}/", f":{proxy.port}/")
    one = watched(relay, '"event": "active"', RELAY_DATABASE_URL=through)
    one.wait_for("/readyz", 200, "Everything")
    proxy.cut()
    gone = one.wait_for("/healthz", 503, "^It hasn't published for .* Before: .*Postgres")
    assert gone["state"] == "starting"
    proxy.resume()
    one.wait_for("/readyz", 200, "")
    relay.emit(1)
    relay.wait_published(one.process)


def test_a_relay_whose_thread_hangs_is_unhealthy_although_it_lives(relay: RelayUnderTest) -> None:
    one = watched(
        relay, '"event": "active"', RELAY_FAILPOINTS="relay.encoded=hang", RELAY_ALLOW_FAILPOINTS="1"
    )
    one.wait_for("/healthz", 200, "Everything")
    relay.emit(1)
    one.process.wait_for("failpoint relay.encoded hang")
    report = one.wait_for("/healthz", 503, "hangs")
    assert report["heartbeat_age_s"] > 2
    assert one.get("/readyz").status_code == 503
    assert (one.metric("relay_heartbeat_age_seconds") or 0) > 2


@pytest.mark.slow
def test_a_standby_that_stalls_the_walsender_is_named_and_the_slots_end_foreseen(
    own_postgres: EmbeddedPostgres, kafka: Kafka, topic_prefix: str, run_process: RunProcess
) -> None:
    relay = RelayUnderTest(clone(own_postgres, make_template(own_postgres)), kafka, topic_prefix, run_process)
    with relay.owner:
        relay.initialise()  # a failover slot: what it sends, the standbys named below must have first
        relay.owner.execute("select pg_create_physical_replication_slot('standby_b', true)")
        one = watched(relay, '"event": "active"')
        relay.emit(1)
        relay.wait_published(one.process)
        assert one.metric("relay_seconds_until_slot_lost") == float("inf")
        relay.owner.execute("alter system set synchronized_standby_slots = 'standby_b'")
        relay.owner.execute("alter system set max_slot_wal_keep_size = '1GB'")
        relay.owner.execute("select pg_reload_conf()")
        relay.emit(2)
        one.wait_for("/healthz", 503, r"hasn't sent them: synchronized_standby_slots names standby_b \(")
        assert one.metric("relay_stalled_by_standby") == 1
        relay.write_elsewhere()
        eventually(lambda: 0 < (one.metric("relay_slot_safe_bytes") or 0) < 2**31, "the slot has a limit")
        relay.owner.execute("alter system reset synchronized_standby_slots")
        relay.owner.execute("select pg_reload_conf()")
        relay.wait_published(one.process)
        one.wait_for("/healthz", 200, "Everything")
        eventually(lambda: one.metric("relay_stalled_by_standby") == 0, "no standby stalls it")
