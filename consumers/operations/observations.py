"""Records what a GET said about a job, and moves its operation where that proves something. It sends
nothing, and a timer never ends an operation here.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from consumers.operations import limits, polling
from consumers.operations.ground import Ground, say
from consumers.operations.lifecycle import Cause, Phase
from consumers.operations.polling import Contradiction, Finish, Noted, Poll, Subject, Verdict
from consumers.operations.queries import Queries
from consumers.providers.evidence import bounded
from consumers.providers.observation import Observation
from consumers.providers.profile import Profile
from relay import failpoints

_SQL: Final = Queries("observations")

_Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """A GET that is about to be made, and its attempt's row."""

    attempt_id: UUID
    job_id: str
    at: datetime


async def load(connection: _Connection, operation_id: UUID) -> Subject | None:
    """The operation as its observer needs it; None when its row isn't visible."""
    async with connection.cursor(row_factory=class_row(Subject)) as cursor:
        await cursor.execute(_SQL["load"], {"operation_id": operation_id})
        return await cursor.fetchone()


async def begin(connection: _Connection, subject: Subject, job_id: str, worker: str) -> Asked:
    """Record that a GET for `job_id` is about to be made, in a transaction of its own."""
    attempt_id = uuid4()
    async with connection.transaction():
        row = await _one(
            connection,
            "begin",
            attempt_id=attempt_id,
            operation_id=subject.operation_id,
            dispatch_no=subject.dispatch_no,
            worker=worker,
        )
    if row is None:
        raise RuntimeError("the insert of an attempt returned no row")
    return Asked(attempt_id, job_id, row[0])


async def apply_observation(
    connection: _Connection,
    *,
    operation_id: UUID,
    asked: Asked,
    observation: Observation,
    status: int | None,
    profile: Profile,
    actor: str,
) -> Verdict:
    """Record `observation` (HTTP `status`) and do what follows, in one transaction. Raises psycopg's errors;
    nothing is recorded then."""
    async with connection.transaction():
        await connection.execute(_SQL["lock"], {"operation_id": operation_id})
        subject = await load(connection, operation_id)
        if subject is None:
            raise RuntimeError(f"operation {operation_id} is gone, and operations are never deleted")
        verdict = polling.decide(subject, observation, profile, job_id=asked.job_id, asked_at=asked.at)
        await _run(
            connection,
            "finish_attempt",
            attempt_id=asked.attempt_id,
            outcome="accepted" if polling.knows_the_job(observation) else "unknown",
            reason=observation.reason,
            status=status,
            evidence=Jsonb(bounded(observation.evidence)),
        )
        await _Consequence(connection, subject, asked, observation, profile, actor).of(verdict)
        await _count(connection, subject, observation, profile)
        failpoints.hit(failpoints.COLLECT_ANSWER_UNCOMMITTED)
    return verdict


async def _count(
    connection: _Connection, subject: Subject, observation: Observation, profile: Profile
) -> None:
    """What the answer says of the account. Last in the transaction: its row is everybody's, and nobody else's
    lock is waited for while it is held. While all is well nothing is written."""
    if polling.says_nothing_of_the_account(observation):
        told_s = observation.retry_after_s
        await limits.poll_failed(
            connection,
            subject.provider,
            subject.account,
            away_after=polling.AWAY_AFTER,
            wait_s=polling.away_s(polling.AWAY_AFTER, profile),
            retry_after_s=min(told_s, polling.RETRY_AFTER_MOST_S) if told_s else None,
        )
    elif subject.polls_failed:
        await limits.poll_answered(connection, subject.provider, subject.account)


class _Consequence:
    """What one verdict writes; the operation is locked. Lives for one transaction."""

    def __init__(
        self,
        connection: _Connection,
        subject: Subject,
        asked: Asked,
        observation: Observation,
        profile: Profile,
        actor: str,
    ) -> None:
        self.connection = connection
        self.subject = subject
        self.asked = asked
        self.observation = observation
        self.profile = profile
        self.actor = actor

    async def of(self, verdict: Verdict) -> None:
        match verdict:
            case Finish():
                await self._record_job()
                await self._finish(verdict)
            case Poll():
                await self._record_job()
                await self._run(
                    "poll_again",
                    delay_s=verdict.delay_s,
                    known=polling.knows_the_job(self.observation),
                    last_seen_at=self.subject.last_seen_at,
                )
                if verdict.unknown is not None:
                    await self._review("job_unknown", verdict.unknown, quiet_s=self.profile.give_up_s)
            case Contradiction():
                await self._review("contradiction", verdict.what, quiet_s=0.0)
            case Noted():
                pass

    async def _finish(self, finish: Finish) -> None:
        observation = self.observation
        if finish.phase is Phase.SUCCEEDED:
            for ordinal, output in enumerate(observation.outputs):
                await self._run(
                    "record_output",
                    ordinal=ordinal,
                    name=output.name,
                    url=output.url,
                    content_type=output.content_type,
                    size=output.size,
                    sha256=output.sha256,
                )
        await say(
            self.connection,
            Ground(self.actor, Cause.OBSERVATION, observation.reason, attempt_id=self.asked.attempt_id),
        )
        paid_by = await self._one("paid_by", job_id=self.asked.job_id)
        cost = finish.cost if paid_by is not None else None
        ended = await self._run(
            "end_operation",
            phase=finish.phase,
            reason=observation.word or observation.reason,
            unsettled=cost is None,
            job_id=self.asked.job_id,
        )
        if ended != 1:
            raise RuntimeError(f"operation {self.subject.operation_id} moved although it is locked")
        if paid_by is not None and cost is not None:
            await self._run("settle", attempt_id=paid_by[0], cost=cost, reason=f"job {finish.phase}")
        if finish.phase is Phase.SUCCEEDED:
            await self._run("prepare_delivery")

    async def _record_job(self) -> None:
        if polling.knows_the_job(self.observation):
            await self._run(
                "record_job",
                job_id=self.asked.job_id,
                state=self.observation.state,
                cost=polling.storable_cost(self.observation.cost),
            )

    async def _review(self, kind: str, why: str, *, quiet_s: float) -> None:
        evidence = {
            "job_id": self.asked.job_id,
            "why": why,
            "accepted_at": _text(self.subject.accepted_at),
            "last_seen_at": _text(self.subject.last_seen_at),
            "observations": self.subject.observations + 1,
            "observed": bounded(self.observation.evidence),
        }
        await self._run(
            "open_review",
            attempt_id=self.asked.attempt_id,
            kind=kind,
            deadline_s=self.profile.review_deadline_s(kind),
            evidence=Jsonb(evidence),
            quiet_s=quiet_s,
        )

    async def _run(self, query: str, **parameters: Any) -> int:
        return await _run(self.connection, query, **self._named(parameters))

    async def _one(self, query: str, **parameters: Any) -> tuple[Any, ...] | None:
        return await _one(self.connection, query, **self._named(parameters))

    def _named(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return {
            "operation_id": self.subject.operation_id,
            "provider_account": self.subject.provider_account,
        } | parameters


def _text(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


async def _run(connection: _Connection, query: str, **parameters: Any) -> int:
    cursor = await connection.execute(_SQL[query], parameters)
    return cursor.rowcount


async def _one(connection: _Connection, query: str, **parameters: Any) -> tuple[Any, ...] | None:
    cursor = await connection.execute(_SQL[query], parameters)
    row: tuple[Any, ...] | None = await cursor.fetchone()
    return row
