"""What waits for a person's decision, and the one transaction in which a decision takes effect: review, phase
and money change together or not at all. It never decides, and never asks a provider.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from consumers.operations import listing
from consumers.operations.decisions import Decision, Refused, require_possible
from consumers.operations.effects import Effect, Resolved
from consumers.operations.queries import Queries
from consumers.operations.records import Review, Whole
from relay import failpoints

_SQL: Final = Queries("reviews")

DEADLOCKS: Final = 3
"""Of two decisions that take each other's jobs one is ended by the server, and taken again."""

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
    for _ in range(DEADLOCKS):
        try:
            return await _resolve(connection, decision, evidence or {})
        except psycopg.errors.DeadlockDetected:
            # Nothing was changed, and what is seen next is judged anew: a sight that is stale by then decides
            # nothing.
            continue
    return await _resolve(connection, decision, evidence or {})


async def _resolve(connection: Connection, decision: Decision, evidence: dict[str, Any]) -> Resolved:
    async with connection.transaction():
        await connection.execute(_SQL["durable"])
        _, operation_id = await _find(connection, decision.review_id)
        await _lock(connection, operation_id, decision.job_id)
        seen = await listing.within(connection, operation_id)
        require_possible(seen, decision)
        try:
            resolved = await Effect(connection, seen, decision, evidence).take()
        except psycopg.errors.UniqueViolation as error:
            raise Refused(
                f"Another operation took the job {decision.job_id} at this very moment.",
                meaning="Nothing was changed.",
                remedy=f"`relay review show {decision.review_id}` shows how it is now.",
            ) from error
        failpoints.hit(failpoints.REVIEW_UNCOMMITTED)
    failpoints.hit(failpoints.REVIEW_RESOLVED)
    return resolved


async def ask_again(connection: Connection, wanted: UUID) -> UUID:
    """Have the provider asked about an open review once more, by whoever collects. Returns its id. Raises
    Refused when there is no such review, or it is closed."""
    async with connection.transaction():
        review_id, operation_id = await _find(connection, wanted)
        await _lock(connection, operation_id)
        done = await connection.execute(_SQL["ask_again"], {"review_id": review_id})
        if done.rowcount != 1:
            raise Refused(f"The review {review_id} is closed: there is nothing left to ask.")
        await connection.execute(_SQL["emit_evidence"], {"review_id": review_id})
    return review_id


async def _lock(connection: Connection, operation_id: UUID, job_id: str | None = None) -> None:
    """The operation, and those that have the job `job_id`."""
    await connection.execute(_SQL["lock_operations"], {"operation_id": operation_id, "job_id": job_id})


async def _find(connection: Connection, wanted: UUID) -> tuple[UUID, UUID]:
    row = await (await connection.execute(_SQL["find"], {"wanted": wanted})).fetchone()
    if row is None:
        raise Refused(
            f"There is no review {wanted}, and no review of an operation with that id.",
            remedy="`relay review list` shows what waits for a decision.",
        )
    return row[0], row[1]
