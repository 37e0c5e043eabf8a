"""The people of a chaos run: an application that approves, and operators who decide as people with the
provider's list before them would. They make no request and use only what people have.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import psycopg

from consumers.operations import accounts, reviews
from consumers.operations.decisions import Decision, Refused
from consumers.operations.refusals import in_words
from consumers.operations.resolutions import Resolution
from fix_system import System
from relay.outbox.intent import Intent, prepare

OWNERS: Final = ("studio", "atelier", "workshop")
MAX_COST: Final = Decimal(2)
REASON: Final = "the provider's list was read"

Jobs = Mapping[str, Mapping[str, Decimal]]
"""By operation, the jobs that the provider really has, and what it charged for each."""


class Application:
    """Approves in its own transactions. `rolled_back` never happened."""

    def __init__(self, system: System, draw: random.Random) -> None:
        self._system = system
        self._draw = draw
        self._number = 0
        self.approved: list[UUID] = []
        self.rolled_back: set[UUID] = set()

    def approve(self, count: int) -> None:
        """`count` operations in one transaction; now and then one of them twice, or all of it undone."""
        undone = self._draw.random() < 0.15
        found: list[UUID] = []
        with self._system.owner.transaction(force_rollback=undone):
            for _ in range(count):
                self._number += 1
                intent = Intent(
                    "generation",
                    self._draw.choice(OWNERS),
                    f"frame-{self._number}",
                    {"prompt": f"frame {self._number}"},
                    "simulator",
                    MAX_COST,
                )
                found.append(prepare(self._system.owner, intent).operation_id)
                if self._draw.random() < 0.1:
                    assert prepare(self._system.owner, intent).operation_id == found[-1]
        if undone:
            self.rolled_back.update(found)
        else:
            self.approved += found

    def cancel_one(self) -> None:
        """Ask for the end of something that may be anywhere by now."""
        if self.approved:
            self._system.owner.execute(
                "select relay.request_cancel(%s, 'changed our minds')",
                [self._draw.choice(self.approved)],
            )


class Operators:
    """Decide what is open, by what the provider says that it really has."""

    def __init__(self, system: System, draw: random.Random) -> None:
        self._system = system
        self._draw = draw
        self.decided: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def money(self) -> None:
        """Everybody may spend some more."""
        for owner in OWNERS:
            booked = self._system.one(
                "select coalesce(max(reserved + disputed + settled), 0) from relay.allowance"
                " where owner_id = %s",
                owner,
            )
            self._system.allow(str(booked + 20), owner)

    def decide(self, jobs: Jobs, at_most: int = 5) -> None:
        """Look at up to `at_most` open reviews."""
        asyncio.run(self._decide(jobs, at_most))

    async def _decide(self, jobs: Jobs, at_most: int) -> None:
        async with await psycopg.AsyncConnection.connect(
            self._system.database.url, autocommit=True
        ) as connection:
            for account in await accounts.accounts(connection):
                if account.paused_at is not None:
                    await accounts.resume(connection, account.provider, account.account)
                    self.decided["resumed an account"] += 1
            waiting = await reviews.waiting(connection, limit=200)
            for review in self._draw.sample(waiting, min(at_most, len(waiting))):
                sight = await reviews.sight(connection, review.review_id)
                await self._one(connection, sight, jobs.get(str(review.operation_id), {}))

    async def _one(
        self, connection: psycopg.AsyncConnection[Any], sight: reviews.Sight, jobs: Mapping[str, Decimal]
    ) -> None:
        review, phase = sight.review, sight.whole.operation.phase
        known = {job.job_id for job in sight.whole.jobs}
        fresh = next((job for job in jobs if job not in known), next(iter(jobs), None))
        more: dict[str, Any] = {}
        match review.kind, phase:
            case "hold", _:
                resolution = self._draw.choice([Resolution.RELEASE, Resolution.CANCEL, Resolution.REJECT])
            case _, "uncertain" if fresh is not None:
                resolution, more = Resolution.ACCEPTED, {"job_id": fresh}
            case _, "uncertain":
                resolution = self._draw.choice(
                    [Resolution.RESUBMIT, Resolution.NOT_ACCEPTED_REJECT, Resolution.NOT_ACCEPTED_CANCEL]
                )
            case "job_unknown", "accepted":
                resolution = Resolution.LOST
            case "id_with_error", _:
                resolution, more = Resolution.SETTLE, {"cost": sum(jobs.values(), Decimal(0))}
            case _:
                return  # it stays with the people
        decision = Decision(
            review_id=review.review_id,
            revision=review.revision,
            resolution=resolution,
            reason=REASON,
            actor="chaos@desk",
            **more,
        )
        try:
            with in_words():
                await reviews.resolve(connection, decision, evidence={"looked_up": more.get("job_id")})
        except Refused:
            self.refused[str(resolution)] += 1
        else:
            self.decided[str(resolution)] += 1
