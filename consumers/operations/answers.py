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

from consumers.operations.answer_rows import SQL, AnswerRows, Holder
from consumers.operations.lifecycle import LATE_IDS_MOVE, Cause, Hold, Phase
from consumers.providers.evidence import bounded
from consumers.providers.outcome import Submission
from consumers.providers.profile import Profile
from relay import failpoints

_Connection = psycopg.AsyncConnection[Any]

PAUSE_AFTER: Final = 3
"""Equal generic failures in a row that pause the provider account (design-operations, section 3)."""


_SENT_AGAIN: Final = frozenset({Phase.PREPARED, Phase.HELD, Phase.CLAIMED})
"""Where an operation waits for its next request."""


class Applied(StrEnum):
    """What became of the answer."""

    MOVED = "moved"
    RECORDED = "recorded"
    """Ids and evidence are stored; the phase was decided otherwise, or already."""
    NO_ATTEMPT = "no_attempt"
    """The database doesn't know the attempt: it was restored, or never told. Keep the spool's entry."""


@dataclass(frozen=True, slots=True)
class Attempted:
    """Whose attempt it is, and by which profile its answer is read."""

    operation_id: UUID
    provider: str
    profile_digest: str


async def attempted(connection: _Connection, attempt_id: UUID) -> Attempted | None:
    """None: the database doesn't know the attempt."""
    async with connection.cursor(row_factory=class_row(Attempted)) as cursor:
        await cursor.execute(SQL["attempted"], {"attempt_id": attempt_id})
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
        # The spool forgets the answer after this commit.
        await connection.execute(SQL["durable"])
        rows = await AnswerRows(connection, attempt_id, outcome, profile, actor).lock(operation_id)
        applied = Applied.NO_ATTEMPT if rows is None else await _Application(rows).apply()
        failpoints.hit(failpoints.DISPATCH_ANSWER_UNCOMMITTED)
    return applied


