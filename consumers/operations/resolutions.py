"""What a review asks, and which answers it takes in which phase, as data: the database has the same rows in
`relay.review_option` (a test compares them), and the page docs/reviews.md is drawn from here. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from consumers.operations.lifecycle import Phase


class Kind(StrEnum):
    """Why a person has to look (design-operations, section 6)."""

    HOLD = "hold"
    """A hold that only a person lifts."""
    UNCERTAIN_SUBMISSION = "uncertain_submission"
    ID_WITH_ERROR = "id_with_error"
    CANDIDATE_ID = "candidate_id"
    SECOND_ID = "second_id"
    ID_COLLISION = "id_collision"
    JOB_UNKNOWN = "job_unknown"
    OUTPUT_EXPIRED = "output_expired"
    CONTRADICTION = "contradiction"


class Resolution(StrEnum):
    """What a person may decide, in the database's words."""

    ACCEPTED = "accepted"
    """The provider has the job; its id is known."""
    CHOOSE_PRIMARY = "choose-primary"
    """Which of the ids that were seen is the operation's job."""
    RESUBMIT = "not-accepted:resubmit"
    NOT_ACCEPTED_REJECT = "not-accepted:reject"
    NOT_ACCEPTED_CANCEL = "not-accepted:cancel"
    NOT_ACCEPTED_STAY = "not-accepted:stay"
    """No job came of this request, and the operation has gone on without it."""
    ABANDON = "abandon"
    """Nobody will ever know, and it is not tried again."""
    RELEASE = "release"
    """What it was held for is mended."""
    REJECT = "reject"
    CANCEL = "cancel"
    REFETCH = "refetch"
    """The output can be had again: the delivery is tried once more, and no job is made."""
    LOST = "lost"
    """The provider no longer has what it had accepted, or made."""
    SETTLE = "settle"
    """What the job cost is known; the operation goes on as it is."""
    WAIT = "wait"
    """Looked at, and undecided: the question stays open and is urgent again at a later deadline."""


QUESTIONS: Final = {
    Kind.HOLD: "May it go on?",
    Kind.UNCERTAIN_SUBMISSION: "Did the provider make a job of this request?",
    Kind.CANDIDATE_ID: "Is one of the ids that were seen the job of this request?",
    Kind.ID_COLLISION: "Whose is the job that two operations were given?",
    Kind.ID_WITH_ERROR: "An error came with the job's id: what does the job cost?",
    Kind.SECOND_ID: "The provider named a second job for one operation: which one counts?",
    Kind.JOB_UNKNOWN: "The provider no longer knows the job that it had accepted: is it lost?",
    Kind.OUTPUT_EXPIRED: "The output can't be fetched any more: what becomes of it?",
    Kind.CONTRADICTION: "What came in contradicts how the operation ended: which is true?",
}

Steps = Mapping[Phase, Phase | None]
"""From each phase in which an answer is taken to the one it leads to; None: the operation stays as it is."""

_ENDED: Final = (
    Phase.SUCCEEDED,
    Phase.FAILED,
    Phase.REJECTED,
    Phase.CANCELLED,
    Phase.ABANDONED,
    Phase.LOST,
)
_BEFORE_A_JOB: Final = (Phase.PREPARED, Phase.CLAIMED, Phase.SUBMITTING, Phase.HELD)
_WITHOUT_A_JOB: Final = (*_BEFORE_A_JOB, Phase.UNCERTAIN, Phase.REJECTED, Phase.CANCELLED, Phase.ABANDONED)
_WITH_A_JOB: Final = (Phase.ACCEPTED, Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.LOST)
_GONE_ON: Final = (*_BEFORE_A_JOB, Phase.ACCEPTED, *_ENDED)
"""Phases in which the question isn't what the operation waits for: its answer is about one request alone."""


def _to(phase: Phase | None, *phases: Phase) -> dict[Phase, Phase | None]:
    return dict.fromkeys(phases, phase)


_STAYS: Final = None
_JOB_FOUND: Final = _to(_STAYS, *_WITH_A_JOB) | _to(Phase.ACCEPTED, *_WITHOUT_A_JOB)
"""Of a cancelled operation `step` decides: what had a job before keeps it."""
_REQUEST: Final[Mapping[Resolution, Steps]] = {
    Resolution.ACCEPTED: _JOB_FOUND,
    Resolution.RESUBMIT: {Phase.UNCERTAIN: Phase.PREPARED},
    Resolution.NOT_ACCEPTED_REJECT: {Phase.UNCERTAIN: Phase.REJECTED},
    Resolution.NOT_ACCEPTED_CANCEL: {Phase.UNCERTAIN: Phase.CANCELLED},
    Resolution.NOT_ACCEPTED_STAY: _to(_STAYS, *_GONE_ON),
    Resolution.ABANDON: {Phase.UNCERTAIN: Phase.ABANDONED} | _to(_STAYS, *_GONE_ON),
    Resolution.SETTLE: _to(_STAYS, *_GONE_ON),
}
_CHOICE: Final[Steps] = {Phase.ACCEPTED: Phase.ACCEPTED} | _to(_STAYS, *_ENDED)
"""The job of an operation that is still observed may change; of one that ended it is only confirmed."""
_WAIT: Final[Steps] = _to(_STAYS, *Phase)

