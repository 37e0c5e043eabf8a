"""One round of schedule: everything that is due now, each in a transaction of its own or a small batch.

What is refused for one operation is logged and stands in no other's way. It only writes rows; the events that
follow travel through the same outbox as everything else.
"""

from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import psycopg
import structlog

from consumers.operations import due, replays
from consumers.operations.due import RunOut, Wallet
from consumers.operations.lifecycle import Hold, Phase
from consumers.registered import Providers
from consumers.schedule.allowance import Allowance
from consumers.schedule.fitting import fitting
from relay import failpoints
from relay.errors import RelayError

BATCH: Final = 200
"""Rows looked for at once: little enough that two processes share the work, and no lock is held for long."""
OVERDUE_S: Final = 60.0
"""What has been due for longer than this is late, however busy the round was."""


@dataclass(slots=True)
class Done:
    """What a round did, by action (see metrics.ACTIONS), and what it had to leave.

    `full`: a batch was full, so that there may be as much again. `overdue` operations have been due for
    longer than `OVERDUE_S`, the oldest for `oldest_overdue_s`.
    """

    actions: Counter[str] = field(default_factory=Counter)
    full: bool = False
    overdue: int = 0
    oldest_overdue_s: float = 0.0

    @property
    def more(self) -> bool:
        """Another round at once is worth it: there may be more, and it isn't all refused."""
        return self.full and self.actions.total() > self.actions["failed"]

    @property
    def healthy(self) -> bool:
        return self.overdue == 0


