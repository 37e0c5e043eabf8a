"""Holds, lost jobs and costs that are found out are decided where their phase allows it, and nowhere else."""

from decimal import Decimal
from typing import Any

import psycopg
import pytest

from consumers.operations import reviews
from consumers.operations.decisions import Refused
from consumers.operations.resolutions import Resolution
from fix_operations import OPERATOR, WORKER, Stage
from fix_reviews import asked_for, decision, state_of, uncertain

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("resolution", "phase"),
    [(Resolution.RELEASE, "prepared"), (Resolution.REJECT, "rejected"), (Resolution.CANCEL, "cancelled")],
)
async def test_a_hold_is_released_or_ended(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any], resolution: Resolution, phase: str
) -> None:
    operation = committing_stage.in_phase("generation", "held")
    review = committing_stage.open_review(operation)
    await reviews.resolve(operator, decision(review, resolution))
    assert (
        committing_stage.one("select phase from relay.operation where operation_id = %s", operation) == phase
    )
    assert asked_for(committing_stage, operation) == ([1, 2] if phase == "prepared" else [1])


async def test_a_lost_job_keeps_its_money_in_dispute(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    operation = committing_stage.prepare()
    committing_stage.accepted(operation)
    review = committing_stage.raise_review(operation, "job_unknown")
    await reviews.resolve(operator, decision(review, Resolution.LOST))
    state = state_of(committing_stage, operation)
    assert state is not None
    assert (state[0], state[6]) == ("lost", ["disputed"])


async def test_a_cost_that_is_found_out_is_settled_and_the_operation_goes_on(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    operation = committing_stage.prepare()
    committing_stage.accepted(operation)
    review = committing_stage.raise_review(operation, "id_with_error")
    await reviews.resolve(operator, decision(review, Resolution.SETTLE, cost=Decimal("3.5")))
    state = state_of(committing_stage, operation)
    assert state is not None
    assert (state[0], state[3], state[4], state[6]) == ("accepted", 0, "settled", ["settled"])


async def test_what_a_cancel_was_requested_for_is_not_sent_again(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    operation, _, review = uncertain(committing_stage)
    with committing_stage.acting(OPERATOR):
        committing_stage.connection.execute(
            "select relay.request_cancel(%s, 'no longer wanted')", [operation]
        )
    with pytest.raises(Refused, match="A cancel was requested"):
        await reviews.resolve(operator, decision(review, Resolution.RESUBMIT))
    await reviews.resolve(operator, decision(review, Resolution.NOT_ACCEPTED_CANCEL))


async def test_closing_the_only_review_of_what_waits_for_it_is_refused(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    operation, _, review = uncertain(committing_stage)
    with pytest.raises(Refused, match=r"is uncertain, and a review .* doesn't take .settle. of that"):
        await reviews.resolve(operator, decision(review, Resolution.SETTLE, cost=Decimal(1)))
    assert (
        committing_stage.one("select phase from relay.operation where operation_id = %s", operation)
        == "uncertain"
    )


async def test_a_settled_cost_answers_the_question_what_the_job_costs(committing_stage: Stage) -> None:
    operation = committing_stage.prepare()
    attempt = committing_stage.accepted(operation)
    with committing_stage.acting(WORKER):
        committing_stage.connection.execute(
            "insert into relay.review (operation_id, attempt_id, kind, deadline)"
            " values (%s, %s, 'id_with_error', relay.now())",
            [operation, attempt],
        )
        committing_stage.connection.execute("select relay.settle(%s, 4, 'job succeeded')", [attempt])
    state = state_of(committing_stage, operation)
    assert state is not None
    assert (state[3], state[7]) == (0, ["superseded"])
