"""The relay is killed again and again in a drain: a `read_committed` reader has each event exactly once."""

import pytest

from fix_process import Process
from fix_relay import RelayUnderTest
from fix_waiting import eventually

BATCH = 100_000
TRANSACTIONS_A_BATCH = 200
LEAST_BACKLOG_BYTES = 24 * 1024 * 1024
KILLS = 10

# Every other kill falls at one of these; the rest comes from outside, wherever the process happens to be.
PLACES = ("relay.before_kafka_commit", "relay.kafka_committed", "relay.before_feedback")

# Small groups, so that a backlog takes some hundred commits.
GROUP_BYTES = str(64 * 1024)
PROGRESS_BYTES = 4 * 1024 * 1024


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_kills_in_a_drain_neither_lose_nor_double_an_event(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    for kill in range(KILLS):
        _fill_up(relay)
        if kill % 2:
            process = relay.start(RELAY_GROUP_BYTES=GROUP_BYTES)
            _wait_for_progress(relay, process)
            process.kill()
        else:
            place = PLACES[kill // 2 % len(PLACES)]
            process = relay.failing(f"{place}=kill@{20 + 7 * kill}", RELAY_GROUP_BYTES=GROUP_BYTES)
            assert process.wait() == -9, process.output()

    process = relay.start()
    relay.wait_published(process)
    assert process.stop() == 0, process.output()

    records = relay.read()
    expected = {str(row[0]) for row in relay.owner.execute("select event_id from relay.outbox").fetchall()}
    assert len(records) == len(expected)
    assert {record.event_id for record in records} == expected
    for partition in {record.partition for record in records}:
        positions = [record.position for record in records if record.partition == partition]
        assert positions == sorted(positions)


def _fill_up(relay: RelayUnderTest) -> None:
    """So much to publish that no kill can come after the drain's end, however fast the machine is."""
    # Postgres alone is asked: Kafka's end can't be read before the killed relay's transaction has timed out.
    while relay.insert_lsn() - relay.confirmed() < LEAST_BACKLOG_BYTES:
        relay.emit_many(BATCH, transactions=TRANSACTIONS_A_BATCH)


def _wait_for_progress(relay: RelayUnderTest, process: Process) -> None:
    before = relay.confirmed()

    def moved() -> bool:
        assert process.running, process.output()
        return relay.confirmed() >= before + PROGRESS_BYTES

    eventually(moved, "the relay has published some more")
