"""What an account's limits let happen now: permits that all processes share, and the line of who waits.

A permit of a killed process ends by itself. Nobody waits in a worker's place: an operation that must wait
keeps its phase, and schedule writes its event again when its turn has come.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import psycopg

from consumers.operations.queries import Queries

_SQL: Final = Queries("limits")

PATIENCE_S: Final = 2.0
"""A worker waits where it stands for so long at most; beyond it an operation goes to the end of the line."""

Action = Literal["submit", "poll"]
Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`granted`: go on after `wait_s` seconds. Otherwise come again after that time."""

    granted: bool
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Of one action of an account. None: no such limit."""

    provider: str
    account: str
    action: Action
    at_once: int | None
    per_s: float | None

    @property
    def limits(self) -> bool:
        return self.at_once is not None or self.per_s is not None


async def take(
    connection: Connection, limit: Limit, permit: UUID, *, holder: str, lease_s: float, waited: bool
) -> Verdict:
    """Ask for `permit`, which ends by itself after `lease_s`. Raises psycopg's errors."""
    cursor = await connection.execute(
        _SQL["take"],
        {
            "provider": limit.provider,
            "account": limit.account,
            "action": limit.action,
            "permit": permit,
            "holder": holder,
            "lease_s": lease_s,
            "at_once": limit.at_once,
            "per_s": limit.per_s,
            "waited": waited,
            "patience_s": PATIENCE_S,
        },
    )
    row = await cursor.fetchone()
    if row is None:
        raise RuntimeError("relay.take_permit returned no row")
    return Verdict(bool(row[0]), float(row[1]))


async def give_back(connection: Connection, permit: UUID) -> None:
    await connection.execute(_SQL["give_back"], {"permit": permit})


async def defer(connection: Connection, operation_id: UUID, phase: str, delay_s: float) -> None:
    """Let schedule write the operation's event again after `delay_s`, if it is still in `phase`."""
    await connection.execute(
        _SQL["defer_in_line"], {"operation_id": operation_id, "phase": phase, "delay_s": delay_s}
    )


# An account that is away ------------------------------------------------------------------------------------


async def defer_while_away(
    connection: Connection, operation_id: UUID, not_before: datetime, delay_s: float
) -> None:
    """Ask for the job again `delay_s` after `not_before`."""
    await connection.execute(
        _SQL["defer_while_away"],
        {"operation_id": operation_id, "not_before": not_before, "delay_s": delay_s},
    )


async def probe(
    connection: Connection, provider: str, account: str, *, failed: int, wait_s: float
) -> datetime | None:
    """Take the one GET that asks whether the account is back: None when it is ours. Otherwise until when the
    others wait; that may be past, when it came back just now."""
    about = {"provider": provider, "account": account}
    taken = await connection.execute(_SQL["probe"], about | {"failed": failed, "wait_s": wait_s})
    if taken.rowcount == 1:
        return None
    row = await (await connection.execute(_SQL["account_away"], about)).fetchone()
    found: datetime | None = row[0] if row is not None else None
    return found


async def poll_failed(
    connection: Connection,
    provider: str,
    account: str,
    *,
    away_after: int,
    wait_s: float,
    retry_after_s: float | None,
) -> None:
    """Count a GET that says nothing of its job. The `away_after`-th in a row makes all of the account's wait
    for `wait_s`, and a `retry_after_s` of the provider's does at once."""
    await connection.execute(
        _SQL["poll_failed"],
        {
            "provider": provider,
            "account": account,
            "away_after": away_after,
            "wait_s": wait_s,
            "retry_after_s": retry_after_s,
        },
    )


async def poll_answered(connection: Connection, provider: str, account: str) -> None:
    """The provider answers: nobody waits any more."""
    await connection.execute(_SQL["poll_answered"], {"provider": provider, "account": account})
