"""Calls the handler for each record: in order per key, many keys at once, again after a transient failure.

It lives on the event loop and touches no Kafka consumer: it says when a record needs nothing more, and the
thread that owns the consumer decides what may be committed.
"""

import asyncio
import enum
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import psycopg

from consumers.runtime.assignment import Assignment, Delivery, all_idle
from consumers.runtime.consumer import AtWork, Consumer, Context, Event, Permanent, Transient
from consumers.runtime.inbox import Entry, Inbox, Outcome
from consumers.runtime.lanes import Lanes
from consumers.runtime.metrics import Metrics
from consumers.runtime.parking import Parking, Reason
from consumers.runtime.record import Record, Undecodable, event_id, event_type, to_event
from consumers.runtime.retry import Again, Failure, decide
from relay import failpoints
from relay.avro.catalog import Catalog
from relay.errors import Unavailable

CANCELLED_HANDLER_S: Final = 5.0
"""How long a cancelled handler may take to unwind before nobody waits for it any more."""
_STILL_WAITING_S: Final = 10.0
_DETAIL_CHARACTERS: Final = 1_000


class _End(enum.Enum):
    HANDLED = enum.auto()
    CANCELLED = enum.auto()


@dataclass(frozen=True, slots=True)
class _Failed:
    failure: Failure
    reason: str
    retry_after_s: float | None = None


