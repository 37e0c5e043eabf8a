"""The statements of one answer's transaction, by name: what `answers` decides is written here, and nothing
here decides. Each is bound to the answer's operation and attempt.
"""

from dataclasses import dataclass
from typing import Any, Final, Self
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from consumers.operations.ground import Ground, say
from consumers.operations.lifecycle import Cause, Phase
from consumers.operations.queries import Queries
from consumers.providers.evidence import bounded
from consumers.providers.outcome import Submission
from consumers.providers.profile import Profile

SQL: Final = Queries("answers")
REUSE_PROVES_NOTHING: Final = frozenset({409, 422})


@dataclass(frozen=True, slots=True)
class Subject:
    """The operation as it is, locked."""

    operation_id: UUID
    phase: Phase
    dispatch_no: int
    claim_token: UUID | None
    job_id: str | None
    is_final: bool
    provider: str
    account: str

    @property
    def provider_account(self) -> str:
        return f"{self.provider}/{self.account}"


@dataclass(frozen=True, slots=True)
class Holder:
    """An operation that has the id, and the attempt whose answer named it."""

    operation_id: UUID
    role: str
    attempt_id: UUID | None

    @property
    def owns(self) -> bool:
        """A candidate is only something that was seen."""
        return self.role in ("primary", "duplicate")


