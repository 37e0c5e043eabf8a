"""Answers that come late, for real: a dispatcher has made its POST and has the provider's answer in its hand
while time passes, people decide and others go on. What is known afterwards is held against the truth.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import psycopg_pool
import pytest

from consumers import dispatch
from consumers.observe.effect_invariants import (
    money_is_booked,
    no_job_is_forgotten,
    none_is_stuck,
    one_post,
)
from consumers.observe.snapshot import Snapshot
from consumers.observe.witnesses import read_truth
from consumers.operations import providers
from consumers.operations.answers import apply_submission
from consumers.operations.audit import audit
from consumers.operations.invariants import read_tables
from consumers.providers.client import ProviderClient
from consumers.providers.profile import Profile
from consumers.providers.simulator_world import Fault
from fix_dispatch import Dispatching
from fix_postgres import Database

# One refusal that costs nothing (422), and one that is charged and may be sent again once it is mended.
_AS_SHIPPED: Final = "    after: delay\n    charged: false\n    reason: rate_limited\n    delay_s: 1\n"
_CHARGED: Final = "    after: fix\n    charged: true\n    reason: rate_limited\n"
ROWS: Final = {
    "operation": "operation_id",
    "attempt": "attempt_id",
    "remote_job": "job_id",
    "review": "review_id",
    "incident": "incident_id",
    "reservation": "attempt_id",
    "journal": "version",
    "ledger": "entry_id",
}


class Flight:
    """A POST that was made, and whose answer its dispatcher has not looked at yet."""

    def __init__(self, operation: UUID, dispatcher: dispatch.Dispatch) -> None:
        self.operation = operation
        self.dispatcher = dispatcher
        self.attempt: UUID
        self.answered = asyncio.Event()
        self.may_land = asyncio.Event()
        self.task: asyncio.Task[None]

    async def land(self) -> None:
        """The dispatcher goes on with the answer, as late as it is by now."""
        self.may_land.set()
        async with asyncio.timeout(60):
            await self.task
        await self.dispatcher.close()


class Late(Dispatching):
    """A scene whose dispatchers can be held back between the answer and what they make of it."""

    def __init__(self, database: Database, folder: Path) -> None:
        super().__init__(database, folder)
        assert _AS_SHIPPED in self.profile.text
        self.profile = Profile.parse(self.profile.text.replace(_AS_SHIPPED, _CHARGED), source="test")
        self.owners = 0
        self.held: Flight | None = None
        self.applied: dict[UUID, Mapping[str, Any]] = {}
        """The last answer of each attempt, as it was applied."""

    def asked(self, *faults: Fault) -> UUID:
        """An approved operation of five credits, of an owner of its own."""
        self.owners += 1
        owner = f"studio/late/{self.owners}"
        self.allow("100", owner)
        return self.prepare(*faults, max_cost="5", owner=owner)

    def use_profile(self, profile: Profile) -> None:
        """For operations that are approved from now on."""
        self.profile = profile
        providers.push(self.connection, [profile])

    async def fly(self, operation: UUID) -> Flight:
        """The operation's next POST is made and answered; its dispatcher waits for `land`."""
        flight = Flight(operation, await self.dispatcher())
        self.held = flight
        flight.task = asyncio.create_task(self.hand_over(flight.dispatcher, operation))
        async with asyncio.timeout(60):
            await asyncio.wait(
                (flight.task, asyncio.create_task(flight.answered.wait())),
                return_when=asyncio.FIRST_COMPLETED,
            )
        assert not flight.task.done(), flight.task.exception()
        flight.attempt = self.one(
            "select attempt_id from relay.attempt where operation_id = %s and outcome = 'open'", operation
        )
        return flight

    async def dispatched(self, operation: UUID) -> None:
        """A dispatcher that is in no hurry and meets no fault handles the newest event."""
        dispatcher = await self.dispatcher()
        await self.hand_over(dispatcher, operation)
        await dispatcher.close()

    def real_job(self, operation: UUID, number: int = 1) -> str | None:
        """The id of the job that the provider made of the operation's POST number `number`."""
        posts = [one for one in self.simulator.truth()["posts"] if one["reference"] == str(operation)]
        job_id: str | None = posts[number - 1]["job_id"]
        return job_id

    def strange_job(self, operation: UUID) -> str:
        """A real job of the operation's that came of no POST of ours."""
        world = self.simulator.world
        return world.create({"post": 1000 + len(world.jobs), "reference": str(operation)}, frozenset()).job_id

    async def replay(self, attempt: UUID) -> None:
        """The answer is applied once more, as from a spool that was copied before it was emptied."""
        async with self.pool.connection() as connection:
            await apply_submission(connection, **self.applied[attempt])

    def everything(self, operation: UUID) -> dict[str, list[Any]]:
        """All rows about the operation, as they are."""
        return {
            table: [
                row
                for (row,) in self.connection.execute(
                    f"select to_jsonb(t) from relay.{table} t where operation_id = %s order by {key}",
                    [operation],
                )
            ]
            for table, key in ROWS.items()
        }

    async def require_truth(self, *, in_flight: bool = False) -> None:
        """`relay ops audit` finds nothing, and what is recorded holds against what the provider knows; except
        for the job of a request that is `in_flight`, which nobody but the provider can know."""
        async with self.pool.connection() as connection:
            await connection.set_autocommit(True)
            findings = await audit(connection)
            await connection.set_autocommit(False)
        assert findings == []
        seen = Snapshot(
            tables=read_tables(self.connection),
            records=(),
            truth=read_truth(self.simulator.url),
            files=(),
            delivery="exactly_once",
            provider_account="simulator/default",
        )
        verdicts = [one_post, money_is_booked, none_is_stuck]
        if not in_flight:
            verdicts.append(no_job_is_forgotten)
        for verdict in verdicts:
            assert verdict(seen).offending == ()


@pytest.fixture
async def late(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Late]:
    with Late(database, tmp_path) as scene:
        submit = ProviderClient.submit

        async def submit_and_hold(self: ProviderClient, *arguments: Any, **more: Any) -> Any:
            flight, scene.held = scene.held, None
            answer = await submit(self, *arguments, **more)
            if flight is not None:
                flight.answered.set()
                await flight.may_land.wait()
            return answer

        async def apply_and_remember(connection: Any, **more: Any) -> Any:
            scene.applied[more["attempt_id"]] = more
            return await apply_submission(connection, **more)

        monkeypatch.setattr(ProviderClient, "submit", submit_and_hold)
        monkeypatch.setattr(dispatch, "apply_submission", apply_and_remember)
        scene.pool = psycopg_pool.AsyncConnectionPool(
            scene.settings().require_database(), min_size=1, max_size=8, open=False
        )
        async with scene.pool:
            yield scene
