"""Bad events in the running relay: parks them, finds the one that a broker refuses, takes up requests.

Postgres always comes first: a record exists only for a row that is committed. Nothing here blocks feedback,
and whatever a request is, the stream goes on.
"""

import time
import uuid
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, Protocol

import structlog

from relay import failpoints, metrics
from relay.errors import BadEventHalt, Unavailable
from relay.intake import Asked, Intake, Position
from relay.kafka.checkpoint import Checkpoint
from relay.kafka.publisher import RecordRefused
from relay.outbox import message as messages
from relay.outbox import parking
from relay.outbox.bad_event import Request, Verdicts, read_request
from relay.outbox.event import REPUBLISHED, BadEvent, EventEncoder, ParkedEvent, Record
from relay.outbox.parking import Outcome, TakenUp
from relay.outbox.parts import is_hex, row_of
from relay.session import Session, StartOver
from relay.wal.pgoutput import Row

SETTLE_AGAIN_S: Final = 1.0
"""Pause before rows are settled again after Postgres didn't answer; the next start settles them as well."""

log = structlog.get_logger("relay")


class Group(Protocol):
    """What `blame` must know of a refused group."""

    @property
    def events(self) -> int: ...
    @property
    def last(self) -> Position | None: ...
    @property
    def last_event_id(self) -> str: ...


