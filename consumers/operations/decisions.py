"""What a person may decide about a review, and when that must be refused. Pure: it reads and moves nothing.

The database's guards have the last word; this says the same first, in sentences, and more of it.
"""

from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from typing import Final
from uuid import UUID

from consumers.operations.lifecycle import Phase
from consumers.operations.records import Attempt, Operation, Review, Whole
from consumers.operations.resolutions import (
    NAMES_A_JOB,
    NOT_ACCEPTED,
    NOT_FOR_DELIVERIES,
    OPTIONS,
    QUESTIONS,
    Kind,
    Resolution,
    typed,
    words,
)
from consumers.providers.document import job_id
from relay.errors import RelayError


class Refused(RelayError):
    """The database, or a check before it, refused what was asked; nothing was changed."""


_FEW: Final = 3
"""Phases that a sentence can name before nobody reads it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`revision` is that of the sight the person had. `reason` is kept for good."""

    review_id: UUID
    revision: int
    resolution: Resolution
    reason: str
    actor: str
    job_id: str | None = None
    override: str | None = None
    """Why the job is this operation's although another one has it."""
    spool_lost: bool = False
    """The sending process's spool can't be read any more."""
    cost: Decimal | None = None
    wait_s: float | None = None
    """How long until the review is urgent again; None: as long as it was given when it was opened."""


def possible(review: Review, operation: Operation) -> dict[Resolution, Phase | None]:
    """The answers that `review` takes in the operation's present phase, and where each leads; None: the
    operation stays as it is."""
    delivery = operation.parent_operation_id is not None
    return {
        resolution: steps[Phase(operation.phase)]
        for resolution, steps in OPTIONS[Kind(review.kind)].items()
        if operation.phase in steps and not (delivery and resolution in NOT_FOR_DELIVERIES)
    }


def leads_to(seen: Whole, decision: Decision) -> Phase | None:
    """The phase that `decision` moves the operation to; None: it stays. It must be possible."""
    operation = seen.operation
    to_phase = possible(seen.review(decision.review_id), operation)[decision.resolution]
    if decision.resolution is Resolution.CHOOSE_PRIMARY and decision.job_id == operation.job_id:
        return None
    if decision.resolution is Resolution.ACCEPTED and operation.job_id is not None:
        # Cancelled after it had a job: the id is a second one.
        return None
    return to_phase


def require_possible(seen: Whole, decision: Decision) -> None:
    """Pure: raises Refused, in a sentence, when `decision` may not be taken at what is `seen`."""
    try:
        review = seen.review(decision.review_id)
    except KeyError:
        # Not guessed: the operation may have another review by now than the one that was shown.
        raise Refused(
            f"{decision.review_id} is an operation, and a decision names the review that was shown.",
            meaning="Nothing was changed.",
            remedy=f"`relay review show {decision.review_id}` names it, and the commands that decide it.",
        ) from None
    show = f"`relay review show {review.review_id}` shows how it is now."
    if review.state != "open":
        how = f" as {review.resolution} by {review.resolved_by}" if review.resolution else ""
        raise Refused(
            f"The review {review.review_id} is {review.state}{how}.", meaning="Nothing was changed."
        )
    if review.revision != decision.revision:
        raise Refused(
            f"You were shown revision {decision.revision} of this review, and it is at {review.revision}.",
            meaning="Evidence came in, or the operation moved, since you looked; nothing was changed.",
            remedy=show,
        )
    operation = seen.operation
    choices = possible(review, operation)
    if decision.resolution not in choices:
        raise _not_here(review, operation, decision.resolution, choices)
    if decision.resolution in NOT_ACCEPTED:
        _require_silence(seen, decision)
    if decision.resolution is Resolution.RESUBMIT and operation.cancel_requested:
        raise Refused(
            "A cancel was requested for this operation, so it would not be submitted again.",
            meaning="Nothing was changed.",
            remedy="Use not-accepted --then cancel.",
        )
    if decision.resolution in NAMES_A_JOB and not decision.job_id:
        raise Refused("The id of the job is missing.", remedy="Say --job-id ID.")
    if decision.job_id is not None and job_id(decision.job_id) is None:
        raise Refused(
            f"{decision.job_id[:80]!r} is no id of a job: those have 1 to 512 characters without controls.",
            meaning="Nothing was changed.",
        )
    if decision.resolution is Resolution.CHOOSE_PRIMARY:
        _require_choice(seen, decision)
    if decision.resolution is Resolution.SETTLE:
        _require_bookable(seen, decision)


