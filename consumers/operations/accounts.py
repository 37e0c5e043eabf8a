"""Provider accounts as people see, pause and resume them. A pause holds what is claimed from then on; it ends
nothing that was sent.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from consumers.operations.queries import Queries

_SQL: Final = Queries("accounts")

Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """`waiting`: operations held until it is resumed. Equal failures in a row are counted towards a pause."""

    provider: str
    account: str
    current_digest: str
    paused_at: datetime | None
    paused_reason: str | None
    failure_reason: str | None
    failures_in_a_row: int
    waiting: int


async def accounts(connection: Connection, *, provider: str | None = None) -> list[Account]:
    async with connection.cursor(row_factory=class_row(Account)) as cursor:
        await cursor.execute(_SQL["accounts"], {"provider": provider})
        return await cursor.fetchall()


async def pause(connection: Connection, provider: str, account: str, *, reason: str) -> bool:
    """False when there is no such account. Raises psycopg's errors."""
    parameters = {"provider": provider, "account": account, "reason": reason}
    return (await connection.execute(_SQL["pause"], parameters)).rowcount == 1


async def resume(connection: Connection, provider: str, account: str) -> bool:
    """Lift a pause, a person's or one of equal failures, and begin counting anew. False as `pause`."""
    parameters = {"provider": provider, "account": account}
    return (await connection.execute(_SQL["resume"], parameters)).rowcount == 1
