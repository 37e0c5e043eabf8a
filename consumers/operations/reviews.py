"""What waits for a person's decision, and the one transaction in which a decision takes effect: review, phase
and money change together or not at all. It never decides, and never asks a provider.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from consumers.operations import listing
from consumers.operations.decisions import (
    DISPUTES,
    NOT_ACCEPTED,
    TO,
    Decision,
    Refused,
    Resolution,
    judged,
    require_possible,
    told_of,
)
from consumers.operations.ground import Ground, say
from consumers.operations.lifecycle import Cause, Phase
from consumers.operations.queries import Queries
from consumers.operations.records import Review, Whole
from relay import failpoints

_SQL: Final = Queries("reviews")

Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An open review in the list, the most urgent first."""

    review_id: UUID
    operation_id: UUID
    kind: str
    severity: int
    revision: int
    opened_at: datetime
    deadline: datetime
    overdue: bool
    operation_kind: str
    owner_id: str
    operation_key: str
    phase: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sight:
    """A review with everything that is known of its operation: what a reviewer judges by."""

    review: Review
    whole: Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What took effect. `disputed` stays booked, in the operation's unit, until its cost is known."""

    review_id: UUID
    operation_id: UUID
    resolution: Resolution
    from_phase: str
    to_phase: str
    job_id: str | None
    disputed: Decimal


async def waiting(
    connection: Connection, *, kind: str | None = None, owner_id: str | None = None, limit: int
) -> list[Waiting]:
    """Open reviews, the most urgent first, at most `limit`."""
    async with connection.cursor(row_factory=class_row(Waiting)) as cursor:
        await cursor.execute(_SQL["open"], {"kind": kind, "owner_id": owner_id, "limit": limit})
        return await cursor.fetchall()


async def sight(connection: Connection, wanted: UUID) -> Sight:
    """The review `wanted`, or the review of the operation `wanted`. `connection` must have no open
    transaction. Raises Refused when there is none."""
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read, read only")
        review_id, operation_id = await _find(connection, wanted)
        seen = await listing.within(connection, operation_id)
    return Sight(seen.review(review_id), seen)


async def resolve(
    connection: Connection, decision: Decision, *, evidence: dict[str, Any] | None = None
) -> Resolved:
    """Let `decision` take effect, in one transaction; `evidence` is kept with the review.

    Raises Refused when the sight is stale, the phase is another, or what is known forbids it; psycopg's
    errors where the database refuses.
    """
    async with connection.transaction():
        await connection.execute(_SQL["durable"])
        _, operation_id = await _find(connection, decision.review_id)
        await connection.execute(_SQL["lock_operation"], {"operation_id": operation_id})
        seen = await listing.within(connection, operation_id)
        require_possible(seen, decision)
        try:
            resolved = await _Effect(connection, seen, decision, evidence or {}).take()
        except psycopg.errors.UniqueViolation as error:
            raise Refused(
                f"Another operation took the job {decision.job_id} at this very moment.",
                meaning="Nothing was changed.",
                remedy=f"`relay review show {decision.review_id}` shows how it is now.",
            ) from error
        failpoints.hit(failpoints.REVIEW_UNCOMMITTED)
    failpoints.hit(failpoints.REVIEW_RESOLVED)
    return resolved


