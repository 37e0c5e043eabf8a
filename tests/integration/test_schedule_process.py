"""The process of `relay schedule`: one or several, killed, cut off, or told to stop."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
import pytest

from consumers.schedule.process import Schedule
from fix_postgres import Database
from fix_process import RunProcess
from fix_proxy import TcpProxy
from fix_scene import Scene
from fix_waiting import eventually

pytestmark = pytest.mark.anyio

GENERATION: Final = "generation.requested"
COLLECTION: Final = "collection.requested"
DELIVERY: Final = "delivery.requested"


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path) as running:
        yield running


def once(scene: Scene, run_process: RunProcess) -> tuple[dict[str, Any], int]:
    """`relay schedule --once --json` as the worker: what it says, and its exit status."""
    environment = scene.environment | {"RELAY_LOG_LEVEL": "error"}
    process = run_process(["schedule", "--once", "--json"], environment)
    status = process.wait()
    said: dict[str, Any] = msgspec.json.decode(process.output().splitlines()[-1])
    return said, status


def test_schedule_once_says_what_it_did_and_ends(scene: Scene, run_process: RunProcess) -> None:
    operation_id = scene.prepare()
    scene.advance("2 minutes")
    said, status = once(scene, run_process)
    assert status == 0
    assert said == {"actions": {"event": 1}, "overdue": 0, "oldest_overdue_s": 0.0}
    assert len(scene.events(operation_id, GENERATION)) == 2


def test_what_stays_overdue_fails_schedules_health(scene: Scene, run_process: RunProcess) -> None:
    operation_id = scene.prepare()
    scene.advance("10 minutes")
    with scene.connection.transaction():
        # Somebody holds the row, as a hung worker would.
        scene.connection.execute(
            "select 1 from relay.operation where operation_id = %s for update", [operation_id]
        )
        said, status = once(scene, run_process)
    assert status == 1
    assert said["overdue"] == 1
    assert said["oldest_overdue_s"] > 60


async def test_two_schedules_at_once_do_everything_once(scene: Scene) -> None:
    leased = [scene.prepare() for _ in range(20)]
    for operation_id in leased:
        scene.claim(operation_id)
    waiting = [scene.prepare() for _ in range(40)]
    scene.advance("2 minutes")
    done = await asyncio.gather(*(Schedule(scene.settings()).once() for _ in range(4)))
    assert sum(one.actions["lease_expired"] for one in done) == len(leased)
    assert sum(one.actions["event"] for one in done) == len(waiting)
    assert sum(one.actions["failed"] for one in done) == 0
    for operation_id in waiting:
        assert len(scene.events(operation_id, GENERATION)) == 2
    for operation_id in leased:
        assert [event.payload["dispatch_no"] for event in scene.events(operation_id, GENERATION)] == [1, 2]


async def test_a_row_that_a_worker_has_is_left_to_it(scene: Scene) -> None:
    operation_id = scene.prepare()
    scene.claim(operation_id, submitting=True)
    scene.advance("2 minutes")
    with scene.connection.transaction():
        scene.connection.execute(
            "select 1 from relay.operation where operation_id = %s for update", [operation_id]
        )
        done = await Schedule(scene.settings()).once()
    assert done.actions.total() == 0  # not even a refusal after waiting for the lock
    assert scene.phase(operation_id) == "submitting"


def test_schedule_outlives_its_database_connection_and_ends_on_sigterm(
    scene: Scene, run_process: RunProcess, tcp_proxy: Callable[[str, int], TcpProxy]
) -> None:
    server = scene.database.server
    proxy = tcp_proxy(server.host, server.port)
    through = psycopg.conninfo.make_conninfo(
        scene.environment["RELAY_DATABASE_URL"], host=proxy.host, port=str(proxy.port)
    )
    environment = scene.environment | {"RELAY_DATABASE_URL": through, "RELAY_SCHEDULE_EVERY_S": "0.05"}
    process = run_process(["schedule"], environment, wait_for="schedule started")
    proxy.cut()
    process.wait_for("the database is away")
    proxy.resume()
    process.wait_for("schedule started", times=2)
    operation_id = scene.prepare()
    scene.advance("2 minutes")
    eventually(lambda: len(scene.events(operation_id, GENERATION)) == 2, "the event is written again")
    assert process.stop() == 0
    assert "schedule stopped" in process.output()


def test_a_killed_schedule_is_made_good_by_the_next(scene: Scene, run_process: RunProcess) -> None:
    operation_id = scene.prepare()
    scene.claim(operation_id, submitting=True)
    other = scene.prepare()
    scene.advance("2 minutes")
    for point in ("schedule.leases_expired", "schedule.events_emitted"):
        environment = scene.environment | {
            "RELAY_FAILPOINTS": f"{point}=kill",
            "RELAY_ALLOW_FAILPOINTS": "1",
        }
        assert run_process(["schedule", "--once"], environment).wait() == -9
    said, status = once(scene, run_process)
    assert (said["overdue"], status) == (0, 0)
    assert scene.phase(operation_id) == "uncertain"
    assert len(scene.events(other, GENERATION)) == 2


def test_a_database_that_is_away_is_one_sentence_with_once(scene: Scene, run_process: RunProcess) -> None:
    environment = scene.environment | {"RELAY_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    process = run_process(["schedule", "--once"], environment)
    assert process.wait() == 1
    assert "The database is away" in process.output()
    assert "Traceback" not in process.output()
