"""Collects the evidence of one open review: asks the provider about each id that was seen, and for its list
of jobs where the profile has one. GETs and nothing else; what is found is stored at once, and only proposed.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from consumers.operations import evidence
from consumers.operations.evidence import Question, Sent
from consumers.operations.polling import knows_the_job
from consumers.operations.resolutions import Kind
from consumers.providers.evidence import evidence as seen_of
from consumers.providers.listing import Interval, Listed, proves_absence
from consumers.providers.profile import Listing, Profile
from consumers.registered import Providers
from consumers.review.proposal import propose
from consumers.runtime import Context, Event
from consumers.runtime.visibility import Unseen
from relay import failpoints

IDS: Final = 32
"""Most ids that one review asks for: an answer full of ids must not become a flood of GETs."""
SKEW: Final = timedelta(minutes=5)
"""The provider's clock may be wrong by this much, and its list is asked for that much earlier."""
ASKS_FOR_A_JOB: Final = frozenset({Kind.UNCERTAIN_SUBMISSION, Kind.CANDIDATE_ID, Kind.ID_COLLISION})
"""Kinds that a list of jobs may answer."""
AGAIN_AFTER_S: Final = 900.0
"""What could not be asked is asked again after this."""


@dataclass(slots=True)
class _Found:
    """What is known so far, as it is stored. `absent` are the requests of which no job was made."""

    jobs: dict[str, dict[str, Any]]
    listing: dict[str, Any] | None = None
    absent: tuple[UUID, ...] = ()
    visible_from: datetime | None = None
    """From when on the list must have whatever was accepted."""

    def findings(self) -> dict[str, Any]:
        kept: dict[str, Any] = {"jobs": self.jobs}
        if self.listing is not None:
            kept["listing"] = self.listing
        if self.absent:
            kept["absent"] = [str(one) for one in self.absent]
        return kept

    @property
    def unanswered(self) -> bool:
        """Something could not be asked, or was not understood."""
        of_jobs = any(said["state"] in ("error", "unrecognised") for said in self.jobs.values())
        return of_jobs or (self.listing is not None and not self.listing["complete"])


