"""What an operation did after the state that was restored, and what follows from it. Pure: it reads nothing.

The rule is fail closed: released is only what Kafka's whole history, the dispatcher's own offsets and the
spools know no submission of. An attempt that provably sent nothing is none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID, uuid5

from consumers.operations.lifecycle import Cause, Phase

_UNTOLD: Final = UUID("5f0c5a38-6c0e-4f0e-9a50-3f7f9b6a1b1d")
"""Namespace of the attempts whose id nobody told: made from operation and dispatch, so that a second run
makes the same one."""

_ENDS: Final = frozenset({Cause.UNKNOWN, Cause.RULE, Cause.REFUSED, Cause.LEASE_EXPIRED})
_TELLS_ITS_END: Final = frozenset({Cause.UNKNOWN, Cause.RULE, Cause.REFUSED})
"""Causes that only the sender, or who adopted its spool, can have given."""
_ACCEPTS: Final = frozenset({Cause.ANSWER, Cause.LATE_ANSWER, Cause.REVIEW})
_NOT_BY_THE_CLAIMER: Final = frozenset({None, Cause.LEASE_EXPIRED, Cause.HOLD, Cause.RESTORED})
_DECIDED: Final = frozenset({Phase.CANCELLED, Phase.REJECTED, Phase.ABANDONED})
MAY_BE_SENT: Final = frozenset({Phase.PREPARED, Phase.CLAIMED, Phase.HELD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A journal entry that Kafka has and the tables don't. `order` is (epoch, commit LSN, index)."""

    version: int
    from_phase: str | None
    to_phase: str
    cause: str
    reason: str
    actor: str
    dispatch_no: int
    job_id: str | None
    attempt_id: UUID | None
    at: datetime
    event_id: UUID
    place: str
    order: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The operation as the tables have it now. Of the newest claim that they know: its dispatch, its place in
    the journal, the cause of what followed, and the attempt that it reserved money for and didn't make."""

    operation_id: UUID
    owner_id: str
    kind: str
    specification_hash: str
    phase: str
    phase_reason: str
    dispatch_no: int
    version: int
    provider: str | None
    profile_digest: str | None
    job_id: str | None = None
    claim_dispatch: int = 0
    claim_version: int = 0
    claim_end: str | None = None
    claim_attempt: UUID | None = None


@dataclass(slots=True, kw_only=True)
class Submission:
    """A request that may have reached the provider."""

    attempt_id: UUID
    dispatch_no: int
    worker: str
    sent_at: datetime | None
    said: str
    """How it is known, or how it ended, as a code."""
    reported: bool = False
    """Whether its sender told what came of it."""
    job_id: str | None = None
    """Only where its acceptance is in the history."""
    spool: str | None = None


@dataclass(slots=True)
class Life:
    """What is lost of one operation's life, or of one that the tables don't know at all."""

    operation_id: UUID
    owner_id: str = ""
    kind: str = ""
    specification_hash: str = ""
    transitions: list[Transition] = field(default_factory=list)

    def in_order(self) -> list[Transition]:
        return sorted(self.transitions, key=lambda one: (one.order, one.version))

    def job_ids(self) -> list[str]:
        return sorted({one.job_id for one in self.transitions if one.job_id})


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What else speaks of an operation. `handled`: the dispatchers' group is done with an event of
    `last_dispatch`, the last that Kafka had before the restore. `covered`: Kafka has all that came after the
    restored state. `kept_version`: the last entry of the journal that Kafka had before the restore. `twin` is
    an operation that only Kafka knows, with the same owner, kind and specification, and submitted: one that
    Kafka didn't know before the restore may be the same intent, approved again."""

    handled: bool = False
    last_dispatch: int = 0
    covered: bool = True
    kept_version: int = 0
    twin: UUID | None = None
    spooled: tuple[Submission, ...] = ()


