"""What one decision of a person writes: review, phase, jobs and money of one operation, in the open
transaction whose locks `reviews.resolve` has taken. It judges nothing: decisions.py does.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from consumers.operations.boundaries import Boundary
from consumers.operations.decisions import Decision, Refused, asked_about, judged, leads_to, told_of
from consumers.operations.ground import Ground, say
from consumers.operations.lifecycle import Cause, Phase
from consumers.operations.queries import Queries
from consumers.operations.records import Attempt, Whole
from consumers.operations.resolutions import DISPUTES, NAMES_A_JOB, NOT_ACCEPTED, Kind, Resolution

_SQL: Final = Queries("reviews")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What took effect. `disputed` stays booked, in the operation's unit, until its cost is known.
    `look_again` is the deadline that waiting has set; the review is open still."""

    review_id: UUID
    operation_id: UUID
    resolution: Resolution
    from_phase: str
    to_phase: str
    job_id: str | None
    disputed: Decimal
    look_again: datetime | None = None


class Effect:
    """One decision, which `require_possible` has let pass, against one operation, which is locked. Lives for
    one transaction."""

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        seen: Whole,
        decision: Decision,
        evidence: dict[str, Any],
    ) -> None:
        self.connection = connection
        self.seen = seen
        self.decision = decision
        self.review = seen.review(decision.review_id)
        self.to_phase = leads_to(seen, decision)
        self.attempt = judged(seen, decision)
        if decision.resolution in NAMES_A_JOB:
            self.attempt = told_of(seen, decision.job_id) or self.attempt
        self.evidence = dict(evidence)

    async def take(self) -> Resolved:
        """Raises Refused when the review changed meanwhile, or another operation has the job."""
        decision = self.decision
        if decision.resolution is Resolution.WAIT:
            return self._resolved(look_again=await self._wait())
        if decision.resolution in NAMES_A_JOB:
            await self._take_job()
        if decision.spool_lost:
            self.evidence["spool_lost"] = [
                str(one.attempt_id) for one in asked_about(self.seen, decision) if not one.reported
            ]
        await self._resolve()
        disputed = await self._money()
        if self.to_phase is not None:
            await self._move(self.to_phase)
        if decision.resolution is Resolution.ACCEPTED:
            await self._ask_about_others()
        return self._resolved(disputed=disputed)

    def _resolved(self, *, disputed: Decimal = Decimal(0), look_again: datetime | None = None) -> Resolved:
        decision, operation = self.decision, self.seen.operation
        takes = self.to_phase is Phase.ACCEPTED
        return Resolved(
            review_id=decision.review_id,
            operation_id=operation.operation_id,
            resolution=decision.resolution,
            from_phase=operation.phase,
            to_phase=self.to_phase or operation.phase,
            job_id=decision.job_id if takes else operation.job_id,
            disputed=disputed,
            look_again=look_again,
        )

    # Jobs -----------------------------------------------------------------------------------------------

    async def _take_job(self) -> None:
        """Store the id, as the operation's own where it becomes or stays that, else as a second one."""
        decision = self.decision
        attempt_id = self.attempt.attempt_id if self.attempt else None
        own = self.to_phase is Phase.ACCEPTED or decision.job_id == self.seen.operation.job_id
        if own:
            holder = await self._one("other_holder", job_id=decision.job_id)
            if holder is not None:
                await self._take_from(holder[0], str(decision.job_id))
            if self.seen.operation.job_id not in (None, decision.job_id):
                await self._run("make_way", job_id=self.seen.operation.job_id)
        await self._run(
            "take_job",
            job_id=decision.job_id,
            attempt_id=attempt_id,
            role="primary" if own else "duplicate",
        )
        if attempt_id is not None:
            await self._run("accept_attempt", attempt_id=attempt_id)
        if not own:
            await self._second(str(decision.job_id), attempt_id)

    async def _second(self, job_id: str, attempt_id: UUID | None) -> None:
        """The operation has its job, or its end: what this one cost is asked for."""
        evidence = Jsonb(
            {"job_ids": [self.seen.operation.job_id, job_id], "review": str(self.review.review_id)}
        )
        await self._run("ask", kind=str(Kind.SECOND_ID), attempt_id=attempt_id, evidence=evidence)
        await self._incident(
            f"a second job {job_id} of one operation", attempt_id, evidence, self.seen.operation.operation_id
        )

    async def _take_from(self, other: UUID, job_id: str) -> None:
        if not self.decision.override:
            raise Refused(
                f"The job {job_id} is operation {other}'s already.",
                meaning="One job can't be two operations' result; nothing was changed.",
                remedy="If it is this one's all the same, say --override with the reason.",
            )
        what = f"job {job_id} was given to operation {self.seen.operation.operation_id}"
        evidence = Jsonb(
            {"job_id": job_id, "why": self.decision.override, "review": str(self.decision.review_id)}
        )
        await self._run("make_way", job_id=job_id, operation_id=other)
        await self._run(
            "ask", kind=str(Kind.ID_COLLISION), operation_id=other, attempt_id=None, evidence=evidence
        )
        await self._incident(what, None, evidence, other)
        self.evidence["overrides"] = {"operation": str(other), "why": self.decision.override}

    async def _ask_about_others(self) -> None:
        """The job ends the question of one request; another that was sent may be paid for too."""
        if self.to_phase is None:
            return
        for attempt in self.seen.attempts:
            if attempt.undecided and attempt is not self.attempt:
                await self._run(
                    "ask",
                    kind=str(Kind.UNCERTAIN_SUBMISSION),
                    attempt_id=attempt.attempt_id,
                    evidence=Jsonb({"accepted": self.decision.job_id}),
                )

    # The review -----------------------------------------------------------------------------------------

    async def _wait(self) -> datetime:
        decision = self.decision
        row = await self._one(
            "wait",
            review_id=decision.review_id,
            revision=decision.revision,
            wait_s=decision.wait_s,
            waited=Jsonb([{"by": decision.actor, "why": decision.reason}]),
        )
        if row is None:
            raise self._changed()
        deadline: datetime = row[0]
        return deadline

    async def _resolve(self) -> None:
        decision = self.decision
        done = await self._run(
            "resolve",
            review_id=decision.review_id,
            revision=decision.revision,
            resolution=decision.resolution,
            reason=decision.reason,
            actor=decision.actor,
            decision=Jsonb({"decision": self.evidence} if self.evidence else {}),
        )
        if done != 1:
            raise self._changed()
        await self._run(
            "decide_incidents",
            review_id=decision.review_id,
            attempt_id=self.review.attempt_id,
            decision=f"{decision.resolution}: {decision.reason}",
            actor=decision.actor,
        )

    def _changed(self) -> Refused:
        return Refused(
            "The review changed at this very moment.",
            meaning="Nothing was changed by you.",
            remedy=f"`relay review show {self.decision.review_id}` shows how it is now.",
        )

    # Money ----------------------------------------------------------------------------------------------

    async def _money(self) -> Decimal:
        """Dispute what may have been charged, or settle; returns what was disputed now."""
        decision = self.decision
        if decision.resolution in NOT_ACCEPTED:
            for attempt in asked_about(self.seen, decision):
                await self._run(
                    "release_attempt", attempt_id=attempt.attempt_id, review_id=decision.review_id
                )
        elif decision.resolution is Resolution.SETTLE and self.attempt is not None:
            await self._book(self.attempt.attempt_id)
        disputed = Decimal(0)
        for attempt_id, amount in self._unproven().items():
            await self._run("dispute", attempt_id=attempt_id, reason=f"review: {decision.resolution}")
            disputed += amount
        return disputed

    async def _book(self, attempt_id: UUID) -> None:
        """What was settled is corrected; what was settled at this very cost is only confirmed."""
        decision = self.decision
        (booked,) = [one for one in self.seen.reservations if one.attempt_id == attempt_id]
        if booked.settled_amount != decision.cost:
            query = "settle" if booked.settled_amount is None else "correct"
            await self._run(query, attempt_id=attempt_id, cost=decision.cost, reason=decision.reason)

    def _unproven(self) -> dict[UUID, Decimal]:
        """The reservations whose attempts may have been charged for, and that the decision leaves unpaid."""
        reserved = {one.attempt_id: one.amount for one in self.seen.reservations if one.state == "reserved"}
        decision = self.decision
        if decision.resolution is Resolution.CHOOSE_PRIMARY:
            return {one: reserved[one] for one in self._of_other_jobs() if one in reserved}
        if decision.resolution not in DISPUTES:
            return {}
        if self.to_phase is None:
            # The operation goes on with what else it has: the answer is about one request alone.
            about = self.attempt.attempt_id if self.attempt else None
            return {one: amount for one, amount in reserved.items() if one == about}
        known = {attempt.attempt_id for attempt in self.seen.attempts}
        return {one: amount for one, amount in reserved.items() if one in known}

    def _of_other_jobs(self) -> set[UUID]:
        """Attempts that made another job than the chosen one, and not the chosen one."""
        by_job = {job.job_id: job.attempt_id for job in self.seen.jobs}
        chosen = by_job.get(str(self.decision.job_id))
        others = {one for job_id, one in by_job.items() if job_id != self.decision.job_id}
        return {one for one in others if one is not None and one != chosen}

    # The phase ------------------------------------------------------------------------------------------

    async def _move(self, to_phase: Phase) -> None:
        decision = self.decision
        fetched_again = decision.resolution is Resolution.REFETCH
        await say(
            self.connection,
            Ground(
                decision.actor,
                Cause.OPERATOR if fetched_again else Cause.REVIEW,
                decision.reason,
                attempt_id=self._backing(),
                review_id=decision.review_id,
            ),
        )
        moved = await self._run(
            "move",
            from_phase=self.seen.operation.phase,
            to_phase=to_phase,
            phase_reason=f"review:{decision.resolution}",
            job_id=decision.job_id if to_phase is Phase.ACCEPTED else None,
        )
        if moved != 1:
            raise RuntimeError(f"operation {self.seen.operation.operation_id} moved although it is locked")

    def _backing(self) -> UUID | None:
        attempt: Attempt | None = self.attempt
        return None if attempt is None else attempt.attempt_id

    # Statements -----------------------------------------------------------------------------------------

    async def _incident(
        self, what: str, attempt_id: UUID | None, evidence: Jsonb, operation_id: UUID
    ) -> None:
        await self._run(
            "open_incident",
            operation_id=operation_id,
            attempt_id=attempt_id,
            boundary=str(Boundary.ID_COMMIT),
            what=what,
            evidence=evidence,
        )

    async def _run(self, query: str, **more: Any) -> int:
        cursor = await self.connection.execute(_SQL[query], self._named(more))
        return cursor.rowcount

    async def _one(self, query: str, **more: Any) -> tuple[Any, ...] | None:
        cursor = await self.connection.execute(_SQL[query], self._named(more))
        row: tuple[Any, ...] | None = await cursor.fetchone()
        return row

    def _named(self, more: dict[str, Any]) -> dict[str, Any]:
        operation = self.seen.operation
        return {
            "operation_id": operation.operation_id,
            "provider_account": operation.provider_account,
        } | more
