"""`relay outbox repair` brings back exactly what Kafka lacks, and may be killed at any point."""

import json
import signal
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from fix_kafka import set_topic
from fix_process import RunProcess
from fix_relay import EVENT_TYPE, RelayUnderTest
from fix_repair import (
    audited,
    outbox_ids,
    repair,
    repaired,
    require_exactly_once_in_order,
    writers,
)
from fix_waiting import eventually
from relay import failpoints

POINTS = [
    failpoints.REPAIR_STATE_SET,
    failpoints.REPAIR_FENCED,
    failpoints.REPAIR_SLOT_DROPPED,
    failpoints.REPAIR_SLOT_MADE,
    failpoints.REPAIR_RECORDS_COMMITTED,
    failpoints.REPAIR_ALL_PUBLISHED,
    failpoints.REPAIR_CHECKPOINT_WRITTEN,
]
"""Every point but the last one, in their order."""

SMALL_LIMIT_BYTES = 20_000

SMALL_GROUPS = {"RELAY_GROUP_BYTES": "65536"}
"""So that some hundred rows take several Kafka transactions."""


def ran(relay: RelayUnderTest, **extra: str) -> None:
    """The relay has published three events and was stopped."""
    process = relay.start(**extra)
    relay.emit(3)
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    relay.wait_slot_free()


def drop_slot(relay: RelayUnderTest) -> None:
    relay.owner.execute("select pg_drop_replication_slot(%s)", [relay.slot])


def armed(points: str) -> dict[str, str]:
    return {"RELAY_FAILPOINTS": points, "RELAY_ALLOW_FAILPOINTS": "1"}


def identity(relay: RelayUnderTest) -> Any:
    return relay.one("select state, epoch, consistent_point::text, baseline_seq from relay.source_identity")


def test_every_failpoint_of_a_repair_is_among_those_it_is_killed_at() -> None:
    named = {name for name in failpoints.NAMES if name.startswith("repair.")}
    assert named == {*POINTS, failpoints.REPAIR_STATE_CLEARED}


