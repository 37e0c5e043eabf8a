"""Allowances as people see and set them. Every amount is in a named unit; setting a limit is written to the
ledger with who and why, and never touches what is reserved, disputed or settled.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from consumers.operations.queries import Queries

_SQL: Final = Queries("money")

Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What an owner may spend in `unit`, all told. `available` may be below zero: after an overrun, or when
    the limit was lowered. `overrun` stops the owner's claims until the limit is set again."""

    owner_id: str
    unit: str
    limit_amount: Decimal
    reserved: Decimal
    disputed: Decimal
    settled: Decimal
    available: Decimal
    overrun: bool
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Operations of an owner that wait for money, and their maximum costs together."""

    owner_id: str
    unit: str
    operations: int
    amount: Decimal


async def allowances(
    connection: Connection, *, owner_id: str | None = None, unit: str | None = None
) -> list[Allowance]:
    async with connection.cursor(row_factory=class_row(Allowance)) as cursor:
        await cursor.execute(_SQL["allowances"], {"owner_id": owner_id, "unit": unit})
        return await cursor.fetchall()


async def held(connection: Connection, *, owner_id: str | None = None) -> list[Held]:
    async with connection.cursor(row_factory=class_row(Held)) as cursor:
        await cursor.execute(_SQL["held"], {"owner_id": owner_id})
        return await cursor.fetchall()


async def set_limit(
    connection: Connection, owner_id: str, unit: str, limit: Decimal, *, reason: str, actor: str
) -> Allowance:
    """Allow `owner_id` to spend up to `limit`, what is booked already included, and clear an overrun. A limit
    below what is booked only stops new claims. Raises psycopg's errors."""
    async with connection.transaction():
        await connection.execute(_SQL["say_actor"], {"actor": actor})
        async with connection.cursor(row_factory=class_row(Allowance)) as cursor:
            await cursor.execute(
                _SQL["set"], {"owner_id": owner_id, "unit": unit, "limit": limit, "reason": reason}
            )
            made = await cursor.fetchone()
    if made is None:
        raise RuntimeError("relay.set_allowance returned no row")
    return made
