"""Makes schedule look at a job now, because somebody says that there is something to see. It moves a time and
nothing else.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import psycopg

from consumers.operations.queries import Queries

_SQL: Final = Queries("nudges")

Connection = psycopg.AsyncConnection[Any]


async def nudge(
    connection: Connection,
    provider: str,
    account: str,
    job_id: str,
    min_s: Callable[[Connection, str, str], Awaitable[float]],
) -> int:
    """Ask for the job as soon as its profile's `poll.min_s` allows; `min_s` knows it by provider and digest.

    Returns how many accepted operations have this job: 0 when nobody waits for it. Raises psycopg's errors.
    """
    async with connection.transaction():
        about = {"provider": provider, "account": account, "job_id": job_id}
        found = await (await connection.execute(_SQL["find"], about)).fetchall()
        for operation_id, of_provider, digest in found:
            await connection.execute(
                _SQL["nudge"],
                {"operation_id": operation_id, "min_s": await min_s(connection, of_provider, digest)},
            )
    return len(found)