class Collector:
    """For `evidence.requested`. An event may come again at any time: that costs a few GETs."""

    def __init__(self, providers: Providers, unseen: Unseen, actor: str) -> None:
        self._providers = providers
        self._unseen = unseen
        self._actor = actor

    async def handle(self, event: Event, ctx: Context) -> None:
        operation_id = UUID(str(event.payload["operation_id"]))
        review_id = UUID(str(event.payload["review_id"]))
        async with ctx.pool.connection() as connection:
            row = await evidence.load(connection, operation_id, review_id)
            question = self._unseen.require(event, row, "review's operation")
            if question.state != "open":
                ctx.log.debug("nothing to ask: the review is closed", state=question.state)
                return
            sent = await evidence.requests(connection, operation_id)
            profile = await self._providers.profile(connection, question.provider, question.profile_digest)
        found = _Found(jobs={})
        if profile.listing is not None and sent and question.kind in ASKS_FOR_A_JOB:
            await self._list(question, profile, profile.listing, sent, found, ctx)
        elif not _ids(question, found):
            await self._nothing_to_ask(question, ctx)
            return
        for job_id in _ids(question, found)[:IDS]:
            found.jobs[job_id] = await self._look_up(question, profile, job_id, ctx)
        failpoints.hit(failpoints.COLLECT_EVIDENCE_GATHERED)
        await self._store(question, found, ctx)

    async def _nothing_to_ask(self, question: Question, ctx: Context) -> None:
        async with ctx.pool.connection() as connection:
            await evidence.look_again(connection, question, None)
        ctx.log.debug("nothing to ask: no id was seen, and the profile has no list")

    async def _look_up(
        self, question: Question, profile: Profile, job_id: str, ctx: Context
    ) -> dict[str, Any]:
        async with ctx.pool.connection() as connection:
            asked = await evidence.begin(connection, question, self._actor)
        answer, observation = await self._providers.observe(profile, job_id)
        async with ctx.pool.connection() as connection:
            await evidence.finish(
                connection,
                asked,
                learnt=knows_the_job(observation),
                reason=observation.reason,
                status=answer.status,
                evidence={"job_id": job_id} | observation.evidence,
            )
            await evidence.record_job(connection, question, job_id, observation)
        said = {
            "state": observation.state,
            "reason": observation.reason,
            "status": answer.status,
            "word": observation.word,
            "cost": None if observation.cost is None else f"{observation.cost:f}",
            "error": None if answer.error is None else observation.evidence.get("error"),
        }
        return {name: held for name, held in said.items() if held is not None}

    async def _list(
        self,
        question: Question,
        profile: Profile,
        listing: Listing,
        sent: list[Sent],
        found: _Found,
        ctx: Context,
    ) -> None:
        """Read the list to its end, and store the ids that it has for this operation."""
        interval = Interval(
            since=min(one.sent_at for one in sent) - SKEW, until=max(one.late_delivery_until for one in sent)
        )
        async with ctx.pool.connection() as connection:
            asked = await evidence.begin(connection, question, self._actor)
        listed, answer = Listed(), None
        while not listed.ended:
            answer = await self._providers.list_page(
                profile, listing, listed, operation_id=str(question.operation_id), interval=interval
            )
        why_not = proves_absence(listing, listed, asked_at=question.now, interval=interval)
        found.visible_from = interval.until + timedelta(seconds=listing.visibility_lag_s)
        seen: dict[str, Any] = {
            "since": interval.since.isoformat(timespec="seconds"),
            "until": interval.until.isoformat(timespec="seconds"),
            "complete": listed.complete,
            "pages": listed.pages,
            "elements": listed.elements,
            "matches": list(listed.matches),
        }
        if why_not is not None:
            seen["no_proof"] = why_not
        found.listing = seen
        if why_not is None:
            found.absent = tuple(one.attempt_id for one in sent)
        async with ctx.pool.connection() as connection:
            await evidence.finish(
                connection,
                asked,
                learnt=listed.complete,
                reason=listed.why_not or "listed",
                status=None if answer is None else answer.status,
                evidence={"listing": found.listing} | ({} if answer is None else seen_of(answer)),
            )
            about = sent[0].attempt_id if len(sent) == 1 else None
            await evidence.add_candidates(connection, question, listed.matches, about)

    async def _store(self, question: Question, found: _Found, ctx: Context) -> None:
        findings = found.findings()
        collected: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "by": self._actor,
            "findings": findings,
            "proposes": propose(question.kind, question.phase, question.job_id, findings),
        }
        again_s = _look_again_s(question, found)
        async with ctx.pool.connection() as connection:
            news = await evidence.store(
                connection,
                question,
                collected,
                absent=found.absent,
                asked_at=question.now,
                look_again_s=again_s,
            )
        ctx.log.info(
            "evidence collected",
            review_id=str(question.review_id),
            kind=question.kind,
            news=news,
            proposes=[one["resolution"] for one in collected["proposes"]],
            absent=len(found.absent),
            again_s=again_s,
        )


def _ids(question: Question, found: _Found) -> list[str]:
    """Those that are stored, those that the review names, and those that the list has just named."""
    named = question.evidence.get("candidates")
    ids = [*question.job_ids, *(map(str, named) if isinstance(named, list) else ())]
    if found.listing is not None:
        ids += found.listing["matches"]
    return list(dict.fromkeys(ids))


def _look_again_s(question: Question, found: _Found) -> float | None:
    """When the list must have what was accepted, or when what could not be asked may be asked; else never: a
    person has it, and may see more by asking again."""
    if found.absent:
        return None
    if found.visible_from is not None and found.visible_from > question.now:
        return (found.visible_from - question.now).total_seconds() + 1.0
    return AGAIN_AFTER_S if found.unanswered else None