class Verdict(StrEnum):
    RELEASE = "release"
    """Nothing speaks of a submission: it may go on."""
    HOLD = "hold"
    """Nothing speaks of one, but not everything was there to be asked, or a person had ended it."""
    UNCERTAIN = "uncertain"
    """It was, or may have been, submitted."""
    LEAVE = "leave"
    """There is nothing to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    verdict: Verdict
    why: str
    submissions: tuple[Submission, ...] = ()


def submissions(life: Life) -> list[Submission]:
    """The requests of which the lost transitions tell, in their order, without those that sent nothing."""
    found: dict[UUID, Submission] = {}
    for one in life.in_order():
        attempt_id, cause = one.attempt_id, one.cause
        if attempt_id is None:
            continue
        if one.to_phase == Phase.SUBMITTING:
            found.setdefault(attempt_id, _told(one, attempt_id, one.at))
        elif cause == Cause.UNSENT:
            found.pop(attempt_id, None)
        elif cause in _ENDS or (cause in _ACCEPTS and one.to_phase == Phase.ACCEPTED):
            if cause == Cause.LEASE_EXPIRED and one.from_phase == Phase.CLAIMED:
                continue
            made = found.setdefault(attempt_id, _told(one, attempt_id, None))
            made.said = cause
            made.reported = made.reported or cause in _TELLS_ITS_END
            if one.to_phase == Phase.ACCEPTED:
                made.job_id, made.reported = one.job_id, True
    return list(found.values())


def decide(subject: Subject, life: Life | None, witness: Witness) -> Decision:
    """What becomes of the operation."""
    lost = life.in_order() if life is not None else []
    sent = submissions(life) if life is not None else []
    known = {one.attempt_id for one in sent}
    sent += [one for one in witness.spooled if one.attempt_id not in known]
    if life is not None:
        sent += _jobs_alone(subject, life, {one.job_id for one in sent} | {subject.job_id})
    may_be_sent = subject.phase in MAY_BE_SENT
    if not sent and may_be_sent:
        sent = _untold(subject, lost, witness)
    if sent:
        return Decision(verdict=Verdict.UNCERTAIN, why=_words(sent), submissions=tuple(sent))
    if not may_be_sent:
        return Decision(verdict=Verdict.LEAVE, why=f"it is {subject.phase}")
    if witness.twin is not None and not witness.kept_version:
        why = f"operation {witness.twin}, which only Kafka knows, was submitted with the same specification"
        return Decision(verdict=Verdict.HOLD, why=why)
    if lost and lost[-1].to_phase in _DECIDED:
        last = lost[-1]
        why = f"it was {last.to_phase} by {last.actor} ({last.reason}), and that is lost"
        return Decision(verdict=Verdict.HOLD, why=why)
    if not (subject.phase == Phase.HELD and subject.phase_reason == "restored"):
        return Decision(verdict=Verdict.LEAVE, why=f"it is {subject.phase} ({subject.phase_reason})")
    if not witness.covered:
        why = (
            "Kafka no longer has all that happened after the restored state: a submission can't be ruled out"
        )
        return Decision(verdict=Verdict.HOLD, why=why)
    if _holes(lost, subject):
        return Decision(verdict=Verdict.HOLD, why="Kafka's history of it has holes after the restored state")
    return Decision(
        verdict=Verdict.RELEASE, why="Kafka's whole history and the spools know no submission of it"
    )


def evidence(life: Life | None, submissions: Iterable[Submission], why: str) -> dict[str, Any]:
    """For the review: what was found, and where. JSON-able."""
    told: Mapping[str, Any] = (
        {} if life is None else {"lost": [_entry(one) for one in life.in_order()[-_TOLD:]]}
    )
    jobs = [] if life is None else life.job_ids()
    return {
        "why": why,
        "job_ids": jobs,
        "submissions": [
            {
                "attempt_id": str(one.attempt_id),
                "worker": one.worker,
                "sent_at": one.sent_at.isoformat() if one.sent_at else None,
                "known_by": one.said,
                "job_id": one.job_id,
            }
            for one in submissions
        ],
        **told,
    }


_TOLD: Final = 50
"""Lost transitions that a review shows, the last ones: evidence is bounded, and the topic has them all."""


def _entry(one: Transition) -> dict[str, Any]:
    return {
        "version": one.version,
        "to": one.to_phase,
        "cause": one.cause,
        "reason": one.reason[:200],
        "actor": one.actor,
        "at": one.at.isoformat(),
        "job_id": one.job_id,
        "place": one.place,
    }


def _told(one: Transition, attempt_id: UUID, sent_at: datetime | None) -> Submission:
    return Submission(
        attempt_id=attempt_id,
        dispatch_no=one.dispatch_no,
        worker=one.actor,
        sent_at=sent_at,
        said="submitting",
    )


def _untold(subject: Subject, lost: list[Transition], witness: Witness) -> list[Submission]:
    """A claim of whose end nothing is known: the relay may have been behind when the database was lost."""
    if lost and lost[-1].to_phase == Phase.CLAIMED:
        last = lost[-1]
        return [_guessed(subject, last.dispatch_no, last.actor, "claimed, and nothing after it", last.at)]
    if not lost and _claim_is_open(subject, witness):
        attempt_id = subject.claim_attempt
        return [
            _guessed(subject, subject.claim_dispatch, "", "claimed, and nothing after it", None, attempt_id)
        ]
    claimed = {one.dispatch_no for one in lost if one.to_phase == Phase.CLAIMED} | {subject.claim_dispatch}
    dispatch_no = witness.last_dispatch
    if witness.handled and dispatch_no not in claimed:
        said = "the dispatcher was done with its event, and no claim of it is known"
        return [_guessed(subject, dispatch_no, "", said, None)]
    return []


def _jobs_alone(subject: Subject, life: Life, known: set[str | None]) -> list[Submission]:
    """Jobs that are named, and no attempt with them: a person adopted one, or that record is gone."""
    return [
        Submission(
            attempt_id=uuid5(_UNTOLD, f"{subject.operation_id}/job/{job_id}"),
            dispatch_no=subject.dispatch_no,
            worker="",
            sent_at=None,
            said="a job is named",
            reported=True,
            job_id=job_id,
        )
        for job_id in life.job_ids()
        if job_id not in known
    ]


def _claim_is_open(subject: Subject, witness: Witness) -> bool:
    """Whether the newest claim ended only after the restore: what it did before, only Kafka could tell."""
    ended_since = subject.claim_version + 1 > witness.kept_version
    return bool(subject.claim_version) and ended_since and subject.claim_end in _NOT_BY_THE_CLAIMER


def _guessed(
    subject: Subject,
    dispatch_no: int,
    worker: str,
    said: str,
    at: datetime | None,
    attempt_id: UUID | None = None,
) -> Submission:
    named = attempt_id or uuid5(_UNTOLD, f"{subject.operation_id}/{dispatch_no}")
    return Submission(attempt_id=named, dispatch_no=dispatch_no, worker=worker, sent_at=at, said=said)


def _holes(lost: list[Transition], subject: Subject) -> bool:
    versions = {one.version for one in lost}
    if not versions:
        return False
    first = min(versions)
    return first > subject.version + 1 or versions != set(range(first, max(versions) + 1))


def _words(sent: list[Submission]) -> str:
    jobs = [one.job_id for one in sent if one.job_id]
    if jobs:
        return f"it was submitted, and accepted as {', '.join(jobs)}"
    return "; ".join(dict.fromkeys(f"attempt {one.attempt_id}: {one.said}" for one in sent))
