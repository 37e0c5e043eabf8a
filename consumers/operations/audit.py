"""Holds what is in the tables against what may be there, as far as the tables alone can tell. It only reads,
trusts no guard (an owner can switch them off), and uses its own hash rather than the database's.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import psycopg

from consumers.operations.queries import Queries
from consumers.operations.specification import content_of, specification_hash

_SQL: Final = Queries("audit")

OVERDUE_S: Final = 300.0
"""What has been due for longer was overlooked: schedule looks every second, and emits again every minute."""
_ROWS_AT_ONCE: Final = 500
"""Payloads may be large; the server hands them out in portions of this many rows."""

Connection = psycopg.AsyncConnection[Any]


class Invariant(StrEnum):
    """What a finding breaks; the numbers are those of the invariants that `relay demo` checks."""

    SPECIFICATION = "specification"
    """What was approved is what is stored: hash and payload belong together."""
    REDACTION = "redaction"
    """What is redacted is blank, and its journal says who did it."""
    JOURNAL = "journal"
    """2: the journal has versions 1 to n, each from where the last ended, and ends where the operation is."""
    EVENT = "event"
    """1: every transition wrote its event."""
    SUBMISSION = "submission"
    """3: no second submission without proof, rule, review or declared replay."""
    JOB = "job"
    """4: every job is kept."""
    MONEY = "money"
    """5: allowances, reservations and ledger say the same; nothing that may cost is unbooked."""
    BATCH = "batch"
    """A batch counts its members right, and completed once when the last had ended."""
    WAKER = "waker"
    """6: every operation is final, has a time on it, or is in a review."""
    DELIVERY = "delivery"
    """7: a stored file is what was promised."""
    GUARD = "guard"
    """The database's guards are there and switched on."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that may not be. `operation_id` is None where it is about no single operation."""

    invariant: Invariant
    operation_id: UUID | None
    what: str


async def audit(connection: Connection, *, overdue_s: float = OVERDUE_S) -> list[Finding]:
    """Every finding, in one snapshot. `connection` must have no open transaction; its login needs to be a
    member of relay_reader, relay_worker or relay_operator. Raises psycopg's errors."""
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read, read only")
        return await _specifications(connection) + await findings(connection, overdue_s=overdue_s)


async def findings(
    connection: Connection,
    breaking: frozenset[Invariant] = frozenset(Invariant),
    *,
    overdue_s: float = OVERDUE_S,
) -> list[Finding]:
    """What the tables alone say of `breaking`, as the open transaction sees them; not the hashes."""
    found: list[Finding] = []
    for block, query in _SQL.items():
        breaks = _INVARIANTS.get(block.partition("_")[0])
        if breaks in breaking:
            rows = await (await connection.execute(query, {"overdue_s": overdue_s})).fetchall()
            found += [Finding(breaks, operation_id, what) for operation_id, what in rows]
    return found


_INVARIANTS: Final = {
    "profiles": Invariant.SPECIFICATION,
    "redaction": Invariant.REDACTION,
    "journal": Invariant.JOURNAL,
    "events": Invariant.EVENT,
    "submissions": Invariant.SUBMISSION,
    "jobs": Invariant.JOB,
    "money": Invariant.MONEY,
    "batch": Invariant.BATCH,
    "waker": Invariant.WAKER,
    "delivery": Invariant.DELIVERY,
    "guards": Invariant.GUARD,
}
"""The first word of a block's name says what its rows break."""


async def _specifications(connection: Connection) -> list[Finding]:
    found_wrong: list[Finding] = []
    async with connection.cursor("specifications") as cursor:
        cursor.itersize = _ROWS_AT_ONCE
        await cursor.execute(_SQL["specifications"])
        async for (
            operation_id,
            kind,
            provider,
            digest,
            version,
            max_cost,
            unit,
            payload,
            sha256,
            size,
            approved,
        ) in cursor:
            found = specification_hash(
                kind=kind,
                provider=provider,
                profile_digest=digest,
                payload_version=version,
                max_cost=max_cost,
                cost_unit=unit,
                payload=content_of(payload, None, sha256, size),
            )
            if found != approved:
                what = f"its specification hashes to {found}, and {approved} was approved"
                found_wrong.append(Finding(Invariant.SPECIFICATION, operation_id, what))
    return found_wrong