def _not_here(
    review: Review, operation: Operation, wanted: Resolution, choices: dict[Resolution, Phase | None]
) -> Refused:
    """Why `wanted` is no answer: to no review of this kind, or not in this phase."""
    steps = OPTIONS[Kind(review.kind)].get(wanted)
    if steps is None:
        why = f'"{typed(wanted)}" doesn\'t answer a review of the kind {review.kind}, which asks:'
        why = f"{why} {QUESTIONS[Kind(review.kind)]}"
    elif operation.parent_operation_id is not None and wanted in NOT_FOR_DELIVERIES:
        why = "The operation is a delivery, and nobody could reject that: it is released or cancelled."
    else:
        only = f", only of one that is {' or '.join(steps)}" if len(steps) <= _FEW else ""
        why = f"The operation is {operation.phase}, and a review of the kind {review.kind} doesn't take"
        why = f'{why} "{typed(wanted)}" of that{only}.'
    return Refused(
        why,
        meaning="Nothing was changed.",
        remedy=f"It takes: {words(choices)}. `relay review show {review.review_id}` shows how it is now.",
    )


def _require_choice(seen: Whole, decision: Decision) -> None:
    ids = list(dict.fromkeys(job.job_id for job in seen.jobs))
    if decision.job_id not in ids:
        raise Refused(
            f"The id {decision.job_id} was never seen for this operation.",
            meaning="Only an id that the provider gave for it can be chosen; nothing was changed.",
            remedy=f"Those that were seen: {', '.join(ids) or 'none'}.",
        )
    if seen.operation.is_final and decision.job_id != seen.operation.job_id:
        raise Refused(
            f"The operation ended as {seen.operation.phase} with the job {seen.operation.job_id}, and what"
            " ended isn't done again with another one.",
            meaning="Nothing was changed.",
            remedy=f"Choose {seen.operation.job_id}, or settle what the other one cost.",
        )


def _require_bookable(seen: Whole, decision: Decision) -> None:
    if decision.cost is None:
        raise Refused("What the job cost is missing.", remedy="Say --cost AMOUNT.")
    attempt = judged(seen, decision)
    if attempt is None or attempt.attempt_id not in {one.attempt_id for one in seen.reservations}:
        raise Refused(
            "No request of this operation can have cost anything: nothing was ever reserved for one.",
            meaning="Nothing was changed.",
        )


def _require_silence(seen: Whole, decision: Decision) -> None:
    """No job can come of the request any more, as far as time and the spool can tell."""
    for attempt in asked_about(seen, decision):
        until = attempt.late_delivery_until
        if until is not None and until > seen.read_at:
            raise Refused(
                f"The request of attempt {attempt.attempt_id} may still arrive at the provider until"
                f" {until.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}.",
                meaning="That we gave up waiting doesn't stop it: deciding now could pay for two jobs.",
                remedy=f"Decide after that, in {int((until - seen.read_at).total_seconds()) + 1} s.",
            )
        if not attempt.reported and not decision.spool_lost:
            raise Refused(
                f"The process that sent attempt {attempt.attempt_id} has not reported what came of it.",
                meaning=f"Its spool {attempt.spool or '(unknown)'} may hold the provider's answer.",
                remedy="Start a dispatcher on that host and volume, or bring the folder here and run"
                " `relay spool import DIR`; if the spool is gone, say --spool-lost.",
            )


def asked_about(seen: Whole, decision: Decision) -> list[Attempt]:
    """The submissions that "not accepted" is said of: all that may have made a job where the operation waits
    for the answer, else the one that the review names."""
    undecided = [one for one in seen.attempts if one.undecided]
    if seen.operation.phase == Phase.UNCERTAIN:
        return undecided
    named = judged(seen, decision)
    return [one for one in undecided if named is not None and one.attempt_id == named.attempt_id]


def judged(seen: Whole, decision: Decision) -> Attempt | None:
    """The submission that the review is about: the one that it names, else the last that may have made
    a job."""
    sent = [one for one in seen.attempts if one.action == "submit" and one.outcome != "unsent"]
    named = seen.review(decision.review_id).attempt_id
    last = next((one for one in reversed(sent) if one.outcome != "refused"), None)
    return next((one for one in sent if one.attempt_id == named), last)


def told_of(seen: Whole, job_id: str | None) -> Attempt | None:
    """The submission whose answer named the job `job_id` first, if any did: its reservation pays for it."""
    told = {job.attempt_id for job in seen.jobs if job.job_id == job_id}
    return next((one for one in seen.attempts if one.attempt_id in told and one.action == "submit"), None)