class AnswerRows:
    """One answer against one operation. Lives for one transaction."""

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        attempt_id: UUID,
        outcome: Submission,
        profile: Profile,
        actor: str,
    ) -> None:
        self.connection = connection
        self.attempt_id = attempt_id
        self.outcome = outcome
        self.profile = profile
        self.actor = actor
        self.operation: Subject
        self.before: str | None
        """The attempt's outcome until now; None: it has no row, its hook's commit never landed."""

    async def lock(self, operation_id: UUID) -> Self | None:
        """Lock every operation that the answer's ids concern, then the attempt. None: no such operation."""
        if self._ids:
            await self.run("lock_ids", operation_id=operation_id, ids=self._ids)
        named = {"job_id": self.outcome.job_id, "candidates": list(self.outcome.candidates)}
        await self.run("lock_operations", operation_id=operation_id, **named)
        row = await self.one("operation", operation_id=operation_id)
        if row is None:
            return None
        phase, *more = row
        self.operation = Subject(operation_id, Phase(phase), *more)
        attempt = await self.one("lock_attempt")
        self.before = None if attempt is None else attempt[0]
        return self

    @property
    def own_claim(self) -> bool:
        """The operation is still where this attempt left it."""
        return self.operation.phase is Phase.SUBMITTING and self.operation.claim_token == self.attempt_id

    async def is_repeated(self) -> bool:
        """Whether this very answer is recorded, with every id that it names."""
        evidence = Jsonb(bounded(self.outcome.evidence))
        return await self.one("repeated", **self.account, ids=self._ids, evidence=evidence) is not None

    @property
    def _ids(self) -> list[str]:
        return [one for one in (self.outcome.job_id, *self.outcome.candidates) if one is not None]

    # Attempts --------------------------------------------------------------------------------------------

    async def finish(self, outcome: str, *, reason: str | None = None, charged: bool | None = None) -> None:
        await self.run(
            "finish_attempt",
            outcome=outcome,
            reason=reason or self.outcome.reason,
            charged=charged,
            status=self._status,
            evidence=Jsonb(bounded(self.outcome.evidence)),
        )
        if not self.own_claim:
            await self.tell_reviewers(outcome)

    async def keep_evidence(self) -> bool:
        """The first report of an attempt whose outcome a person has decided; False: it has reported."""
        evidence = Jsonb(bounded(self.outcome.evidence))
        if not await self.run("keep_evidence", status=self._status, evidence=evidence):
            return False
        await self.tell_reviewers(str(self.before))
        return True

    async def tell_reviewers(self, outcome: str) -> None:
        told = {"attempt_id": str(self.attempt_id), "as": outcome, "reason": self.outcome.reason}
        await self.run("tell_reviewers", told=Jsonb(told))

    @property
    def _status(self) -> int | None:
        status = self.outcome.evidence.get("status")
        return status if isinstance(status, int) else None

    # Jobs ------------------------------------------------------------------------------------------------

    @property
    def account(self) -> dict[str, str]:
        return {"provider_account": self.operation.provider_account}

    async def add_job(self, job_id: str, role: str) -> bool:
        """True: the operation didn't have it yet, and has it now."""
        return await self.run("add_job", **self.account, job_id=job_id, role=role) > 0

    async def give_role(self, job_id: str, role: str) -> bool:
        """False: another operation became the job's own at this very moment."""
        try:
            async with self.connection.transaction():
                await self.run("give_role", **self.account, job_id=job_id, role=role)
        except psycopg.errors.UniqueViolation:
            return False
        return True

    async def holders(self, job_id: str) -> list[Holder]:
        return [Holder(*row) for row in await self.all("job_holders", **self.account, job_id=job_id)]

    # Declared replays ------------------------------------------------------------------------------------

    async def proves_nothing(self) -> bool:
        """409 and 422 on a key that was sent before may be about the key (design-operations, section 5)."""
        return self._status in REUSE_PROVES_NOTHING and await self.one("reuses_a_key") is not None

    async def unreplay(self, query: str) -> bool:
        """Back to uncertain, where an earlier request may have made a job: what became of this one, a
        declared replay, says nothing of that."""
        row = await self.one("repeats")
        if row is None or row[0] is None:
            return False
        await self.say(Cause.UNREPLAYED, about=row[0])
        await self.move(query, to_phase=Phase.UNCERTAIN, reason="unreplayed", delay_s=None)
        return True

    # Questions for people --------------------------------------------------------------------------------

    async def review(
        self, kind: str, evidence: dict[str, Any], *, operation_id: UUID | None = None, attempt_id: Any = ...
    ) -> None:
        """Ask once for each request; what is new is added to the question that is open, and makes the sight
        of whoever saw it stale."""
        about = {
            "operation_id": operation_id or self.operation.operation_id,
            "attempt_id": self.attempt_id if attempt_id is ... else attempt_id,
            "kind": kind,
            "evidence": Jsonb(evidence),
        }
        await self.run("add_to_review", **about)
        await self.run("open_review", **about, deadline_s=self.profile.review_deadline_s(kind))

    async def incident(self, what: str, evidence: dict[str, Any], *, boundary: str = "id_commit") -> None:
        """Once."""
        await self.run("open_incident", boundary=boundary, what=what, evidence=Jsonb(evidence))

    # Transitions -----------------------------------------------------------------------------------------

    async def say(self, cause: Cause, reason: str | None = None, *, about: UUID | None = None) -> None:
        """`about`: the attempt that the transition is about, where it isn't this answer's."""
        await say(
            self.connection,
            Ground(
                self.actor,
                cause,
                reason or self.outcome.reason,
                attempt_id=about or self.attempt_id,
                review_deadline_s=self.profile.review_deadline_s("uncertain_submission"),
            ),
        )

    async def move(self, query: str, **more: Any) -> None:
        if await self.run(query, **more) != 1:
            raise RuntimeError(
                f"operation {self.operation.operation_id} moved although it is locked: {query}"
            )

    # Statements ------------------------------------------------------------------------------------------

    async def run(self, query: str, **more: Any) -> int:
        cursor = await self.connection.execute(SQL[query], self._parameters(more))
        return cursor.rowcount

    async def one(self, query: str, **more: Any) -> tuple[Any, ...] | None:
        cursor = await self.connection.execute(SQL[query], self._parameters(more))
        row: tuple[Any, ...] | None = await cursor.fetchone()
        return row

    async def all(self, query: str, **more: Any) -> list[tuple[Any, ...]]:
        cursor = await self.connection.execute(SQL[query], self._parameters(more))
        return await cursor.fetchall()

    def _parameters(self, more: dict[str, Any]) -> dict[str, Any]:
        own = {"attempt_id": self.attempt_id}
        if hasattr(self, "operation"):
            own["operation_id"] = self.operation.operation_id
        return own | more
