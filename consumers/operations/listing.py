"""Operations as a person looks at them: a list, and one with everything that is known of it. It only reads,
and never gives out a payload or an output's URL.
"""

from typing import Any, Final, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from consumers.operations.decisions import Refused
from consumers.operations.queries import Queries
from consumers.operations.records import (
    Attempt,
    Entry,
    Incident,
    Job,
    Operation,
    Output,
    Reservation,
    Review,
    Whole,
)

_SQL: Final = Queries("listing")

Connection = psycopg.AsyncConnection[Any]
Row = TypeVar("Row")


async def operations(
    connection: Connection, *, phase: str | None = None, owner_id: str | None = None, limit: int
) -> list[Operation]:
    """The operations that moved last, at most `limit`."""
    return await _rows(
        connection, "operations", Operation, phase=phase, owner_id=owner_id, operation_id=None, limit=limit
    )


async def phases(connection: Connection, *, owner_id: str | None = None) -> dict[str, int]:
    """How many operations there are in each phase."""
    cursor = await connection.execute(_SQL["phases"], {"owner_id": owner_id})
    return dict(await cursor.fetchall())


async def whole(connection: Connection, operation_id: UUID) -> Whole:
    """Everything known of one operation. `connection` must have no open transaction. Raises Refused when
    there is no such operation."""
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read, read only")
        return await within(connection, operation_id)


async def within(connection: Connection, operation_id: UUID) -> Whole:
    """`whole`, as the open transaction of `connection` sees it."""
    found = await _rows(
        connection, "operations", Operation, phase=None, owner_id=None, operation_id=operation_id, limit=1
    )
    if not found:
        raise Refused(
            f"There is no operation {operation_id}.", remedy="`relay ops list` shows what there is."
        )
    named = {"operation_id": operation_id}
    (read_at,) = (await (await connection.execute(_SQL["now"])).fetchall())[0]
    deliveries = await (await connection.execute(_SQL["deliveries"], named)).fetchall()
    return Whole(
        read_at=read_at,
        operation=found[0],
        journal=tuple(await _rows(connection, "journal", Entry, **named)),
        attempts=tuple(await _rows(connection, "attempts", Attempt, **named)),
        jobs=tuple(await _rows(connection, "jobs", Job, **named)),
        reservations=tuple(await _rows(connection, "reservations", Reservation, **named)),
        outputs=tuple(await _rows(connection, "outputs", Output, **named)),
        reviews=tuple(await _rows(connection, "reviews", Review, **named)),
        incidents=tuple(await _rows(connection, "incidents", Incident, **named)),
        deliveries=tuple(delivery for (delivery,) in deliveries),
    )


async def _rows(connection: Connection, query: str, row: type[Row], **parameters: Any) -> list[Row]:
    async with connection.cursor(row_factory=class_row(row)) as cursor:
        await cursor.execute(_SQL[query], parameters)
        return await cursor.fetchall()