def test_what_was_committed_without_a_slot_is_brought_back_and_the_stream_goes_on(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    relay = exactly_once
    ran(relay)
    drop_slot(relay)
    lost = relay.emit(4)
    said = repaired(relay, run_process)
    assert "3 rows are in Kafka; 4 were missing" in said
    checkpoint = relay.checkpoint()
    assert checkpoint is not None
    assert (checkpoint.epoch, checkpoint.index, checkpoint.event_id, checkpoint.seq) == (2, 3, lost[-1], 7)
    # A commit may stand at the consistent point itself, and it is the stream's.
    assert checkpoint.commit_lsn == checkpoint.confirmed_lsn - 1
    assert checkpoint.confirmed_lsn == relay.confirmed()
    process = relay.start()
    streamed = relay.emit(2)
    relay.wait_published(process)
    records = require_exactly_once_in_order(relay)
    by_id = {record.event_id: record for record in records}
    assert [by_id[event].headers["relay_origin"] for event in lost] == [b"repair"] * 4
    assert [by_id[event].position for event in lost] == [(2, checkpoint.commit_lsn, n) for n in range(4)]
    assert all("relay_origin" not in by_id[event].headers for event in streamed)
    assert {by_id[event].position[0] for event in streamed} == {2}
    audited(relay, run_process)
    assert process.stop() == 0, process.output()


@pytest.mark.slow  # seven repairs are killed, one after the other
@pytest.mark.parametrize("points", [POINTS, POINTS[::-1]], ids=["forwards", "backwards"])
def test_a_repair_killed_at_any_point_is_run_again_and_each_event_is_there_once(
    exactly_once: RelayUnderTest, run_process: RunProcess, points: list[str]
) -> None:
    """Each is killed where the one before it left off; the last one may end."""
    relay = exactly_once
    ran(relay)
    drop_slot(relay)
    relay.emit_many(600, transactions=20)
    with writers(relay):
        for point in points:
            passage = "@2" if point == failpoints.REPAIR_RECORDS_COMMITTED else ""
            killed = repair(relay, run_process, **armed(f"{point}=kill{passage}"), **SMALL_GROUPS)
            assert killed.wait() in {-9, 0}, killed.output()  # 0: less than two groups were left
            assert identity(relay)[0] == "repairing"
        refused = relay.run()
        assert refused.wait() == 20, refused.output()
        assert "run `relay outbox repair` again" in refused.output()
        assert "run relay outbox repair again" in relay.one("select relay.dispatch_gate()")
        # The state is cleared last: what is killed after that has done its work.
        assert repair(relay, run_process, **armed("repair.state_cleared=kill")).wait() == -9
        process = relay.start()
        relay.emit(1)
    relay.wait_published(process)
    records = require_exactly_once_in_order(relay)
    assert len({record.position[0] for record in records}) > 3  # an epoch for each that published
    assert process.stop() == 0, process.output()
    audited(relay, run_process)


@pytest.mark.slow  # three repairs, each between some fifty commits of every writer
def test_a_repair_brings_back_exactly_what_is_missing_while_writers_are_at_work(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    """No gap and no overlap between the snapshot and the stream."""
    relay = exactly_once
    with writers(relay, threads=4) as at_work:
        process = relay.start()
        eventually(lambda: at_work.committed > 50, "the writers have written")
        assert process.stop() == 0, process.output()
        relay.wait_slot_free()
        for _ in range(3):
            drop_slot(relay)
            before = at_work.committed
            eventually(lambda: at_work.committed > before + 50, "the writers go on")  # noqa: B023
            repaired(relay, run_process)
        process = relay.start()
        before = at_work.committed
        eventually(lambda: at_work.committed > before + 50, "the writers go on")
    relay.wait_published(process)
    records = require_exactly_once_in_order(relay)
    origins = {record.headers.get("relay_origin") for record in records}
    assert origins == {None, b"repair"}
    assert process.stop() == 0, process.output()


def test_a_relay_that_comes_back_after_the_repair_can_write_nothing(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    """Its transaction was open with records in it when it was stopped: the repair ends it."""
    relay = exactly_once
    ran(relay)
    stopped = relay.failing("relay.before_kafka_commit=stop")
    relay.emit(2)
    stopped.wait_until_stopped()
    refused = repair(relay, run_process)
    assert refused.wait() == 2
    assert "A relay reads the slot" in refused.output()
    assert identity(relay)[0] == "running"
    relay.owner.execute(
        "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s",
        [relay.slot],
    )
    relay.wait_slot_free()
    repaired(relay, run_process)
    process = relay.start()
    stopped.signal(signal.SIGCONT)
    assert stopped.wait() == 19, stopped.output()
    relay.emit(1)
    relay.wait_published(process)
    require_exactly_once_in_order(relay)
    assert process.stop() == 0, process.output()


def test_at_least_once_a_repair_loses_nothing_and_ce_id_removes_what_is_there_twice(
    relay: RelayUnderTest, run_process: RunProcess
) -> None:
    mode = {"RELAY_DELIVERY": "at_least_once"}
    ran(relay, **mode)
    drop_slot(relay)
    relay.emit_many(400, transactions=4)
    killed = armed("repair.records_committed=kill")
    assert repair(relay, run_process, **mode, **killed, **SMALL_GROUPS).wait() == -9
    assert repair(relay, run_process, **mode).wait() == 0
    process = relay.start(**mode)
    relay.emit(1)
    relay.wait_published(process)
    assert {record.event_id for record in relay.read()} == set(outbox_ids(relay))
    assert process.stop() == 0, process.output()


def test_a_repaired_record_is_the_record_that_the_stream_would_have_made(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    relay = exactly_once
    process = relay.start()
    relay.owner.execute(
        """
        insert into relay.outbox (event_type, schema_version, operation_id, version, payload, headers)
        select %s, 1, g, 7, jsonb_build_object('operation_id', g, 'job_id', 'é "1"'),
               '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'
        from (select gen_random_uuid() as g) s
        """,
        [EVENT_TYPE],
    )
    (bad,) = relay.emit(event_type="nobody.knows_it")
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    relay.wait_slot_free()
    (streamed,) = relay.read()
    (streamed_bad,) = relay.read("relay-dlq")
    relay.prefix += "-elsewhere"  # Kafka has lost everything
    relay.owner.execute("delete from relay.parked_event")
    said = repaired(relay, run_process)
    assert "1 could not be sent" in said
    (made,) = relay.read()
    (made_bad,) = relay.read("relay-dlq")
    ours = {"relay_lsn", "relay_index", "relay_epoch", "relay_origin", "relay_topic"}
    for was, now in ((streamed, made), (streamed_bad, made_bad)):
        assert (now.key, now.value, now.partition) == (was.key, was.value, was.partition)
        assert set(now.headers) == set(was.headers) | {"relay_origin"}
        differing = {name for name in was.headers if was.headers[name] != now.headers[name]} - ours
        assert differing <= {"ce_time"} if now is made_bad else not differing
    assert relay.one("select event_id::text from relay.parked_event") == bad


def test_a_repair_parks_what_the_broker_alone_refuses_and_brings_back_the_rest(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    relay = exactly_once
    ran(relay)
    drop_slot(relay)
    lost = relay.emit(2)
    large = {"operation_id": str(uuid4()), "job_id": "j" * SMALL_LIMIT_BYTES}
    (parked,) = relay.emit(payload=large)
    lost += relay.emit(2)
    held = run_process(["outbox", "repair"], relay.environment(**armed("repair.slot_made=stop")))
    held.wait_until_stopped()
    topic = f"{relay.prefix}.{EVENT_TYPE}"
    set_topic(relay.kafka.bootstrap, topic, "max.message.bytes", str(SMALL_LIMIT_BYTES))
    held.signal(signal.SIGCONT)
    assert held.wait() == 0, held.output()
    assert "1 could not be sent" in held.output()
    assert {record.event_id for record in relay.read()} >= set(lost)
    assert [record.event_id for record in relay.read("relay-dlq")] == [parked]
    assert relay.one("select reason_code from relay.parked_event") == "refused_by_broker"
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    audited(relay, run_process)
    assert process.stop() == 0, process.output()


def test_rows_that_retention_took_are_told_apart_and_published_only_when_asked_for(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    relay = exactly_once
    key = uuid4()  # all on one partition
    process = relay.start()
    old = relay.emit(3, operation_id=key)
    relay.emit(2, operation_id=key, version=4)
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    relay.wait_slot_free()
    (place,) = {(record.topic, record.partition) for record in relay.read()}
    first_kept = sorted(record.offset for record in relay.read())[3]
    admin = AdminClient({"bootstrap.servers": relay.kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(*place, first_kept)]).values():
        future.result(30)
    drop_slot(relay)
    lost = relay.emit(1, operation_id=key, version=6)

    looked = repair(relay, run_process, "--dry-run", "--json")
    assert looked.wait() == 0, looked.output()
    shown = json.loads(looked.output().splitlines()[-1])
    assert (shown["present"], shown["missing"], shown["expired"]) == (2, 1, 3)
    assert identity(relay)[:2] == ("running", 1)  # nothing was changed

    said = repaired(relay, run_process)
    assert "3 are older than what their topic still has" in said
    assert "--include-expired" in said
    assert [record.event_id for record in relay.read()][-1:] == lost
    said = repaired(relay, run_process, "--include-expired")
    assert "3 published as repair" in said
    assert [record.event_id for record in relay.read()][-3:] == old
    audited(relay, run_process)


def test_where_rows_are_deleted_a_repair_refuses_and_says_why(
    relay: RelayUnderTest, run_process: RunProcess
) -> None:
    refused = repair(relay, run_process, RELAY_OUTBOX_ROWS="deleted")
    assert refused.wait() == 2
    assert "rows that don't stay" in refused.output()
    assert identity(relay)[0] == "new"
    # What it says instead: another relay, from here on.
    assert "set RELAY_SLOT to another name, run `relay init`, then `relay run`" in refused.output()
    drop_slot(relay)
    relay.slot += "_2"
    relay.initialise(RELAY_OUTBOX_ROWS="deleted")
    process = relay.start(RELAY_OUTBOX_ROWS="deleted")
    (event,) = relay.emit(1)
    eventually(lambda: [record.event_id for record in relay.read()] == [event], "the other relay publishes")
    assert process.stop() == 0, process.output()


def test_two_repairs_at_once_do_not_meet(relay: RelayUnderTest, run_process: RunProcess) -> None:
    ran(relay)
    held = run_process(["outbox", "repair"], relay.environment(**armed("repair.slot_made=stop")))
    held.wait_until_stopped()
    refused = repair(relay, run_process)
    assert refused.wait() == 2
    assert "Another repair" in refused.output()


def test_a_repair_stops_at_a_bad_event_or_lets_its_key_wait_as_the_relay_would(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    relay = exactly_once
    ran(relay)
    drop_slot(relay)
    key = uuid4()
    (before,) = relay.emit()
    (bad,) = relay.emit(operation_id=key, payload={"operation_id": 1})
    (behind,) = relay.emit(operation_id=key, version=2)
    (other,) = relay.emit()
    halted = repair(relay, run_process, RELAY_ON_BAD_EVENT="halt")
    assert halted.wait() == 22, halted.output()
    assert bad in halted.output()
    assert "then run `relay outbox repair` again" in halted.output()
    assert before in {record.event_id for record in relay.read()}
    assert identity(relay)[0] == "repairing"
    waits = repair(relay, run_process, RELAY_ON_BAD_EVENT="park_key")
    assert waits.wait() == 0, waits.output()
    process = relay.start(RELAY_ON_BAD_EVENT="park_key")
    (later,) = relay.emit(operation_id=key, version=3)
    relay.wait_published(process)
    assert other in {record.event_id for record in relay.read()}
    assert [record.event_id for record in relay.read("relay-dlq")] == [bad, behind, later]
    assert process.stop() == 0, process.output()


def test_a_dead_letter_that_a_killed_relay_still_owed_is_written_with_its_own_reason(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    """The row of a parked event is committed first; what was discarded meanwhile owes nothing."""
    relay = exactly_once
    ran(relay)
    process = relay.failing("relay.encoded=kill")
    (owed,) = relay.emit(payload={"operation_id": 1})
    assert process.wait() == -9, process.output()
    relay.wait_slot_free()
    drop_slot(relay)
    relay.owner.execute("update relay.parked_event set reason = 'as it was decided'")
    (discarded,) = relay.emit(payload={"operation_id": 2})
    relay.owner.execute(
        """
        insert into relay.parked_event (relay_id, event_id, event_type, operation_key, commit_lsn,
          commit_index, relay_epoch, reason_code, reason, payload_bytes, state)
        select relay_id, %s, event_type, '', commit_lsn, 1, 1, 'payload_mismatch', '', 0, 'discarded'
        from relay.parked_event
        """,
        [discarded],
    )
    assert "2 are parked" in repaired(relay, run_process)
    (dead,) = relay.read("relay-dlq")
    assert (dead.event_id, dead.headers["relay_reason"]) == (owed, b"as it was decided")
    assert relay.one("select state from relay.parked_event where event_id = %s", discarded) == "discarded"


def test_an_event_that_was_republished_before_the_slot_was_lost_is_known_to_be(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    """The relay died after Kafka's commit; the checkpoint that would tell is of an epoch that ends."""
    relay = exactly_once
    ran(relay)
    process = relay.failing("relay.republished=kill")
    (event_id,) = relay.emit(payload={"operation_id": 1})
    relay.wait_published(process)
    relay.owner.execute(
        "select relay.republish_parked(relay_id, event_id, 'ines', 'typo', %s) from relay.parked_event",
        [json.dumps({"operation_id": str(uuid4()), "job_id": "job-1"})],
    )
    assert process.wait() == -9, process.output()
    relay.wait_slot_free()
    drop_slot(relay)
    repaired(relay, run_process)
    assert relay.one("select state from relay.parked_event") == "republished"
    assert [record.event_id for record in relay.read()].count(event_id) == 1
