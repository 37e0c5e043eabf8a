"""What is held for money or for its batch goes on as soon as there is room, in the order in which it was
held; and money that a person moves never stands in the way of a claim.
"""

import threading
from decimal import Decimal
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest

from fix_dispatch import Dispatching
from fix_operations import OPERATOR, WORKER, Stage
from fix_scene import OWNER, UNIT
from fix_waiting import eventually
from relay.outbox.batch import BatchIntent, prepare_batch
from relay.outbox.intent import Intent, prepare

pytestmark = pytest.mark.anyio


def _released(scene: Dispatching, operations: list[UUID]) -> list[bool]:
    return [scene.phase(operation) == "prepared" for operation in operations]


async def test_money_that_comes_back_goes_to_those_that_waited_in_their_order_and_at_once(
    dispatching: Dispatching,
) -> None:
    dispatching.allow("0")
    operations = [dispatching.prepared() for _ in range(3)]
    # Held in another order than they were made, and the last two at the very same moment.
    for operation in (operations[2], operations[0], operations[1]):
        assert await dispatching.dispatch(operation) == "held"
    first = operations[2]
    second, third = sorted(operations[:2])
    dispatching.connection.execute("alter table relay.operation disable trigger b_guard")
    dispatching.connection.execute(
        "update relay.operation set held_at = (select held_at + interval '1 second' from relay.operation"
        " where operation_id = %s) where operation_id <> %s",
        [first, first],
    )
    dispatching.connection.execute("alter table relay.operation enable always trigger b_guard")
    order = [first, second, third]
    # No time passes: what is prepared meanwhile must not take what they waited for.
    for limit, expected in (("5", [True, False, False]), ("10", [True, True, False])):
        dispatching.allow(limit)
        await dispatching.wake()
        assert _released(dispatching, order) == expected


async def test_a_batch_with_one_job_in_flight_sends_its_members_one_after_the_other(
    dispatching: Dispatching,
) -> None:
    batch = prepare_batch(dispatching.connection, BatchIntent(OWNER, "reel", UNIT, max_in_flight=1))
    members = [
        prepare(
            dispatching.connection,
            Intent(
                "generation", OWNER, str(n), {"n": n}, "simulator", Decimal(5), UNIT, batch_id=batch.batch_id
            ),
        ).operation_id
        for n in range(3)
    ]
    assert [await dispatching.dispatch(member) for member in members] == ["accepted", "held", "held"]
    await dispatching.wake()
    assert _released(dispatching, members) == [False, False, False]
    dispatching.connection.execute(
        "select set_config('relay.actor', 'test', false), set_config('relay.cause', 'observation', false),"
        " set_config('relay.reason', 'test', false)"
    )
    attempt = dispatching.one(
        "insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker)"
        " values (gen_random_uuid(), %s, 'observe', 1, 'w') returning attempt_id",
        members[0],
    )
    dispatching.connection.execute(
        "update relay.attempt set outcome = 'accepted' where attempt_id = %s", [attempt]
    )
    dispatching.connection.execute("select set_config('relay.attempt_id', %s, false)", [str(attempt)])
    dispatching.connection.execute(
        "update relay.operation set phase = 'failed', phase_reason = 'x' where operation_id = %s",
        [members[0]],
    )
    await dispatching.wake()
    assert _released(dispatching, members) == [False, True, False]
    assert await dispatching.dispatch(members[1]) == "accepted"
    assert dispatching.one("select in_flight from relay.batch") == 1


def test_a_settlement_waits_for_a_claim_of_its_operation_and_neither_locks_the_other_out(
    committing_stage: Stage,
) -> None:
    stage = committing_stage
    operation = stage.prepare()
    earlier = stage.resubmitted(operation)
    failed: list[BaseException] = []

    def settle() -> None:
        try:
            with psycopg.connect(stage.database.url_as(OPERATOR), application_name="settles") as own:
                own.execute("select relay.settle(%s, 1, 'invoice')", [earlier])
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            failed.append(error)

    thread = threading.Thread(target=settle)
    with stage.connection.transaction():
        token = stage.claim(operation, reserve=False)
        thread.start()
        with stage.database.connect() as watching:
            eventually(
                lambda: watching.execute(
                    "select 1 from pg_stat_activity where application_name = 'settles'"
                    " and wait_event_type = 'Lock'"
                ).fetchone(),
                "the settlement waits for the claim",
            )
        assert stage.one("select relay.reserve_or_why(%s, %s)", operation, token) is None
    thread.join()
    assert failed == []
    states = stage.connection.execute(
        "select state from relay.reservation where operation_id = %s order by state", [operation]
    ).fetchall()
    assert states == [("reserved",), ("settled",)]


def test_a_candidate_that_becomes_the_job_after_a_refund_is_booked_again(stage: Stage) -> None:
    operation = stage.prepare()
    attempt = stage.resubmitted(operation)
    with stage.acting(WORKER):
        stage.remote_job(operation, attempt, "job-1", role="candidate")
    with stage.acting(OPERATOR):
        stage.connection.execute("select relay.refund(%s, null, 'never charged')", [attempt])
    state: LiteralString = "select state from relay.reservation where attempt_id = %s"
    assert stage.one(state, attempt) == "settled"

    stage.connection.execute("update relay.remote_job set role = 'duplicate' where job_id = 'job-1'")

    assert stage.one(state, attempt) == "disputed"
