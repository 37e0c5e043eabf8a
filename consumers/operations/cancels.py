"""Records that a cancel was asked for, and what came of asking the provider. It sends nothing, and never
ends an operation that has a job: only an observation does.
"""

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from consumers.operations.queries import Queries
from consumers.providers.cancelling import CancelAnswer
from consumers.providers.evidence import bounded

_SQL: Final = Queries("cancels")

Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A request that is about to ask the provider to cancel a job. `again`: that it was asked before is
    known."""

    operation_id: UUID
    attempt_id: UUID
    job_id: str
    request_sha256: str
    actor: str
    reason: str
    again: bool


async def request(connection: Connection, operation_id: UUID, *, reason: str, actor: str) -> str:
    """Ask for the cancel; returns the phase that the operation is in then. What isn't claimed is
    `cancelled`, what is claimed isn't sent. Raises psycopg's errors."""
    async with connection.transaction():
        await connection.execute(_SQL["durable"])
        await connection.execute(_SQL["say_actor"], {"actor": actor})
        named = {"operation_id": operation_id, "reason": reason}
        ((phase,),) = await (await connection.execute(_SQL["request"], named)).fetchall()
    return str(phase)


async def begin(connection: Connection, asking: Asking) -> None:
    """Record the attempt, durably: after this returns, and only then, bytes may leave. Raises psycopg's
    errors; any of them means that nothing may be sent."""
    async with connection.transaction():
        await connection.execute(_SQL["durable"])
        await connection.execute(_SQL["say_actor"], {"actor": asking.actor})
        await connection.execute(
            _SQL["begin"],
            {
                "operation_id": asking.operation_id,
                "attempt_id": asking.attempt_id,
                "job_id": asking.job_id,
                "actor": asking.actor,
                "request_sha256": asking.request_sha256,
                "again": asking.again,
                "reason": asking.reason,
            },
        )


async def finish(connection: Connection, attempt_id: UUID, answer: CancelAnswer) -> None:
    """Record what came of it, and let the job be observed next. Raises psycopg's errors."""
    async with connection.transaction():
        await connection.execute(
            _SQL["finish"],
            {
                "attempt_id": attempt_id,
                "outcome": answer.outcome,
                "reason": answer.reason,
                "status": answer.status,
                "evidence": Jsonb(bounded(answer.evidence)),
            },
        )


async def redact(connection: Connection, operation_id: UUID, *, reason: str, actor: str) -> list[str]:
    """Blank payload, evidence and output locations; returns where the files are, which stay. Raises psycopg's
    errors."""
    async with connection.transaction():
        await connection.execute(_SQL["say_actor"], {"actor": actor})
        named = {"operation_id": operation_id, "reason": reason}
        ((files,),) = await (await connection.execute(_SQL["redact"], named)).fetchall()
    return list(files)
