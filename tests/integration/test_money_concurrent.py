"""Fifty dispatchers, each on a connection of its own, fight over a few allowances and batches: no limit is
passed at any moment, no two lock each other out, and the ledger adds up when they are done.
"""

import asyncio
import random
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest

from consumers.operations import claims
from consumers.operations.answers import apply_submission
from consumers.operations.audit import Invariant, findings
from consumers.providers.outcome import Submission
from fix_dispatch import Dispatching
from fix_scene import UNIT
from relay.outbox.intent import Intent, prepare

pytestmark = pytest.mark.anyio

DISPATCHERS: Final = 50
OPERATIONS: Final = 240
AT_ONCE: Final = 3
"""How many dispatchers are handed each event, as after a replay."""
SMALLEST: Final = Decimal("0.000001")
OWNERS: Final = ("ann", "bob", "cyd")
LIMIT: Final = Decimal("35.000007")
"""Less than half of what an owner's operations may cost together."""
MOST_IN_FLIGHT: Final = 4

_PASSED: Final = """
    select owner_id, 'allowance' from relay.allowance where reserved + disputed + settled > limit_amount
    union all
    select owner_id, 'batch' from relay.batch
     where reserved + disputed + settled > max_cost or in_flight > max_in_flight and completed_at is null
"""


@dataclass(slots=True)
class Fight:
    scene: Dispatching
    seed: random.Random
    events: asyncio.Queue[tuple[UUID, int]] = field(default_factory=asyncio.Queue)
    won: int = 0
    lost: int = 0
    looks: int = 0
    passed: list[Any] = field(default_factory=list)

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(
            self.scene.database.url_as("relay_worker"), autocommit=True
        )

    async def dispatch(self) -> None:
        """Handle events, the same as others at the same moment, until cancelled."""
        async with await self.connect() as connection:
            while True:
                event = await self.events.get()
                try:
                    await self._take(connection, *event)
                finally:
                    self.events.task_done()

    async def _take(self, connection: psycopg.AsyncConnection[Any], operation_id: UUID, number: int) -> None:
        token = uuid4()
        claimed = await claims.claim(
            connection,
            operation_id=operation_id,
            dispatch_no=number,
            token=token,
            worker="w",
            lease_s=36_000,
        )
        if not isinstance(claimed, claims.Claim):
            self.lost += 1
            return
        self.won += 1
        sending = claims.Sending(
            request_sha256="0" * 64,
            idempotency_key=None,
            spool="/spool",
            deadline_s=36_000,
            margin_s=1,
            late_delivery_s=20,
        )
        await claims.begin_submission(connection, claimed, sending, "w")
        await apply_submission(
            connection,
            attempt_id=token,
            operation_id=operation_id,
            outcome=self._outcome(),
            profile=self.scene.profile,
            actor="w",
        )
        if self.seed.random() < 0.5:
            # Whatever the answer was: only what is booked can be settled, and once.
            cost = (claimed.max_cost * Decimal(self.seed.randrange(100)) / 100).quantize(SMALLEST)
            await connection.execute(
                "select relay.settle(%(token)s, %(cost)s, 'job succeeded') from relay.attempt"
                " where attempt_id = %(token)s and outcome = 'accepted'",
                {"token": token, "cost": min(cost, claimed.max_cost)},
            )

    def _outcome(self) -> Submission:
        told: dict[str, Any] = {"reason": "told", "evidence": {"status": None}}
        draw = self.seed.random()
        if draw < 0.4:
            return Submission(verdict="accepted", job_id=f"job-{uuid4()}", **told)
        if draw < 0.5:
            return Submission(verdict="unknown", **told)
        if draw < 0.6:
            return Submission(verdict="refused", after="final", charged=True, **told)
        if draw < 0.7:
            return Submission(verdict="refused", after="final", charged=False, **told)
        if draw < 0.85:
            return Submission(verdict="refused", after="delay", charged=False, retry_after_s=0, **told)
        return Submission(verdict="unsent", **told)

    async def watch(self) -> None:
        """Look at every limit, again and again, until cancelled."""
        async with await self.connect() as connection:
            while True:
                self.passed += await (await connection.execute(_PASSED)).fetchall()
                self.looks += 1

    async def release(self) -> None:
        """What schedule and relay do: wake what is due and hand its events over, until nothing moves."""
        while True:
            await self.scene.wake("2 minutes")
            prepared = self.scene.all(
                "select operation_id, dispatch_no from relay.operation where phase = 'prepared'"
            )
            if not prepared:
                return
            events = [event for event in prepared for _ in range(AT_ONCE)]
            for event in events:
                self.events.put_nowait(event)
            await self.events.join()


def _prepare(scene: Dispatching, seed: random.Random) -> None:
    for owner in OWNERS:
        scene.allow(str(LIMIT), owner)
        batch = scene.one(
            "select batch_id from relay.prepare_batch(owner_id => %s, batch_key => 'b', max_cost => 12.5,"
            " max_in_flight => %s)",
            owner,
            MOST_IN_FLIGHT,
        )
        for number in range(OPERATIONS // len(OWNERS)):
            cost = Decimal(seed.randrange(1, 2_000_000)) * SMALLEST
            intent = Intent("generation", owner, f"{number}", {"n": number}, "simulator", cost, UNIT)
            prepared = prepare(scene.connection, intent)
            if number % 3 == 0:
                scene.connection.execute(
                    "select relay.in_batch(%s, o) from relay.operation o where operation_id = %s",
                    [batch, prepared.operation_id],
                )
        scene.connection.execute("select relay.seal_batch(%s)", [batch])


@pytest.mark.slow
async def test_no_limit_is_passed_and_nothing_deadlocks_under_fifty_dispatchers(
    dispatching: Dispatching,
) -> None:
    seed = random.Random(7)
    fight = Fight(dispatching, seed)
    _prepare(dispatching, seed)
    tasks = [asyncio.ensure_future(fight.dispatch()) for _ in range(DISPATCHERS)]
    tasks.append(asyncio.ensure_future(fight.watch()))
    released = asyncio.ensure_future(fight.release())
    await asyncio.wait([released, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [one for one in ended if not isinstance(one, asyncio.CancelledError)] == []
    released.result()
    assert fight.passed == []
    assert fight.looks > 100
    assert fight.won > OPERATIONS / 3
    assert fight.lost >= fight.won, "they must have got in each other's way"
    assert dispatching.one("select deadlocks from pg_stat_database where datname = current_database()") == 0
    async with await psycopg.AsyncConnection.connect(dispatching.database.url) as connection:
        assert await findings(connection, frozenset({Invariant.MONEY, Invariant.BATCH})) == []
    # Limits were what stopped them: nothing that is held would fit.
    fitting = dispatching.all(
        "select o.operation_id from relay.operation o"
        " join relay.allowance a on a.owner_id = o.owner_id and a.unit = o.cost_unit"
        " where o.phase = 'held' and o.phase_reason = 'allowance'"
        " and o.max_cost <= a.limit_amount - a.reserved - a.disputed - a.settled"
    )
    assert fitting == []
    held = dict(
        dispatching.all("select phase_reason, count(*) from relay.operation where phase = 'held' group by 1")
    )
    assert held.keys() >= {"allowance", "batch"}, held
