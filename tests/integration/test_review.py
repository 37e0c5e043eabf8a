"""A person's decision changes review, phase and money together, once, at the sight that the person had."""

import asyncio
from decimal import Decimal
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from consumers.operations import reviews
from consumers.operations.decisions import Refused
from consumers.operations.effects import Resolved
from consumers.operations.refusals import in_words
from consumers.operations.resolutions import NOT_ACCEPTED, Resolution
from fix_operations import OPERATOR, WORKER, Stage
from fix_reviews import LATER, asked_for, connect_as, decision, state_of, uncertain

pytestmark = pytest.mark.anyio


async def test_a_resubmission_disputes_the_money_releases_the_attempt_and_asks_again(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    stage = committing_stage
    operation, attempt, review = uncertain(stage)
    resolved = await reviews.resolve(operator, decision(review, Resolution.RESUBMIT))
    assert resolved == Resolved(
        review_id=review,
        operation_id=operation,
        resolution=Resolution.RESUBMIT,
        from_phase="uncertain",
        to_phase="prepared",
        job_id=None,
        disputed=Decimal(5),
    )
    assert state_of(stage, operation) == ("prepared", 2, 5, 0, "disputed", None, ["disputed"], ["resolved"])
    assert stage.one("select released_by_review from relay.attempt where attempt_id = %s", attempt) == review
    entry = stage.connection.execute(
        "select cause, reason, actor, review_id from relay.journal where operation_id = %s and version = 5",
        [operation],
    ).fetchone()
    assert entry == ("review", "I looked", "ann@desk", review)
    assert asked_for(stage, operation) == [1, 2]
    assert stage.submit(operation) != attempt


@pytest.mark.parametrize(
    ("resolution", "phase"),
    [
        (Resolution.NOT_ACCEPTED_REJECT, "rejected"),
        (Resolution.NOT_ACCEPTED_CANCEL, "cancelled"),
        (Resolution.ABANDON, "abandoned"),
    ],
)
async def test_an_end_without_proof_keeps_the_money_in_dispute(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any], resolution: Resolution, phase: str
) -> None:
    operation, _, review = uncertain(committing_stage)
    await reviews.resolve(operator, decision(review, resolution))
    state = state_of(committing_stage, operation)
    assert state == (phase, 1, 5, 0, "disputed", None, ["disputed"], ["resolved"])


@pytest.mark.parametrize("resolution", sorted(NOT_ACCEPTED - {Resolution.NOT_ACCEPTED_STAY}))
async def test_not_accepted_is_refused_while_the_request_may_still_arrive(
    committing_stage: Stage, resolution: Resolution
) -> None:
    operation, attempt, review = uncertain(committing_stage)
    before = state_of(committing_stage, operation)
    async with await connect_as(committing_stage, OPERATOR, "14 minutes") as early:
        with pytest.raises(
            Refused, match=f"attempt {attempt} may still arrive.*Decide after that, in \\d+ s"
        ):
            await reviews.resolve(early, decision(review, resolution))
    assert state_of(committing_stage, operation) == before


async def test_abandoning_need_not_wait_for_what_may_still_arrive(committing_stage: Stage) -> None:
    operation, _, review = uncertain(committing_stage)
    async with await connect_as(committing_stage, OPERATOR) as early:
        await reviews.resolve(early, decision(review, Resolution.ABANDON))
    assert (
        committing_stage.one("select phase from relay.operation where operation_id = %s", operation)
        == "abandoned"
    )


@pytest.mark.parametrize("resolution", sorted(NOT_ACCEPTED - {Resolution.NOT_ACCEPTED_STAY}))
async def test_not_accepted_is_refused_while_the_senders_spool_is_unread(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any], resolution: Resolution
) -> None:
    operation, attempt, review = uncertain(committing_stage, reported=False)
    before = state_of(committing_stage, operation)
    with pytest.raises(Refused, match=r"has not reported.*/spool/a.*--spool-lost"):
        await reviews.resolve(operator, decision(review, resolution))
    assert state_of(committing_stage, operation) == before
    await reviews.resolve(operator, decision(review, resolution, spool_lost=True))
    kept = committing_stage.one("select evidence from relay.review where review_id = %s", review)
    assert kept == {"decision": {"spool_lost": [str(attempt)]}}


