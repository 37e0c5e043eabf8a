"""Operations under review, and an operator's own connection, for tests of what a person decides."""

from collections.abc import AsyncIterator
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from consumers.operations.decisions import Decision
from consumers.operations.resolutions import Resolution
from fix_operations import OPERATOR, WORKER, Stage

LATER: Final = "1 hour"
"""Past the time until which a request that was given up may still arrive."""


@pytest.fixture
async def operator(committing_stage: Stage) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """An operator's own connection, whose clock is past every late delivery."""
    async with await connect_as(committing_stage, OPERATOR, LATER) as connection:
        yield connection


async def connect_as(stage: Stage, role: str, later: str = "0") -> psycopg.AsyncConnection[Any]:
    connection = await psycopg.AsyncConnection.connect(stage.database.url_as(role), autocommit=True)
    await connection.execute("select set_config('test.shift', %s, false)", [later])
    return connection


def uncertain(stage: Stage, *, reported: bool = True) -> tuple[UUID, UUID, UUID]:
    """An uncertain operation, its attempt and its review."""
    operation = stage.prepare()
    attempt = stage.uncertain(operation)
    if reported:
        with stage.acting(WORKER):
            stage.connection.execute(
                "update relay.attempt set evidence = %s where attempt_id = %s",
                [Jsonb({"status": None, "error": "ReadTimeout"}), attempt],
            )
    return operation, attempt, stage.open_review(operation)


def decision(review: UUID, resolution: Resolution, **more: Any) -> Decision:
    return Decision(
        **{
            "review_id": review,
            "revision": 1,
            "resolution": resolution,
            "reason": "I looked",
            "actor": "ann@desk",
            **more,
        }
    )


def state_of(stage: Stage, operation: UUID) -> tuple[Any, ...] | None:
    """Phase, dispatch, version, reviews, reservations: all that a decision may change."""
    return stage.connection.execute(
        "select o.phase, o.dispatch_no, o.version, o.open_reviews, o.accounting, o.job_id,"
        " (select array_agg(state order by created_at) from relay.reservation where operation_id = %(id)s),"
        " (select array_agg(state order by opened_at) from relay.review where operation_id = %(id)s)"
        " from relay.operation o where operation_id = %(id)s",
        {"id": operation},
    ).fetchone()


def asked_for(stage: Stage, operation: UUID) -> list[int]:
    rows = stage.connection.execute(
        "select payload->'dispatch_no' from relay.outbox where operation_id = %s"
        " and event_type = 'generation.requested' order by seq",
        [operation],
    )
    return [number for (number,) in rows]


def with_second_job(stage: Stage) -> tuple[UUID, UUID, UUID, UUID]:
    """An accepted operation with a job of its second request, and one of its first, which a person had
    released: operation, both attempts, the review."""
    operation = stage.prepare()
    first = stage.resubmitted(operation)
    second = stage.accepted(operation)
    with stage.acting(WORKER):
        stage.finish(first, "accepted")
        stage.remote_job(operation, first, f"late-{operation}", "duplicate")
        review = stage.raise_review(operation, "second_id")
    return operation, first, second, review
