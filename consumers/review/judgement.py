"""What the evidence of a review proves, what it doesn't, and the commands that would decide it. Pure; it
proposes nothing: whether a job exists is for evidence or a person to say.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from consumers.operations.decisions import FROM, Decision, Refused, Resolution, require_possible
from consumers.operations.lifecycle import Phase
from consumers.operations.records import Attempt, Reservation, Review, Whole
from relay.errors import as_sentence


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to resolve the review. `refused_now` says why it can't be taken yet."""

    command: str
    effect: str
    refused_now: str | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """Sentences for a person."""

    question: str
    proven: tuple[str, ...]
    unproven: tuple[str, ...]
    choices: tuple[Choice, ...]


_QUESTIONS: Final = {
    "hold": "May it go on?",
    "uncertain_submission": "Did the provider make a job of this request?",
    "candidate_id": "Is one of the ids that were seen the job of this request?",
    "id_collision": "Whose is the job that two operations were given?",
    "id_with_error": "An error came with the job's id: what does the job cost?",
    "second_id": "The provider named a second job for one operation: which one counts?",
    "job_unknown": "The provider no longer knows the job that it had accepted: is it lost?",
    "output_expired": "The output can't be fetched any more: what becomes of it?",
    "contradiction": "What came in contradicts how the operation ended: which is true?",
}
_WORD: Final = {
    Resolution.ACCEPTED: "accepted",
    Resolution.RESUBMIT: "not-accepted --then resubmit",
    Resolution.NOT_ACCEPTED_REJECT: "not-accepted --then reject",
    Resolution.NOT_ACCEPTED_CANCEL: "not-accepted --then cancel",
    Resolution.ABANDON: "abandon",
    Resolution.RELEASE: "release",
    Resolution.REJECT: "reject",
    Resolution.CANCEL: "cancel",
    Resolution.LOST: "lost",
    Resolution.SETTLE: "settle",
}
_EFFECT: Final = {
    Resolution.ACCEPTED: "the provider is asked about the job, which is then observed and delivered",
    Resolution.RESUBMIT: "it is sent AGAIN; the first request's money stays disputed",
    Resolution.NOT_ACCEPTED_REJECT: "it ends as rejected; its money stays disputed",
    Resolution.NOT_ACCEPTED_CANCEL: "it ends as cancelled; its money stays disputed",
    Resolution.ABANDON: "it ends as abandoned, unknown for good; its money stays disputed",
    Resolution.RELEASE: "it is dispatched again; nothing of it was accepted",
    Resolution.REJECT: "it ends as rejected",
    Resolution.CANCEL: "it ends as cancelled",
    Resolution.LOST: "it ends as lost; its money stays disputed",
    Resolution.SETTLE: "the cost is booked, and the operation goes on",
}


def judge(review: Review, seen: Whole) -> Judgement:
    """What `seen` says about the question of `review`."""
    proven: list[str] = []
    unproven: list[str] = []
    for attempt in seen.attempts:
        if attempt.action == "submit":
            _judge_attempt(attempt, seen.read_at, proven, unproven)
    proven += [
        f"The provider's id {job.job_id} was seen ({job.role}, state {job.state or 'not asked for'})."
        for job in seen.jobs
    ]
    if review.kind == "hold":
        proven.append(f"It is held for {seen.operation.phase_reason}: {as_sentence(_held_for(seen))}")
    if seen.operation.accounting == "unsettled":
        unproven.append("What the job costs: nothing has said so yet.")
    if seen.operation.cancel_requested:
        proven.append("A cancel was requested.")
    proven += [_booked(reservation) for reservation in seen.reservations]
    question = _QUESTIONS.get(review.kind, "What becomes of it?")
    return Judgement(question, tuple(proven), tuple(unproven), tuple(_choices(review, seen)))


def _held_for(seen: Whole) -> str:
    """The journal's words; where they only repeat the reason, what the last attempt met with."""
    words = seen.journal[-1].reason
    error = seen.attempts[-1].evidence.get("error") if seen.attempts else None
    return str(error) if error and words == seen.operation.phase_reason else str(words)


