"""Applies what a submission came to, by its attempt and never by its claim: an answer may come after the
lease, after a review, or twice. Every id is stored first; nothing here sends anything, and applying twice
changes nothing.
"""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from consumers.operations.ground import Ground, say
from consumers.operations.lifecycle import LATE_IDS_MOVE, Cause, Hold, Phase
from consumers.operations.queries import Queries
from consumers.providers.evidence import bounded
from consumers.providers.outcome import Submission
from consumers.providers.profile import Profile
from relay import failpoints

_SQL: Final = Queries("answers")
_Connection = psycopg.AsyncConnection[Any]

PAUSE_AFTER: Final = 3
"""Equal generic failures in a row that pause the provider account (design-operations, section 3)."""


class Applied(StrEnum):
    """What became of the answer."""

    MOVED = "moved"
    RECORDED = "recorded"
    """Ids and evidence are stored; the phase was decided otherwise, or already."""
    NO_ATTEMPT = "no_attempt"
    """The database doesn't know the attempt: it was restored, or never told. Keep the spool's entry."""


@dataclass(frozen=True, slots=True)
class _Operation:
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
class Attempted:
    """Whose attempt it is, and by which profile its answer is read."""

    operation_id: UUID
    provider: str
    profile_digest: str


async def attempted(connection: _Connection, attempt_id: UUID) -> Attempted | None:
    """None: the database doesn't know the attempt."""
    async with connection.cursor(row_factory=class_row(Attempted)) as cursor:
        await cursor.execute(_SQL["attempted"], {"attempt_id": attempt_id})
        return await cursor.fetchone()


async def apply_submission(
    connection: _Connection,
    *,
    attempt_id: UUID,
    operation_id: UUID,
    outcome: Submission,
    profile: Profile,
    actor: str,
) -> Applied:
    """Record `outcome` for the attempt and move its operation, in one transaction. Idempotent.

    Raises psycopg's errors; nothing is recorded then, and the call may be repeated.
    """
    async with connection.transaction():
        applied = await _Application(connection, attempt_id, outcome, profile, actor).run(operation_id)
        failpoints.hit(failpoints.DISPATCH_ANSWER_UNCOMMITTED)
    return applied


