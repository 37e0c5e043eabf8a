"""What the evidence of a review proves, what it doesn't, and the commands that would decide it. Pure; it
proposes nothing: whether a job exists is for evidence or a person to say.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from consumers.operations.decisions import Decision, Refused, possible, require_possible
from consumers.operations.lifecycle import Hold, Phase
from consumers.operations.records import Attempt, Reservation, Review, Whole
from consumers.operations.resolutions import NAMES_A_JOB, QUESTIONS, Kind, Resolution, typed
from consumers.review.proposal import COLLECTED, KNOWN
from relay.errors import as_sentence


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to resolve the review. `refused_now` says why it can't be taken yet, `proposed` which of the
    evidence that was collected speaks for it."""

    command: str
    effect: str
    refused_now: str | None
    proposed: str | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """Sentences for a person."""

    question: str
    proven: tuple[str, ...]
    unproven: tuple[str, ...]
    choices: tuple[Choice, ...]


_EFFECT: Final = {
    Resolution.ACCEPTED: "the provider is asked about the job, which is then observed and delivered",
    Resolution.CHOOSE_PRIMARY: "this is the operation's job; what the other ones cost stays disputed",
    Resolution.RESUBMIT: "it is sent AGAIN; the first request's money stays disputed",
    Resolution.NOT_ACCEPTED_REJECT: "it ends as rejected; its money stays disputed",
    Resolution.NOT_ACCEPTED_CANCEL: "it ends as cancelled; its money stays disputed",
    Resolution.NOT_ACCEPTED_STAY: "no job came of this request; its money stays disputed, the rest as it is",
    Resolution.ABANDON: "it ends as abandoned, unknown for good; its money stays disputed",
    Resolution.RELEASE: "it is dispatched again; nothing of it was accepted",
    Resolution.REJECT: "it ends as rejected",
    Resolution.CANCEL: "it ends as cancelled",
    Resolution.REFETCH: "the job is asked for new URLs, and what is missing is fetched again",
    Resolution.LOST: "it ends as lost; its money stays disputed",
    Resolution.SETTLE: "the cost is booked, and the operation goes on",
    Resolution.WAIT: "nothing changes; it is urgent again when that time is over",
}
_EFFECT_WHERE_IT_STAYS: Final = {
    Resolution.ACCEPTED: "the id is kept as a second job; what it cost is asked for, the operation stays",
    Resolution.ABANDON: "unknown for good; this request's money stays disputed, the operation as it is",
    Resolution.LOST: "the output is gone; the delivery stays failed, and what was paid stays paid",
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
    _judge_collected(review, proven, unproven)
    if review.kind == "hold":
        proven.append(f"It is held for {seen.operation.phase_reason}: {as_sentence(_held_for(seen))}")
        if seen.operation.phase_reason == Hold.RESTORED:
            unproven.append(
                "That it was never submitted: the tables are older than what was done. `relay ops reconcile`"
                " looks for traces in Kafka and in the spools, and releases what has none."
            )
    if seen.operation.accounting == "unsettled":
        unproven.append("What the job costs: nothing is booked for it yet.")
    if seen.operation.cancel_requested:
        proven.append("A cancel was requested.")
    proven += [_booked(reservation) for reservation in seen.reservations]
    # What the evidence speaks for comes first, and stays for a person to take.
    choices = sorted(_choices(review, seen), key=lambda choice: choice.proposed is None)
    return Judgement(QUESTIONS[Kind(review.kind)], tuple(proven), tuple(unproven), tuple(choices))


def _held_for(seen: Whole) -> str:
    """The journal's words; where they only repeat the reason, what the last attempt met with."""
    words = seen.journal[-1].reason
    error = seen.attempts[-1].evidence.get("error") if seen.attempts else None
    return str(error) if error and words == seen.operation.phase_reason else str(words)


def _judge_collected(review: Review, proven: list[str], unproven: list[str]) -> None:
    """What the provider said when it was asked for this review."""
    collected = review.evidence.get(COLLECTED)
    if not isinstance(collected, dict):
        return
    findings = collected["findings"]
    for job_id, said in findings["jobs"].items():
        about = f"{job_id} (HTTP {said.get('status', 'none')}, {collected['at']})"
        if said["state"] in KNOWN:
            cost = f", cost {said['cost']}" if "cost" in said else ""
            proven.append(f"The provider knows the job {about}: {said['state']}{cost}.")
        elif said["state"] == "not_found":
            unproven.append(f"Whether there was ever a job {about}: the provider doesn't know it now.")
        else:
            unproven.append(f"What became of the job {about}: {said.get('error', said['reason'])}.")
    listing = findings.get("listing")
    if listing is not None:
        listed = f"{listing['elements']} jobs of {listing['since']} to {listing['until']}"
        of_it = ", ".join(listing["matches"]) or "none"
        whole = "whole list" if listing["complete"] else "list, as far as it was read"
        proven.append(f"The provider's {whole} ({listed}) has of this operation: {of_it}.")
        if "no_proof" in listing and not listing["matches"]:
            unproven.append(f"That no job came of it: the list proves nothing, {listing['no_proof']}.")


def _judge_attempt(attempt: Attempt, now: datetime, proven: list[str], unproven: list[str]) -> None:
    name = f"attempt {attempt.attempt_id}"
    if attempt.outcome == "unsent":
        proven.append(f"No byte of {name} left the machine ({attempt.outcome_reason}).")
        return
    if attempt.outcome_reason == "proven_absent":
        proven.append(f"The provider's complete list proves that no job came of {name}; it costs nothing.")
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


def command(
    review: Review, resolution: Resolution, *, job_id: str | None = None, cost: str | None = None
) -> str:
    """The command line that takes `resolution` at what was shown."""
    parts = [f"relay review resolve {review.review_id} {typed(resolution)}"]
    if resolution in NAMES_A_JOB:
        parts.append(f"--job-id {shlex.quote(job_id) if job_id else 'ID'}")
    if resolution is Resolution.SETTLE:
        parts.append(f"--cost {shlex.quote(cost) if cost else 'AMOUNT'}")
    parts.append(f"--revision {review.revision} --reason '…'")
    return " ".join(parts)


def _choices(review: Review, seen: Whole) -> Iterator[Choice]:
    for resolution, to_phase in possible(review, seen.operation).items():
        if not _fits(resolution, seen):
            continue
        for job_id in _named(resolution, review, seen):
            decision = Decision(
                review_id=review.review_id,
                revision=review.revision,
                resolution=resolution,
                reason="",
                actor="",
                job_id=job_id or "ID",
                cost=Decimal(0),
            )
            refused_now = None
            try:
                require_possible(seen, decision)
            except Refused as error:
                refused_now = f"{error.message} {error.remedy}".strip()
            effect = _effect(resolution, to_phase, job_id, seen)
            proposal = _proposal(review, resolution, job_id)
            line = command(review, resolution, job_id=job_id, cost=proposal.get("cost"))
            yield Choice(line, effect, refused_now, proposal.get("why"))


def _effect(resolution: Resolution, to_phase: Phase | None, job_id: str | None, seen: Whole) -> str:
    if resolution is Resolution.RELEASE and seen.operation.parent_operation_id is not None:
        return "what is missing is fetched again, by the provider's profile as it is now"
    if resolution is Resolution.CHOOSE_PRIMARY and job_id == seen.operation.job_id:
        return f"it stays the operation's job; {_EFFECT[resolution].partition('; ')[2]}"
    stays = _EFFECT_WHERE_IT_STAYS.get(resolution) if to_phase is None else None
    return stays or _EFFECT[resolution]


def _proposal(review: Review, resolution: Resolution, job_id: str | None) -> dict[str, Any]:
    collected = review.evidence.get(COLLECTED)
    proposals = collected.get("proposes", []) if isinstance(collected, dict) else []
    for one in proposals:
        if one["resolution"] == resolution and one.get("job_id") in (None, job_id):
            return dict(one)
    return {}


def _named(resolution: Resolution, review: Review, seen: Whole) -> list[str | None]:
    """The ids to offer, one command for each."""
    if resolution is Resolution.CHOOSE_PRIMARY:
        return list(dict.fromkeys(job.job_id for job in seen.jobs))
    if resolution is Resolution.ACCEPTED:
        return [*ids_seen(review, seen)] or [None]
    return [None]


def _fits(resolution: Resolution, seen: Whole) -> bool:
    """Whether there is anything that `resolution` could be about; kind and phase allow it."""
    if resolution is Resolution.SETTLE:
        return bool(seen.reservations)
    return True


def _moment(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
