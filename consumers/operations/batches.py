"""Batches as people see them: what keeps one open, what it has booked, and its limits. Its members are moved
by nothing here.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from consumers.operations.decisions import Refused
from consumers.operations.queries import Queries

_SQL: Final = Queries("batches")

Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Amounts in `unit`; a limit of None is none."""

    batch_id: UUID
    owner_id: str
    batch_key: str
    unit: str
    max_cost: Decimal | None
    max_in_flight: int | None
    members: int
    open_members: int
    in_flight: int
    reserved: Decimal
    disputed: Decimal
    settled: Decimal
    created_at: datetime
    created_by: str
    sealed_at: datetime | None
    completed_at: datetime | None

    @property
    def state(self) -> str:
        if self.completed_at is not None:
            return "completed"
        return "open" if self.sealed_at is None else "sealed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How many members are in a phase, and what they are held for, if they are."""

    phase: str
    held_for: str | None
    operations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMember:
    """A member that keeps its batch open; where `delivery` is given, phase and reason are the delivery's."""

    operation_id: UUID
    operation_key: str
    phase: str
    reason: str
    open_reviews: int
    delivery: UUID | None
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeBatch:
    """`history` says who changed its limits, when and why."""

    batch: Batch
    phases: list[Counted]
    deliveries: dict[str, int]
    open: list[OpenMember]
    history: list[dict[str, Any]]


async def batches(
    connection: Connection, *, owner_id: str | None = None, only_open: bool = False, limit: int
) -> list[Batch]:
    """The newest first, at most `limit`."""
    named = {"owner_id": owner_id, "batch_id": None, "open": only_open, "limit": limit}
    return await _rows(connection, "batches", Batch, named)


async def whole(connection: Connection, batch_id: UUID, *, limit: int) -> WholeBatch:
    """Everything of one batch, in one snapshot, with at most `limit` open members. Raises Refused when there
    is none."""
    named = {"owner_id": None, "batch_id": batch_id, "open": False, "limit": limit}
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read, read only")
        found: list[Batch] = await _rows(connection, "batches", Batch, named)
        if not found:
            raise _no_batch(batch_id)
        deliveries = await (await connection.execute(_SQL["deliveries"], named)).fetchall()
        ((history,),) = await (await connection.execute(_SQL["history"], named)).fetchall()
        return WholeBatch(
            batch=found[0],
            phases=await _rows(connection, "phases", Counted, named),
            deliveries=dict(deliveries),
            open=await _rows(connection, "open_members", OpenMember, named),
            history=history,
        )


async def set_limits(
    connection: Connection,
    batch_id: UUID,
    *,
    max_cost: Decimal | None,
    max_in_flight: int | None,
    reason: str,
    actor: str,
) -> Batch:
    """Set both limits; None is none. Raises psycopg's errors: OR004 when there is no such batch."""
    async with connection.transaction():
        await connection.execute(_SQL["say_actor"], {"actor": actor})
        named = {"batch_id": batch_id, "max_cost": max_cost, "max_in_flight": max_in_flight, "reason": reason}
        await connection.execute(_SQL["set_limits"], named)
        (changed,) = await _rows(
            connection, "batches", Batch, {"owner_id": None, "batch_id": batch_id, "open": False, "limit": 1}
        )
    made: Batch = changed
    return made


def _no_batch(batch_id: UUID) -> Refused:
    return Refused(f"There is no batch {batch_id}.", remedy="`relay batch list` shows what there is.")


async def _rows(connection: Connection, query: str, row: type[Any], named: dict[str, Any]) -> list[Any]:
    async with connection.cursor(row_factory=class_row(row)) as cursor:
        await cursor.execute(_SQL[query], named)
        return await cursor.fetchall()
