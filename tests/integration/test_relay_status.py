"""`relay status` says in its first line how the relay is, and in JSON all that it knows."""

import os
import signal
from typing import Any

import pytest

from apache_kafka import ApacheKafka
from fix_commands import Command, Finished
from fix_relay import RelayUnderTest
from relay import lag
from relay.outbox.mapping import parse


def status(relay: RelayUnderTest, command: Command, *options: str, login: str = "relay_reader") -> Finished:
    return command("status", *options, env=relay.environment(login))


def test_status_counts_what_waits_and_says_who_publishes(relay: RelayUnderTest, command: Command) -> None:
    process = relay.start()
    relay.emit(2)
    relay.wait_published(process)
    idle = status(relay, command)
    assert idle.status == 0, idle.err
    assert idle.out.splitlines()[0] == "publishing, 0 events behind"
    assert process.stop() == 0
    relay.emit(3)
    nobody = status(relay, command)
    assert nobody.status == 0, nobody.err
    assert nobody.out.splitlines()[0].startswith(
        f"nobody runs: no relay holds the slot {relay.slot}; run `relay run` (3 events behind, the oldest "
    )
    document: dict[str, Any] = status(relay, command, "--json").json
    assert document["summary"]["state"] == "nobody"
    assert (document["lag"]["events"], document["lag"]["events_exact"]) == (3, True)
    assert document["lag"]["seconds"] > 0
    assert document["lag"]["bytes"] > 0
    assert document["lag"]["last_progress_seconds_ago"] > 0
    assert document["slot"]["retained_bytes"] >= document["slot"]["lag_bytes"]
    assert document["slot"]["wal_bytes_per_second"] >= 0
    assert document["checkpoint"]["seq"] == 2
    relay.owner.execute("select pg_drop_replication_slot(%s)", [relay.slot])
    lost = status(relay, command)
    assert lost.out.splitlines()[0].startswith("slot lost: there is no replication slot")


def test_the_lag_of_a_large_table_is_an_upper_bound_that_costs_nothing(relay: RelayUnderTest) -> None:
    relay.emit_many(lag.COUNTED_MOST + 500, transactions=1)
    mapping = parse("relay.outbox", "native", None)
    exact = lag.read_events(relay.owner, mapping, 1000)
    assert exact is not None
    assert (exact.waiting, exact.exact) == (lag.COUNTED_MOST - 500, True)
    # A sequence has gaps, for example of what was rolled back: they count in the bound.
    relay.owner.execute(
        "select nextval(pg_get_serial_sequence('relay.outbox', 'seq')) from generate_series(1, 9)"
    )
    relay.emit(1)
    bound = lag.read_events(relay.owner, mapping, 0)
    assert bound is not None
    assert (bound.waiting, bound.exact) == (lag.COUNTED_MOST + 510, False)
    plan = relay.owner.execute(
        "explain (format text) select seq from relay.outbox where seq > 0 order by seq limit 10001"
    ).fetchall()
    assert "Index" in str(plan)


@pytest.mark.slow
def test_status_with_kafka_frozen_says_that_it_cannot_know(
    freezable: tuple[RelayUnderTest, ApacheKafka], command: Command
) -> None:
    relay, broker = freezable
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        shown = status(relay, command)
        assert shown.status == 1
        assert shown.out.splitlines()[0].startswith("a relay holds the slot, and Kafka doesn't say how far")
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    relay.wait_published(process)
