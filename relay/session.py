"""One life of the replication connection and the producer together: taken up in the one order that is safe.

Whatever breaks either discards both, and the next session goes on from the checkpoint. The order is never
changed: slot, feedback, `init_transactions`, checkpoint, identity, and only then the first record.
"""

import random
import selectors
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import structlog

from relay import failpoints, identity, known_topics, metrics, standby
from relay.errors import PhantomEvents, Unavailable
from relay.health import Health
from relay.intake import Position
from relay.kafka import checkpoint as checkpoints
from relay.kafka.checkpoint import Checkpoint
from relay.kafka.publisher import Publisher, transaction_timeout_s
from relay.kafka.topics import Topics
from relay.opening import open_publisher, write_first
from relay.outbox.event import Schemas, source_of
from relay.outbox.mapping import OutboxMapping
from relay.outbox.phantoms import Places, named
from relay.settings import Settings
from relay.waking import Stopping, Waker
from relay.wal import publication as publications
from relay.wal import slot as slots
from relay.wal.lsn import format_lsn
from relay.wal.ordinary import Connection, OrdinaryConnection
from relay.wal.slot import Slot, SourceIdentity
from relay.wal.stream import ReplicationStream, SlotActive, System

T = TypeVar("T")

BACKOFF_FIRST_S: Final = 0.2
BACKOFF_MOST_S: Final = 5.0
_WAIT_MOST_S: Final = 1.0
# Kafka looks every ten seconds for transactions whose time is up, and one that has just started again has to
# load them first: only what is open for longer than that hangs.
CLEANUP_S: Final = 15.0

log = structlog.get_logger("relay")


class StartOver(Exception):
    """This session is over; the next one goes on from the checkpoint."""


class Stopped(Exception):
    """A clean stop was asked for while there was nothing to drain."""


@dataclass(slots=True)
class Memory:
    """What outlives a session."""

    refused: dict[Position, str] = field(default_factory=dict)
    """Records that the broker refused, with its reason: parked when they come again."""
    one_by_one_until: Position = (0, -1)
    """Up to here each event has a commit of its own, so that the refused one can be told."""
    progressed: bool = False
    """Whether the last session confirmed anything."""
    lost: standby.Holder | None = None
    """How this relay had the slot when it lost it; None when it never had it, or gave it up itself."""


@dataclass(frozen=True, slots=True)
class Started:
    """A session that may publish: everything was checked, `checkpoint` is where it goes on."""

    recorded: SourceIdentity
    checkpoint: Checkpoint
    confirmed_flush: int
    stream: ReplicationStream
    publisher: Publisher


