"""What `relay schedule` does to operations: leases that ran out, events that are due, holds that pass by
themselves, reviews past their deadline. It sends nothing and decides nothing that needs evidence.

Every function may run in two processes at once: a row that somebody else holds is left to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from consumers.operations.ground import Ground, say
from consumers.operations.lifecycle import Cause, Hold, Phase
from consumers.operations.queries import Queries
from relay import failpoints

_SQL: Final = Queries("due")

FORGET_S: Final = 86_400.0
"""An open GET or download this old belongs to a process that is gone: no deadline of a profile is as long."""
MOST_SEVERE: Final = 5
"""A review that nobody answers for four deadlines isn't made more urgent by a fifth."""

_Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOut:
    """A claim whose lease ran out."""

    operation_id: UUID
    phase: str
    token: UUID
    lifecycle: str
    provider: str | None
    profile_digest: str | None


@dataclass(frozen=True, slots=True)
class Wallet:
    """An owner with something held for its allowance. `room` is what may still be reserved, None: nothing."""

    owner_id: str
    unit: str
    room: Decimal | None


@dataclass(frozen=True, slots=True)
class Crowded:
    """A batch with members held for its limits. `room` is what it may still reserve, `places` how many more
    may be in flight; None: no such limit."""

    batch_id: UUID
    room: Decimal | None
    places: int | None


@dataclass(frozen=True, slots=True)
class Abandoned:
    """An attempt that is open although its claim is over."""

    attempt_id: UUID
    operation_id: UUID
    action: str


@dataclass(frozen=True, slots=True)
class Escalated:
    """A review whose deadline passed once more."""

    review_id: UUID
    operation_id: UUID
    kind: str
    severity: int


# Leases ----------------------------------------------------------------------------------------------


async def leases_run_out(connection: _Connection, limit: int) -> list[RunOut]:
    async with connection.cursor(row_factory=class_row(RunOut)) as cursor:
        await cursor.execute(_SQL["leases_run_out"], {"limit": limit})
        return await cursor.fetchall()


async def expire(
    connection: _Connection, lease: RunOut, actor: str, review_deadline_s: float | None
) -> Phase | None:
    """End a claim whose lease ran out: `submitting` becomes uncertain, since the request may have arrived;
    `claimed` becomes prepared, since nothing can have been sent. None: somebody else moved it."""
    claim = {"operation_id": lease.operation_id, "token": lease.token, "phase": lease.phase}
    to_phase = Phase.UNCERTAIN if lease.phase == Phase.SUBMITTING else Phase.PREPARED
    async with connection.transaction():
        if await _one(connection, "lock_run_out", claim) is None:
            return None
        await connection.execute(
            _SQL["attempt_unknown"], {"attempt_id": lease.token, "reason": "lease_expired"}
        )
        backing = lease.token if lease.phase == Phase.SUBMITTING else None
        await say(
            connection,
            Ground(
                actor,
                Cause.LEASE_EXPIRED,
                "the lease ran out",
                attempt_id=backing,
                review_deadline_s=review_deadline_s,
            ),
        )
        await connection.execute(_SQL["lease_expired"], claim | {"to_phase": to_phase})
        failpoints.hit(failpoints.SCHEDULE_LEASE_UNCOMMITTED)
    return to_phase


# Events ----------------------------------------------------------------------------------------------


async def due(connection: _Connection, phase: Phase, limit: int) -> list[UUID]:
    """Operations in `phase`, prepared or accepted, whose next event is due; the longest first."""
    cursor = await connection.execute(_SQL["due"], {"phase": phase, "limit": limit})
    return [operation_id for (operation_id,) in await cursor.fetchall()]


async def emit_due(connection: _Connection, operation_ids: Sequence[UUID]) -> int:
    """Write the events of those that are still due, in one transaction. Returns how many."""
    async with connection.transaction():
        row = await _one(connection, "emit_due", {"operation_ids": list(operation_ids)})
        failpoints.hit(failpoints.SCHEDULE_EVENTS_UNCOMMITTED)
    return int(row[0]) if row is not None else 0


# Holds -----------------------------------------------------------------------------------------------


async def unpaused(connection: _Connection, limit: int) -> list[UUID]:
    """Operations held for a pause that is over, in the order in which they were held."""
    cursor = await connection.execute(_SQL["unpaused"], {"limit": limit})
    return [operation_id for (operation_id,) in await cursor.fetchall()]


async def wallets(connection: _Connection, limit: int) -> list[Wallet]:
    cursor = await connection.execute(_SQL["wallets"], {"limit": limit})
    return [Wallet(owner_id, unit, room) for owner_id, unit, room in await cursor.fetchall()]


