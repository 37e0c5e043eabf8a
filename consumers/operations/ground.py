"""Says to the database who moves an operation, by what cause and on what ground, for the open transaction.

The triggers refuse a transition without it, and check that the row it names backs the cause.
"""

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg

_SAY: Final = """
    select set_config('relay.actor', %s, true), set_config('relay.cause', %s, true),
           set_config('relay.reason', %s, true), set_config('relay.attempt_id', %s, true),
           set_config('relay.review_id', %s, true), set_config('relay.review_deadline_s', %s, true),
           set_config('idle_in_transaction_session_timeout', '15s', true)
"""
# The last: a worker that is frozen, or whose machine vanished, in a transaction holds the locks of
# its operation and of its owner's allowance; the server ends its session, so that nobody waits for ever.


@dataclass(frozen=True, slots=True)
class Ground:
    """`cause` is a cause of `relay.lifecycle_edge`; `reason` a code or words for the journal.

    `review_deadline_s`: how long a review that the transition opens may stay unanswered before its severity
    rises (from the profile); None takes the database's default of a day.
    """

    actor: str
    cause: str
    reason: str
    attempt_id: UUID | None = None
    review_id: UUID | None = None
    review_deadline_s: float | None = None


async def say(connection: psycopg.AsyncConnection[Any], ground: Ground) -> None:
    """Set `ground` for the rest of the open transaction. Every field is set: nothing is left of the last."""
    await connection.execute(
        _SAY,
        [
            ground.actor,
            ground.cause,
            ground.reason,
            str(ground.attempt_id or ""),
            str(ground.review_id or ""),
            "" if ground.review_deadline_s is None else str(ground.review_deadline_s),
        ],
    )
