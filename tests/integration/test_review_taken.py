"""A job that a person gives to another operation is that one's result, and no longer the first one's."""

import asyncio
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from consumers.collect import Collect
from consumers.dispatch import Dispatch
from consumers.operations import reviews
from consumers.operations.decisions import Refused
from consumers.operations.effects import Resolved
from consumers.operations.refusals import in_words
from consumers.operations.resolutions import Resolution
from consumers.providers.simulator_world import Fault
from fix_operations import OPERATOR, Stage
from fix_postgres import Database
from fix_reviews import LATER, connect_as, decision, uncertain
from fix_scene import Scene

pytestmark = pytest.mark.anyio


async def _observed(scene: Scene, operation: UUID) -> str:
    for _ in range(3):
        await scene.handle(Collect(), scene.last(operation, "collection.requested"))
        await scene.wake("10 minutes")
    return scene.phase(operation)


async def test_one_job_is_never_two_operations_result(database: Database, tmp_path: Path) -> None:
    with Scene(database, tmp_path) as scene:
        first, second = await scene.accepted(), scene.prepare(Fault.CUT_BEFORE_READING)
        await scene.handle(Dispatch(), scene.last(second, "generation.requested"))
        job = scene.operation(first, "job_id")
        review = scene.one("select review_id from relay.review where operation_id = %s", second)
        operator = await psycopg.AsyncConnection.connect(scene.database.url_as(OPERATOR), autocommit=True)
        async with operator:
            taken = decision(review, Resolution.ACCEPTED, job_id=job, override="they were swapped")
            await reviews.resolve(operator, taken)
            assert await _observed(scene, first) == "accepted"
            assert await _observed(scene, second) == "succeeded"
            assert scene.reviews(first) == ["id_collision"]
            collision, revision = scene.one(
                "select review_id, revision from relay.review where operation_id = %s", first
            )
            await reviews.resolve(operator, decision(collision, Resolution.LOST, revision=revision))
        assert scene.phase(first) == "lost"


@pytest.mark.parametrize("round_no", range(3))
async def test_two_people_who_take_each_others_job_wait_for_each_other_and_not_for_ever(
    committing_stage: Stage, round_no: int
) -> None:
    stage = committing_stage
    operations = []
    for _ in range(2):
        operation, attempt, review = uncertain(stage)
        with stage.acting("relay_worker"):
            job = stage.remote_job(operation, attempt, f"job-{operation}", "candidate")
        operations.append((review, job))
    (one, one_job), (two, two_job) = operations
    connections = [await connect_as(stage, OPERATOR, LATER) for _ in range(4)]

    async def take(connection: psycopg.AsyncConnection[object], review: UUID, job: str) -> Resolved | Refused:
        revision = stage.one("select revision from relay.review where review_id = %s", review)
        try:
            with in_words():
                return await reviews.resolve(
                    connection,
                    decision(review, Resolution.ACCEPTED, job_id=job, revision=revision, override="swapped"),
                )
        except Refused as error:
            return error

    wanted = [(one, two_job), (two, one_job), (one, one_job), (two, two_job)]
    results = await asyncio.gather(
        *(take(connection, *pair) for connection, pair in zip(connections, wanted, strict=True))
    )
    for connection in connections:
        await connection.close()
    assert "Somebody else changed it" not in " ".join(map(str, results)), round_no
    # Each review is decided once, by whoever came first.
    assert sum(isinstance(result, Resolved) for result in results) == 2
    primaries = stage.connection.execute(
        "select job_id, count(*) from relay.remote_job where job_id = any(%s) and role = 'primary'"
        " group by job_id",
        [[one_job, two_job]],
    ).fetchall()
    assert all(count == 1 for _, count in primaries)
