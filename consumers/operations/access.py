"""Whether this login may do a worker's work in this database, asked before any is taken: an event must not be
tried, and parked in the end, for a missing grant.
"""

from typing import Any, Final

import psycopg

from consumers.operations.queries import Queries
from relay.errors import UsageError

_SQL: Final = Queries("access")


async def require_worker(connection: psycopg.AsyncConnection[Any], *, inbox: bool = True) -> None:
    """Raises UsageError when the tables are not there, or the login may not move operations; with `inbox`
    also when it may not record deliveries, which only `relay_worker` may."""
    cursor = await connection.execute(_SQL["may_work"])
    row = await cursor.fetchone()
    assert row is not None  # the first table of the join always has its row
    login, tables, operations, deliveries = row
    if not tables:
        raise UsageError(
            "The tables are not there, or not in this database.",
            remedy="Run `relay init` against it, or correct RELAY_DATABASE_URL.",
        )
    if not operations or (inbox and not deliveries):
        raise UsageError(
            f"The login {login} may not do a worker's work in this database.",
            meaning="Nothing was taken and nothing was changed.",
            remedy=f'`grant relay_worker to "{login}";`, or use the login that has it.',
        )