class Handling:
    """The handlers of one process. All methods are called on the event loop."""

    def __init__(
        self,
        consumer: Consumer,
        context: Context,
        catalog: Catalog,
        *,
        parking: Parking,
        inbox: Inbox | None,
        finished: Callable[[Delivery], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`finished` hears of each record that needs nothing more, `failed` of an error of the runtime
        itself."""
        self._consumer = consumer
        self._context = context
        self._catalog = catalog
        self._parking = parking
        self._inbox = inbox
        self._finished = finished
        self._failed = failed
        self._settings = context.settings
        self._log = context.log
        self._slots = asyncio.Semaphore(self._settings.concurrency)
        self._lanes: Lanes[Delivery] = Lanes()
        self._lane_tasks: set[asyncio.Task[None]] = set()
        self._calls: dict[AtWork, Assignment] = {}
        self._assignments: set[Assignment] = set()
        self._metrics = Metrics(consumer.name)
        self._now = asyncio.get_running_loop().time

    def receive(self, deliveries: Iterable[Delivery]) -> None:
        """Take records, of each partition in the order in which it holds them."""
        for delivery in deliveries:
            if delivery.assignment.ended.is_set():
                continue
            self._assignments.add(delivery.assignment)
            # One topic for all types: the others are somebody else's.
            if self._settings.topic is not None and event_type(delivery.record) not in self._consumer.topics:
                self._finished(delivery)
                continue
            key = _lane(delivery.record)
            if self._lanes.arrive(key, delivery):
                task = asyncio.create_task(self._work_lane(key, delivery))
                self._lane_tasks.add(task)
                task.add_done_callback(self._lane_ended)

    async def drain(
        self,
        assignments: Iterable[Assignment] | None = None,
        *,
        grace_s: float,
        wait_for_protected: bool = False,
    ) -> None:
        """End assignments (all, if None): start nothing more of them, and let what is at work finish.

        After `grace_s` the calls that aren't protected (`Context.uncancelled`) are cancelled; the protected
        ones are waited for only with `wait_for_protected`, as a process that is about to exit must.
        """
        ending = set(self._assignments if assignments is None else assignments)
        self._assignments -= ending
        for assignment in ending:
            assignment.ended.set()
        if await all_idle(ending, grace_s):
            return
        calls = [call for call, assignment in self._calls.items() if assignment in ending]
        protected = sum(call.protected for call in calls)
        self._log.warning(
            "grace is over", cancelled=len(calls) - protected, protected=protected, grace_s=grace_s
        )
        for call in calls:
            call.cancel()
        if await all_idle(ending, CANCELLED_HANDLER_S) or not wait_for_protected:
            return
        while waited_for := [
            call.task
            for call, assignment in self._calls.items()
            if assignment in ending and call.protected and call.task is not None
        ]:
            self._log.warning("waiting for work that must not be cancelled", calls=len(waited_for))
            await asyncio.wait(waited_for, timeout=_STILL_WAITING_S)
        # What it did goes to the inbox, so that its offset can be committed.
        await all_idle(ending, CANCELLED_HANDLER_S)

    def end(self, assignments: Iterable[Assignment]) -> None:
        """These partitions belong to somebody else already: start and try nothing more of them."""
        for assignment in assignments:
            assignment.ended.set()
            self._assignments.discard(assignment)

    def _lane_ended(self, task: asyncio.Task[None]) -> None:
        self._lane_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def _work_lane(self, key: object, delivery: Delivery) -> None:
        following: Delivery | None = delivery
        while following is not None:
            await self._work_off(following)
            following = self._lanes.leave(key)

    async def _work_off(self, delivery: Delivery) -> None:
        """Until the record is handled or parked, or its assignment has ended."""
        assignment = delivery.assignment
        if assignment.ended.is_set():
            return
        try:
            event = to_event(delivery.record, self._catalog, decodes=self._consumer.decodes)
        except Undecodable as undecodable:
            await self._park(
                delivery, Reason(undecodable.reason_code, undecodable.reason, attempts=0), times=1
            )
            return
        attempts = 0
        failing_since_s = 0.0
        times = 1
        while True:
            async with self._slots:
                if assignment.ended.is_set():
                    return
                with assignment.work():
                    end = await self._call(event, assignment)
                    if end is _End.CANCELLED:
                        return
                    if end is _End.HANDLED:
                        failpoints.hit(failpoints.CONSUMER_HANDLED)
                        self._ended(delivery, "handled", None, times)
                        return
            attempts += 1
            failing_since_s = failing_since_s or self._now()
            decision = decide(
                end.failure,
                attempt=attempts,
                failing_for_s=self._now() - failing_since_s,
                retry_for_s=self._settings.retry_for_s,
                draw=random.random(),
                retry_after_s=end.retry_after_s,
            )
            if not isinstance(decision, Again):
                await self._park(delivery, Reason(decision.reason_code, end.reason, attempts), times)
                return
            self._log.warning(
                "will try again",
                event_id=str(event.event_id),
                reason=end.reason,
                attempt=attempts,
                delay_s=round(decision.delay_s, 3),
            )
            if self._inbox is not None:
                self._inbox.add(_entry(delivery.record, event.event_id, "retrying", end.reason, times))
                times = 0
            if await assignment.ended_within(decision.delay_s):
                return

    async def _call(self, event: Event, assignment: Assignment) -> "_End | _Failed":
        call = AtWork()
        context = self._context.for_event(event, call)
        call.task = asyncio.create_task(self._consumer.handle(event, context))
        self._calls[call] = assignment
        self._metrics.call_started()
        started_s = self._now()
        try:
            await asyncio.wait({call.task})
        finally:
            del self._calls[call]
            self._metrics.call_ended(self._now() - started_s)
        if call.task.cancelled():
            return (
                _End.CANCELLED if call.cancelled else _Failed(Failure.TRANSIENT, "The handler was cancelled.")
            )
        error = call.task.exception()
        if error is None:
            return _End.HANDLED
        if call.cancelled:
            context.log.warning("a cancelled handler failed", exc_info=error)
            return _End.CANCELLED
        failed = _classified(error)
        self._metrics.failed(failed.failure.value)
        if failed.failure is Failure.TRANSIENT and not isinstance(error, Transient):
            context.log.error("the handler failed", exc_info=error)
        return failed

    async def _park(self, delivery: Delivery, reason: Reason, times: int) -> None:
        with delivery.assignment.work():
            record = delivery.record
            topic = await self._parking.park(record, reason)
            self._log.error(
                "parked",
                topic=topic,
                reason_code=reason.code,
                reason=reason.words,
                from_topic=record.topic,
                partition=record.partition,
                offset=record.offset,
            )
            self._ended(delivery, "parked", f"{reason.code}: {reason.words}", times)

    def _ended(self, delivery: Delivery, outcome: Outcome, detail: str | None, times: int) -> None:
        """The record needs nothing more, once the inbox says so too."""
        self._metrics.ended(outcome)
        identity = event_id(delivery.record)
        if self._inbox is None or identity is None:
            self._finished(delivery)
            return
        delivery.assignment.begin()

        def written() -> None:
            self._finished(delivery)
            delivery.assignment.finish()

        self._inbox.add(_entry(delivery.record, identity, outcome, detail, times), written)


def _lane(record: Record) -> object:
    """Records of a key in one lane, whatever their topic; those without a key in their partition's."""
    return (record.topic, record.partition) if record.key is None else record.key


def _entry(record: Record, identity: UUID, outcome: Outcome, detail: str | None, times: int) -> Entry:
    shortened = None if detail is None else detail[:_DETAIL_CHARACTERS]
    return Entry(identity, record.topic, record.partition, record.offset, outcome, shortened, times)


def _classified(error: BaseException) -> _Failed:
    match error:
        case Permanent():
            return _Failed(Failure.PERMANENT, error.reason)
        case Transient():
            return _Failed(Failure.TRANSIENT, error.reason, error.retry_after_s)
        case Unavailable() | psycopg.OperationalError():
            return _Failed(Failure.UNAVAILABLE, str(error).strip() or type(error).__name__)
        case _:
            return _Failed(Failure.TRANSIENT, f"{type(error).__name__}: {error}")
