"""Collect: for each `collection.requested` at most one GET, and what it proves is recorded; for each
`evidence.requested` what the provider knows about a review's question.

It never sends anything but a GET, never decides from the event alone, and never ends an operation because
time has passed. An event may come again at any time: that costs GETs and nothing else.
"""

import os
import socket
from uuid import UUID

from consumers.evidence import Collector
from consumers.operations import observations
from consumers.operations.access import require_worker
from consumers.operations.lifecycle import Phase
from consumers.operations.polling import Poll, Subject
from consumers.registered import Providers
from consumers.runtime import Consumer, Context, Event
from consumers.runtime.visibility import Unseen
from relay import failpoints


class Collect(Consumer):
    """The pacing is in the database: the next event comes when the next poll is due."""

    name = "collect"
    topics = ("collection.requested", "evidence.requested")

    def __init__(self) -> None:
        self._actor = f"collect@{socket.gethostname()}:{os.getpid()}"
        self._unseen = Unseen()

    async def open(self, ctx: Context) -> None:
        self._providers = Providers(ctx.settings)
        self._collector = Collector(self._providers, self._unseen, self._actor)
        async with ctx.pool.connection() as connection:
            await require_worker(connection)

    async def handle(self, event: Event, ctx: Context) -> None:
        if event.type == "evidence.requested":
            await self._collector.handle(event, ctx)
            return
        operation_id = UUID(str(event.payload["operation_id"]))
        async with ctx.pool.connection() as connection:
            found = await observations.load(connection, operation_id)
            subject = self._unseen.require(event, found, "operation")
            profile = await self._providers.profile(connection, subject.provider, subject.profile_digest)
            job_id = subject.job_id
            why_not = _nothing_to_ask(subject, profile.poll.min_s)
            if why_not is not None or job_id is None:
                ctx.log.debug("not asked", why=why_not, phase=subject.phase)
                return
            asked = await observations.begin(connection, subject, job_id, self._actor)

        failpoints.hit(failpoints.COLLECT_BEFORE_GET)
        answer, observation = await self._providers.observe(profile, job_id)
        failpoints.hit(failpoints.COLLECT_ANSWER_RECEIVED)

        async with ctx.pool.connection() as connection:
            verdict = await observations.apply_observation(
                connection,
                operation_id=operation_id,
                asked=asked,
                observation=observation,
                status=answer.status,
                profile=profile,
                actor=self._actor,
            )
        failpoints.hit(failpoints.COLLECT_ANSWER_APPLIED)
        needs_a_person = not answer.sent or (isinstance(verdict, Poll) and verdict.unknown is not None)
        failed = {} if answer.error is None else {"error": answer.error}
        (ctx.log.warning if needs_a_person else ctx.log.info)(
            "observed", job_id=job_id, state=observation.state, then=str(verdict), **failed
        )


def _nothing_to_ask(subject: Subject, min_s: float) -> str | None:
    if subject.phase != Phase.ACCEPTED:
        return f"the operation is {subject.phase}"
    if subject.recently < min_s:
        return "it was observed just now"
    return None
