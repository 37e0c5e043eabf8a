"""Holds ledger, reservations and what providers charged against each other, operation by operation. It only
reads: what differs is a person's to settle.
"""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from consumers.operations.audit import Invariant, findings
from consumers.operations.queries import Queries
from consumers.operations.settlements import Booked, waiting

_SQL: Final = Queries("money")

Connection = psycopg.AsyncConnection[Any]


class Kind(StrEnum):
    LEDGER = "ledger"
    """Allowance, reservations and ledger don't add up: somebody went round the functions that move money."""
    CHARGE = "charge"
    """What is booked for an attempt isn't what its jobs cost."""
    UNBOOKED = "unbooked"
    """A job cost something, and nothing is booked for it."""
    OPEN = "open"
    """It stays booked until a person settles or refunds it: no fault, a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`operation_id` is None where it is about an allowance. `run` is the command that would settle it."""

    kind: Kind
    owner_id: str | None
    operation_id: UUID | None
    attempt_id: UUID | None
    what: str
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Charge:
    operation_id: UUID
    attempt_id: UUID
    owner_id: str
    unit: str
    amount: Decimal
    state: str
    settled_amount: Decimal | None
    charged: Decimal
    known: bool
    phase: str
    provider: str
    profile_digest: str
    jobs: list[str]
    by_hand: bool


@dataclass(frozen=True, slots=True)
class _Unbooked:
    operation_id: UUID
    owner_id: str
    unit: str
    job_id: str
    cost: Decimal


async def reconcile(
    connection: Connection, *, owner_id: str | None = None, unit: str | None = None
) -> list[Difference]:
    """Every difference, in one snapshot; of one owner or unit where given (the ledger's are always of all).
    `connection` must have no open transaction. Raises psycopg's errors."""
    named = {"owner_id": owner_id, "unit": unit}
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read, read only")
        found = [
            Difference(
                kind=Kind.LEDGER,
                owner_id=None,
                operation_id=finding.operation_id,
                attempt_id=None,
                what=finding.what,
                run="relay ops audit",
            )
            for finding in await findings(connection, frozenset({Invariant.MONEY}))
        ]
        for charge in await _rows(connection, "charges", _Charge, named):
            difference = _of_charge(charge)
            if difference is not None:
                found.append(difference)
        found += [_of_job(job) for job in await _rows(connection, "unbooked_jobs", _Unbooked, named)]
        explained = {one.attempt_id for one in found}
        found += [
            _of_open(booked)
            for booked in await waiting(connection, owner_id=owner_id, unit=unit)
            if booked.attempt_id not in explained
        ]
    return found


def _of_charge(charge: _Charge) -> Difference | None:
    jobs = ", ".join(charge.jobs)
    settle = f"relay budget settle {charge.attempt_id} {charge.charged.normalize():f} --reason '…'"
    if charge.state == "settled":
        settled = charge.settled_amount or Decimal(0)
        if charge.by_hand or not charge.known or settled == charge.charged:
            return None
        what = (
            f"its job {jobs} cost {charge.charged.normalize():f} {charge.unit}, and"
            f" {settled.normalize():f} are settled"
        )
    elif charge.charged > 0 and charge.phase != "accepted":
        what = (
            f"its job {jobs} cost {charge.charged.normalize():f} {charge.unit}, and"
            f" {charge.amount.normalize():f} are {charge.state}"
        )
    else:
        return None
    return Difference(
        kind=Kind.CHARGE,
        owner_id=charge.owner_id,
        operation_id=charge.operation_id,
        attempt_id=charge.attempt_id,
        what=what,
        run=settle,
    )


def _of_job(job: _Unbooked) -> Difference:
    return Difference(
        kind=Kind.UNBOOKED,
        owner_id=job.owner_id,
        operation_id=job.operation_id,
        attempt_id=None,
        what=f"its job {job.job_id} cost {job.cost.normalize():f} {job.unit}, and nothing is booked for it",
        run=f"relay ops show {job.operation_id}",
    )


def _of_open(booked: Booked) -> Difference:
    return Difference(
        kind=Kind.OPEN,
        owner_id=booked.owner_id,
        operation_id=booked.operation_id,
        attempt_id=booked.attempt_id,
        what=f"{booked.amount.normalize():f} {booked.unit} are {booked.state} ({booked.phase}):"
        f" {why(booked)}",
        run=f"relay budget settle {booked.attempt_id} COST --reason '…'",
    )


def why(booked: Booked) -> str:
    """Why a person is asked, in words."""
    if booked.outcome == "refused":
        return f"the provider refused it, and may have charged for it: {booked.reason}"
    if booked.jobs:
        return f"nothing says what the job {', '.join(booked.jobs)} cost"
    return "whether a job came of it was never proven"


async def _rows(connection: Connection, query: str, row: type[Any], named: dict[str, Any]) -> list[Any]:
    async with connection.cursor(row_factory=class_row(row)) as cursor:
        await cursor.execute(_SQL[query], named)
        return await cursor.fetchall()
