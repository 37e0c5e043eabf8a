"""Stream, decode, encode, publish, confirm: read this one file to see the path from WAL to Kafka.

One thread reads, decodes, encodes and produces; another only waits for Kafka's commits, so that reading goes
on meanwhile into a bounded queue. Nothing is ever confirmed to Postgres that Kafka doesn't durably have.
"""

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
import structlog

from relay import failpoints, identity, metrics
from relay.errors import REPAIR, StreamIncomplete, Unavailable
from relay.health import Health
from relay.intake import Intake, Part, Position
from relay.kafka.committer import Committer
from relay.kafka.publisher import PAUSE_AFTER_COMMIT_S, RecordRefused
from relay.kafka.topics import WATCH_EVERY_S
from relay.outbox.event import EventEncoder, Schemas
from relay.outbox.mapping import OutboxMapping
from relay.parking import Parking
from relay.session import Memory, Session, Started, repeat
from relay.settings import Settings
from relay.waking import Stopping, Waker
from relay.wal import publication as publications
from relay.wal import slot as slots
from relay.wal.lsn import format_lsn
from relay.wal.ordinary import Connection
from relay.wal.watermark import Watermark

IDLE_EVERY_S: Final = 10.0
"""How often the slot is moved on while others write WAL and the outbox doesn't."""

SHUTDOWN_DRAIN_S: Final = 5.0
"""How long a Postgres that shuts down is held up for what it still has to send."""

STOP_DRAIN_S: Final = 30.0
"""How long a clean stop waits for Kafka; what isn't committed by then is read again at the next start."""

_GROUP_OPEN_MOST: Final = 1 / 3
"""A group that waits for this part of the transaction's timeout goes as it is: else Kafka aborts it."""

# Messages between two looks at everything else, some 10 ms; and between two at the clock, for costly ones.
_READ_BURST: Final = 512
_READ_PART: Final = 8
_CUT_FRACTION: Final = 4  # a transaction comes in parts of this fraction of the queue
_WAIT_MOST_S: Final = 1.0

log = structlog.get_logger("relay")


def run(
    settings: Settings,
    mapping: OutboxMapping,
    schemas: Schemas,
    stopping: Stopping,
    waker: Waker,
    health: Health,
    *,
    idle_every_s: float = IDLE_EVERY_S,
) -> None:
    """Relay until a clean stop is asked for. Raises as `relay.session.repeat` does."""

    def session(memory: Memory) -> Session:
        return Session(settings, mapping, schemas, stopping, waker, memory, health)

    def relay(current: Session, started: Started) -> None:
        pipeline = Pipeline(current, started, idle_every_s=idle_every_s)
        try:
            pipeline.run()
        finally:
            pipeline.close()

    repeat(session, relay, stopping, waker, health)


@dataclass(slots=True)
class Group:
    """What goes into Kafka in one commit."""

    events: int = 0
    bytes: int = 0
    last: Position | None = None
    last_event_id: str = ""
    seq: int = 0
    end_lsn: int = 0
    ordinal: int = 0
    whole: bool = True
    """Whether it ends where a Postgres transaction does."""
    opened_at: float = field(default_factory=time.monotonic)

    def add(self, part: Part) -> None:
        self.events += len(part.records)
        self.bytes += part.wire_bytes
        self.seq = part.seq
        self.whole = part.ordinal > 0
        if part.records:
            self.last, self.last_event_id = part.last, part.last_event_id
        if part.ordinal:
            self.end_lsn, self.ordinal = part.end_lsn, part.ordinal


@dataclass(frozen=True, slots=True)
class IdleReading:
    """What an ordinary connection saw; `newest_seq` was read before `insert_lsn`."""

    published: publications.Published
    standby_names: str
    newest_seq: int
    insert_lsn: int