class _Application:
    """What one answer means for one operation, both locked. Lives for one transaction."""

    def __init__(self, rows: AnswerRows) -> None:
        self.rows = rows
        self.outcome = rows.outcome
        self.operation = rows.operation
        self.profile = rows.profile
        self.before = rows.before
        self.new_candidates: list[str] = []

    async def apply(self) -> Applied:
        if self.before is None:
            return await self._without_attempt()
        if await self.rows.is_repeated():
            return Applied.RECORDED
        named = self.outcome.candidates
        self.new_candidates = [one for one in named if await self.rows.add_job(one, "candidate")]
        match self.outcome.verdict:
            case "accepted":
                applied = await self._accepted()
            case "refused":
                applied = await self._refused()
            case "unsent":
                applied = await self._unsent()
            case _:
                applied = await self._unknown()
        await self._ask_whose_candidates()
        if applied is Applied.MOVED:
            await self._count_failures()
        return applied

    async def _without_attempt(self) -> Applied:
        if self.outcome.verdict != "unsent":
            return Applied.NO_ATTEMPT
        operation = self.operation
        if operation.phase is not Phase.CLAIMED or operation.claim_token != self.rows.attempt_id:
            return Applied.RECORDED
        # Recorded under the live claim, so that the next rows can name it and max_unsent can count it.
        await self.rows.run(
            "record_unsent",
            dispatch_no=operation.dispatch_no,
            actor=self.rows.actor,
            reason=self.outcome.reason,
            evidence=Jsonb(bounded(self.outcome.evidence)),
        )
        return await self._return_unsent("move_claimed")

    # A job ----------------------------------------------------------------------------------------------

    async def _accepted(self) -> Applied:
        outcome, operation, rows = self.outcome, self.operation, self.rows
        job_id = outcome.job_id
        if job_id is None:
            raise ValueError("an accepted submission has a job id")
        own_claim = rows.own_claim
        counts = await self._counts(job_id)
        moves = counts and operation.job_id is None and operation.phase in LATE_IDS_MOVE
        is_new, holders = await self._take_id(job_id, primary=moves or operation.job_id == job_id)
        if self.before == "accepted":
            await self._first_report(job_id)
            if not is_new:
                return Applied.RECORDED
        others = [one for one in holders if one.operation_id != operation.operation_id]
        if any(one.owns for one in others):
            return await self._collision(job_id, others)
        if counts and self.before != "accepted":
            await rows.finish("accepted")
            await rows.run("accept_replayed")
        applied = Applied.RECORDED
        if moves:
            late = not (own_claim and self.before == "open")
            await self._take_operation(job_id, Cause.LATE_ANSWER if late else Cause.ANSWER)
            applied = Applied.MOVED
        elif operation.job_id is None:
            await self._contradiction(job_id)
        elif operation.job_id != job_id:
            await self._second_id(job_id)
        if moves or operation.job_id == job_id:
            await self._ask_about_others(job_id)
        if others:
            await self._ask_whose(job_id, others)
        if outcome.candidates and (moves or self.new_candidates):
            await rows.review("second_id", {"job_id": job_id, "candidates": list(outcome.candidates)})
        return applied

    async def _counts(self, job_id: str) -> bool:
        """Whether this attempt becomes an accepted one. What counted as refused or unsent does, unless
        another request was sent on that ground: then both stand as they are, and a person is asked."""
        if self.before not in ("refused", "unsent"):
            return True
        told = await self.rows.one("first_told", **self.rows.account, job_id=job_id)
        told_by_another = told is not None and told[0] != self.rows.attempt_id
        return not told_by_another and not await self.rows.all("other_requests")

    async def _take_operation(self, job_id: str, cause: Cause) -> None:
        unsettled = self.outcome.accounting == "unsettled"
        await self.rows.say(cause)
        await self._move_on(
            "accept",
            reason=self.outcome.reason,
            job_id=job_id,
            phase=self.operation.phase,
            unsettled=unsettled,
        )
        if unsettled:
            await self.rows.review("id_with_error", {"job_id": job_id, "reason": self.outcome.reason})

    async def _first_report(self, job_id: str) -> None:
        """A person had named the job; now the provider's own answer is here, perhaps with an error."""
        first = await self.rows.keep_evidence()
        if first and self.outcome.accounting == "unsettled" and self.operation.job_id == job_id:
            await self.rows.run("unsettled")
            await self.rows.review("id_with_error", {"job_id": job_id, "reason": self.outcome.reason})

    async def _second_id(self, job_id: str) -> None:
        known = [one for (one,) in await self.rows.all("jobs")]
        await self.rows.review("second_id", {"job_ids": known})
        await self.rows.incident(f"a second job {job_id} of one operation", {"job_id": job_id})

    async def _contradiction(self, job_id: str) -> None:
        """A job where none should be, and no phase that it could move."""
        known = f"the operation was {self.operation.phase}"
        if self.before in ("refused", "unsent"):
            known = f"its request counted as {self.before}"
        await self.rows.review("contradiction", {"job_id": job_id, "known": known})
        await self.rows.incident(f"job {job_id} became known when {known}", {"job_id": job_id})

    async def _ask_about_others(self, job_id: str) -> None:
        """One job ends the question of one request: whatever else was sent may be paid for too."""
        told = await self.rows.one("first_told", **self.rows.account, job_id=job_id)
        if told is not None and told[0] not in (None, self.rows.attempt_id):
            await self.rows.review("second_id", {"job_id": job_id, "first_told_to": str(told[0])})
        for other, outcome in await self.rows.all("other_requests"):
            if outcome == "unknown":
                await self.rows.review("uncertain_submission", {"accepted": job_id}, attempt_id=other)

    async def _take_id(self, job_id: str, *, primary: bool) -> tuple[bool, list[Holder]]:
        """Store the id, whatever else: whether it is new to this operation, and everybody who has it now.

        It is the operation's own, first or second, unless another operation's it is."""
        second = self.operation.job_id not in (None, job_id)
        role = "primary" if primary else "duplicate" if second else "candidate"
        is_new = await self.rows.add_job(job_id, role)
        holders = await self.rows.holders(job_id)
        own = next((one for one in holders if one.operation_id == self.operation.operation_id), None)
        if own is None:
            # The index of primaries kept it out: it is another's.
            is_new = await self.rows.add_job(job_id, "candidate")
        elif own.role == "candidate" != role and not any(one.owns for one in holders):
            await self.rows.give_role(job_id, role)
        return is_new, await self.rows.holders(job_id)

    # Somebody else's job ----------------------------------------------------------------------------------

    async def _collision(self, job_id: str, others: list[Holder]) -> Applied:
        """A provider that silently deduplicates: this id is another operation's job."""
        own_claim = self.rows.own_claim
        if self.before in ("open", "unknown"):
            await self.rows.finish("unknown", reason="job_id_collision")
        if own_claim:
            await self.rows.say(Cause.UNKNOWN, "job_id_collision")
            await self.rows.move("move", to_phase=Phase.UNCERTAIN, reason="job_id_collision", delay_s=None)
        await self._ask_whose(job_id, others)
        return Applied.MOVED if own_claim else Applied.RECORDED

    async def _ask_whose(self, job_id: str, others: list[Holder]) -> None:
        """Of everybody who has the id; on a final phase an incident says it too."""
        mine = self.operation.operation_id
        everybody = sorted([str(mine), *(str(one.operation_id) for one in others)])
        evidence = {"job_id": job_id, "operations": everybody}
        await self.rows.review("id_collision", evidence)
        for one in others:
            await self.rows.review(
                "id_collision", evidence, operation_id=one.operation_id, attempt_id=one.attempt_id
            )
        if self.operation.is_final:
            await self.rows.incident(f"job {job_id} is another operation's", evidence)

    async def _ask_whose_candidates(self) -> None:
        """An id that was only seen, and is another operation's job."""
        for candidate in self.new_candidates:
            holders = await self.rows.holders(candidate)
            others = [one for one in holders if one.operation_id != self.operation.operation_id and one.owns]
            if others:
                await self._ask_whose(candidate, others)

    # No job -----------------------------------------------------------------------------------------------

    async def _refused(self) -> Applied:
        outcome, rows = self.outcome, self.rows
        if self.before == "accepted":
            return await self._refused_although_accepted()
        if self.before not in ("open", "unknown"):
            return Applied.RECORDED
        if told := [one for (one,) in await rows.all("told_by_this")]:
            # An id outranks a refusal: a job that may exist is never called refused.
            applied = await self._unknown()
            await rows.review("candidate_id", {"candidates": told, "then": outcome.reason})
            return applied
        if await self.rows.proves_nothing():
            return await self._unknown()
        own_claim = rows.own_claim
        await rows.finish("refused", charged=outcome.charged)
        if outcome.charged is not False:
            what = f"the provider refused a request ({outcome.reason}) and may have charged for it"
            evidence = {"charged": outcome.charged, "settle": "its money is disputed until its cost is known"}
            await rows.incident(what, evidence, boundary="provider_reservation")
        if own_claim:
            await self._move_refused()
            return Applied.MOVED
        if self.operation.phase in _SENT_AGAIN and (outcome.after == "fix" or outcome.charged is not False):
            # Nobody knew this when it was decided to send it again: as it is, it would be paid for once more.
            known = f"it is to be sent again, and was refused ({outcome.reason})"
            await rows.review("contradiction", {"known": known, "after": outcome.after})
        # A refusal of one request says nothing about another that may have been accepted.
        uncertain = self.operation.phase is Phase.UNCERTAIN and not await rows.all("other_requests")
        if uncertain and outcome.after == "final":
            await rows.say(Cause.RULE)
            await self._move_on("reject_uncertain", reason=outcome.reason)
            return Applied.MOVED
        return Applied.RECORDED

    async def _move_refused(self) -> None:
        outcome, rows = self.outcome, self.rows
        if await self.rows.unreplay("move"):
            return
        if outcome.after == "final":
            await rows.say(Cause.RULE)
            await rows.move("move", to_phase=Phase.REJECTED, reason=outcome.reason, delay_s=None)
        elif outcome.after == "delay":
            await rows.say(Cause.REFUSED)
            delay_s = outcome.retry_after_s
            if delay_s is None:
                delay_s = self.profile.unsent.delay_s(0, random.random())
            await rows.move("move", to_phase=Phase.PREPARED, reason=outcome.reason, delay_s=delay_s)
        else:
            await rows.say(Cause.REFUSED)
            await rows.move("move", to_phase=Phase.HELD, reason=Hold.CONFIGURATION, delay_s=None)

    async def _refused_although_accepted(self) -> Applied:
        """A person found a job for this very request, and the provider's answer says that there is none."""
        await self.rows.keep_evidence()
        known = [one for (one,) in await self.rows.all("jobs")]
        what = f"the provider refused the request ({self.outcome.reason}) that counts as accepted"
        await self.rows.review(
            "contradiction",
            {"job_ids": known, "known": what, "answer": bounded(self.outcome.evidence)},
        )
        await self.rows.incident(what, {"job_ids": known})
        return Applied.RECORDED

    async def _unsent(self) -> Applied:
        # Only the sender knows this; after its lease the operation stays uncertain, and a person is told.
        if self.before == "unknown":
            await self.rows.finish("unknown")
        if self.before != "open":
            return Applied.RECORDED
        await self.rows.finish("unsent")
        return await self._return_unsent("move") if self.rows.own_claim else Applied.RECORDED

    async def _return_unsent(self, query: str) -> Applied:
        rows = self.rows
        row = await rows.one("unsent_in_a_row")
        times = int(row[0]) if row else 1
        given_up = self.outcome.hold is not None or times >= self.profile.max_unsent
        if given_up and await self.rows.unreplay(query):
            return Applied.MOVED
        await rows.say(Cause.UNSENT)
        if self.outcome.hold is not None:
            await rows.move(query, to_phase=Phase.HELD, reason=Hold.CONFIGURATION, delay_s=None)
        elif times >= self.profile.max_unsent:
            await rows.move(query, to_phase=Phase.HELD, reason=Hold.UNREACHABLE, delay_s=None)
        else:
            # Jitter: a provider that comes back isn't met by everybody at once.
            delay_s = self.profile.unsent.delay_s(times - 1, random.random())
            await rows.move(query, to_phase=Phase.PREPARED, reason=self.outcome.reason, delay_s=delay_s)
        return Applied.MOVED

    async def _unknown(self) -> Applied:
        rows, operation = self.rows, self.operation
        own_claim = rows.own_claim
        if self.before in ("open", "unknown"):
            await rows.finish("unknown")
        else:
            await rows.keep_evidence()
        if own_claim:
            reason = "candidate_id" if self.outcome.candidates else self.outcome.reason
            await rows.say(Cause.UNKNOWN)
            await rows.move("move", to_phase=Phase.UNCERTAIN, reason=reason, delay_s=None)
            if self.outcome.candidates:
                await rows.review("candidate_id", {"candidates": list(self.outcome.candidates)})
            return Applied.MOVED
        if self.new_candidates:
            await rows.review("candidate_id", {"candidates": list(self.outcome.candidates)})
            if operation.is_final:
                await rows.incident("an id became known after the end", {"job_ids": self.new_candidates})
        elif self.before == "open" and await rows.one("replayed_and_accepted") is not None:
            await rows.run("replayed")
        elif self.before == "open":
            # A late id took the operation; this request may have made a second job all the same.
            await rows.review("uncertain_submission", {"accepted": operation.job_id})
        return Applied.RECORDED

    async def _move_on(self, query: str, **more: Any) -> None:
        """Move the operation. That ends the question of what it waited for, and no other request's."""
        asked = await self.rows.all("candidate_questions")
        await self.rows.move(query, **more)
        for attempt_id, evidence in asked:
            await self.rows.review("candidate_id", evidence, attempt_id=attempt_id)

    async def _count_failures(self) -> None:
        account = {"provider": self.operation.provider, "account": self.operation.account}
        if self.outcome.generic_failure:
            await self.rows.run("note_failure", reason=self.outcome.reason, limit=PAUSE_AFTER, **account)
        elif self.outcome.verdict == "accepted":
            await self.rows.run("note_success", **account)
