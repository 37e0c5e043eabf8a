"""What an application calls to approve several operations together: make a batch, let operations join it
(`Intent.batch_id`), seal it. It calls the SQL functions and does nothing else, and never commits.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import psycopg

_COLUMNS: Final = "select batch_id, members, open_members, sealed_at, completed_at from "
_PREPARE: Final = _COLUMNS + (
    "relay.prepare_batch(owner_id => %s, batch_key => %s, unit => %s, max_cost => %s, max_in_flight => %s,"
    " requested_by => %s)"
)
_SEAL: Final = _COLUMNS + "relay.seal_batch(%s::uuid, %s::integer)"


@dataclass(frozen=True, slots=True)
class BatchIntent:
    """The arguments of `relay.prepare_batch`. `max_cost` limits what all members may cost together, in
    `unit`, and `max_in_flight` how many may run at the provider at once; None is no limit of its own. The
    owner's allowance limits them all the same."""

    owner_id: str
    batch_key: str
    unit: str = "credit"
    max_cost: Decimal | int | None = None
    max_in_flight: int | None = None
    requested_by: str | None = None

    def arguments(self) -> tuple[Any, ...]:
        """In the order of the SQL call."""
        return (
            self.owner_id,
            self.batch_key,
            self.unit,
            self.max_cost,
            self.max_in_flight,
            self.requested_by,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A member is open until it is final; one that succeeded, until its outputs are delivered.
    `completed_at` is when the last one ended after the seal; the event `batch.completed` says so once."""

    batch_id: UUID
    members: int
    open_members: int
    sealed_at: datetime | None
    completed_at: datetime | None


def prepare_batch(connection: psycopg.Connection[Any], intent: BatchIntent) -> Batch:
    """Make the batch in the open transaction, or return the one that the owner's key has. Raises psycopg's
    error with SQLSTATE OR001 when that was made with another unit or other limits."""
    row = connection.execute(_PREPARE, intent.arguments()).fetchone()
    return _batch(row)


def seal_batch(connection: psycopg.Connection[Any], batch_id: UUID, members: int | None = None) -> Batch:
    """Say that no other member will come. Raises psycopg's error with SQLSTATE OR010 unless there are exactly
    `members`, where that is given, and OR004 when there is no such batch."""
    return _batch(connection.execute(_SEAL, [str(batch_id), members]).fetchone())


async def prepare_batch_async(connection: psycopg.AsyncConnection[Any], intent: BatchIntent) -> Batch:
    """`prepare_batch` on an asynchronous connection."""
    return _batch(await (await connection.execute(_PREPARE, intent.arguments())).fetchone())


async def seal_batch_async(
    connection: psycopg.AsyncConnection[Any], batch_id: UUID, members: int | None = None
) -> Batch:
    """`seal_batch` on an asynchronous connection."""
    return _batch(await (await connection.execute(_SEAL, [str(batch_id), members])).fetchone())


def _batch(row: Any) -> Batch:
    if not isinstance(row, tuple):
        raise TypeError(f"relay.prepare_batch gave {type(row).__name__}; use rows that are tuples")
    return Batch(*row)
