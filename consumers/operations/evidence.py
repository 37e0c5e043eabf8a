"""What a review's evidence collector needs, and where it stores what it found: early, whatever it is, and
without moving an operation. A declared proof of absence ends a request's question; what becomes of its
operation is for a person.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from consumers.operations import polling
from consumers.operations.queries import Queries
from consumers.providers.evidence import bounded
from consumers.providers.observation import Observation

_SQL: Final = Queries("evidence")

Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A review as its collector needs it. `job_ids` are those stored for its operation."""

    review_id: UUID
    kind: str
    state: str
    attempt_id: UUID | None
    evidence: dict[str, Any]
    opened_at: datetime
    operation_id: UUID
    version: int
    phase: str
    dispatch_no: int
    job_id: str | None
    provider: str
    account: str
    profile_digest: str
    now: datetime
    job_ids: list[str]

    @property
    def provider_account(self) -> str:
        return f"{self.provider}/{self.account}"


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that may have made a job. Until `late_delivery_until` the provider may still read it."""

    attempt_id: UUID
    sent_at: datetime
    late_delivery_until: datetime


async def load(connection: Connection, operation_id: UUID, review_id: UUID) -> Question | None:
    """None when the review isn't visible."""
    async with connection.cursor(row_factory=class_row(Question)) as cursor:
        await cursor.execute(_SQL["load"], {"operation_id": operation_id, "review_id": review_id})
        return await cursor.fetchone()


async def requests(connection: Connection, operation_id: UUID) -> list[Sent]:
    cursor = await connection.execute(_SQL["requests"], {"operation_id": operation_id})
    return [Sent(*row) for row in await cursor.fetchall()]


async def begin(connection: Connection, question: Question, worker: str) -> UUID:
    """Record that a GET is about to be made, in a transaction of its own; its attempt's id."""
    attempt_id = uuid4()
    async with connection.transaction():
        await connection.execute(
            _SQL["begin"],
            {
                "attempt_id": attempt_id,
                "operation_id": question.operation_id,
                "dispatch_no": question.dispatch_no,
                "worker": worker,
            },
        )
    return attempt_id


async def finish(
    connection: Connection,
    asked: UUID,
    *,
    learnt: bool,
    reason: str,
    status: int | None,
    evidence: dict[str, Any],
) -> None:
    """What the GET `asked` came to; `learnt`: it said something about a job."""
    async with connection.transaction():
        await connection.execute(
            _SQL["finish"],
            {
                "attempt_id": asked,
                "outcome": "accepted" if learnt else "unknown",
                "reason": reason,
                "status": status,
                "evidence": Jsonb(bounded(evidence)),
            },
        )


async def record_job(
    connection: Connection, question: Question, job_id: str, observation: Observation
) -> None:
    """State and cost of an id that is stored, where the provider said them."""
    if polling.knows_the_job(observation):
        await connection.execute(
            _SQL["record_job"],
            {
                "operation_id": question.operation_id,
                "provider_account": question.provider_account,
                "job_id": job_id,
                "state": observation.state,
                "cost": polling.storable_cost(observation.cost),
            },
        )


async def add_candidates(
    connection: Connection, question: Question, job_ids: Iterable[str], attempt_id: UUID | None
) -> None:
    """Store ids that the provider lists for this operation, before anybody judges them."""
    async with connection.transaction():
        for job_id in job_ids:
            await connection.execute(
                _SQL["add_candidate"],
                {
                    "operation_id": question.operation_id,
                    "provider_account": question.provider_account,
                    "job_id": job_id,
                    "attempt_id": attempt_id,
                },
            )


async def look_again(connection: Connection, question: Question, delay_s: float | None) -> None:
    """Ask again after `delay_s`; None: not by itself."""
    await connection.execute(_SQL["look_again"], {"review_id": question.review_id, "delay_s": delay_s})


async def store(
    connection: Connection,
    question: Question,
    collected: dict[str, Any],
    *,
    absent: Iterable[UUID],
    asked_at: datetime,
    look_again_s: float | None,
) -> bool:
    """Keep `collected` with the review, and end the questions of the requests that are proven `absent` by
    what was asked for at `asked_at`: they count as refused, uncharged. One transaction. False: it says
    nothing new, or the review is closed."""
    named = {"operation_id": question.operation_id, "review_id": question.review_id}
    async with connection.transaction():
        await connection.execute(_SQL["lock_operation"], named)
        for attempt_id in absent:
            await connection.execute(_SQL["prove_absent"], {"attempt_id": attempt_id, "asked_at": asked_at})
        done = await connection.execute(_SQL["store"], named | {"collected": Jsonb(collected)})
        await look_again(connection, question, look_again_s)
    return done.rowcount == 1
