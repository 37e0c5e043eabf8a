"""Declared replays: an unknown submission is prepared again, to be sent with the same key and the same bytes,
where its profile declares that the provider keeps keys, and while it certainly does. It sends nothing.

The database has the last word on each of these: here, at the claim, and once more before the first byte.
"""

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg

from consumers.operations.ground import Ground, say
from consumers.operations.lifecycle import Cause, Phase
from consumers.operations.queries import Queries

_SQL: Final = Queries("due")

_Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class Replay:
    """An operation with a request of which nothing is known, and a replay that is due or may be too late."""

    operation_id: UUID
    phase: str


async def replays_due(connection: _Connection, limit: int) -> list[Replay]:
    cursor = await connection.execute(_SQL["replays_due"], {"limit": limit})
    return [Replay(*row) for row in await cursor.fetchall()]


async def replay(
    connection: _Connection, due: Replay, actor: str, review_deadline_s: float | None
) -> tuple[Phase | None, str]:
    """uncertain → prepared, or back again where it is too late. Returns the phase that it was moved to, None
    where it stays, and why."""
    named = {"operation_id": due.operation_id}
    async with connection.transaction():
        cursor = await connection.execute(_SQL["lock_replay"], {**named, "phase": due.phase})
        row = await cursor.fetchone()
        if row is None:
            return None, "somebody else is at it"
        why_not, unknown, for_now = row
        if due.phase == Phase.PREPARED:
            if why_not is None:
                return None, "its event is written again"
            ground = Ground(
                actor, Cause.UNREPLAYED, why_not, attempt_id=unknown, review_deadline_s=review_deadline_s
            )
            await say(connection, ground)
            await connection.execute(_SQL["unreplay"], named)
            return Phase.UNCERTAIN, why_not
        if why_not is not None or unknown is None:
            await connection.execute(_SQL["end_replays"], named)
            return None, why_not or "nothing was sent of which the outcome is unknown"
        if for_now:
            await connection.execute(_SQL["postpone_replay"], named)
            return None, "its provider is paused, or dispatch is closed"
        await say(connection, Ground(actor, Cause.REPLAY, "the profile declares it", attempt_id=unknown))
        await connection.execute(_SQL["replay"], named)
    return Phase.PREPARED, "replayed"