class _Effect:
    """One decision against one operation, which is locked. Lives for one transaction."""

    def __init__(
        self, connection: Connection, seen: Whole, decision: Decision, evidence: dict[str, Any]
    ) -> None:
        self.connection = connection
        self.seen = seen
        self.decision = decision
        self.attempt = judged(seen, decision)
        if decision.resolution is Resolution.ACCEPTED:
            self.attempt = told_of(seen, decision.job_id) or self.attempt
        self.evidence = dict(evidence)

    async def take(self) -> Resolved:
        decision, operation = self.decision, self.seen.operation
        if decision.resolution is Resolution.ACCEPTED:
            await self._take_job()
        if decision.spool_lost:
            self.evidence["spool_lost"] = [
                str(one.attempt_id) for one in self.seen.attempts if one.undecided and not one.reported
            ]
        await self._resolve()
        disputed = await self._money()
        to_phase = TO.get(decision.resolution)
        if to_phase is not None:
            await self._move(to_phase)
        if decision.resolution is Resolution.ACCEPTED:
            await self._ask_about_others()
        return Resolved(
            review_id=decision.review_id,
            operation_id=operation.operation_id,
            resolution=decision.resolution,
            from_phase=operation.phase,
            to_phase=to_phase or operation.phase,
            job_id=decision.job_id if decision.resolution is Resolution.ACCEPTED else operation.job_id,
            disputed=disputed,
        )

    async def _take_job(self) -> None:
        decision = self.decision
        if not decision.job_id:
            raise Refused("The id of the accepted job is missing.", remedy="Say --job-id ID.")
        holder = await self._one("other_holder", job_id=decision.job_id)
        if holder is not None:
            await self._take_from(holder[0], decision.job_id)
        attempt_id = self.attempt.attempt_id if self.attempt else None
        await self._run("take_job", job_id=decision.job_id, attempt_id=attempt_id)
        if attempt_id is not None:
            await self._run("accept_attempt", attempt_id=attempt_id)

    async def _ask_about_others(self) -> None:
        """The job ends the question of one request; another that was sent may be paid for too."""
        for attempt in self.seen.attempts:
            if attempt.undecided and attempt is not self.attempt:
                await self._run("ask_about", attempt_id=attempt.attempt_id)

    async def _take_from(self, other: UUID, job_id: str) -> None:
        if not self.decision.override:
            raise Refused(
                f"The job {job_id} is operation {other}'s already.",
                meaning="One job can't be two operations' result; nothing was changed.",
                remedy="If it is this one's all the same, say --override with the reason.",
            )
        what = f"job {job_id} was given to operation {self.seen.operation.operation_id}"
        evidence = Jsonb(
            {"job_id": job_id, "why": self.decision.override, "review": str(self.decision.review_id)}
        )
        await self._run("make_way", job_id=job_id, operation_id=other)
        await self._run("open_collision", operation_id=other, evidence=evidence)
        await self._run("open_incident", operation_id=other, attempt_id=None, what=what, evidence=evidence)
        self.evidence["overrides"] = {"operation": str(other), "why": self.decision.override}

    async def _resolve(self) -> None:
        decision = self.decision
        done = await self._run(
            "resolve",
            review_id=decision.review_id,
            revision=decision.revision,
            resolution=decision.resolution,
            reason=decision.reason,
            actor=decision.actor,
            decision=Jsonb({"decision": self.evidence} if self.evidence else {}),
        )
        if done != 1:
            raise Refused(
                "The review changed at this very moment.",
                meaning="Nothing was changed by you.",
                remedy=f"`relay review show {decision.review_id}` shows how it is now.",
            )

    async def _money(self) -> Decimal:
        """Dispute what may have been charged, or settle; returns what was disputed now."""
        decision = self.decision
        if decision.resolution is Resolution.SETTLE:
            await self._settle()
        if decision.resolution not in DISPUTES:
            return Decimal(0)
        disputed = Decimal(0)
        reserved = {one.attempt_id: one.amount for one in self.seen.reservations if one.state == "reserved"}
        for attempt in self.seen.attempts:
            if decision.resolution in NOT_ACCEPTED and attempt.undecided:
                await self._run(
                    "release_attempt", attempt_id=attempt.attempt_id, review_id=decision.review_id
                )
            if attempt.attempt_id in reserved:
                await self._run(
                    "dispute", attempt_id=attempt.attempt_id, reason=f"review: {decision.resolution}"
                )
                disputed += reserved[attempt.attempt_id]
        return disputed

    async def _settle(self) -> None:
        if self.decision.cost is None:
            raise Refused("What the job cost is missing.", remedy="Say --cost AMOUNT.")
        if self.attempt is None:
            raise Refused(
                "No attempt of this operation can have cost anything.", meaning="Nothing was changed."
            )
        await self._run(
            "settle", attempt_id=self.attempt.attempt_id, cost=self.decision.cost, reason=self.decision.reason
        )

    async def _move(self, to_phase: Phase) -> None:
        decision = self.decision
        await say(
            self.connection,
            Ground(
                decision.actor,
                Cause.REVIEW,
                decision.reason,
                attempt_id=self.attempt.attempt_id if self.attempt else None,
                review_id=decision.review_id,
            ),
        )
        accepted = decision.resolution is Resolution.ACCEPTED
        moved = await self._run(
            "move",
            from_phase=self.seen.operation.phase,
            to_phase=to_phase,
            phase_reason=f"review:{decision.resolution}",
            job_id=decision.job_id if accepted else None,
        )
        if moved != 1:
            raise RuntimeError(f"operation {self.seen.operation.operation_id} moved although it is locked")

    async def _run(self, query: str, **more: Any) -> int:
        cursor = await self.connection.execute(_SQL[query], self._named(more))
        return cursor.rowcount

    async def _one(self, query: str, **more: Any) -> tuple[Any, ...] | None:
        cursor = await self.connection.execute(_SQL[query], self._named(more))
        row: tuple[Any, ...] | None = await cursor.fetchone()
        return row

    def _named(self, more: dict[str, Any]) -> dict[str, Any]:
        operation = self.seen.operation
        return {
            "operation_id": operation.operation_id,
            "provider_account": operation.provider_account,
        } | more


async def _find(connection: Connection, wanted: UUID) -> tuple[UUID, UUID]:
    row = await (await connection.execute(_SQL["find"], {"wanted": wanted})).fetchone()
    if row is None:
        raise Refused(
            f"There is no review {wanted}, and no review of an operation with that id.",
            remedy="`relay review list` shows what waits for a decision.",
        )
    return row[0], row[1]