async def held_for_allowance(
    connection: _Connection, wallet: Wallet, limit: int
) -> list[tuple[UUID, Decimal]]:
    """What of the owner's is held for the allowance and would fit alone: id and maximum cost, in order."""
    cursor = await connection.execute(
        _SQL["held_for_allowance"],
        {"owner_id": wallet.owner_id, "unit": wallet.unit, "room": wallet.room, "limit": limit},
    )
    return await cursor.fetchall()


async def batches(connection: _Connection, limit: int) -> list[Crowded]:
    cursor = await connection.execute(_SQL["batches"], {"limit": limit})
    return [Crowded(*row) for row in await cursor.fetchall()]


async def held_for_batch(connection: _Connection, batch: Crowded, limit: int) -> list[tuple[UUID, Decimal]]:
    """Its members that are held for its limits and would fit alone: id and maximum cost, in order."""
    cursor = await connection.execute(
        _SQL["held_for_batch"], {"batch_id": batch.batch_id, "room": batch.room, "limit": limit}
    )
    return await cursor.fetchall()


async def release(connection: _Connection, operation_id: UUID, hold: Hold, actor: str) -> bool:
    """held → prepared, its event with it. False: somebody else moved it, or is about to."""
    named = {"operation_id": operation_id, "reason": str(hold)}
    async with connection.transaction():
        if await _one(connection, "lock_held", named) is None:
            return False
        await say(connection, Ground(actor, Cause.RELEASE, f"no longer held for {hold}"))
        done = await connection.execute(_SQL["release"], named)
        failpoints.hit(failpoints.SCHEDULE_RELEASE_UNCOMMITTED)
    return done.rowcount == 1


async def postpone(connection: _Connection, hold: Hold, limit: int, wallet: Wallet | None = None) -> int:
    """Look again later at what stays held: of `wallet`, for batches, or for accounts still paused."""
    async with connection.transaction():
        done = await connection.execute(
            _SQL["postpone_held"],
            {
                "reason": str(hold),
                "limit": limit,
                "owner_id": wallet.owner_id if wallet else None,
                "unit": wallet.unit if wallet else None,
            },
        )
    return done.rowcount


# Attempts and reviews --------------------------------------------------------------------------------


async def abandoned(connection: _Connection, limit: int) -> list[Abandoned]:
    cursor = await connection.execute(_SQL["abandoned"], {"limit": limit, "forget_s": FORGET_S})
    return [Abandoned(*row) for row in await cursor.fetchall()]


async def close_abandoned(connection: _Connection, attempt: Abandoned) -> bool:
    """open → unknown. A submission's opens an incident and a review: its sender will never tell whether it
    made a job, and its money stays reserved until a person says what it cost."""
    named = {"attempt_id": attempt.attempt_id, "operation_id": attempt.operation_id}
    async with connection.transaction():
        row = await _one(connection, "lock_operation", named)
        if row is None or row[0] == attempt.attempt_id:
            return False
        done = await connection.execute(_SQL["attempt_unknown"], named | {"reason": "abandoned"})
        if done.rowcount and attempt.action == "submit":
            await connection.execute(_SQL["open_incident"], named)
            await connection.execute(_SQL["open_review"], named)
    return done.rowcount == 1


async def escalate(connection: _Connection, limit: int) -> list[Escalated]:
    """Raise the severity of reviews once for each deadline that passed. Changes no phase."""
    async with connection.transaction():
        cursor = await connection.execute(_SQL["escalate"], {"limit": limit, "most": MOST_SEVERE})
        return [Escalated(*row) for row in await cursor.fetchall()]


async def evidence_due(connection: _Connection, limit: int) -> list[tuple[UUID, UUID]]:
    """Open reviews, each with its operation, about which the provider is to be asked (again)."""
    cursor = await connection.execute(_SQL["evidence_due"], {"limit": limit})
    return await cursor.fetchall()


async def emit_evidence(connection: _Connection, review_id: UUID) -> bool:
    """Write the event that asks for evidence. False: somebody else did, or the review is closed."""
    async with connection.transaction():
        row = await _one(connection, "emit_evidence", {"review_id": review_id})
    return row is not None and row[0] is not None


# Health ----------------------------------------------------------------------------------------------


async def overdue(connection: _Connection, bound_s: float) -> tuple[int, float]:
    """How many operations have been due for longer than `bound_s`, and for how many seconds the oldest."""
    row = await _one(connection, "overdue", {"bound_s": bound_s})
    return (int(row[0]), float(row[1])) if row is not None else (0, 0.0)


async def _one(connection: _Connection, query: str, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
    cursor = await connection.execute(_SQL[query], parameters)
    row: tuple[Any, ...] | None = await cursor.fetchone()
    return row