OPTIONS: Final[Mapping[Kind, Mapping[Resolution, Steps]]] = {
    Kind.HOLD: {
        Resolution.RELEASE: {Phase.HELD: Phase.PREPARED},
        Resolution.REJECT: {Phase.HELD: Phase.REJECTED},
        Resolution.CANCEL: {Phase.HELD: Phase.CANCELLED},
        Resolution.WAIT: {Phase.HELD: _STAYS},
    },
    Kind.UNCERTAIN_SUBMISSION: {**_REQUEST, Resolution.WAIT: _WAIT},
    Kind.ID_WITH_ERROR: {
        Resolution.SETTLE: _to(_STAYS, Phase.ACCEPTED, *_ENDED),
        Resolution.WAIT: _WAIT,
    },
    Kind.CANDIDATE_ID: {**_REQUEST, Resolution.CHOOSE_PRIMARY: _CHOICE, Resolution.WAIT: _WAIT},
    Kind.SECOND_ID: {
        Resolution.CHOOSE_PRIMARY: _CHOICE,
        Resolution.SETTLE: _to(_STAYS, Phase.ACCEPTED, *_ENDED),
        Resolution.WAIT: _WAIT,
    },
    Kind.ID_COLLISION: {
        **_REQUEST,
        Resolution.CHOOSE_PRIMARY: _CHOICE,
        Resolution.LOST: {Phase.ACCEPTED: Phase.LOST},
        Resolution.WAIT: _WAIT,
    },
    Kind.JOB_UNKNOWN: {
        Resolution.CHOOSE_PRIMARY: {Phase.ACCEPTED: Phase.ACCEPTED},
        Resolution.LOST: {Phase.ACCEPTED: Phase.LOST},
        Resolution.SETTLE: {Phase.ACCEPTED: _STAYS},
        Resolution.WAIT: _WAIT,
    },
    Kind.OUTPUT_EXPIRED: {
        Resolution.REFETCH: {Phase.FAILED: Phase.PREPARED},
        Resolution.LOST: {Phase.FAILED: _STAYS},
        Resolution.WAIT: {Phase.FAILED: _STAYS},
    },
    Kind.CONTRADICTION: {
        Resolution.ACCEPTED: _JOB_FOUND,
        Resolution.CHOOSE_PRIMARY: _CHOICE,
        Resolution.SETTLE: _to(_STAYS, Phase.UNCERTAIN, *_GONE_ON),
        Resolution.WAIT: _WAIT,
    },
}
"""Kind of review → what a person may answer → in which phases, and where that leads."""

NOT_ACCEPTED: Final = frozenset(
    {
        Resolution.RESUBMIT,
        Resolution.NOT_ACCEPTED_REJECT,
        Resolution.NOT_ACCEPTED_CANCEL,
        Resolution.NOT_ACCEPTED_STAY,
    }
)
DISPUTES: Final = NOT_ACCEPTED | {Resolution.ABANDON, Resolution.LOST}
NAMES_A_JOB: Final = frozenset({Resolution.ACCEPTED, Resolution.CHOOSE_PRIMARY})
NOT_FOR_DELIVERIES: Final = frozenset({Resolution.REJECT})
"""A delivery has nobody who could reject it: it is released or cancelled."""


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Kind, resolution, phase, and where it leads ('' for nowhere): the rows of `relay.review_option`.
    `wait` resolves nothing, and has none."""
    for kind, answers in OPTIONS.items():
        for resolution, steps in answers.items():
            if resolution is not Resolution.WAIT:
                for phase, then in steps.items():
                    yield str(kind), str(resolution), str(phase), str(then or "")


def words(resolutions: Iterable[Resolution]) -> str:
    """As they are typed, in one phrase."""
    return ", ".join(dict.fromkeys(typed(one) for one in resolutions))


def typed(resolution: Resolution) -> str:
    """`not-accepted:resubmit` is typed `not-accepted --then resubmit`."""
    return str(resolution).replace(":", " --then ")
