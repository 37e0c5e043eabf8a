"""Incidents as people see and close them: the boundary that was crossed, the evidence, the decision. It opens
none, and what was decided once stays.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from consumers.operations.boundaries import Boundary
from consumers.operations.decisions import Refused
from consumers.operations.queries import Queries

_SQL: Final = Queries("incidents")

Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """An incident with whose it is. `open_reviews` are those of its operation: one may answer it."""

    incident_id: UUID
    operation_id: UUID
    attempt_id: UUID | None
    boundary: str
    what: str
    evidence: dict[str, Any]
    opened_at: datetime
    kind: str
    owner_id: str
    operation_key: str
    phase: str
    decision: str | None
    decided_by: str | None
    decided_at: datetime | None
    decided_by_review: UUID | None
    open_reviews: list[UUID] | None


async def incidents(
    connection: Connection,
    *,
    decided: bool = False,
    boundary: Boundary | None = None,
    owner_id: str | None = None,
    operation_id: UUID | None = None,
    limit: int,
) -> list[Happened]:
    """At most `limit`; those with a decision only where `decided`."""
    return await _read(
        connection,
        incident_id=None,
        operation_id=operation_id,
        owner_id=owner_id,
        boundary=boundary,
        decided=decided,
        limit=limit,
    )


async def incident(connection: Connection, incident_id: UUID) -> Happened:
    """Raises Refused when there is none."""
    found = await _read(
        connection,
        incident_id=incident_id,
        operation_id=None,
        owner_id=None,
        boundary=None,
        decided=True,
        limit=1,
    )
    if not found:
        raise Refused(
            f"There is no incident {incident_id}.", remedy="`relay incident list --all` shows what there is."
        )
    return found[0]


async def close(connection: Connection, incident_id: UUID, *, decision: str, actor: str) -> Happened:
    """Record what became of it, once. Raises Refused when there is no such incident, or it has its decision;
    psycopg's errors where the database refuses."""
    async with connection.transaction():
        await incident(connection, incident_id)
        done = await connection.execute(
            _SQL["decide"], {"incident_id": incident_id, "decision": decision, "actor": actor}
        )
        seen = await incident(connection, incident_id)
    if done.rowcount != 1:
        raise Refused(
            f"The incident {incident_id} was closed by {seen.decided_by} already: {seen.decision}",
            meaning="A decision is kept as it is; nothing was changed.",
        )
    return seen


async def _read(connection: Connection, **parameters: Any) -> list[Happened]:
    async with connection.cursor(row_factory=class_row(Happened)) as cursor:
        await cursor.execute(_SQL["incidents"], parameters)
        return await cursor.fetchall()
