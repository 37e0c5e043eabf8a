"""The independent reader sees what is really in Kafka, Postgres, the provider and the store, and so what is
wrong there.
"""

import socket
from decimal import Decimal
from uuid import UUID

import httpx
import psycopg
import pytest
from confluent_kafka import Producer

from consumers.observe.invariants import check_all
from consumers.observe.snapshot import Snapshot
from consumers.observe.witnesses import read_files, read_topics, read_truth
from consumers.operations.invariants import read_tables
from fix_postgres import Database
from fix_system import System
from relay.avro.catalog import Catalog
from relay.errors import Unavailable

CATALOG = Catalog.load()


def snapshot_of(system: System) -> Snapshot:
    """Read as the login that may only read."""
    properties = {"bootstrap.servers": system.kafka.bootstrap}
    with psycopg.connect(system.database.url_as("relay_reader"), autocommit=True) as reader:
        tables = read_tables(reader)
    records, dead_letters = read_topics(properties, system.prefix, CATALOG)
    return Snapshot(
        tables=tables,
        records=records,
        dead_letters=dead_letters,
        truth=read_truth(system.simulator_url),
        files=read_files(system.outputs),
        delivery="exactly_once" if system.kafka.real else "at_least_once",
        provider_account="simulator/default",
    )


def broken(system: System) -> set[int]:
    return {verdict.number for verdict in check_all(snapshot_of(system)) if not verdict.holds}


def delivered(system: System, count: int) -> None:
    """Wait until `count` operations are delivered and everything that was committed is in Kafka."""

    def seen() -> bool:
        stored = system.one("select count(*) from relay.operation where phase = 'stored'")
        return bool(stored == count) and 1 not in broken(system)

    system.wait_until(seen, f"{count} operations are delivered")


def test_a_real_run_keeps_every_invariant_and_what_is_done_to_it_is_seen(system: System) -> None:
    system.start()
    operations = [system.approve(key=f"frame-{number}") for number in range(3)]
    delivered(system, len(operations))
    system.stop("dispatch", "collect", "deliver", "schedule", "run")

    before = snapshot_of(system)
    assert [verdict.offending for verdict in check_all(before)] == [()] * 7
    assert all(verdict.checked for verdict in check_all(before))
    assert len(before.truth.jobs) == len(operations)
    assert {record.event_id for record in before.records} == {row.event_id for row in before.tables.outbox}
    assert all(record.position is not None and record.payload for record in before.records)

    _nobody_relays_a_committed_operation(system)
    _somebody_else_writes_a_record(system)
    _somebody_posts_behind_the_back(system, operations[0])
    _a_delivered_file_is_cut(system)


def _nobody_relays_a_committed_operation(system: System) -> None:
    system.approve(key="not-relayed")
    assert broken(system) == {1, 2}
    system.start("run")
    system.wait_until(lambda: not broken(system), "the relay carries it")
    system.stop("run")


def _somebody_else_writes_a_record(system: System) -> None:
    """Nothing but what was committed may be in the topics."""
    producer = Producer({"bootstrap.servers": system.kafka.bootstrap})
    producer.produce(f"{system.prefix}.generation.requested", b"forged", b"nobody")
    assert producer.flush(30) == 0
    assert broken(system) == {1, 2}
    found = check_all(snapshot_of(system))[0].offending
    assert any("has no event id" in one for one in found)


def _somebody_posts_behind_the_back(system: System, operation: UUID) -> None:
    answer = httpx.post(
        f"{system.simulator_url}/v1/jobs",
        json={"prompt": "once more"},
        headers={"X-Client-Reference": str(operation)},
        trust_env=False,
    )
    assert answer.status_code == 201
    verdicts = check_all(snapshot_of(system))
    assert any(str(operation) in one for one in verdicts[2].offending)
    assert any(answer.json()["job_id"] in one for one in verdicts[3].offending)
    charged = [job.charged for job in snapshot_of(system).truth.jobs if job.reference == str(operation)]
    assert len(charged) == 2
    assert all(Decimal(0) < one < Decimal(5) for one in charged)


def _a_delivered_file_is_cut(system: System) -> None:
    path = next(path for path in sorted(system.outputs.rglob("*")) if path.is_file())
    path.write_bytes(path.read_bytes()[:10])
    key = path.relative_to(system.outputs).as_posix()
    assert any(key in one for one in check_all(snapshot_of(system))[6].offending)


def test_the_tables_are_read_as_of_one_instant(database: Database) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        seen = read_tables(connection)
        assert seen.operations == ()
        assert seen.read_at.tzinfo is not None
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE


def test_a_provider_that_says_nothing_is_an_error_and_no_empty_truth() -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match="doesn't say the truth"):
            read_truth(f"http://127.0.0.1:{nobody_listens.getsockname()[1]}")
