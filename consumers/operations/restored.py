"""The tables' side of a reconciliation: what they know, and the few moves that only a reconciliation makes.
Each move is one transaction that may be made again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from consumers.operations.ground import Ground, say
from consumers.operations.lifecycle import Cause
from consumers.operations.lost import MAY_BE_SENT, Subject, Submission
from consumers.operations.queries import Queries

_SQL: Final = Queries("restored")

Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A relay of the outbox that operations write to."""

    relay_id: UUID
    epoch: int
    state: str
    unreconciled_since: datetime | None


async def sources(connection: Connection) -> list[Source]:
    """Those that this database knows, the one that verified last first."""
    async with connection.cursor(row_factory=class_row(Source)) as cursor:
        await cursor.execute(_SQL["sources"])
        return await cursor.fetchall()


async def gate(connection: Connection) -> str | None:
    """Why dispatch is closed."""
    row = await _one(connection, "gate", {})
    return None if row is None or row[0] is None else str(row[0])


async def lock(connection: Connection) -> bool:
    """Whether this session alone reconciles now. It lasts until the session ends."""
    row = await _one(connection, "lock", {})
    return bool(row and row[0])


async def requested(connection: Connection) -> list[str]:
    """The event types that ask for a submission."""
    return [row[0] for row in await _all(connection, "requested", {})]


async def without_post(connection: Connection) -> set[str]:
    """The kinds that never submit anything."""
    return {row[0] for row in await _all(connection, "without_post", {})}


async def known(
    connection: Connection, entries: Sequence[tuple[UUID, int]]
) -> dict[tuple[UUID, int], tuple[datetime, str]]:
    """Of these (operation, version): time and phase of the journal's entry, where there is one."""
    named = {"operation_ids": [one for one, _ in entries], "versions": [version for _, version in entries]}
    return {(row[0], row[1]): (row[2], row[3]) for row in await _all(connection, "known", named)}


async def subjects(
    connection: Connection, operation_ids: Sequence[UUID] | None = None
) -> dict[UUID, Subject]:
    """Operations with a POST as they are now: these, or all that aren't final."""
    async with connection.cursor(row_factory=class_row(Subject)) as cursor:
        named = None if operation_ids is None else list(operation_ids)
        await cursor.execute(_SQL["subjects"], {"operation_ids": named})
        return {one.operation_id: one async for one in cursor}


async def attempts_known(connection: Connection, attempt_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Outcome by id, of those that the tables have."""
    return dict(await _all(connection, "attempts_known", {"attempt_ids": list(attempt_ids)}))


async def operations_known(connection: Connection, operation_ids: Sequence[UUID]) -> set[UUID]:
    rows = await _all(connection, "operations_known", {"operation_ids": list(operation_ids)})
    return {row[0] for row in rows}


async def make_uncertain(
    connection: Connection,
    operation_id: UUID,
    submissions: Sequence[Submission],
    *,
    actor: str,
    why: str,
    late_delivery_s: float,
    review_deadline_s: float,
    told: Mapping[str, Any],
) -> bool:
    """Bring the lost submissions back with their money, and the operation to `uncertain` unless it is past
    that. False: it was all there already."""
    changed = False
    async with connection.transaction():
        row = await _one(connection, "lock_operation", {"operation_id": operation_id})
        if row is None:
            return False
        for one in submissions:
            restored = await _one(
                connection,
                "restore_attempt",
                {
                    "operation_id": operation_id,
                    "attempt_id": one.attempt_id,
                    "dispatch_no": one.dispatch_no,
                    "worker": one.worker or "unknown",
                    "sent_at": one.sent_at,
                    "spool": one.spool,
                    "late_delivery_s": late_delivery_s,
                    "reason": "restored",
                    "evidence": Jsonb({"restored": one.said} if one.reported else {}),
                },
            )
            new = bool(restored and restored[0])
            changed = changed or new
            if new and row[0] not in MAY_BE_SENT:
                about = {"operation_id": operation_id, "attempt_id": one.attempt_id}
                await connection.execute(_SQL["ask_about"], about | {"deadline_s": review_deadline_s})
        # A late answer of an attempt that the tables know is no new submission: its id, applied after this,
        # moves the operation by itself.
        named = {"attempt_ids": [one.attempt_id for one in submissions]}
        last = await _one(connection, "last_restored", named)
        if row[0] in MAY_BE_SENT and last is not None:
            ground = Ground(
                actor, Cause.RESTORED, why[:500], attempt_id=last[0], review_deadline_s=review_deadline_s
            )
            await say(connection, ground)
            await connection.execute(_SQL["to_uncertain"], {"operation_id": operation_id})
            changed = True
        await _tell(connection, operation_id, told)
    return changed


async def keep_job(connection: Connection, operation_id: UUID, attempt_id: UUID, job_id: str) -> bool:
    """Store an id that can't be applied now, as a candidate. False: it is known already."""
    named = {"operation_id": operation_id, "attempt_id": attempt_id, "job_id": job_id}
    return (await connection.execute(_SQL["keep_job"], named)).rowcount == 1


async def keep_held(
    connection: Connection, operation_id: UUID, *, actor: str, why: str, told: Mapping[str, Any]
) -> bool:
    """Leave it to a person, and say why. False: that is so already."""
    async with connection.transaction():
        row = await _one(connection, "lock_operation", {"operation_id": operation_id})
        if row is None:
            return False
        changed = False
        if row[0] == "prepared":
            await say(connection, Ground(actor, Cause.HOLD, why[:500]))
            await connection.execute(_SQL["hold"], {"operation_id": operation_id})
            changed = True
        return await _tell(connection, operation_id, told) or changed


async def release(connection: Connection, operation_id: UUID, *, actor: str, why: str) -> bool:
    """held(restored) → prepared, as the resolution of its review. False: it is no longer held so."""
    async with connection.transaction():
        row = await _one(connection, "lock_operation", {"operation_id": operation_id})
        if row != ("held", "restored"):
            return False
        named = {"operation_id": operation_id, "actor": actor, "reason": why}
        review = await _one(connection, "resolve_hold", named)
        await say(connection, Ground(actor, Cause.REVIEW, why, review_id=review[0] if review else None))
        await connection.execute(_SQL["release"], named)
    return True


async def tell_of_phantom(
    connection: Connection, operation_id: UUID, what: str, told: Mapping[str, Any]
) -> bool:
    """An incident for an operation that the tables don't have. False: it has one."""
    named = {"operation_id": operation_id, "what": what, "evidence": Jsonb(dict(told))}
    return (await connection.execute(_SQL["phantom"], named)).rowcount == 1


async def end(connection: Connection, since: datetime, actor: str) -> bool:
    """Open dispatch. False: another rewind was accepted meanwhile, or a repair is under way."""
    row = await _one(connection, "end", {"since": since, "actor": actor})
    return bool(row and row[0])


async def _tell(connection: Connection, operation_id: UUID, told: Mapping[str, Any]) -> bool:
    named = {"operation_id": operation_id, "told": Jsonb(dict(told))}
    return (await connection.execute(_SQL["tell_reviewers"], named)).rowcount > 0


async def _one(connection: Connection, query: str, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
    cursor = await connection.execute(_SQL[query], parameters)
    row: tuple[Any, ...] | None = await cursor.fetchone()
    return row


async def _all(connection: Connection, query: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(_SQL[query], parameters)
    return await cursor.fetchall()
