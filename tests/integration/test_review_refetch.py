"""An output that expired undelivered is fetched again when a person says so, or given up; no job is made."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from consumers.collect import Collect
from consumers.deliver import Deliver
from consumers.providers.simulator_world import Fault
from fix_commands import Command
from fix_operations import OPERATOR
from fix_postgres import Database
from fix_scene import Scene


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path) as made:
        yield made


def expired(scene: Scene) -> tuple[UUID, UUID]:
    """A succeeded operation, and its delivery that failed."""

    async def run() -> UUID:
        operation = await scene.accepted(Fault.OUTPUT_EXPIRED)
        for _ in range(3):
            await scene.handle(Collect(), scene.last(operation, "collection.requested"))
            scene.advance("1 minute")
        return operation

    operation = asyncio.run(run())
    delivery = scene.delivery_of(operation)
    asyncio.run(scene.handle(Deliver(), scene.last(delivery, "delivery.requested")))
    assert scene.phase(delivery) == "failed"
    return operation, delivery


def resolve(scene: Scene, command: Command, delivery: UUID, answer: str) -> Any:
    review, revision = scene.one(
        "select review_id, revision from relay.review where operation_id = %s and state = 'open'", delivery
    )
    env = scene.environment | {"RELAY_DATABASE_URL": scene.database.url_as(OPERATOR)}
    shown = command("review", "show", str(delivery), env=env).out
    assert f"relay review resolve {review} {answer} --revision {revision}" in shown
    return command(
        "review", "resolve", str(review), answer, "--revision", str(revision), "--reason", "asked", env=env
    )


def test_an_expired_output_that_can_be_had_again_is_fetched_and_no_job_is_made(
    scene: Scene, command: Command
) -> None:
    operation, delivery = expired(scene)
    scene.simulator.world.jobs[scene.operation(operation, "job_id")].faults -= {Fault.OUTPUT_EXPIRED}
    decided = resolve(scene, command, delivery, "refetch")
    assert (decided.status, decided.out) == (0, f"Operation {delivery}: failed → prepared.\n")
    entry = scene.one(
        "select cause, reason, review_id is not null from relay.journal where operation_id = %s"
        " order by version desc limit 1",
        delivery,
    )
    assert entry == ("operator", "asked", True)
    # The event of the first time does nothing more; that of the second time stores the files.
    for event in scene.events(delivery, "delivery.requested"):
        asyncio.run(scene.handle(Deliver(), event))
    assert scene.phase(delivery) == "stored"
    truth = scene.simulator.truth()
    assert (len(truth["posts"]), len(truth["jobs"])) == (1, 1)


def test_an_output_that_is_gone_stays_failed_and_the_question_is_answered(
    scene: Scene, command: Command
) -> None:
    operation, delivery = expired(scene)
    decided = resolve(scene, command, delivery, "lost")
    assert (decided.status, decided.out) == (0, f"Operation {delivery}: stays failed.\n")
    assert scene.reviews(delivery) == []
    assert scene.phase(operation) == "succeeded"
    assert scene.operation(operation, "accounting") == "settled"