class Pipeline:
    """`run` returns after a clean stop. Raises Stop, Unavailable or StartOver; then discard the session."""

    def __init__(self, session: Session, started: Started, *, idle_every_s: float) -> None:
        self._session = session
        self._settings = session.settings
        self._mapping = session.mapping
        self._memory = session.memory
        self._recorded = started.recorded
        self._stream = started.stream
        self._publisher = started.publisher
        self._checkpoint = started.checkpoint
        self._idle_every_s = idle_every_s
        self._watermark = Watermark(started.confirmed_flush)
        self._encoder = EventEncoder(
            self._mapping,
            session.schemas,
            relay_id=started.recorded.relay_id,
            epoch=started.checkpoint.epoch,
            topic_prefix=self._settings.topic_prefix,
            one_topic=self._settings.topic,
            limit_bytes=session.topics.limit_bytes,
        )
        self._parking = Parking(session, self._encoder, started.recorded.relay_id, started.checkpoint)
        self._intake = Intake(
            self._mapping,
            self._encoder,
            self._watermark,
            after=(started.checkpoint.commit_lsn, started.checkpoint.index),
            seq=started.checkpoint.seq,
            cut_bytes=self._settings.queue_bytes // _CUT_FRACTION,
            one_by_one_until=self._memory.one_by_one_until,
            refused=self._memory.refused,
            verdicts=self._parking.verdicts,
            on_bad_event=self._settings.on_bad_event,
        )
        self._committer = Committer(started.publisher, session.waker.wake)
        self._group: Group | None = None
        self._drained = False
        self._full = False
        self._produce_at = 0.0
        now = time.monotonic()
        self._idle_at = now
        self._idle: tuple[Future[IdleReading], int] | None = None
        self._awaited: tuple[int, int] | None = None  # (seq, LSN by which it must have come)
        self._topics_at = now + WATCH_EVERY_S
        self._topics: Future[None] | None = None
        self._leave_by: float | None = None
        self._in_flight: Group | None = None

    def run(self) -> None:
        while True:
            self._read()
            self._settle()
            self._publish()
            self._tend()
            if self._may_leave():
                return
            self._wait()

    def close(self) -> None:
        self._committer.close()
        metrics.read(self._intake)

    # Reading

    def _read(self) -> None:
        """Up to a burst of messages, as long as the queue has room and feedback isn't near due."""
        intake, receive = self._intake, self._stream.receive
        self._drained = False
        if self._session.stopping.asked():
            return
        most = self._settings.queue_bytes
        feed = intake.feed
        until = time.monotonic() + self._stream.feedback_every_s / 2
        for _ in range(_READ_BURST // _READ_PART):
            for _ in range(_READ_PART):
                self._full = intake.waits or intake.held_bytes >= most
                if self._full:
                    return
                data = receive()
                if data is None:
                    self._drained = True
                    return
                feed(data)
            if time.monotonic() > until:
                return

    # Publishing

    def _publish(self) -> None:
        """Produce what is ready while no commit is in flight, and close the group when it is time."""
        if self._committer.busy or time.monotonic() < self._produce_at:
            return
        intake = self._intake
        while intake.ready and not self._closes_before(intake.ready[0]):
            self._produce(intake.take())
        if self._group is not None and self._is_due(self._group):
            self._commit(self._group)
        elif intake.stop and not intake.ready:
            raise intake.stop
        if intake.asked and not intake.ready:
            self._parking.resolve(intake)

    def _closes_before(self, part: Part) -> bool:
        """Whether the open group must be committed without `part`."""
        group = self._group
        if group is None:
            return False
        if self._is_large(group) or (group.last and group.last <= self._memory.one_by_one_until):
            return True
        # A transaction that comes in parts may become visible in parts; those before it must not wait for it.
        return group.whole and part.ordinal == 0

    def _is_large(self, group: Group) -> bool:
        return group.bytes >= (self._settings.group_bytes if group.whole else self._settings.queue_bytes)

    def _is_due(self, group: Group) -> bool:
        if self._is_large(group) or self._intake.ready or self._intake.stop or self._session.stopping.asked():
            return True
        if time.monotonic() - group.opened_at > self._publisher.transaction_timeout_s * _GROUP_OPEN_MOST:
            return True
        one_by_one = group.last is not None and group.last <= self._memory.one_by_one_until
        return one_by_one or (group.whole and self._drained)

    def _produce(self, part: Part) -> None:
        failpoints.hit(failpoints.RELAY_TRANSACTION_READ)
        if part.parked:
            self._parking.park(list(part.parked.values()))
        if self._encoder.new_topics:
            self._make_topics()
        if self._group is None:
            self._publisher.open()
            self._group = Group()
        self._group.add(part)
        try:
            self._publisher.produce(part.records)
        except RecordRefused as refused:
            raise self._parking.blame(self._group, refused) from refused
        failpoints.hit(failpoints.RELAY_ENCODED)

    def _make_topics(self) -> None:
        self._session.make_topics(self._recorded.relay_id, sorted(self._encoder.new_topics))
        self._encoder.new_topics.clear()

    def _commit(self, group: Group) -> None:
        """Hand the group to the thread that waits, with the checkpoint that goes with it."""
        last = group.last or (self._checkpoint.commit_lsn, self._checkpoint.index)
        self._in_flight, self._group = group, None
        self._committer.commit(
            msgspec.structs.replace(
                self._checkpoint,
                commit_lsn=last[0],
                index=last[1],
                event_id=group.last_event_id or self._checkpoint.event_id,
                seq=max(self._checkpoint.seq, group.seq),
                confirmed_lsn=max(self._checkpoint.confirmed_lsn, group.end_lsn),
            ),
            group.ordinal,
        )

    # Confirming

    def _settle(self) -> None:
        """Take a finished commit: its events are durable, so the watermark and the slot may move."""
        ended = self._committer.take()
        if ended is None:
            return
        group, self._in_flight = self._in_flight, None
        if ended.error is not None:
            if isinstance(ended.error, RecordRefused) and group is not None:
                raise self._parking.blame(group, ended.error) from ended.error
            raise ended.error
        self._watermark.durable(ended.ordinal)
        self._checkpoint = ended.checkpoint
        self._produce_at = time.monotonic() + PAUSE_AFTER_COMMIT_S
        self._memory.progressed = True
        self._session.health.progressed(ended.checkpoint.seq)
        self._parking.published((ended.checkpoint.commit_lsn, ended.checkpoint.index))
        self._confirm()
        metrics.committed(
            ended.seconds, 0 if group is None else group.events, 0 if group is None else group.bytes
        )
        metrics.read(self._intake)

    def _confirm(self) -> None:
        """Feedback: never above checkpoint or watermark, and not at all while a row is awaited."""
        if self._awaited is not None:
            return
        failpoints.hit(failpoints.RELAY_BEFORE_FEEDBACK)
        lsn = min(self._watermark.lsn, self._checkpoint.confirmed_lsn)
        self._stream.confirm(lsn, written=self._intake.streamed_to)
        metrics.confirmed(lsn, self._intake.streamed_to)
        failpoints.hit(failpoints.RELAY_FEEDBACK_SENT)

    # Everything that has a time

    def _tend(self) -> None:
        self._stream.tend(
            reading=not self._full and not self._session.stopping.asked(), written=self._intake.streamed_to
        )
        self._publisher.poll()
        if self._intake.reply_requested:
            self._intake.reply_requested = False
            self._idle_at = time.monotonic()
            self._confirm()
        self._session.health.turned(holds=self._holds(), streamed_to=self._intake.streamed_to)
        self._parking.tend()
        self._tend_awaited()
        self._tend_idle()
        self._tend_topics()

    def _holds(self) -> str:
        """For `/healthz`: what was read, or is awaited, and isn't confirmed; and what that waits for."""
        if self._awaited is not None:
            return f"the row with seq {self._awaited[0]} is committed and hasn't come by in the stream"
        if self._committer.busy:
            return "Kafka hasn't acknowledged what was sent to it"
        if self._intake.waits:
            return "Postgres is asked what is parked"
        if self._group is not None or self._intake.held_bytes:
            return "what was read is not in Kafka yet"
        return ""

    def _tend_awaited(self) -> None:
        if self._awaited is None:
            return
        seq, by_lsn = self._awaited
        if self._intake.seq >= seq:
            self._awaited = None
            self._confirm()
        elif self._intake.streamed_to >= by_lsn:
            raise StreamIncomplete(
                f"The outbox has a row with seq {seq}; the stream is past {format_lsn(by_lsn)} without it.",
                meaning="Postgres skipped rows of the outbox (the publication was narrowed, or made anew); "
                "nothing was confirmed since this was noticed.",
                remedy=f"Mend the publication (`relay init` says how). {REPAIR}",
            )

    def _tend_idle(self) -> None:
        """Move the slot on past WAL of others: question in SQL, then checkpoint, then feedback."""
        if self._idle is not None:
            reading, candidate = self._idle
            if reading.done():
                self._idle = None
                self._idle_answer(reading, candidate)
        elif (
            self._watermark.lsn > self._checkpoint.confirmed_lsn
            and self._awaited is None
            and self._drained
            and self._is_quiet()
            and time.monotonic() >= self._idle_at
        ):
            self._idle_at = time.monotonic() + self._idle_every_s
            question = partial(_read_idle, publication=self._settings.publication, mapping=self._mapping)
            self._idle = (self._session.ordinary.ask(question), self._watermark.lsn)

    def _idle_answer(self, reading: "Future[IdleReading]", candidate: int) -> None:
        try:
            seen = reading.result()
        except Unavailable as error:
            log.warning("the slot can't be moved on while the ordinary connection is away", reason=str(error))
            return
        publications.require(seen.published, self._settings.publication, self._mapping)
        identity.refuse_standby_name(seen.standby_names, self._settings.slot)
        if self._mapping.rows_kept and seen.newest_seq > self._intake.seq:
            self._awaited = (seen.newest_seq, seen.insert_lsn)
            return
        if self._is_quiet() and candidate > self._checkpoint.confirmed_lsn:
            self._publisher.open()
            self._commit(Group(seq=self._intake.seq, end_lsn=candidate))

    def _is_quiet(self) -> bool:
        """Whether no group is open or in flight, so that a checkpoint may go by itself."""
        return (
            self._group is None
            and not self._committer.busy
            and not self._intake.ready
            and time.monotonic() >= self._produce_at
        )

    def _tend_topics(self) -> None:
        now = time.monotonic()
        if self._topics is not None and self._topics.done():
            compared, self._topics = self._topics, None
            try:
                compared.result()
            except Unavailable as error:
                log.info("topics were not compared", reason=str(error))
        elif self._topics is None and now >= self._topics_at:
            self._topics_at = now + WATCH_EVERY_S
            self._topics = self._session.waker.run_aside(self._session.topics.compare, "topic-watch")

    # Leaving and waiting

    def _may_leave(self) -> bool:
        """After a stop: when all that was read is confirmed. Raises Unavailable when that takes too long."""
        stop, shutdown = self._session.stopping.asked(), self._session.ordinary.shutting_down
        if not stop and not shutdown:
            return False
        now = time.monotonic()
        if self._leave_by is None:
            self._leave_by = now + (STOP_DRAIN_S if stop else SHUTDOWN_DRAIN_S)
            log.info("draining", reason="stop" if stop else "Postgres shuts down")
            self._session.health.stopping("what was read is brought to Kafka")
        empty = self._group is None and not self._committer.busy and not self._intake.ready
        empty = empty and not self._parking.settling
        if stop and empty:
            log.info("stopped", confirmed_lsn=format_lsn(self._checkpoint.confirmed_lsn))
            return True
        if now > self._leave_by or (not stop and empty and self._drained):
            raise Unavailable("Kafka took too long." if stop else "Postgres shuts down.")
        return False

    def _wait(self) -> None:
        """Until there is something to do; not at all while there is more to read and room for it."""
        stop = self._session.stopping.asked()
        self._full = self._intake.waits or self._intake.held_bytes >= self._settings.queue_bytes
        reading = not self._full and not stop
        if reading and not self._drained:
            return
        now = time.monotonic()
        timeout_s = min(_WAIT_MOST_S, self._stream.due_in_s())
        if (
            not self._committer.busy
            and (self._intake.ready or self._intake.waits or stop)
            and self._produce_at > now
        ):
            timeout_s = min(timeout_s, self._produce_at - now)
        self._session.watch_stream(reading=reading)
        self._session.wait(timeout_s)


def _read_idle(connection: Connection, publication: str, mapping: OutboxMapping) -> IdleReading:
    published = publications.read(connection, publication, mapping)
    countable = mapping.rows_kept and published.outbox_exists
    newest_seq = slots.read_newest_seq(connection, mapping) if countable else 0
    return IdleReading(
        published=published,
        standby_names=slots.read_standby_names(connection),
        newest_seq=newest_seq,
        insert_lsn=slots.read_insert_lsn(connection),
    )
