"""Money that a person settles: what is disputed, what nothing that runs by itself will settle, and what was
settled wrongly. It asks no provider, and leaves alone what a claim, review or observation will still decide.
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

_SQL: Final = Queries("money")

Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """A reservation. `waits`: it stays booked until a person settles or refunds it."""

    owner_id: str
    unit: str
    operation_id: UUID
    operation_key: str
    phase: str
    attempt_id: UUID
    amount: Decimal
    state: str
    settled_amount: Decimal | None
    overrun: bool
    updated_at: datetime
    open_reviews: int
    outcome: str
    reason: str
    jobs: list[str] | None
    waits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What a settlement or refund changed: `before` and `settled` are what the attempt took, in `unit`."""

    operation_id: UUID
    attempt_id: UUID
    owner_id: str
    unit: str
    before: Decimal
    settled: Decimal


async def waiting(
    connection: Connection, *, owner_id: str | None = None, unit: str | None = None
) -> list[Booked]:
    """What waits for `relay budget settle` or `refund`, the oldest first."""
    found = await _reservations(connection, owner_id=owner_id, unit=unit)
    return [one for one in found if one.waits]


async def settle(connection: Connection, wanted: UUID, cost: Decimal, *, reason: str, actor: str) -> Moved:
    """Book `cost` for the attempt `wanted`, or for the one attempt of the operation `wanted` that it can be
    for. What is settled already is corrected. Raises Refused when that isn't possible."""
    async with connection.transaction():
        await connection.execute(_SQL["say_actor"], {"actor": actor})
        booked = await _one(connection, wanted)
        if booked.state == "settled" and booked.settled_amount == cost:
            raise Refused(
                f"Attempt {booked.attempt_id} is settled with {cost.normalize():f} {booked.unit} already.",
                meaning="Nothing was changed.",
            )
        query = "correct" if booked.state == "settled" else "settle"
        parameters = {"attempt_id": booked.attempt_id, "cost": cost, "reason": reason}
        await connection.execute(_SQL[query], parameters)
        return await _moved(connection, booked)


async def refund(
    connection: Connection, wanted: UUID, amount: Decimal | None, *, reason: str, actor: str
) -> Moved:
    """The provider gave `amount` back, or (None) all of it. Raises Refused as `settle` does."""
    async with connection.transaction():
        await connection.execute(_SQL["say_actor"], {"actor": actor})
        booked = await _one(connection, wanted)
        parameters = {"attempt_id": booked.attempt_id, "amount": amount, "reason": reason}
        await connection.execute(_SQL["refund"], parameters)
        return await _moved(connection, booked)


async def _one(connection: Connection, wanted: UUID) -> Booked:
    """The attempt that is meant, if its money is a person's to settle."""
    found = await _reservations(connection, wanted=wanted)
    if not found:
        raise Refused(
            f"Nothing is booked for {wanted}: it is neither an attempt with money nor an operation with one.",
            meaning="Nothing was changed.",
            remedy="`relay budget show --open` lists what waits, `relay ops show ID` what an operation has.",
        )
    named = [one for one in found if one.attempt_id == wanted]
    candidates = (
        named or [one for one in found if one.waits] or [one for one in found if one.state == "settled"]
    )
    if len(candidates) > 1:
        attempts = ", ".join(str(one.attempt_id) for one in candidates)
        raise Refused(
            f"The operation {wanted} has money booked for {len(candidates)} attempts: {attempts}.",
            meaning="Nothing was changed.",
            remedy="Name the attempt that it is about.",
        )
    booked = candidates[0] if candidates else found[0]
    if booked.state == "reserved" and not booked.waits:
        raise Refused(
            f"{booked.amount.normalize():f} {booked.unit} are reserved for attempt {booked.attempt_id}, whose"
            f" operation is {booked.phase}: what it costs is still to be seen.",
            meaning="Nothing was changed.",
            remedy=_instead(booked),
        )
    return booked


def _instead(booked: Booked) -> str:
    if booked.open_reviews:
        return f"Decide its review first: `relay review show {booked.operation_id}`."
    return f"Wait until it has ended: `relay ops show {booked.operation_id}`."


async def _moved(connection: Connection, was: Booked) -> Moved:
    (now,) = await _reservations(connection, wanted=was.attempt_id)
    before = was.settled_amount if was.settled_amount is not None else was.amount
    return Moved(
        operation_id=was.operation_id,
        attempt_id=was.attempt_id,
        owner_id=was.owner_id,
        unit=was.unit,
        before=Decimal(0) if was.state == "released" else before,
        settled=now.settled_amount or Decimal(0),
    )


async def _reservations(
    connection: Connection,
    *,
    wanted: UUID | None = None,
    owner_id: str | None = None,
    unit: str | None = None,
) -> list[Booked]:
    async with connection.cursor(row_factory=class_row(Booked)) as cursor:
        await cursor.execute(_SQL["reservations"], {"wanted": wanted, "owner_id": owner_id, "unit": unit})
        return await cursor.fetchall()