class Parking:
    """Used by the relay's own thread; it reads what was parked when it is made.

    Raises Unavailable, Stop or StartOver; then discard the session.
    """

    def __init__(
        self, session: Session, encoder: EventEncoder, relay_id: uuid.UUID, checkpoint: Checkpoint
    ) -> None:
        self._session = session
        self._encoder = encoder
        self._mapping = session.mapping
        self._relay_id = relay_id
        self._epoch = checkpoint.epoch
        self._in_order = session.settings.on_bad_event == "park_key"
        read = partial(
            parking.at_start,
            relay_id=relay_id,
            epoch=checkpoint.epoch,
            checkpoint=(checkpoint.commit_lsn, checkpoint.index),
            keys=self._in_order,
        )
        self.verdicts = Verdicts(*session.ask(read))
        self._owed: deque[Position] = deque()
        """Where events were republished whose rows don't say so yet."""
        self._published: Position = (0, -1)
        self._settling: tuple[Future[int], Position] | None = None
        self._settle_at = 0.0

    def park(self, events: Sequence[ParkedEvent]) -> None:
        """Postgres first: the dead-letter record may exist only for a row that is committed."""
        work = partial(parking.park, relay_id=self._relay_id, events=events)
        self._session.ask(work, interruptible=False)
        for event in events:
            _say(event)

    def blame(self, group: Group, refused: RecordRefused) -> Exception:
        """The broker refused a record: go again one by one until it is known which, then park it."""
        memory = self._session.memory
        if group.last is None:
            return Unavailable(f"Kafka refused the checkpoint: {refused.reason}.")
        if group.events == 1:
            if group.last in memory.refused:
                return BadEventHalt(
                    f"Kafka refuses even the dead-letter record of {group.last_event_id}: {refused.reason}.",
                    meaning="The event is in relay.parked_event, and the relay can't go past it.",
                    remedy="Look at the dead-letter topic's settings and permissions, then start again.",
                )
            memory.refused[group.last] = refused.reason
        else:
            memory.one_by_one_until = max(memory.one_by_one_until, group.last)
        return StartOver(f"Kafka refused a record ({refused.reason})")

    # What an operator asked for

    def resolve(self, intake: Intake) -> None:
        """Answer the message that the intake stands before; every row parked before it must be committed."""
        asked = intake.asked
        if asked is None:
            return
        request = read_request(asked.content)
        if request is None:
            self._ignore("unreadable", None)
            intake.answer(None)
        elif request.relay_id != self._relay_id:
            metrics.IGNORED.labels("republish_of_another_relay").inc()
            intake.answer(None)
        else:
            intake.answer(self._record(request, asked, intake))

    def _record(self, request: Request, asked: Asked, intake: Intake) -> Record | None:
        work = partial(
            parking.take_up,
            request=request,
            mapping=self._mapping,
            epoch=self._epoch,
            position=asked.position,
            in_order=self._in_order,
        )
        taken = self._session.ask(work, interruptible=False)
        if taken.outcome is not Outcome.TAKEN:
            if taken.key and not taken.key_waits:
                self.verdicts.release(taken.key)
            self._ignore(taken.outcome.value, request)
            return None
        failpoints.hit(failpoints.RELAY_REPUBLISH_TAKEN)
        row: Row = []
        try:
            row = self._row(taken, request)
            self._refresh(taken)
            record = self._encoder.again(row, asked.position[1], from_hex=is_hex(taken.parts or {}))
            if (reason := intake.refusal(asked.position)) is not None:
                raise BadEvent("refused_by_broker", reason, record[0])
        except BadEvent as bad:
            return self._rejected(request, row or self._unreadable(taken, request), asked, bad)
        if taken.key and not taken.key_waits:
            self.verdicts.release(taken.key)
        self._owed.append(asked.position)
        log.info("republished", event_id=str(request.event_id), topic=record[0])
        return record

    def _row(self, taken: TakenUp, request: Request) -> Row:
        parts, payload = taken.parts or {}, taken.payload or ""
        if self._mapping.source == "message" and not parts.get("event_type"):
            # What couldn't be read was the message; its correction is a whole one, and its id stays.
            return self._named(messages.row_of(payload.encode(), self._mapping), request)
        return row_of(self._mapping, {"event_id": str(request.event_id), **parts}, payload)

    def _unreadable(self, taken: TakenUp, request: Request) -> Row:
        return self._named(messages.unreadable((taken.payload or "").encode(), self._mapping), request)

    def _named(self, row: Row, request: Request) -> Row:
        row[list(self._mapping.columns.mapped()).index("event_id")] = str(request.event_id).encode()
        return row

    def _refresh(self, taken: TakenUp) -> None:
        """The limit that an event was too large for may have been raised since."""
        if taken.topic is not None and taken.reason_code in {"too_large", "refused_by_broker"}:
            work = partial(self._session.topics.refresh_limits, [taken.topic])
            self._session.aside(work, "topics", interruptible=False)
            self._encoder.forget_routes()

    def _rejected(self, request: Request, row: Row, asked: Asked, bad: BadEvent) -> Record:
        """Still bad: it waits again with the new reason, and its dead letter says so too."""
        work = partial(parking.reject, request=request, code=bad.code, reason=bad.reason, topic=bad.topic)
        self._session.ask(work, interruptible=False)
        if len(row) == len(self._mapping.columns.mapped()):
            row.append(None)  # as the encoder's `record` does
        parked = self._encoder.parked(row, asked.position[1], bad)
        parked.record[3].append(REPUBLISHED)
        _say(parked)
        return parked.record

    def _ignore(self, why: str, request: Request | None) -> None:
        metrics.IGNORED.labels(f"republish_{why}").inc()
        log.warning("request ignored", why=why, event_id=None if request is None else str(request.event_id))

    # After Kafka's commit

    def published(self, position: Position) -> None:
        """Everything up to `position` is durable in Kafka."""
        self._published = position
        if self._owed and self._owed[0] <= position:
            failpoints.hit(failpoints.RELAY_REPUBLISHED)

    @property
    def settling(self) -> bool:
        """Whether rows are just being moved; what fails here, the next start does."""
        return self._settling is not None

    def tend(self) -> None:
        """Call often: marks the rows of what was republished, without waiting for it."""
        now = time.monotonic()
        if self._settling is not None:
            settling, position = self._settling
            if not settling.done():
                return
            self._settling = None
            try:
                settling.result()
            except Unavailable as error:
                self._settle_at = now + SETTLE_AGAIN_S
                log.warning("republished events are marked as such later", reason=str(error))
            else:
                while self._owed and self._owed[0] <= position:
                    self._owed.popleft()
        if self._owed and self._owed[0] <= self._published and now >= self._settle_at:
            work = partial(
                parking.settle, relay_id=self._relay_id, epoch=self._epoch, checkpoint=self._published
            )
            self._settling = (self._session.ordinary.ask(work), self._published)


def _say(event: ParkedEvent) -> None:
    metrics.PARKED.labels(event.reason_code).inc()
    log.warning(
        "parked",
        event_id=str(event.event_id),
        event_type=event.event_type,
        reason_code=event.reason_code,
        reason=event.reason,
    )
