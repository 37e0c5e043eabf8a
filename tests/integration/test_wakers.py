"""No operation is ever stuck: each path into `prepared` and `held` leaves again, by itself or by its review.

The paths are the edges of the database: a new one is tried here as soon as it is written.
"""

from typing import Any, Final, LiteralString
from uuid import UUID

import pytest
from psycopg.conninfo import make_conninfo

from consumers.operations.lifecycle import RELEASED_BY_SCHEDULE, Hold
from consumers.schedule.process import Schedule
from consumers.schedule.round import Done
from fix_batches import join_batch, make_batch
from fix_edges import MOVES, Edge, back, role_of, staged
from fix_operations import OPERATOR, WORKER, Stage
from relay.settings import load

pytestmark = pytest.mark.anyio

INTO_PREPARED: Final = [edge for edge in MOVES if edge.after == "prepared"]
INTO_HELD: Final = [
    (edge, hold)
    for edge in MOVES
    if edge.after == "held"
    for hold in Hold
    # A delivery has no provider's account, no batch's place and no cost of its own to wait for.
    if edge.lifecycle == "generation" or hold not in RELEASED_BY_SCHEDULE
]


@pytest.fixture
def stage(committing_stage: Stage) -> Stage:
    return committing_stage


async def wake(stage: Stage, shift: str = "2hours") -> Done:
    """Schedule looks, that much later."""
    url = make_conninfo(stage.database.url_as(WORKER), options=f"-c test.shift={shift}")
    return await Schedule(load(environ={"RELAY_DATABASE_URL": url}).settings).once()


def taken(stage: Stage, edge: Edge, reason: str = "configuration") -> UUID:
    """An operation that has just taken `edge`."""
    operation = staged(stage, edge)
    with stage.acting(role_of(edge)):
        assert back(stage, edge, operation, reason)() == 1
    return operation


def seen(stage: Stage, operation: UUID, column: str) -> Any:
    row = stage.connection.execute(
        "select phase, dispatch_no, lifecycle, event_type, next_action_at > relay.now() + interval '2 hours'"
        " from relay.operation join relay.operation_kind using (kind) where operation_id = %s",
        [operation],
    ).fetchone()
    assert row is not None
    return dict(zip(("phase", "dispatch_no", "lifecycle", "event_type", "later"), row, strict=True))[column]


def events(stage: Stage, operation: UUID) -> list[int]:
    """The dispatch that each event asks for, in order."""
    rows = stage.connection.execute(
        "select (payload->>'dispatch_no')::integer from relay.outbox"
        " where operation_id = %s and event_type = %s order by seq",
        [operation, seen(stage, operation, "event_type")],
    )
    return [number for (number,) in rows]


async def leaves(stage: Stage, operation: UUID, shift: str = "9hours", *, reserve: bool = True) -> None:
    """It is prepared: schedule writes an event that a worker can claim it by, and it is claimed."""
    before = len(events(stage, operation))
    await wake(stage, shift)
    written = events(stage, operation)
    assert len(written) > before
    assert written[-1] == seen(stage, operation, "dispatch_no")
    stage.claim(operation, reserve=reserve and seen(stage, operation, "lifecycle") == "generation")
    assert seen(stage, operation, "phase") == "claimed"


@pytest.mark.parametrize("edge", INTO_PREPARED, ids=str)
async def test_what_came_into_prepared_leaves_it_again_by_itself(stage: Stage, edge: Edge) -> None:
    if edge.cause == "replay":
        # Its money is reserved still, and its window is an hour: past that a person is asked instead.
        await leaves(stage, taken(stage, edge), "2minutes", reserve=False)
        late = taken(stage, edge)
        await wake(stage)
        assert seen(stage, late, "phase") == "uncertain"
        assert stage.open_review(late) is not None
    else:
        await leaves(stage, taken(stage, edge))


@pytest.mark.parametrize(("edge", "hold"), INTO_HELD, ids=str)
async def test_what_came_to_be_held_leaves_again_by_itself_or_by_its_review(
    stage: Stage, edge: Edge, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hold is Hold.BATCH:
        batch, prepare = make_batch(stage, seal=False).batch_id, stage.prepare
        monkeypatch.setattr(stage, "prepare", lambda *a, **k: join_batch(stage, batch, prepare(*a, **k)))
    operation = taken(stage, edge, str(hold))
    reviews = stage.one(
        "select array_agg(kind) from relay.review where operation_id = %s and state = 'open'", operation
    )
    if hold in RELEASED_BY_SCHEDULE:
        assert "hold" not in (reviews or [])
        if hold is Hold.PAUSED:
            _pause(stage, "relay.now()")
            await wake(stage)
            assert seen(stage, operation, "phase") == "held"
            assert seen(stage, operation, "later")  # it is looked at again
            _pause(stage, "null")
        await wake(stage, "5hours")
    else:
        assert reviews == ["hold"]
        for days in (1, 10):
            await wake(stage, f"{days}days")
            assert seen(stage, operation, "phase") == "held"
        with stage.acting(OPERATOR):
            review = stage.open_review(operation)
            stage.resolve(review, "release")
            stage.say("review", review=review)
            assert stage.move(operation, "prepared", "release") == 1
    assert seen(stage, operation, "phase") == "prepared"
    await leaves(stage, operation)


def _pause(stage: Stage, moment: LiteralString) -> None:
    stage.connection.execute(
        f"update relay.provider_account set paused_at = {moment}, paused_reason = 'test'"
    )


def test_every_path_into_prepared_and_held_is_tried_here(stage: Stage) -> None:
    rows = stage.connection.execute(
        "select lifecycle, from_phase, to_phase, cause from relay.lifecycle_edge"
        " where to_phase in ('prepared', 'held') and from_phase <> ''"
    )
    assert {Edge(*row) for row in rows} == set(INTO_PREPARED) | {edge for edge, _ in INTO_HELD}


async def test_holds_are_released_in_the_order_in_which_they_were_held(stage: Stage) -> None:
    _pause(stage, "relay.now()")
    waiting = [taken(stage, Edge("generation", "prepared", "held", "hold"), "paused") for _ in range(5)]
    _pause(stage, "null")
    await wake(stage)
    released = stage.connection.execute(
        "select operation_id from relay.outbox where operation_id = any(%s)"
        " and event_type = 'operation.transitioned' and payload->>'cause' = 'release' order by seq",
        [waiting],
    ).fetchall()
    assert [operation for (operation,) in released] == waiting
