"""`relay outbox repair` brings back exactly what Kafka lacks, and may be killed at any point."""

from fix_process import RunProcess
from fix_relay import RelayUnderTest
from fix_repair import (
    audited,
    repaired,
    require_exactly_once_in_order,
)
from relay.failpoints import NAMES

POINTS = sorted(name for name in NAMES if name.startswith("repair."))


def ran(relay: RelayUnderTest, count: int = 3) -> None:
    """The relay has published something and was stopped."""
    process = relay.start()
    relay.emit(count)
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    relay.wait_slot_free()


def drop_slot(relay: RelayUnderTest) -> None:
    relay.owner.execute("select pg_drop_replication_slot(%s)", [relay.slot])


def test_what_was_committed_without_a_slot_is_brought_back_and_the_stream_goes_on(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    relay = exactly_once
    ran(relay)
    drop_slot(relay)
    lost = relay.emit(4)
    said = repaired(relay, run_process)
    assert "3 rows are in Kafka; 4 were missing" in said
    process = relay.start()
    streamed = relay.emit(2)
    relay.wait_published(process)
    records = require_exactly_once_in_order(relay)
    by_id = {record.event_id: record for record in records}
    assert [by_id[event].headers["relay_origin"] for event in lost] == [b"repair"] * 4
    assert all("relay_origin" not in by_id[event].headers for event in streamed)
    assert {by_id[event].position[0] for event in [*lost, *streamed]} == {2}
    audited(relay, run_process)
    assert process.stop() == 0, process.output()
