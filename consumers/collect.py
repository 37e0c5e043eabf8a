"""Collect: for each `collection.requested` at most one GET, and what it proves is recorded; for each
`evidence.requested` what the provider knows about a review's question.

It never sends anything but a GET, never decides from the event alone, and never ends an operation because
time has passed. An event may come again at any time: that costs GETs and nothing else.
"""

import os
import socket
from typing import Any
from uuid import UUID

import psycopg

from consumers import permits
from consumers.evidence import Collector
from consumers.operations import limits, observations, polling
from consumers.operations.access import require_worker
from consumers.operations.lifecycle import Phase
from consumers.operations.polling import Poll, Subject
from consumers.providers.profile import Profile
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
            if await self._waits_for_the_provider(connection, subject, profile):
                ctx.log.debug("not asked", why="the provider gives no answers", failed=subject.polls_failed)
                return
        async with permits.within(
            permits.of_polls(profile, subject.account),
            ctx,
            operation_id=operation_id,
            phase=subject.phase,
            holder=self._actor,
            # A result that has a path of its own is a second GET.
            lease_s=profile.observe.deadline_s * (1 if profile.observe.result_path is None else 2)
            + profile.margin_s,
            waited=subject.waits_until is not None,
        ) as allowed:
            if allowed:
                await self._ask(subject, job_id, profile, ctx)

    async def _waits_for_the_provider(
        self, connection: psycopg.AsyncConnection[Any], subject: Subject, profile: Profile
    ) -> bool:
        """While an account gives no answers one GET at a time asks whether it is back; others are put off."""
        not_before = subject.poll_not_before
        if not_before is None:
            return False
        async with connection.transaction():
            if not_before <= subject.now:
                probed = await limits.probe(
                    connection,
                    subject.provider,
                    subject.account,
                    failed=subject.polls_failed,
                    wait_s=polling.away_s(subject.polls_failed + 1, profile),
                )
                if probed is None:
                    return False
                not_before = probed
            delay_s = polling.away_spread_s(subject.operation_id, subject.observations, profile)
            await limits.defer_while_away(connection, subject.operation_id, not_before, delay_s)
        return True

    async def _ask(self, subject: Subject, job_id: str, profile: Profile, ctx: Context) -> None:
        async with ctx.pool.connection() as connection:
            asked = await observations.begin(connection, subject, job_id, self._actor)

        failpoints.hit(failpoints.COLLECT_BEFORE_GET)
        answer, observation = await self._providers.observe(profile, job_id)
        failpoints.hit(failpoints.COLLECT_ANSWER_RECEIVED)

        async with ctx.pool.connection() as connection:
            verdict = await observations.apply_observation(
                connection,
                operation_id=subject.operation_id,
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
    if subject.waits_until is not None and subject.waits_until > subject.now:
        return "it waits for its account's limits"
    return None
