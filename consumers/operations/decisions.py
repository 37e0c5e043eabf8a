"""What a person may decide about a review, and when that must be refused. Pure: it reads and moves nothing.

The database's guards have the last word; this says the same first, in sentences, and more of it.
"""

from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from enum import StrEnum
from typing import Final
from uuid import UUID

from consumers.operations.lifecycle import Phase
from consumers.operations.records import Attempt, Whole
from relay.errors import RelayError


class Refused(RelayError):
    """The database, or a check before it, refused what was asked; nothing was changed."""


class Resolution(StrEnum):
    """What a person may decide, in the database's words."""

    ACCEPTED = "accepted"
    """The provider has the job; its id is known."""
    RESUBMIT = "not-accepted:resubmit"
    NOT_ACCEPTED_REJECT = "not-accepted:reject"
    NOT_ACCEPTED_CANCEL = "not-accepted:cancel"
    ABANDON = "abandon"
    """Nobody will ever know, and it is not tried again."""
    RELEASE = "release"
    """What it was held for is mended."""
    REJECT = "reject"
    CANCEL = "cancel"
    LOST = "lost"
    """The provider no longer knows the job that it had accepted."""
    SETTLE = "settle"
    """What the job cost is known; the operation goes on as it is."""


TO: Final = {
    Resolution.ACCEPTED: Phase.ACCEPTED,
    Resolution.RESUBMIT: Phase.PREPARED,
    Resolution.NOT_ACCEPTED_REJECT: Phase.REJECTED,
    Resolution.NOT_ACCEPTED_CANCEL: Phase.CANCELLED,
    Resolution.ABANDON: Phase.ABANDONED,
    Resolution.RELEASE: Phase.PREPARED,
    Resolution.REJECT: Phase.REJECTED,
    Resolution.CANCEL: Phase.CANCELLED,
    Resolution.LOST: Phase.LOST,
}
_OPEN_QUESTION: Final = frozenset({Phase.UNCERTAIN})
FROM: Final = {
    Resolution.ACCEPTED: frozenset({Phase.UNCERTAIN, Phase.ABANDONED, Phase.REJECTED, Phase.CANCELLED}),
    Resolution.RESUBMIT: _OPEN_QUESTION,
    Resolution.NOT_ACCEPTED_REJECT: _OPEN_QUESTION,
    Resolution.NOT_ACCEPTED_CANCEL: _OPEN_QUESTION,
    Resolution.ABANDON: _OPEN_QUESTION,
    Resolution.RELEASE: frozenset({Phase.HELD}),
    Resolution.REJECT: frozenset({Phase.HELD}),
    Resolution.CANCEL: frozenset({Phase.HELD}),
    Resolution.LOST: frozenset({Phase.ACCEPTED}),
    Resolution.SETTLE: frozenset(Phase),
}
"""The phases in which a resolution can be given. The database's edges have the last word."""
NOT_ACCEPTED: Final = frozenset(
    {Resolution.RESUBMIT, Resolution.NOT_ACCEPTED_REJECT, Resolution.NOT_ACCEPTED_CANCEL}
)
DISPUTES: Final = NOT_ACCEPTED | {Resolution.ABANDON, Resolution.LOST}


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
    if operation.phase not in FROM[decision.resolution]:
        raise Refused(
            f"The operation is {operation.phase}: a review can't resolve that as {decision.resolution}.",
            meaning="Nothing was changed.",
            remedy=show,
        )
    if decision.resolution in NOT_ACCEPTED:
        _require_silence(seen, decision)
    if decision.resolution is Resolution.RESUBMIT and operation.cancel_requested:
        raise Refused(
            "A cancel was requested for this operation, so it would not be submitted again.",
            meaning="Nothing was changed.",
            remedy="Use not-accepted --then cancel.",
        )


def _require_silence(seen: Whole, decision: Decision) -> None:
    """No job can come of the request any more, as far as time and the spool can tell."""
    for attempt in seen.attempts:
        if not attempt.undecided:
            continue
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
                remedy="Start a dispatcher on that host and volume; if the spool is gone, say --spool-lost.",
            )


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