class _Application:
    """One answer against one operation, both locked. Lives for one transaction."""

    def __init__(
        self, connection: _Connection, attempt_id: UUID, outcome: Submission, profile: Profile, actor: str
    ) -> None:
        self.connection = connection
        self.attempt_id = attempt_id
        self.outcome = outcome
        self.profile = profile
        self.actor = actor
        self.operation: _Operation
        self.before: str | None
        """The attempt's outcome until now; None: it has no row, its hook's commit never landed."""
        self.new_candidates: list[str]

    async def run(self, operation_id: UUID) -> Applied:
        row = await self._one("lock_operation", operation_id=operation_id)
        if row is None:
            return Applied.NO_ATTEMPT
        phase, dispatch_no, token, job_id, is_final, provider, account, _max_cost = row
        self.operation = _Operation(
            operation_id, Phase(phase), dispatch_no, token, job_id, is_final, provider, account
        )
        attempt = await self._one("lock_attempt")
        self.before = None if attempt is None else attempt[0]
        if self.before is None:
            return await self._without_attempt()
        named = self.outcome.candidates
        self.new_candidates = [one for one in named if await self._add_job(one, "candidate")]
        match self.outcome.verdict:
            case "accepted":
                applied = await self._accepted()
            case "refused":
                applied = await self._refused()
            case "unsent":
                applied = await self._unsent()
            case _:
                applied = await self._unknown()
        if applied is Applied.MOVED:
            await self._count_failures()
        return applied

    @property
    def _own_claim(self) -> bool:
        """The operation is still where this attempt left it."""
        return self.operation.phase is Phase.SUBMITTING and self.operation.claim_token == self.attempt_id

    async def _without_attempt(self) -> Applied:
        if self.outcome.verdict != "unsent":
            return Applied.NO_ATTEMPT
        operation = self.operation
        if operation.phase is not Phase.CLAIMED or operation.claim_token != self.attempt_id:
            return Applied.RECORDED
        # Recorded under the live claim, so that the next rows can name it and max_unsent can count it.
        await self._run(
            "record_unsent",
            dispatch_no=operation.dispatch_no,
            actor=self.actor,
            reason=self.outcome.reason,
            evidence=Jsonb(bounded(self.outcome.evidence)),
        )
        return await self._return_unsent("move_claimed")

    async def _accepted(self) -> Applied:
        outcome, operation = self.outcome, self.operation
        job_id = outcome.job_id
        if job_id is None:
            raise ValueError("an accepted submission has a job id")
        if self.before in ("refused", "unsent"):
            # Its money was given back and the operation went on: nothing backs a transition any more.
            await self._add_job(job_id, "candidate")
            return await self._contradiction(job_id, f"its request counted as {self.before}")
        taken = await self._take_id(job_id)
        if not taken:
            return await self._collision(job_id)
        late = not (self._own_claim and self.before == "open")
        if self.before in ("open", "unknown"):
            await self._finish("accepted")
        if operation.job_id is not None:
            if operation.job_id != job_id:
                await self._review("second_id", {"job_ids": [operation.job_id, job_id]})
                await self._incident(f"a second job {job_id} of one operation", job_id)
            elif self.before != "accepted":
                await self._ask_about_others(job_id)
            return Applied.RECORDED
        if operation.phase not in LATE_IDS_MOVE:
            return await self._contradiction(job_id, f"the operation was {operation.phase}")
        await self._say(Cause.LATE_ANSWER if late else Cause.ANSWER)
        await self._move(
            "accept",
            reason=outcome.reason,
            job_id=job_id,
            phase=operation.phase,
            unsettled=outcome.accounting == "unsettled",
        )
        if outcome.accounting == "unsettled":
            await self._review("id_with_error", {"job_id": job_id, "reason": outcome.reason})
        if outcome.candidates:
            await self._review("second_id", {"job_id": job_id, "candidates": list(outcome.candidates)})
        await self._ask_about_others(job_id)
        return Applied.MOVED

    async def _contradiction(self, job_id: str, known: str) -> Applied:
        await self._review("contradiction", {"job_id": job_id, "known": known})
        await self._incident(f"job {job_id} became known when {known}", job_id)
        return Applied.RECORDED

    async def _ask_about_others(self, job_id: str) -> None:
        """One job ends the question of one request: whatever else was sent may be paid for too."""
        told = await self._one("first_told", **self._job(job_id))
        if told is not None and told[0] not in (None, self.attempt_id):
            await self._review("second_id", {"job_id": job_id, "first_told_to": str(told[0])})
        for other, outcome in await self._all("other_requests"):
            if outcome == "unknown":
                await self._review("uncertain_submission", {"accepted": job_id}, attempt_id=other)

    async def _take_id(self, job_id: str) -> bool:
        """Store the id, whatever else; True: it is this operation's own, as its first or its second one."""
        operation = self.operation
        second = operation.job_id not in (None, job_id)
        unclaimed = not second and (operation.job_id == job_id or operation.phase in LATE_IDS_MOVE)
        role = "duplicate" if second else "primary" if unclaimed else "candidate"
        await self._add_job(job_id, role)
        holders = await self._all("job_holders", **self._job(job_id))
        others = [
            holder for holder, held_as in holders if holder != operation.operation_id and held_as == "primary"
        ]
        own = [held_as for holder, held_as in holders if holder == operation.operation_id]
        if others:
            if not own:
                await self._add_job(job_id, "candidate")
            return False
        if role == "primary" and own != ["primary"]:
            await self._run("promote_job", **self._job(job_id))
        return True

    async def _collision(self, job_id: str) -> Applied:
        """A provider that silently deduplicates: this id is another operation's job."""
        own_claim = self._own_claim
        if self.before in ("open", "unknown"):
            await self._finish("unknown", reason="job_id_collision")
        holders = await self._all("job_holders", **self._job(job_id))
        evidence = {"job_id": job_id, "operations": sorted(str(holder) for holder, _role in holders)}
        moved = Applied.RECORDED
        if own_claim:
            await self._say(Cause.UNKNOWN, "job_id_collision")
            await self._move("move", to_phase=Phase.UNCERTAIN, reason="job_id_collision", delay_s=None)
            moved = Applied.MOVED
        else:
            await self._review("id_collision", evidence)
        for holder, role in holders:
            if role == "primary" and holder != self.operation.operation_id:
                await self._review("id_collision", evidence, operation_id=holder, attempt_id=None)
        return moved

    async def _refused(self) -> Applied:
        outcome = self.outcome
        if self.before not in ("open", "unknown"):
            return Applied.RECORDED
        own_claim = self._own_claim
        await self._finish("refused", charged=outcome.charged)
        if own_claim:
            if outcome.after == "final":
                await self._say(Cause.RULE)
                await self._move("move", to_phase=Phase.REJECTED, reason=outcome.reason, delay_s=None)
            elif outcome.after == "delay":
                await self._say(Cause.REFUSED)
                delay_s = outcome.retry_after_s
                if delay_s is None:
                    delay_s = self.profile.unsent.delay_s(0, random.random())
                await self._move("move", to_phase=Phase.PREPARED, reason=outcome.reason, delay_s=delay_s)
            else:
                await self._say(Cause.REFUSED)
                await self._move("move", to_phase=Phase.HELD, reason=Hold.CONFIGURATION, delay_s=None)
            return Applied.MOVED
        # A refusal of one request says nothing about another that may have been accepted.
        uncertain = self.operation.phase is Phase.UNCERTAIN and not await self._all("other_requests")
        if uncertain and outcome.after == "final":
            await self._say(Cause.RULE)
            await self._move("reject_uncertain", reason=outcome.reason)
            return Applied.MOVED
        return Applied.RECORDED

    async def _unsent(self) -> Applied:
        # Only the sender knows this; after its lease the operation stays uncertain, and a person is told.
        if self.before == "unknown":
            await self._finish("unknown")
        if self.before != "open":
            return Applied.RECORDED
        await self._finish("unsent")
        return await self._return_unsent("move") if self._own_claim else Applied.RECORDED

    async def _return_unsent(self, query: str) -> Applied:
        row = await self._one("unsent_in_a_row")
        times = int(row[0]) if row else 1
        await self._say(Cause.UNSENT)
        if self.outcome.hold is not None:
            await self._move(query, to_phase=Phase.HELD, reason=Hold.CONFIGURATION, delay_s=None)
        elif times >= self.profile.max_unsent:
            await self._move(query, to_phase=Phase.HELD, reason=Hold.UNREACHABLE, delay_s=None)
        else:
            # Jitter: a provider that comes back isn't met by everybody at once.
            delay_s = self.profile.unsent.delay_s(times - 1, random.random())
            await self._move(query, to_phase=Phase.PREPARED, reason=self.outcome.reason, delay_s=delay_s)
        return Applied.MOVED

    async def _unknown(self) -> Applied:
        if self.before not in ("open", "unknown"):
            return Applied.RECORDED
        own_claim = self._own_claim
        await self._finish("unknown")
        if not own_claim:
            if self.new_candidates:
                await self._review("candidate_id", {"candidates": self.new_candidates})
                if self.operation.is_final:
                    await self._incident("an id became known after the end", ", ".join(self.new_candidates))
            elif self.before == "open":
                # A late id took the operation; this request may have made a second job all the same.
                await self._review("uncertain_submission", {"accepted": self.operation.job_id})
            return Applied.RECORDED
        reason = "candidate_id" if self.outcome.candidates else self.outcome.reason
        await self._say(Cause.UNKNOWN)
        await self._move("move", to_phase=Phase.UNCERTAIN, reason=reason, delay_s=None)
        return Applied.MOVED

    async def _count_failures(self) -> None:
        account = {"provider": self.operation.provider, "account": self.operation.account}
        if self.outcome.generic_failure:
            await self._run("note_failure", reason=self.outcome.reason, limit=PAUSE_AFTER, **account)
        elif self.outcome.verdict == "accepted":
            await self._run("note_success", **account)

    # Statements ---------------------------------------------------------------------------------------------

    async def _finish(self, outcome: str, *, reason: str | None = None, charged: bool | None = None) -> None:
        status = self.outcome.evidence.get("status")
        await self._run(
            "finish_attempt",
            outcome=outcome,
            reason=reason or self.outcome.reason,
            charged=charged,
            status=status if isinstance(status, int) else None,
            evidence=Jsonb(bounded(self.outcome.evidence)),
        )
        if not self._own_claim:
            told = {"attempt_id": str(self.attempt_id), "as": outcome, "reason": self.outcome.reason}
            await self._run("tell_reviewers", told=Jsonb(told))

    async def _add_job(self, job_id: str, role: str) -> bool:
        """True: the operation didn't have it yet."""
        return await self._run("add_job", **self._job(job_id), role=role) > 0

    def _job(self, job_id: str) -> dict[str, str]:
        return {"provider_account": self.operation.provider_account, "job_id": job_id}

    async def _review(
        self, kind: str, evidence: dict[str, Any], *, operation_id: UUID | None = None, attempt_id: Any = ...
    ) -> None:
        await self._run(
            "open_review",
            operation_id=operation_id or self.operation.operation_id,
            attempt_id=self.attempt_id if attempt_id is ... else attempt_id,
            kind=kind,
            deadline_s=self.profile.review_deadline_s(kind),
            evidence=Jsonb(evidence),
        )

    async def _incident(self, what: str, job_id: str) -> None:
        await self._run("open_incident", what=what, evidence=Jsonb({"job_id": job_id}))

    async def _say(self, cause: Cause, reason: str | None = None) -> None:
        await say(
            self.connection,
            Ground(
                self.actor,
                cause,
                reason or self.outcome.reason,
                attempt_id=self.attempt_id,
                review_deadline_s=self.profile.review_deadline_s("uncertain_submission"),
            ),
        )

    async def _move(self, query: str, **more: Any) -> None:
        cursor = await self.connection.execute(_SQL[query], self._parameters(more))
        if cursor.rowcount != 1:
            raise RuntimeError(
                f"operation {self.operation.operation_id} moved although it is locked: {query}"
            )

    async def _run(self, query: str, **more: Any) -> int:
        cursor = await self.connection.execute(_SQL[query], self._parameters(more))
        return cursor.rowcount

    async def _one(self, query: str, **more: Any) -> tuple[Any, ...] | None:
        cursor = await self.connection.execute(_SQL[query], self._parameters(more))
        row: tuple[Any, ...] | None = await cursor.fetchone()
        return row

    async def _all(self, query: str, **more: Any) -> list[tuple[Any, ...]]:
        cursor = await self.connection.execute(_SQL[query], self._parameters(more))
        return await cursor.fetchall()

    def _parameters(self, more: dict[str, Any]) -> dict[str, Any]:
        own = {"attempt_id": self.attempt_id}
        if hasattr(self, "operation"):
            own["operation_id"] = self.operation.operation_id
        return own | more
