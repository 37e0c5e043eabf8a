"""The relay is killed again and again in a drain: a `read_committed` reader has each event exactly once."""

import pytest

from fix_process import Process
from fix_relay import RelayUnderTest
from fix_waiting import eventually

EVENTS = 200_000
TRANSACTIONS = 400
KILLS = 10

# Every other kill falls at one of these; the rest comes from outside, wherever the process happens to be.
PLACES = ("relay.before_kafka_commit", "relay.kafka_committed", "relay.before_feedback")

# Small groups, so that ten kills find the drain still going on: some 1,500 commits in all.
GROUP_BYTES = str(64 * 1024)
PROGRESS_EVENTS = 5_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_kills_in_a_drain_neither_lose_nor_double_an_event(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    relay.emit_many(EVENTS, transactions=TRANSACTIONS)

    published = 0
    for kill in range(KILLS):
        if kill % 2:
            process = relay.start(RELAY_GROUP_BYTES=GROUP_BYTES)
            _wait_for_progress(relay, process, published)
            process.kill()
        else:
            place = PLACES[kill // 2 % len(PLACES)]
            process = relay.failing(f"{place}=kill@{20 + 7 * kill}", RELAY_GROUP_BYTES=GROUP_BYTES)
            assert process.wait() == -9, process.output()
        published = _published(relay)
        assert published < EVENTS, f"the drain was over after {kill + 1} kills"

    process = relay.start()
    relay.wait_published(process)
    assert process.stop() == 0, process.output()

    records = relay.read()
    expected = {str(row[0]) for row in relay.owner.execute("select event_id from relay.outbox").fetchall()}
    assert len(records) == EVENTS
    assert {record.event_id for record in records} == expected
    for partition in {record.partition for record in records}:
        positions = [record.position for record in records if record.partition == partition]
        assert positions == sorted(positions)


def _published(relay: RelayUnderTest) -> int:
    checkpoint = relay.checkpoint()
    return 0 if checkpoint is None else checkpoint.seq


def _wait_for_progress(relay: RelayUnderTest, process: Process, published: int) -> None:
    def moved() -> bool:
        assert process.running, process.output()
        return _published(relay) >= published + PROGRESS_EVENTS

    eventually(moved, "the relay has published some more")
