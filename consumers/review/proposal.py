"""What the collected evidence suggests to a reviewer, and why. Pure: a proposal changes nothing, and nobody
takes it but a person.
"""

from collections.abc import Iterator
from typing import Any, Final

from consumers.operations.lifecycle import Phase
from consumers.operations.resolutions import OPTIONS, Kind, Resolution

KNOWN: Final = frozenset({"running", "succeeded", "failed", "cancelled"})
"""States in which the provider has the job."""
COLLECTED: Final = "collected"
"""Under this name a review's evidence has what was collected."""

Proposal = dict[str, Any]


def propose(kind: str, phase: str, job_id: str | None, findings: dict[str, Any]) -> list[Proposal]:
    """`findings` as `consumers.evidence` gathers them; the likeliest answer first."""
    jobs: dict[str, dict[str, Any]] = findings.get("jobs", {})
    listing: dict[str, Any] = findings.get("listing", {})
    return list(_proposals(kind, phase, job_id, jobs, listing, findings.get("absent", [])))


def _proposals(
    kind: str,
    phase: str,
    job_id: str | None,
    jobs: dict[str, dict[str, Any]],
    listing: dict[str, Any],
    absent: list[str],
) -> Iterator[Proposal]:
    known = [one for one, said in jobs.items() if said["state"] in KNOWN]
    listed = [one for one in listing.get("matches", ()) if one in known or one not in jobs]
    asks_for_a_job = kind in (Kind.UNCERTAIN_SUBMISSION, Kind.CANDIDATE_ID, Kind.ID_COLLISION)
    no_job = Resolution.RESUBMIT if phase == Phase.UNCERTAIN else Resolution.NOT_ACCEPTED_STAY
    if asks_for_a_job and phase in OPTIONS[Kind(kind)][Resolution.ACCEPTED] and job_id is None:
        for one in listed:
            yield _one(Resolution.ACCEPTED, f"the provider lists it as this operation's: {one}", job_id=one)
        for one in known:
            if one not in listed:
                said = jobs[one]["state"]
                yield _one(Resolution.ACCEPTED, f"the provider knows it: it is {said}", job_id=one)
        if absent:
            yield _one(no_job, "the provider's complete list proves that no job came of it")
        elif listing.get("complete") and not listing.get("matches") and not known:
            yield _one(no_job, "the provider's complete list has no job of it; that is no proof")
    if kind == Kind.SECOND_ID and job_id is not None and job_id not in known and len(known) == 1:
        yield _one(
            Resolution.CHOOSE_PRIMARY, f"of the ids only this one is known: {known[0]}", job_id=known[0]
        )
    if kind in (Kind.ID_WITH_ERROR, Kind.CONTRADICTION) and job_id in jobs:
        cost = jobs[job_id].get("cost")
        if cost is not None:
            yield _one(Resolution.SETTLE, f"the provider says what it cost: {cost}", cost=cost)


def _one(resolution: Resolution, why: str, **more: str) -> Proposal:
    return {"resolution": str(resolution), "why": why, **more}
