"""Of reviewers who decide about one review at the same moment one wins, and the others are told."""

import asyncio
from typing import Any
from uuid import UUID

import psycopg
import pytest

from consumers.operations import reviews
from consumers.operations.decisions import Refused
from consumers.operations.effects import Resolved
from consumers.operations.resolutions import Resolution
from fix_operations import OPERATOR, Stage
from fix_reviews import LATER, connect_as, decision, uncertain, with_second_job

pytestmark = pytest.mark.anyio

Operator = psycopg.AsyncConnection[Any]


async def test_of_two_reviewers_who_choose_different_jobs_one_wins(committing_stage: Stage) -> None:
    stage = committing_stage
    operation, _, _, review = with_second_job(stage)
    old = stage.one("select job_id from relay.operation where operation_id = %s", operation)
    chosen = [old, f"late-{operation}"] * 4
    connections = [await connect_as(stage, OPERATOR, LATER) for _ in chosen]

    async def decide(connection: Operator, job_id: str) -> Resolved | Refused:
        try:
            return await reviews.resolve(
                connection, decision(review, Resolution.CHOOSE_PRIMARY, job_id=job_id)
            )
        except Refused as error:
            return error

    results = await asyncio.gather(*map(decide, connections, chosen))
    for connection in connections:
        await connection.close()
    (won,) = [result for result in results if isinstance(result, Resolved)]
    lost = [str(result) for result in results if isinstance(result, Refused)]
    assert all("is resolved as choose-primary by" in one or "shown revision" in one for one in lost)
    primary = stage.connection.execute(
        "select o.job_id, array_agg(j.job_id)"
        " from relay.operation o join relay.remote_job j using (operation_id)"
        " where o.operation_id = %s and j.role = 'primary' group by o.job_id",
        [operation],
    ).fetchone()
    assert primary == (won.job_id, [won.job_id])


async def test_a_review_that_is_answered_while_another_waits_is_not_decided_twice(
    committing_stage: Stage,
) -> None:
    stage = committing_stage
    for _ in range(3):
        operation, _, review = uncertain(stage)
        choices = [Resolution.WAIT, Resolution.ABANDON, Resolution.WAIT, Resolution.NOT_ACCEPTED_REJECT]
        connections = [await connect_as(stage, OPERATOR, LATER) for _ in choices]

        async def decide(
            connection: Operator, resolution: Resolution, review: UUID = review
        ) -> Resolved | Refused:
            try:
                return await reviews.resolve(connection, decision(review, resolution))
            except Refused as error:
                return error

        results = await asyncio.gather(*map(decide, connections, choices))
        for connection in connections:
            await connection.close()
        (won,) = [result for result in results if isinstance(result, Resolved)]
        phase = stage.one("select phase from relay.operation where operation_id = %s", operation)
        assert phase == won.to_phase
