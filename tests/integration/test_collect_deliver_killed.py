"""SIGKILL of a real collector and a real deliverer at each failpoint: the next process makes it good."""

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from consumers.collect import Collect
from fix_postgres import Database
from fix_process import RunProcess
from fix_scene import Scene
from relay import failpoints

pytestmark = pytest.mark.anyio

CHILD: Final = Path(__file__).resolve().parents[1] / "handle_last_event.py"
PYTHONPATH: Final = os.pathsep.join(str(CHILD.parents[up]) for up in (0, 1))
"""Fixtures, and this very checkout's package before an installed one."""
KILLED: Final = -9


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path) as running:
        yield running


class Children:
    """Runs one consumer over one operation, in a process of its own."""

    def __init__(self, scene: Scene, run_process: RunProcess) -> None:
        self.scene = scene
        self.run_process = run_process

    def handle(self, name: str, operation_id: UUID, *, killed_at: str | None = None) -> int:
        environment = self.scene.environment | {"PYTHONPATH": PYTHONPATH}
        if killed_at is not None:
            environment |= {"RELAY_FAILPOINTS": f"{killed_at}=kill@1", "RELAY_ALLOW_FAILPOINTS": "1"}
        command = (sys.executable, CHILD)
        return self.run_process([name, str(operation_id)], environment, command=command).wait()


@pytest.fixture
def children(scene: Scene, run_process: RunProcess) -> Children:
    return Children(scene, run_process)


@pytest.mark.parametrize(
    "point",
    [failpoints.COLLECT_BEFORE_GET, failpoints.COLLECT_ANSWER_RECEIVED, failpoints.COLLECT_ANSWER_APPLIED],
)
async def test_a_killed_collector_costs_a_get_and_nothing_else(
    scene: Scene, children: Children, point: str
) -> None:
    operation_id = await scene.accepted()
    assert children.handle("collect", operation_id, killed_at=point) == KILLED
    assert children.handle("collect", operation_id) == 0
    assert scene.phase(operation_id) == "succeeded"
    assert scene.one("select count(*) from relay.operation where parent_operation_id = %s", operation_id) == 1
    assert scene.operation(operation_id, "accounting") == "settled"
    truth = scene.simulator.truth()
    assert len(truth["posts"]) == 1
    assert truth["gets"][scene.operation(operation_id, "job_id")] <= 2


@pytest.mark.parametrize(
    "point",
    [
        failpoints.DELIVER_CLAIMED,
        failpoints.DELIVER_DOWNLOADED,
        failpoints.DELIVER_PLACED,
        failpoints.DELIVER_STORED,
    ],
)
async def test_a_killed_deliverer_leaves_whole_files_or_none(
    scene: Scene, children: Children, point: str
) -> None:
    operation_id = await scene.accepted()
    await scene.handle(Collect(), scene.last(operation_id, "collection.requested"))
    delivery = scene.delivery_of(operation_id)
    served = {one["sha256"] for one in scene.simulator.truth()["jobs"][0]["outputs"]}

    assert children.handle("deliver", delivery, killed_at=point) == KILLED
    final = scene.outputs / "studio_1"
    assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in final.rglob("*.bin")} <= served

    await scene.wake("10 minutes")
    assert children.handle("deliver", delivery) == 0
    assert scene.phase(delivery) == "stored"
    assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in final.rglob("*.bin")} == served
    assert len(scene.simulator.truth()["posts"]) == 1
