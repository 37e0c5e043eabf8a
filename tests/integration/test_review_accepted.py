"""A job that a person names is kept, has one operation, and is observed and paid for like any other."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from consumers.operations import reviews
from consumers.operations.decisions import Refused
from consumers.operations.resolutions import Resolution
from fix_operations import WORKER, Stage
from fix_reviews import decision, state_of, uncertain

pytestmark = pytest.mark.anyio


async def test_an_accepted_job_is_kept_observed_and_still_paid_for(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    stage = committing_stage
    operation, attempt, review = uncertain(stage)
    job = f"job-{uuid4()}"
    await reviews.resolve(
        operator, decision(review, Resolution.ACCEPTED, job_id=job), evidence={"asked": "yes"}
    )
    assert state_of(stage, operation) == ("accepted", 1, 5, 0, "reserved", job, ["reserved"], ["resolved"])
    row = stage.connection.execute(
        "select j.role, j.attempt_id, a.outcome from relay.remote_job j"
        " join relay.attempt a using (attempt_id) where j.job_id = %s",
        [job],
    ).fetchone()
    assert row == ("primary", attempt, "accepted")
    event = stage.one(
        "select payload from relay.outbox where operation_id = %s and event_type = 'collection.requested'",
        operation,
    )
    assert event == {"operation_id": str(operation), "job_id": job}
    assert stage.one("select evidence from relay.review where review_id = %s", review) == {
        "decision": {"asked": "yes"}
    }


async def test_a_candidate_that_a_person_confirms_becomes_the_primary_job(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    operation, attempt, review = uncertain(committing_stage)
    job = committing_stage.remote_job(operation, attempt, f"job-{uuid4()}", "candidate")
    await reviews.resolve(operator, decision(review, Resolution.ACCEPTED, job_id=job))
    roles = committing_stage.connection.execute("select role from relay.remote_job where job_id = %s", [job])
    assert roles.fetchall() == [("primary",)]


async def test_a_job_of_another_operation_is_not_taken_without_a_reason(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    stage = committing_stage
    other = stage.prepare()
    stage.accepted(other)
    job = stage.one("select job_id from relay.operation where operation_id = %s", other)
    operation, _, review = uncertain(stage)
    before = state_of(stage, operation)
    with pytest.raises(Refused, match=f"is operation {other}'s already.*--override"):
        await reviews.resolve(operator, decision(review, Resolution.ACCEPTED, job_id=job))
    assert state_of(stage, operation) == before
    await reviews.resolve(
        operator,
        decision(review, Resolution.ACCEPTED, job_id=job, override="the prompts are the other way round"),
    )
    holders = stage.connection.execute(
        "select operation_id, role from relay.remote_job where job_id = %s", [job]
    ).fetchall()
    assert set(holders) == {(operation, "primary"), (other, "duplicate")}
    assert (
        stage.one("select kind from relay.review where operation_id = %s and state = 'open'", other)
        == "id_collision"
    )
    assert stage.one("select boundary from relay.incident where operation_id = %s", other) == "id_commit"


async def test_an_id_that_is_no_id_is_refused_in_a_sentence(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    operation, _, review = uncertain(committing_stage)
    with pytest.raises(Refused, match="is no id of a job"):
        await reviews.resolve(operator, decision(review, Resolution.ACCEPTED, job_id="two\nlines"))
    assert (
        committing_stage.one("select phase from relay.operation where operation_id = %s", operation)
        == "uncertain"
    )


async def test_an_abandoned_operation_whose_job_turns_up_is_observed_after_all(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    stage = committing_stage
    operation, _, review = uncertain(stage)
    await reviews.resolve(operator, decision(review, Resolution.ABANDON))
    with stage.acting(WORKER):
        again = stage.raise_review(operation, "contradiction")
    await reviews.resolve(operator, decision(again, Resolution.ACCEPTED, job_id=f"job-{uuid4()}"))
    state = state_of(stage, operation)
    assert state is not None
    # Nobody knows yet what it cost: the dispute stands until it is settled.
    assert (state[0], state[4]) == ("accepted", "disputed")
