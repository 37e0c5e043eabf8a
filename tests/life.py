"""Operations with everybody who may touch them, in any order, at once or one after the other: workers,
crashes, redeliveries, late and double answers, reviews, cancels, money and a clock that jumps.

The provider is a book of what really happened, `World`: it is asked by nobody but the checks. Everything else
is the code under test, over real connections. Nothing is sent: `begin` stands for the first byte.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import structlog

from consumers.operations import claims, deliveries, observations, reviews
from consumers.operations.answers import apply_submission
from consumers.operations.audit import Finding, audit
from consumers.operations.decisions import Decision, Refused, possible
from consumers.operations.lifecycle import Hold
from consumers.operations.refusals import in_words
from consumers.operations.resolutions import NAMES_A_JOB, Resolution
from consumers.providers.observation import Observation
from consumers.providers.outcome import Submission
from consumers.registered import Providers
from consumers.schedule.round import Round
from fix_scene import Scene

CHARGE: Final = Decimal("0.75")
LEASE_S: Final = 60.0
ANSWERS: Final = (
    "accepted", "accepted", "accepted", "accepted", "error_with_id", "candidate", "second_id", "collision",
    "lost", "nothing", "refused", "again", "unsent",
)  # fmt: skip
"""What a provider may do with a POST; see `World.post`."""
HARMLESS: Final = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
)
"""A worker that gives up waiting for a lock has done nothing, and its event comes again."""


@dataclass(slots=True)
class Post:
    """One POST that left a worker, and what will be said of it."""

    claim: claims.Claim
    made: str | None
    """The job that really exists because of it."""
    answer: Submission
    told: bool = False
    """Its answer was written at least once."""


@dataclass(slots=True)
class World:
    """The truth, which no worker sees."""

    draw: random.Random
    operations: list[UUID] = field(default_factory=list)
    claimed: list[claims.Claim] = field(default_factory=list)
    downloads: list[deliveries.Held] = field(default_factory=list)
    posts: list[Post] = field(default_factory=list)
    tried: Counter[str] = field(default_factory=Counter)
    """By action and what came of it."""

    def post(self, claimed: claims.Claim) -> Post:
        kind = self.draw.choice(ANSWERS)
        others = [
            post.made for post in self.posts if post.made and post.claim.operation_id != claimed.operation_id
        ]
        job: str | None = f"job-{uuid4()}"
        told: dict[str, Any]
        match kind:
            case "collision" if others:
                job = self.draw.choice(others)
                told = {"verdict": "accepted", "reason": "accepted", "job_id": job}
                job = None  # it is the other one's, who pays for it
            case "error_with_id":
                told = {"verdict": "accepted", "reason": "error_with_id", "job_id": job}
                told["accounting"] = "unsettled"
            case "candidate":
                told = {"verdict": "unknown", "reason": "id_elsewhere", "candidates": (job,)}
            case "second_id":
                told = {"verdict": "accepted", "reason": "accepted", "job_id": job}
                told["candidates"] = (f"job-{uuid4()}",)
            case "lost":
                told = {"verdict": "unknown", "reason": "no_answer"}
            case "nothing":
                job, told = None, {"verdict": "unknown", "reason": "no_answer"}
            case "refused":
                job = None
                told = {"verdict": "refused", "reason": "invalid", "after": "final", "charged": False}
            case "again":
                job = None
                told = {"verdict": "refused", "reason": "rate_limited", "after": "delay"}
                told |= {"charged": False, "retry_after_s": 1.0}
            case "unsent":
                job, told = None, {"verdict": "unsent", "reason": "connect_error"}
            case _:
                told = {"verdict": "accepted", "reason": "accepted", "job_id": job}
        answer = Submission(**told, evidence={"status": 200, "kind": kind})
        made = Post(claimed, job, answer)
        self.posts.append(made)
        return made


class Life:
    """A scene, its world, and everything that may happen in it. Each action takes a connection of its own, so
    that any number may run at once; what is refused is counted, and what must not happen is raised."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.world = World(random.Random(seed))
        self.draw = self.world.draw
        self._providers = Providers(scene.settings())
        self._log: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
            structlog.ReturnLogger(), wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
        )
        self._idle: dict[str, list[psycopg.AsyncConnection[Any]]] = {}
        for role in ("relay_worker", "relay_operator"):
            scene.database.url_as(role)

    async def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                await connection.close()

    # What applications do ----------------------------------------------------------------------------

    def approve(self) -> UUID:
        operation = self.scene.prepare()
        self.world.operations.append(operation)
        return operation

    async def cancel(self, operation: UUID) -> None:
        async with self._as("relay_operator") as connection:
            await connection.execute("select relay.request_cancel(%s, 'changed our minds')", [operation])

    async def allow(self, limit: int) -> None:
        async with self._as("relay_operator") as connection:
            await connection.execute(
                """
                select relay.set_allowance(owner_id, unit, greatest(%s, reserved + disputed + settled), 'x')
                  from relay.allowance
                """,
                [Decimal(limit)],
            )

    # What dispatchers do -----------------------------------------------------------------------------

    async def claim(self, operation: UUID, *, stale: bool = False) -> None:
        """Handle an event: the newest, or one from before."""
        async with self._as("relay_worker") as connection:
            now: int = self.scene.operation(operation, "dispatch_no")
            number = max(1, now - 1) if stale else now
            found = await claims.claim(
                connection,
                operation_id=operation,
                dispatch_no=number,
                token=uuid4(),
                worker="dispatch@life:1",
                lease_s=LEASE_S,
            )
        won = isinstance(found, claims.Claim)
        self._count("claim", won)
        if isinstance(found, claims.Claim):
            self.world.claimed.append(found)

    async def begin(self, claimed: claims.Claim) -> None:
        """The hook; if it returns, the POST is made, and the provider does something with it."""
        sending = claims.Sending(
            request_sha256="0" * 64,
            idempotency_key=None,
            spool="/spool",
            deadline_s=30,
            margin_s=5,
            late_delivery_s=60,
        )
        async with self._as("relay_worker") as connection:
            try:
                await claims.begin_submission(connection, claimed, sending, "dispatch@life:1")
            except (claims.ClaimLost, psycopg.Error) as error:
                # Whatever the database says, nothing was sent.
                self._count(f"submit {type(error).__name__}", won=False)
                return
        self._count("submit", won=True)
        self.world.post(claimed)

    async def answer(self, post: Post) -> None:
        """What was said comes in: in time, late, or once more from a spool."""
        async with self._as("relay_worker") as connection:
            applied = await apply_submission(
                connection,
                attempt_id=post.claim.token,
                operation_id=post.claim.operation_id,
                outcome=post.answer,
                profile=self.scene.profile,
                actor="dispatch@life:1",
            )
        post.told = True
        self._count(f"answer {post.answer.verdict}", won=str(applied) == "moved")

    async def hold(self, claimed: claims.Claim) -> None:
        async with self._as("relay_worker") as connection:
            try:
                await claims.hold(connection, claimed, Hold.CONFIGURATION, "dispatch@life:1", "no secret")
            except claims.ClaimLost:
                self._count("hold", won=False)
            else:
                self._count("hold", won=True)

    # What collectors and deliverers do ---------------------------------------------------------------

    async def observe(self, operation: UUID) -> None:
        """One GET and what follows; its job may have ended in any way."""
        async with self._as("relay_worker") as connection:
            subject = await observations.load(connection, operation)
            if subject is None or subject.job_id is None or subject.phase != "accepted":
                return
            asked = await observations.begin(connection, subject, subject.job_id, "collect@life:1")
            state = self.draw.choice(["running", "running", "succeeded", "failed", "cancelled", "not_found"])
            cost = CHARGE if state in ("succeeded", "failed", "cancelled") else None
            verdict = await observations.apply_observation(
                connection,
                operation_id=operation,
                asked=asked,
                observation=Observation(state=state, reason=state, cost=cost, evidence={}),  # type: ignore[arg-type]
                status=404 if state == "not_found" else 200,
                profile=self.scene.profile,
                actor="collect@life:1",
            )
        self._count(f"observe {state}", won=bool(verdict))

    # What timers do ----------------------------------------------------------------------------------

    async def schedule(self) -> None:
        async with self._as("relay_worker") as connection:
            await Round(connection, actor="schedule@life:1", providers=self._providers, log=self._log).run()

    def time_passes(self, by: str) -> None:
        self.scene.advance(by)

    # What people do ----------------------------------------------------------------------------------

    async def decide(self, operation: UUID | None = None) -> None:
        """Look at an open review and answer it in one of the ways that it takes."""
        async with self._as("relay_operator") as connection:
            waiting = await reviews.waiting(connection, limit=500)
            waiting = [one for one in waiting if operation in (None, one.operation_id)]
            if not waiting:
                return
            try:
                with in_words():
                    sight = await reviews.sight(connection, self.draw.choice(waiting).review_id)
                    # Somebody else may decide, or something come in, while a person reads.
                    await asyncio.sleep(0)
                    decision = self._decision(sight)
                    await reviews.resolve(connection, decision, evidence={"looked_up": decision.job_id})
            except Refused:
                self._count("decide", won=False)
            else:
                self._count("decide", won=True)

    def _decision(self, sight: reviews.Sight) -> Decision:
        whole, review = sight.whole, sight.review
        resolution = self.draw.choice(list(possible(review, whole.operation)) or [Resolution.WAIT])
        known = [job.job_id for job in whole.jobs]
        real = [
            post.made
            for post in self.world.posts
            if post.made is not None and post.claim.operation_id == whole.operation.operation_id
        ]
        named = self.draw.choice(real or known or [f"job-{uuid4()}"]) if resolution in NAMES_A_JOB else None
        return Decision(
            review_id=review.review_id,
            revision=review.revision,
            resolution=resolution,
            reason="I looked",
            actor="ann@desk",
            job_id=named,
            spool_lost=self.draw.random() < 0.3,
            cost=CHARGE if resolution is Resolution.SETTLE else None,
            wait_s=600.0 if resolution is Resolution.WAIT else None,
        )

    # What must hold ----------------------------------------------------------------------------------

    async def wrong(self) -> list[str]:
        """Every sentence is a broken promise."""
        async with self._as("relay_operator") as connection:
            findings: list[Finding] = await audit(connection, overdue_s=1e9)
        found = [f"{one.invariant} {one.operation_id}: {one.what}" for one in findings]
        return found + self._posts() + self._jobs() + self._unknown_left()

    def _posts(self) -> list[str]:
        allowed = dict(
            self.scene.all(
                """
                select o.operation_id,
                       1 + (select count(*) from relay.attempt a where a.operation_id = o.operation_id
                              and a.action = 'submit' and a.outcome in ('unsent', 'refused'))
                         + (select count(*) from relay.review r where r.operation_id = o.operation_id
                              and r.resolution = 'not-accepted:resubmit')
                  from relay.operation o
                """
            )
        )
        posts = Counter(post.claim.operation_id for post in self.world.posts)
        return [f"{one}: {n} POSTs, {allowed[one]} allowed" for one, n in posts.items() if n > allowed[one]]

    def _jobs(self) -> list[str]:
        """An id that was told is stored; of a POST without a word the outcome is open or unknown."""
        known = set(self.scene.all("select operation_id, job_id from relay.remote_job"))
        outcomes = dict(self.scene.all("select attempt_id, outcome from relay.attempt"))
        wrong = []
        for post in self.world.posts:
            ids = {post.answer.job_id, *post.answer.candidates} - {None}
            lost = {one for one in ids if (post.claim.operation_id, one) not in known}
            if post.told and lost:
                wrong.append(f"{post.claim.operation_id}: was told of {lost}, and forgot")
            if not post.told and post.made and outcomes[post.claim.token] not in ("open", "unknown"):
                wrong.append(
                    f"attempt {post.claim.token}: nobody knows, and it is {outcomes[post.claim.token]}"
                )
        return wrong

    def _unknown_left(self) -> list[str]:
        """Only evidence, or a person, ends an uncertainty (promise P6)."""
        rows = self.scene.all(
            "select operation_id, cause from relay.journal where from_phase = 'uncertain'"
            " and cause not in ('late_answer', 'review', 'rule', 'replay')"
        )
        return [f"{operation}: left uncertain by {cause}" for operation, cause in rows]

    # The end -----------------------------------------------------------------------------------------

    async def settle(self, rounds: int = 400) -> list[UUID]:
        """Let every answer come in, time pass and people decide. Returns what still isn't final and waits for
        nobody: nothing may."""
        for _ in range(rounds):
            for post in self.world.posts:
                if not post.told:
                    await self.answer(post)
            await self.allow(10**6)
            self.time_passes("1 hour")
            await self.schedule()
            for operation in self._in("prepared"):
                await self.claim(operation)
            for claimed in list(self.world.claimed):
                await self.begin(claimed)
                self.world.claimed.remove(claimed)
            for operation in self._in("accepted"):
                await self.observe(operation)
            if not self._moving():
                break
            await self.decide()
        return self._moving()

    def _in(self, phase: str) -> list[UUID]:
        rows = self.scene.all(
            "select operation_id from relay.operation where kind = 'generation' and phase = %s", phase
        )
        return [operation for (operation,) in rows]

    def _moving(self) -> list[UUID]:
        """What isn't final and has no open review. A delivery waits for its deliverer, who isn't here."""
        rows = self.scene.all(
            "select operation_id from relay.operation where not is_final and open_reviews = 0"
            " and kind = 'generation'"
        )
        return [operation for (operation,) in rows]

    # ---------------------------------------------------------------------------------------------------

    def _count(self, action: str, won: bool) -> None:
        self.world.tried[f"{action}: {'won' if won else 'lost'}"] += 1

    @asynccontextmanager
    async def _as(self, role: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """A connection of `role`; a worker that gave up waiting for a lock comes again another time."""
        idle = self._idle.setdefault(role, [])
        connection = (
            idle.pop()
            if idle
            else await psycopg.AsyncConnection.connect(self.scene.database.url_as(role), autocommit=True)
        )
        try:
            yield connection
        finally:
            idle.append(connection)