class Session:
    """`start`, then use; `close` always follows. One thread calls everything here."""

    def __init__(
        self,
        settings: Settings,
        mapping: OutboxMapping,
        schemas: Schemas,
        stopping: Stopping,
        waker: Waker,
        memory: Memory,
        health: Health,
    ) -> None:
        self.health = health
        self.settings = settings
        self.mapping = mapping
        self.schemas = schemas
        self.stopping = stopping
        self.waker = waker
        self.memory = memory
        self.ordinary = OrdinaryConnection(
            settings.require_database(), f"{identity.application_name(settings.slot)}-sql", waker.wake
        )
        self.topics = Topics(
            settings.require_kafka(),
            partitions=settings.topic_partitions,
            replication=settings.topic_replication,
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(waker.fileno, selectors.EVENT_READ)
        self._watched = 0
        self._connection: ReplicationStream | None = None
        self._stream: ReplicationStream | None = None  # once COPY runs
        self._publisher: Publisher | None = None
        self._held: standby.Holder | None = None

    def start(self) -> Started:
        """Take the slot, then Kafka, and see that the source is what it was.

        Raises Stop or UsageError when a person is needed, Unavailable when a server is away, Stopped.
        """
        self.health.starting("it connects to Postgres")
        recorded, _ = self._admitted(self.ask(self._read_source))
        stream = self._connection = ReplicationStream(
            self.settings.require_database(),
            identity.application_name(self.settings.slot),
            log.warning,
            sender_timeout_s=self.settings.sender_timeout_s,
        )
        system = stream.identify()
        switches = stream.switches(system.timeline)
        self._take_slot(stream)
        self._stream = stream
        self.watch_stream(reading=False)
        self._held = self.ask(partial(standby.read_holder, slot=self.settings.slot))
        # Read again: while this was a standby, the relay before it may have moved everything.
        source = self.ask(self._read_source)
        recorded, slot = self._admitted(source)
        if slot.active_pid is None:
            stream.end()
        if slot.active_pid != stream.backend_pid:
            raise Unavailable("The two connections reached different Postgres servers; one is a standby.")
        server = identity.Server(system.system_identifier, system.timeline, source.flush_lsn, switches)
        self.health.starting("it opens its topics and its producer in Kafka")
        self.topics.remember(self.ask(partial(known_topics.read, relay_id=recorded.relay_id)))
        publisher = self.aside(partial(self._open_kafka, recorded), "kafka-start")
        self._publisher = publisher
        self.health.starting("it reads its checkpoint from Kafka")
        found = self.aside(partial(self._read_checkpoint, recorded), "checkpoint-reader")
        try:
            checkpoint = identity.decide(recorded, slot, server, found)
        except PhantomEvents as stop:
            raise self.aside(partial(self._named, stop, recorded), "phantoms") from None
        self._require_event(checkpoint)
        if found is None:
            self.aside(partial(write_first, publisher, checkpoint), "first-checkpoint")
        self._record_topics(recorded.relay_id)
        self.ask(partial(_write_verified, recorded, system))
        metrics.ACTIVE.set(1)
        self.health.active(checkpoint.seq)
        log.info(
            "active",
            relay_id=str(recorded.relay_id),
            slot=self.settings.slot,
            epoch=checkpoint.epoch,
            from_lsn=format_lsn(checkpoint.confirmed_lsn),
            delivery=self.settings.delivery,
        )
        return Started(recorded, checkpoint, slot.confirmed_flush or 0, stream, publisher)

    def close(self) -> None:
        """Let go of the slot first, so that a standby can take over while the rest ends."""
        if self._stream is not None:
            self.memory.lost = self._held if self._stream.is_lost else None
        if self._connection is not None:
            self._connection.close()
        if self._publisher is not None:
            self._publisher.discard()
        self.ordinary.close()
        self._selector.close()

    def ask(self, question: Callable[[Connection], T], *, interruptible: bool = True) -> T:
        """Ask on the ordinary connection and wait, with feedback going on. Raises Unavailable or Stopped."""
        return self.wait_for(self.ordinary.ask(question), interruptible=interruptible)

    def aside(self, work: Callable[[], T], name: str, *, interruptible: bool = True) -> T:
        """Let another thread do `work`, which may block, and wait with feedback going on."""
        return self.wait_for(self.waker.run_aside(work, name), interruptible=interruptible)

    def wait_for(self, future: "Future[T]", *, interruptible: bool = True) -> T:
        """The future's result; meanwhile nothing is read and feedback confirms nothing new."""
        self.watch_stream(reading=False)
        while not future.done():
            if interruptible and self.stopping.asked():
                raise Stopped
            timeout_s = _WAIT_MOST_S
            if self._stream is not None:
                self._stream.tend(reading=False)
                timeout_s = min(timeout_s, self._stream.due_in_s())
            self.wait(timeout_s)
        return future.result()

    def wait(self, timeout_s: float) -> None:
        """Until the stream has something, somebody wakes us, or the time is up."""
        self.health.beat()
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            if key.fd == self.waker.fileno:
                self.waker.clear()
        if self._stream is not None and self._stream.unflushed:
            self._stream.flush()

    def watch_stream(self, *, reading: bool) -> None:
        """Whether `wait` ends when the server has sent something; always when feedback can go out."""
        if self._stream is None:
            return
        events = selectors.EVENT_READ if reading else 0
        if self._stream.unflushed:
            events |= selectors.EVENT_WRITE
        if events == self._watched:
            return
        if not self._watched:
            self._selector.register(self._stream.fileno, events)
        elif not events:
            self._selector.unregister(self._stream.fileno)
        else:
            self._selector.modify(self._stream.fileno, events)
        self._watched = events

    def _admitted(self, source: identity.Source) -> tuple[SourceIdentity, Slot]:
        return identity.may_start(
            source,
            slot_name=self.settings.slot,
            publication=self.settings.publication,
            mapping=self.mapping,
        )

    def _read_source(self, connection: Connection) -> identity.Source:
        if slots.is_standby(connection):
            raise Unavailable("This Postgres is a standby; set target_session_attrs=read-write in the URL.")
        return identity.Source(
            recorded=slots.read_identity(connection, self.settings.slot),
            slot=slots.read_slot(connection, self.settings.slot),
            published=publications.read(connection, self.settings.publication, self.mapping),
            database=slots.read_database(connection),
            synchronous_standby_names=slots.read_standby_names(connection),
            flush_lsn=slots.read_flush_lsn(connection),
            system_identifier=slots.read_system_identifier(connection),
        )

    def _take_slot(self, stream: ReplicationStream) -> None:
        """START_REPLICATION; while another relay has the slot, wait and touch Kafka not at all."""
        slot = self.settings.slot
        announced = False
        while True:
            try:
                stream.start(slot, self.settings.publication)
            except SlotActive as active:
                reason = str(active)
            else:
                metrics.STANDBY.set(0)
                return

            def announce(reason: str = reason) -> None:
                nonlocal announced
                if not announced:
                    log.info("standby", slot=slot, reason=reason)
                    announced = True
                    metrics.STANDBY.set(1)
                    self.health.standby(f"another relay has the slot {slot}; this one waits.")

            standby.wait_until_free(
                slot, self.memory.lost, ask=self.ask, sleep=self._sleep, announce=announce
            )

    def _sleep(self, seconds: float) -> None:
        sleep(self.waker, self.stopping, seconds)
        if self.stopping.asked():
            raise Stopped

    def make_topics(self, relay_id: uuid.UUID, names: list[str]) -> None:
        """Topics that were met on the way: they exist, and are known to later runs, before their records."""
        self.aside(partial(self.topics.ensure, names), "topics", interruptible=False)
        self._record_topics(relay_id)

    def _record_topics(self, relay_id: uuid.UUID) -> None:
        topics = self.topics.unrecorded
        if topics:
            self.ask(partial(known_topics.record, relay_id=relay_id, topics=topics), interruptible=False)
            self.topics.remember({**self.topics.known, **topics})

    def _open_kafka(self, recorded: SourceIdentity) -> Publisher:
        return open_publisher(self.settings, self.mapping, self.schemas, self.topics, recorded.relay_id)

    def _read_checkpoint(self, recorded: SourceIdentity) -> Checkpoint | None:
        kafka = self.settings.require_kafka()
        return checkpoints.read(
            kafka,
            self.settings.topic_prefix,
            recorded.relay_id,
            timeout_s=transaction_timeout_s(kafka) + CLEANUP_S,
            must_exist=not self.topics.embedded,
        )

    def _named(self, stop: PhantomEvents, recorded: SourceIdentity) -> PhantomEvents:
        """With every event that is lost, in the log, and the first ones in the message."""
        settings = self.settings
        places = Places(
            settings.require_kafka(),
            self.mapping,
            self.schemas,
            settings.topic_prefix,
            settings.topic,
            source_of(recorded.relay_id),
            recorded.epoch,
        )
        return named(stop, places, lambda event: log.error("phantom", **event._asdict()))

    def _require_event(self, checkpoint: Checkpoint) -> None:
        """Where rows are kept, the last event that Kafka has must still be there."""
        event_id = checkpoint.event_id
        if self.mapping.rows_kept and event_id is not None:
            kept = self.ask(partial(slots.has_event, mapping=self.mapping, event_id=event_id))
            identity.require_event(checkpoint, kept=kept)


def sleep(waker: Waker, stopping: Stopping, seconds: float) -> None:
    """Sleep, but not through a stop."""
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(waker.fileno, selectors.EVENT_READ)
        while not stopping.asked() and (left := until - time.monotonic()) > 0:
            selector.select(left)
            waker.clear()


def repeat(
    session: Callable[[Memory], Session],
    relay: Callable[[Session, Started], None],
    stopping: Stopping,
    waker: Waker,
    health: Health,
) -> None:
    """Session after session until a clean stop. Servers that are away are waited for as long as it takes.

    Raises Stop or UsageError when a person is needed, Unavailable when a stop couldn't be a clean one.
    """
    memory = Memory()
    pause_s = BACKOFF_FIRST_S
    while not stopping.asked():
        memory.progressed = False
        current = session(memory)
        relaying = False
        try:
            started = current.start()
            relaying = True
            relay(current, started)
        except Stopped:
            return
        except (Unavailable, StartOver, failpoints.FailpointReached) as error:
            if stopping.asked() and relaying:
                raise Unavailable(
                    f"Stopped before everything that was read was in Kafka: {error}",
                    meaning="Nothing is lost: the next start reads it again.",
                ) from error
            metrics.START_OVERS.inc()
            health.broken(str(error))
            log.warning("starting over", reason=str(error))
        finally:
            metrics.ACTIVE.set(0)
            metrics.STANDBY.set(0)
            health.starting("it begins again from the checkpoint")
            current.close()
        pause_s = BACKOFF_FIRST_S if memory.progressed else min(pause_s * 2, BACKOFF_MOST_S)
        # Jitter, so that two relays that lost the same server don't come back in step.
        sleep(waker, stopping, pause_s * random.uniform(0.5, 1.0))


def _write_verified(recorded: SourceIdentity, system: System, connection: Connection) -> None:
    slots.write_verified(
        connection,
        recorded.relay_id,
        system_identifier=system.system_identifier,
        timeline=system.timeline,
    )
