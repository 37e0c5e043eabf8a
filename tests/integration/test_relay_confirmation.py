"""The slot moves as far as Kafka durably has everything, no further; and it moves while nobody emits."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from apache_kafka import ApacheKafka
from fix_commands import Command
from fix_relay import RelayUnderTest
from fix_repair import require_exactly_once_in_order
from fix_waiting import eventually
from relay.wal.lsn import parse_lsn

HELD_MOST_BYTES: Final = 40 * 1024 * 1024
"""Above a queue of 1 MiB: one group in flight, the kernel's and librdkafka's buffers, Python's arenas."""


def test_the_slot_never_passes_an_event_that_kafka_does_not_have(
    freezable: tuple[RelayUnderTest, ApacheKafka],
) -> None:
    relay, broker = freezable
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)

    os.kill(broker.pid, signal.SIGSTOP)
    try:
        before = relay.insert_lsn()
        relay.emit(1)
        beyond = relay.write_elsewhere()
        eventually(lambda: relay.read_to() >= beyond, "the relay has read past the event")
        assert relay.confirmed() <= before
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    relay.wait_published(process)
    assert len(relay.read()) == 2


@pytest.mark.slow
def test_an_idle_outbox_does_not_hold_the_wal_of_others(relay: RelayUnderTest) -> None:
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    before = relay.insert_lsn()
    relay.owner.execute("create table elsewhere as select repeat('x', 1000) from generate_series(1, 200_000)")
    beyond = relay.insert_lsn()
    assert beyond - before > 200_000_000
    relay.wait_confirmed(beyond, process)
    checkpoint = relay.checkpoint()
    assert checkpoint is not None
    assert relay.confirmed() <= checkpoint.confirmed_lsn
    # The server may let go of the WAL once decoding could begin behind it: at a record of what runs.
    relay.owner.execute("checkpoint")

    def retained() -> int:
        query = "select restart_lsn::text from pg_replication_slots where slot_name = %s"
        return beyond - parse_lsn(relay.one(query, relay.slot))

    eventually(lambda: retained() <= 0, "no WAL of the others is retained")


def test_the_slot_is_never_above_the_checkpoint_whenever_the_relay_dies(relay: RelayUnderTest) -> None:
    relay.emit(1)
    for failpoint in ("relay.before_feedback", "relay.feedback_sent"):
        relay.write_elsewhere()
        process = relay.failing(f"{failpoint}=kill")
        assert process.wait() == -9, process.output()
        relay.wait_slot_free()
        assert 0 < relay.confirmed() <= relay.checkpoint_lsn()
        relay.emit(1)
    process = relay.start()
    relay.wait_published(process)
    assert len(relay.read()) == 3


@pytest.mark.slow  # the question is asked every ten seconds
@pytest.mark.parametrize(
    "statement",
    [
        "alter publication outbox_relay set table relay.outbox where (seq > 1000)",
        "alter publication outbox_relay set (publish = 'update')",
        "alter publication outbox_relay set table relay.outbox (event_id, seq, payload)",
        "alter table relay.outbox rename to renamed",
    ],
)
def test_a_source_that_was_narrowed_confirms_nothing_and_stops(statement: str, relay: RelayUnderTest) -> None:
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    relay.owner.execute(statement.encode())
    before = relay.confirmed()
    relay.write_elsewhere()
    assert process.wait() == 15, process.output()
    assert "ALTER" in process.output()
    assert relay.confirmed() <= max(before, relay.checkpoint_lsn())


def test_a_dropped_publication_stops_at_the_first_warning(relay: RelayUnderTest) -> None:
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    relay.owner.execute("drop publication outbox_relay")
    relay.emit(1)
    assert process.wait() == 15, process.output()
    # Heard from the stream itself, before the next idle look: a warning on 18, an error before that.
    said = ("Postgres warned on the replication connection", "Postgres refused to go on")
    assert any(words in process.output() for words in said), process.output()


@pytest.mark.slow
def test_a_publication_that_is_dropped_and_made_again_skips_nothing(
    exactly_once: RelayUnderTest, command: Command
) -> None:
    """Decoding uses the catalog of its time: on PostgreSQL 18 the row between is skipped with a warning."""
    relay = exactly_once
    process = relay.start()
    events = relay.emit(1)
    relay.wait_published(process)
    relay.owner.execute("drop publication outbox_relay")
    events += relay.emit(1)
    lost_before = relay.insert_lsn()
    relay.owner.execute("create publication outbox_relay for table relay.outbox with (publish = 'insert')")
    events += relay.emit(1)
    assert process.wait() in {15, 16}, process.output()
    assert relay.confirmed() < lost_before
    assert "`relay outbox repair`" in process.output()
    relay.wait_slot_free()
    repaired = command("outbox", "repair", env=relay.environment())
    assert repaired.status == 0, repaired.err
    process = relay.start()
    relay.wait_published(process)
    assert sorted(record.event_id for record in relay.read()) == sorted(events)
    relay.assert_clean()


@pytest.mark.slow
def test_a_row_that_the_stream_skipped_is_noticed_before_anything_is_confirmed(
    exactly_once: RelayUnderTest, command: Command
) -> None:
    relay = exactly_once
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    relay.owner.execute("alter publication outbox_relay drop table relay.outbox")
    relay.emit(1)
    lost_before = relay.insert_lsn()
    relay.owner.execute("alter publication outbox_relay add table relay.outbox")
    relay.write_elsewhere()
    assert process.wait() == 16, process.output()
    assert relay.confirmed() < lost_before
    assert "`relay outbox repair`" in process.output()
    repaired = command("outbox", "repair", env=relay.environment())
    assert repaired.status == 0, repaired.err
    require_exactly_once_in_order(relay)


@pytest.mark.slow
def test_what_kafka_does_not_take_is_held_in_bounded_memory(
    freezable: tuple[RelayUnderTest, ApacheKafka],
) -> None:
    relay, broker = freezable
    process = relay.start(RELAY_QUEUE_BYTES=str(1024 * 1024))
    relay.emit(1)
    relay.wait_published(process)
    before = _resident_bytes(process.pid)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        relay.emit_many(100_000, transactions=100)  # some 140 MB, were it held
        # The server has filled every buffer between it and the relay: the relay reads no more.
        eventually(_standing_still(relay), "the walsender waits for the relay")
        assert _resident_bytes(process.pid) - before < HELD_MOST_BYTES
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    relay.wait_published(process)
    assert len(relay.read()) == 100_001


def _resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def _standing_still(relay: RelayUnderTest) -> Callable[[], bool]:
    """Whether the walsender was seen waiting to send, at one and the same place, many times in a row."""
    seen: list[object] = []

    def look() -> bool:
        place = relay.one(
            """
            select r.sent_lsn::text from pg_stat_replication r join pg_stat_activity a using (pid)
            where r.application_name = %s and a.wait_event = 'WalSenderWriteData'
            """,
            f"outbox-relay-{relay.slot}",
        )
        if place is None or (seen and seen[-1] != place):
            seen.clear()
        if place is not None:
            seen.append(place)
        return len(seen) >= 50

    return look