class Round:
    """Does one round over `connection`, which is in autocommit. Lives as long as the connection."""

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        *,
        actor: str,
        providers: Providers,
        log: structlog.typing.FilteringBoundLogger,
        polls: Allowance | None = None,
    ) -> None:
        """`polls`: how many collection events may be written; None: as many as are due."""
        self._connection = connection
        self._polls = polls or Allowance(None)
        self._actor = actor
        self._providers = providers
        self._log = log
        self._done = Done()

    async def run(self) -> Done:
        """Raises psycopg.Error when the connection is gone; what was done until then is done."""
        self._done = done = Done()
        await self._leases()
        failpoints.hit(failpoints.SCHEDULE_LEASES_EXPIRED)
        # Before the events: what may no longer be replayed isn't asked for once more.
        await self._replays()
        await self._events()
        failpoints.hit(failpoints.SCHEDULE_EVENTS_EMITTED)
        await self._paused()
        await self._allowances()
        await self._batches()
        failpoints.hit(failpoints.SCHEDULE_HOLDS_RELEASED)
        await self._attempts()
        failpoints.hit(failpoints.SCHEDULE_ATTEMPTS_CLOSED)
        await self._reviews()
        await self._evidence()
        failpoints.hit(failpoints.SCHEDULE_REVIEWS_ESCALATED)
        done.overdue, done.oldest_overdue_s = await due.overdue(self._connection, OVERDUE_S)
        return done

    # Steps ---------------------------------------------------------------------------------------------

    async def _leases(self) -> None:
        run_out = await due.leases_run_out(self._connection, BATCH)
        self._full(run_out)
        for lease in run_out:
            deadline_s = await self._review_deadline_s(lease)
            moved = await self._guarded(
                due.expire(self._connection, lease, self._actor, deadline_s), lease.operation_id
            )
            if moved is not None:
                self._did("lease_expired")
                self._log.warning("lease ran out", operation_id=str(lease.operation_id), phase=str(moved))

    async def _replays(self) -> None:
        waiting = await replays.replays_due(self._connection, BATCH)
        self._full(waiting)
        for due_now in waiting:
            done = await self._guarded(
                replays.replay(self._connection, due_now, self._actor, None), due_now.operation_id
            )
            moved, why = done or (None, "refused")
            if moved is not None:
                self._did("replayed" if moved is Phase.PREPARED else "unreplayed")
            self._log.info("replay", operation_id=str(due_now.operation_id), to=moved, why=why)

    async def _events(self) -> None:
        prepared = await due.due(self._connection, Phase.PREPARED, BATCH)
        self._full(prepared)
        await self._emit(prepared)
        # What piled up while schedule was away is spread: a poll that is late may be a little later.
        accepted = await due.due(self._connection, Phase.ACCEPTED, min(BATCH, self._polls.left()))
        if len(accepted) >= BATCH:
            self._done.full = True
        await self._emit(accepted)
        self._polls.spend(len(accepted))

    async def _emit(self, waiting: list[UUID]) -> None:
        if not waiting:
            return
        try:
            self._did("event", await due.emit_due(self._connection, waiting))
        except psycopg.Error as error:
            if self._connection.closed:
                raise
            self._log.warning("a batch of events was refused; each is tried alone", error=str(error))
            for operation_id in waiting:
                written = await self._guarded(due.emit_due(self._connection, [operation_id]), operation_id)
                self._did("event", written or 0)

    async def _paused(self) -> None:
        free = await due.unpaused(self._connection, BATCH)
        self._full(free)
        for operation_id in free:
            await self._release(operation_id, Hold.PAUSED)
        await self._postpone(Hold.PAUSED)

    async def _allowances(self) -> None:
        wallets = await due.wallets(self._connection, BATCH)
        self._full(wallets)
        for wallet in wallets:
            if wallet.room is not None:
                held = await due.held_for_allowance(self._connection, wallet, BATCH)
                for operation_id in fitting(wallet.room, held):
                    await self._release(operation_id, Hold.ALLOWANCE)
                if self._full(held):
                    continue  # the next round goes on with this owner
            await self._postpone(Hold.ALLOWANCE, wallet)

    async def _batches(self) -> None:
        crowded = await due.batches(self._connection, BATCH)
        self._full(crowded)
        for batch in crowded:
            held = await due.held_for_batch(self._connection, batch, BATCH)
            for operation_id in fitting(batch.room, held, batch.places):
                await self._release(operation_id, Hold.BATCH)
        await self._postpone(Hold.BATCH)

    async def _postpone(self, hold: Hold, wallet: Wallet | None = None) -> None:
        """Look again later. More than a batch of them is a reason for the next round to come at once."""
        postponed = await due.postpone(self._connection, hold, BATCH, wallet)
        if postponed >= BATCH:
            self._done.full = True
            self._did("postponed", postponed)

    async def _attempts(self) -> None:
        left_open = await due.abandoned(self._connection, BATCH)
        self._full(left_open)
        for attempt in left_open:
            closed = await self._guarded(due.close_abandoned(self._connection, attempt), attempt.operation_id)
            if closed:
                self._did("attempt_closed")

    async def _reviews(self) -> None:
        for review in await due.escalate(self._connection, BATCH):
            self._did("review_escalated")
            self._log.warning(
                "a review is past its deadline",
                review_id=str(review.review_id),
                operation_id=str(review.operation_id),
                kind=review.kind,
                severity=review.severity,
            )

    async def _evidence(self) -> None:
        waiting = await due.evidence_due(self._connection, BATCH)
        self._full(waiting)
        for review_id, operation_id in waiting:
            asked = await self._guarded(due.emit_evidence(self._connection, review_id), operation_id)
            if asked:
                self._did("evidence_asked")

    # ---------------------------------------------------------------------------------------------------

    async def _release(self, operation_id: UUID, hold: Hold) -> None:
        released = await self._guarded(
            due.release(self._connection, operation_id, hold, self._actor), operation_id
        )
        if released:
            self._did("released")

    async def _review_deadline_s(self, lease: RunOut) -> float | None:
        """Of the review that `uncertain` opens. A profile that can't be read must not keep a lease alive."""
        if lease.phase != Phase.SUBMITTING or lease.provider is None or lease.profile_digest is None:
            return None
        try:
            profile = await self._providers.profile(self._connection, lease.provider, lease.profile_digest)
        except RelayError as error:
            self._log.error("a profile can't be read: the review gets a day", error=str(error))
            return None
        return profile.review_deadline_s("uncertain_submission")

    async def _guarded(self, work: Awaitable[Any], operation_id: UUID) -> Any:
        """`work`'s result; None when the database refused it, which is logged. Raises psycopg.Error when the
        connection is gone."""
        try:
            return await work
        except psycopg.Error as error:
            if self._connection.closed:
                raise
            self._did("failed")
            self._log.error("refused by the database", operation_id=str(operation_id), error=str(error))
            return None

    def _did(self, action: str, times: int = 1) -> None:
        self._done.actions[action] += times

    def _full(self, batch: list[Any]) -> bool:
        full = len(batch) >= BATCH
        self._done.full = self._done.full or full
        return full
