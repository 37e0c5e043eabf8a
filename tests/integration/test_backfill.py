"""Rows from before the slot arrive once, with no gap and no overlap with the stream, whatever is killed."""

from collections.abc import Iterator

import psycopg
import pytest

from fix_kafka import Kafka
from fix_postgres import Database
from fix_process import Process, RunProcess
from fix_relay import RelayUnderTest
from fix_repair import audited, require_exactly_once_in_order, writers
from fix_waiting import eventually
from relay import failpoints

POINTS = [
    failpoints.REPAIR_STATE_SET,
    failpoints.REPAIR_SLOT_DROPPED,
    failpoints.REPAIR_SLOT_MADE,
    failpoints.REPAIR_RECORDS_COMMITTED,
    failpoints.REPAIR_CHECKPOINT_WRITTEN,
]


@pytest.fixture
def before(
    database: Database, real_kafka: Kafka, topic_prefix: str, run_process: RunProcess
) -> Iterator[RelayUnderTest]:
    """A database with the tables, and neither slot nor relay."""
    under_test = RelayUnderTest(database, real_kafka, topic_prefix, run_process)
    with under_test.owner:
        yield under_test


def backfill(relay: RelayUnderTest, run_process: RunProcess, *args: str, **extra: str) -> Process:
    """`relay init --backfill`, by the owner, to its end or its death."""
    process = run_process(["init", "--backfill", *args], relay.environment(None, **extra))
    process.wait()
    return process


@pytest.mark.slow  # five backfills are killed, one after the other
def test_rows_from_before_the_slot_arrive_once_however_often_it_is_killed_while_writers_are_at_work(
    before: RelayUnderTest, run_process: RunProcess
) -> None:
    relay = before
    relay.emit_many(400, transactions=10)
    with writers(relay, threads=3) as at_work:
        eventually(lambda: at_work.committed > 30, "the writers have written")
        for point in POINTS:
            killed = {"RELAY_FAILPOINTS": f"{point}=kill", "RELAY_ALLOW_FAILPOINTS": "1"}
            assert backfill(relay, run_process, RELAY_GROUP_BYTES="65536", **killed).wait() == -9
        done = backfill(relay, run_process)
        assert done.wait() == 0, done.output()
        process = relay.start()
        went_on = at_work.committed
        eventually(lambda: at_work.committed > went_on + 30, "the writers go on")
    relay.wait_published(process)
    records = require_exactly_once_in_order(relay)
    origins = [record.headers.get("relay_origin") for record in records]
    assert set(origins) == {b"backfill", None}
    assert origins.count(b"backfill") >= 430
    assert process.stop() == 0, process.output()
    audited(relay, run_process)


def test_a_repair_of_a_relay_that_never_ran_is_its_backfill(
    before: RelayUnderTest, run_process: RunProcess
) -> None:
    relay = before
    old = relay.emit(2)
    relay.initialise()
    done = run_process(["outbox", "repair"], relay.environment())
    assert done.wait() == 0, done.output()
    assert "2 published as backfill" in done.output()
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    records = require_exactly_once_in_order(relay)
    assert {record.event_id for record in records if "relay_origin" in record.headers} == set(old)
    assert process.stop() == 0, process.output()


@pytest.mark.parametrize("prepared", [False, True], ids=["open", "prepared"])
def test_a_transaction_that_blocks_the_new_slot_is_named_and_the_backfill_runs_again_after_it(
    before: RelayUnderTest, run_process: RunProcess, *, prepared: bool
) -> None:
    relay = before
    relay.emit(1)
    relay.initialise()  # its slot is there: the one of the backfill has to wait
    with psycopg.connect(relay.database.url) as blocking:
        blocking.execute("select 1")  # from here on it is one transaction
        relay.emit(1, connection=blocking)
        pid = blocking.info.backend_pid
        named = f"pid {pid}"
        if prepared:
            blocking.execute("prepare transaction 'left over'")
            named = "the prepared transaction 'left over'"
        # As the relay's own login: what it may see of others is little, and the name is there all the same.
        waits = run_process(["outbox", "repair", "--slot-timeout-s", "2"], relay.environment())
        assert waits.wait() == 1, waits.output()
        assert named in waits.output()
        assert "pg_terminate_backend" in waits.output()
        refused = relay.run()
        assert refused.wait() == 20, refused.output()
        if prepared:
            relay.owner.execute("commit prepared 'left over'")
        else:
            blocking.commit()
    done = run_process(["outbox", "repair"], relay.environment())
    assert done.wait() == 0, done.output()
    assert "2 published as backfill" in done.output()
    require_exactly_once_in_order(relay)


def test_a_repair_killed_while_its_slot_waits_leaves_nothing_in_the_way(
    before: RelayUnderTest, run_process: RunProcess
) -> None:
    """The server process that makes the slot goes on waiting when its client is gone."""
    relay = before
    relay.initialise()
    with psycopg.connect(relay.database.url) as blocking:
        blocking.execute("select 1")  # from here on it is one transaction
        relay.emit(1, connection=blocking)
        waits = run_process(["outbox", "repair"], relay.environment(), "has waited")
        waits.kill()
        again = run_process(["outbox", "repair"], relay.environment(), "has waited")
        blocking.commit()
    assert again.wait() == 0, again.output()
    require_exactly_once_in_order(relay)


def test_init_itself_names_who_blocks_the_slot(before: RelayUnderTest, run_process: RunProcess) -> None:
    relay = before
    with psycopg.connect(relay.database.url) as blocking:
        blocking.execute("select 1")  # from here on it is one transaction
        relay.emit(1, connection=blocking)
        waits = backfill(relay, run_process, "--slot-timeout-s", "1")
        assert waits.wait() == 1, waits.output()
        assert f"pid {blocking.info.backend_pid}" in waits.output()
        blocking.commit()
    done = backfill(relay, run_process)
    assert done.wait() == 0, done.output()
    require_exactly_once_in_order(relay)


@pytest.mark.parametrize("held", [{"RELAY_OUTBOX_ROWS": "deleted"}, {"RELAY_OUTBOX_SOURCE": "message"}])
def test_where_no_row_stays_a_backfill_refuses_before_it_makes_anything(
    before: RelayUnderTest, run_process: RunProcess, held: dict[str, str]
) -> None:
    refused = backfill(before, run_process, **held)
    assert refused.wait() == 2, refused.output()
    assert "There is no repair for an outbox of" in refused.output()
    assert before.one("select count(*) from pg_replication_slots where slot_name = %s", before.slot) == 0