def _judge_attempt(attempt: Attempt, now: datetime, proven: list[str], unproven: list[str]) -> None:
    name = f"attempt {attempt.attempt_id}"
    if attempt.outcome == "unsent":
        proven.append(f"No byte of {name} left the machine ({attempt.outcome_reason}).")
        return
    if attempt.outcome == "refused":
        charged = "not charged" if attempt.charged is False else "perhaps charged"
        proven.append(
            f"The provider refused {name} by a rule of its profile ({attempt.outcome_reason}, {charged})."
        )
        return
    if attempt.released_by_review is not None:
        proven.append(f"A person decided that no job came of {name} (review {attempt.released_by_review}).")
        return
    if not attempt.reported:
        proven.append(f"{attempt.worker} was about to send {name} at {_moment(attempt.first_sent_at)}.")
        unproven.append(
            f"Whether {name} was sent, and what came back: its process never reported. Its spool"
            f" {attempt.spool or '(unknown)'} may hold the answer."
        )
    else:
        proven.append(f"Of {name}: {_answer(attempt)}")
    if attempt.outcome == "accepted":
        return
    unproven.append(f"Whether the provider made a job of {name}, and charged for it.")
    if attempt.late_delivery_until is not None and attempt.late_delivery_until > now:
        unproven.append(
            f"Whether {name} will still arrive: a request that was given up can be read by the provider until"
            f" {_moment(attempt.late_delivery_until)}."
        )


def _answer(attempt: Attempt) -> str:
    seen = attempt.evidence
    error = f" ({seen['error']})" if seen.get("error") else ""
    if seen.get("sent") is False:
        return f"its process says that no byte left the machine{error}."
    if seen.get("status") is None:
        what = seen.get("spool")
        return f"its process was lost; the spool says: {what}." if what else f"no answer was read{error}."
    whole = "whole" if seen.get("body_complete") else "cut off"
    return (
        f"the provider answered HTTP {seen['status']} with {seen.get('body_bytes', 0)} bytes, {whole}{error}."
    )


def _booked(reservation: Reservation) -> str:
    settled = reservation.settled_amount
    at = f" at {settled.normalize():f}" if settled is not None else ""
    amount = f"{reservation.amount.normalize():f} {reservation.unit}"
    return f"{amount} are {reservation.state}{at} for attempt {reservation.attempt_id}."


def ids_seen(review: Review, seen: Whole) -> list[str]:
    """Ids that might be the job: those that are stored, then those that the review's evidence names."""
    ids = [job.job_id for job in seen.jobs]
    named = review.evidence.get("candidates")
    if isinstance(named, list):
        ids += [str(one) for one in named]
    if isinstance(review.evidence.get("job_id"), str):
        ids.append(review.evidence["job_id"])
    return list(dict.fromkeys(ids))


def command(review: Review, resolution: Resolution, *, job_id: str | None = None) -> str:
    """The command line that takes `resolution` at what was shown."""
    parts = [f"relay review resolve {review.review_id} {_WORD[resolution]}"]
    if resolution is Resolution.ACCEPTED:
        parts.append(f"--job-id {shlex.quote(job_id) if job_id else 'ID'}")
    if resolution is Resolution.SETTLE:
        parts.append("--cost AMOUNT")
    parts.append(f"--revision {review.revision} --reason '…'")
    return " ".join(parts)


def _choices(review: Review, seen: Whole) -> Iterator[Choice]:
    for resolution in Resolution:
        if seen.operation.phase not in FROM[resolution] or not _fits(resolution, review, seen):
            continue
        decision = Decision(
            review_id=review.review_id, revision=review.revision, resolution=resolution, reason="", actor=""
        )
        refused_now = None
        try:
            require_possible(seen, decision)
        except Refused as error:
            refused_now = f"{error.message} {error.remedy}".strip()
        named: list[str | None] = [None]
        if resolution is Resolution.ACCEPTED:
            named = [*ids_seen(review, seen)] or named
        for job_id in named:
            effect = _EFFECT[resolution]
            if resolution is Resolution.RELEASE and seen.operation.parent_operation_id is not None:
                effect = "what is missing is fetched again, by the provider's profile as it is now"
            yield Choice(command(review, resolution, job_id=job_id), effect, refused_now)


def _fits(resolution: Resolution, review: Review, seen: Whole) -> bool:
    """Whether `resolution` answers the question; the phase allows it."""
    match resolution:
        case Resolution.SETTLE:
            # Closing the only review of an operation that waits for it would leave it without a waker.
            waits = seen.operation.phase in (Phase.UNCERTAIN, Phase.HELD)
            return not waits and any(one.state in ("reserved", "disputed") for one in seen.reservations)
        case Resolution.ACCEPTED:
            return seen.operation.phase == Phase.UNCERTAIN or bool(ids_seen(review, seen))
        case Resolution.REJECT:
            # A delivery has nobody who could reject it: it is released or cancelled.
            return seen.operation.parent_operation_id is None
        case Resolution.LOST:
            return review.kind in ("job_unknown", "id_collision")
        case _:
            return True


def _moment(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
