"""Postgres is stopped, cut off or put back: the relay goes on by itself only where nothing was lost."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from fix_kafka import Kafka
from fix_postgres import clone, make_template
from fix_process import RunProcess
from fix_proxy import TcpProxy
from fix_relay import RelayUnderTest
from fix_standby import Applications
from relay.embedded_postgres import EmbeddedPostgres


@pytest.fixture
def relay(
    own_postgres: EmbeddedPostgres, real_kafka: Kafka, topic_prefix: str, run_process: RunProcess
) -> Iterator[RelayUnderTest]:
    database = clone(own_postgres, make_template(own_postgres))
    under_test = RelayUnderTest(database, real_kafka, topic_prefix, run_process)
    try:
        under_test.initialise()
        yield under_test
    finally:
        under_test.owner.close()


def _copy(source: Path, target: Path) -> None:
    """With owners and times: what a volume snapshot keeps."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", source, target], check=True)


@pytest.mark.slow
def test_a_volume_snapshot_restored_under_a_live_relay_stops_it_whatever_was_written_since(
    relay: RelayUnderTest,
) -> None:
    """Same system identifier, same timeline: only positions and the last event betray it."""
    server = relay.database.server
    snapshot = server.folder / "snapshot"
    process = relay.start()
    kept = relay.emit(3)
    relay.wait_published(process)
    relay.owner.close()
    server.stop()
    _copy(server.data, snapshot)
    server.start()
    relay.owner = relay.database.connect()
    process.wait_for('"event": "active"', times=2)
    lost = relay.emit(3)
    relay.wait_published(process)
    checkpoint = relay.checkpoint()
    assert checkpoint is not None
    relay.owner.close()
    server.stop()
    _copy(snapshot, server.data)
    server.start()
    assert process.wait() == 13, process.output()
    assert "has flushed up to" in process.output()

    # It goes on and writes: now its WAL is longer than what Kafka saw, and other rows have taken the place.
    relay.owner = relay.database.connect()
    before = relay.confirmed()
    while relay.insert_lsn() <= max(checkpoint.commit_lsn, checkpoint.confirmed_lsn):
        relay.write_elsewhere()
    new = relay.emit(3)
    relay.owner.execute("checkpoint")
    process = relay.run()
    assert process.wait() == 13, process.output()
    assert f"the last event that Kafka has, {lost[-1]}, is not in the outbox" in process.output()
    assert relay.confirmed() == before
    assert sorted(record.event_id for record in relay.read()) == sorted(kept + lost)

    accepted = relay.command("init", "--accept-rewind")
    assert accepted.wait() == 0, accepted.output()
    for event_id in lost:
        assert event_id in accepted.output()
    process = relay.start()
    relay.wait_published(process)
    assert sorted(record.event_id for record in relay.read()) == sorted(kept + lost + new)


@pytest.mark.slow
def test_an_immediate_stop_under_load_loses_nothing_and_repeats_nothing(relay: RelayUnderTest) -> None:
    server = relay.database.server
    process = relay.start()
    relay.owner.close()
    with Applications(relay.database.url) as applications:
        for count in (1, 2):
            applications.wait_for_more(60)
            process.wait_for('"event": "active"', times=count)
            server.stop("immediate")
            server.start()
        applications.wait_for_more(60)
    process.wait_for('"event": "active"', times=3)
    relay.owner = relay.database.connect()
    relay.wait_published(process)
    committed = relay.ids()
    assert set(applications.acknowledged) <= set(committed)
    assert sorted(record.event_id for record in relay.read()) == committed
    relay.assert_clean()


def test_a_connection_that_is_cut_in_the_middle_of_a_message_gives_it_once(
    exactly_once: RelayUnderTest, tcp_proxy: Callable[[str, int], TcpProxy]
) -> None:
    """Within the message's header, early in a large row, and just before its end."""
    relay = exactly_once
    port = relay.database.server.port
    proxy = tcp_proxy("127.0.0.1", port)
    url = relay.environment()["RELAY_DATABASE_URL"].replace(f":{port}/", f":{proxy.port}/")
    process = relay.start(RELAY_DATABASE_URL=url)
    for count, after_bytes in enumerate((3_000, 150_000, 799_000), start=1):
        proxy.cut_after(after_bytes)
        key = uuid4()
        relay.emit(1, payload={"operation_id": str(key), "job_id": "j" * 800_000})
        process.wait_for("starting over", times=count)
        process.wait_for('"event": "active"', times=count + 1)
        assert proxy.cuts == count
    relay.wait_published(process)
    assert sorted(record.event_id for record in relay.read()) == relay.ids()
    relay.assert_clean()