async def test_a_stale_sight_decides_nothing(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    operation, _, review = uncertain(committing_stage)
    with committing_stage.acting(WORKER):
        committing_stage.connection.execute(
            "update relay.review set evidence = %s where review_id = %s", [Jsonb({"listing": []}), review]
        )
    before = state_of(committing_stage, operation)
    with pytest.raises(Refused, match="shown revision 1 of this review, and it is at 2"):
        await reviews.resolve(operator, decision(review, Resolution.ABANDON))
    assert state_of(committing_stage, operation) == before
    await reviews.resolve(operator, decision(review, Resolution.ABANDON, revision=2))


async def test_a_late_answer_takes_the_question_away_from_the_reviewer(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    stage = committing_stage
    operation, attempt, review = uncertain(stage)
    with stage.acting(WORKER):
        stage.finish(attempt, "accepted")
        job = stage.remote_job(operation, attempt, f"job-{uuid4()}")
        stage.say("late_answer", attempt=attempt)
        assert stage.move(operation, "accepted", job_id=job) == 1
    with pytest.raises(Refused, match="is superseded"):
        await reviews.resolve(operator, decision(review, Resolution.RESUBMIT))


@pytest.mark.parametrize("round_no", range(3))
async def test_of_many_reviewers_at_once_one_wins_and_the_others_are_told(
    committing_stage: Stage, round_no: int
) -> None:
    operation, _, review = uncertain(committing_stage)
    choices = [Resolution.ABANDON, Resolution.RESUBMIT, Resolution.NOT_ACCEPTED_REJECT] * 3
    connections = [await connect_as(committing_stage, OPERATOR, LATER) for _ in choices]

    async def decide(connection: psycopg.AsyncConnection[Any], resolution: Resolution) -> Resolved | Refused:
        try:
            return await reviews.resolve(connection, decision(review, resolution))
        except Refused as error:
            return error

    results = await asyncio.gather(*map(decide, connections, choices))
    for connection in connections:
        await connection.close()
    won = [result for result in results if isinstance(result, Resolved)]
    assert len(won) == 1, round_no
    phase, dispatch_no = won[0].to_phase, 2 if won[0].to_phase == "prepared" else 1
    state = state_of(committing_stage, operation)
    assert state == (phase, dispatch_no, 5, 0, "disputed", None, ["disputed"], ["resolved"])


async def test_a_workers_login_decides_nothing(committing_stage: Stage) -> None:
    operation, _, review = uncertain(committing_stage)
    before = state_of(committing_stage, operation)
    async with await connect_as(committing_stage, WORKER, LATER) as worker:
        with pytest.raises(Refused, match="member of the role relay_operator"), in_words():
            await reviews.resolve(worker, decision(review, Resolution.ABANDON))
    assert state_of(committing_stage, operation) == before


async def test_the_most_urgent_review_comes_first(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    _, _, one = uncertain(committing_stage)
    _, _, two = uncertain(committing_stage)
    with committing_stage.acting(WORKER):
        committing_stage.connection.execute(
            "update relay.review set severity = 4 where review_id = %s", [two]
        )
    found = [
        one_of.review_id
        for one_of in await reviews.waiting(operator, kind="uncertain_submission", limit=1000)
    ]
    assert found.index(two) < found.index(one)
    assert await reviews.waiting(operator, owner_id="nobody", limit=10) == []


async def test_a_review_is_found_by_its_operation_too(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    operation, _, review = uncertain(committing_stage)
    assert (await reviews.sight(operator, operation)).review.review_id == review
    with pytest.raises(Refused, match="There is no review"):
        await reviews.sight(operator, uuid4())
