"""The one thread that owns the Kafka consumer. It always polls, however long handlers take, and it alone
commits.

It commits only what `PartitionOffsets` allows, and nothing of a partition that was lost. Records go to the
event loop; what needs nothing more comes back through a queue.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from consumers.runtime.assignment import Assignment, Delivery
from consumers.runtime.metrics import Metrics
from consumers.runtime.offsets import PartitionOffsets
from consumers.runtime.parking import retry_topic
from consumers.runtime.properties import consumer_properties, group_id
from consumers.runtime.record import from_message
from relay import failpoints
from relay.errors import RelayError
from relay.kafka.client import make
from relay.settings import MIB, Settings

POLL_S: Final = 0.1
"""Longest wait for a message: what finished meanwhile is committed after it."""
BATCH_RECORDS: Final = 256
"""Most that go to the event loop at once, so that commits and rebalances get their turn."""
BUSY_RECORDS: Final = 512
"""With so many unfinished, records are read only as fast as others finish."""
WINDOW_RECORDS: Final = 1_000
"""A partition with this many records received and not committable is paused: a crash repeats no more than
that."""
HELD_BYTES: Final = 32 * MIB
"""All partitions are paused while the unfinished records of this process hold more."""
COMPLAINT_S: Final = 30.0
"""The same error of a broker is logged once in this time."""


@dataclass(slots=True)
class _Partition:
    """What this thread knows of one assignment."""

    assignment: Assignment
    offsets: PartitionOffsets = field(default_factory=PartitionOffsets)
    received_at: dict[int, float] = field(default_factory=dict)
    held_bytes: int = 0
    paused: bool = False


class Group:
    """One member of a consumer group, on a thread of its own between `start` and `close`."""

    def __init__(
        self,
        settings: Settings,
        consumer_name: str,
        topics: Sequence[str],
        *,
        log: structlog.typing.FilteringBoundLogger,
        deliver: Callable[[Sequence[Delivery]], None],
        drain: Callable[[Sequence[Assignment]], None],
        lost: Callable[[Sequence[Assignment]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """The callables are called on the group's thread.

        `drain` returns when the work in flight of revoked partitions is done or was given up; `failed` hears
        of whatever ended the thread.
        """
        self.group_id = group_id(settings, consumer_name)
        self._topics = list(topics)
        self._log = log
        self._deliver = deliver
        self._drain = drain
        self._lost = lost
        self._failed = failed
        self._metrics = Metrics(consumer_name)
        self._busy_records = max(BUSY_RECORDS, 2 * settings.concurrency)
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._finished: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._committing = False
        self._pausing = threading.Event()
        self._closing = threading.Event()
        self._complaints: dict[tuple[int, str], float] = {}
        properties: dict[str, Any] = {
            **consumer_properties(settings, self.group_id),
            "error_cb": self._on_error,
            "on_commit": self._on_commit,
        }
        self._kafka = make(KafkaConsumer, properties)
        self._thread = threading.Thread(target=self._run, name=f"kafka-{consumer_name}", daemon=True)

    # From any thread

    def start(self) -> None:
        self._thread.start()

    def finished(self, delivery: Delivery) -> None:
        """The record needs nothing more."""
        self._finished.put(delivery)

    def pause(self) -> None:
        """Receive nothing more, and stay in the group."""
        self._pausing.set()

    def close(self, timeout_s: float) -> bool:
        """Commit what may be committed and leave the group. False when that took longer than `timeout_s`."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # On the thread

    def _run(self) -> None:
        try:
            self._kafka.subscribe(
                [*self._topics, *map(self._retries, self._topics)],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            while not self._closing.is_set():
                self._turn()
            self._take_finished()
            self._commit_now(self._partitions.values())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told to the main thread
            # Leaving the group below revokes its partitions, and nothing is to be committed any more.
            self._closing.set()
            self._failed(error)
        finally:
            self._kafka.close()

    def _retries(self, topic: str) -> str:
        """A pattern, so that the topic may come into being when the first parked event is given back."""
        return "^" + retry_topic(topic, self.group_id).replace(".", "\\.") + "$"

    def _turn(self) -> None:
        """Take what finished, commit, and read: as much as there is, or as much as finished when busy.

        Reading less leaves records in librdkafka's queue; pausing would throw them away and fetch them anew.
        """
        busy = sum(len(each.received_at) for each in self._partitions.values()) >= self._busy_records
        finished = self._take_finished(POLL_S if busy else 0.0)
        self._commit()
        self._regulate()
        # Nothing finished: what is in hand may all be waiting for one key, and other keys must not.
        most = finished if busy and finished else BATCH_RECORDS
        deliveries = self._poll(min(most, BATCH_RECORDS), timeout_s=0.0 if busy else POLL_S)
        if deliveries:
            self._deliver(deliveries)

    def _poll(self, most: int, timeout_s: float) -> list[Delivery]:
        deliveries: list[Delivery] = []
        message = self._kafka.poll(timeout_s)
        while message is not None:
            delivery = self._received(message)
            if delivery is not None:
                deliveries.append(delivery)
            if len(deliveries) >= most:
                break
            message = self._kafka.poll(0)
        return deliveries

    def _received(self, message: Message) -> Delivery | None:
        topic, offset = message.topic() or "", message.offset()
        error = message.error()
        partition = self._partitions.get((topic, message.partition() or 0))
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's name for it
                if partition is not None and offset is not None:
                    partition.offsets.reached_end(offset)
            else:
                self._on_error(error, topic)
            return None
        if partition is None or offset is None:
            return None
        record = from_message(message)
        if offset <= partition.offsets.last_received:
            partition = self._rewound(partition, offset)
        partition.offsets.received(offset)
        partition.received_at[offset] = time.monotonic()
        partition.held_bytes += record.bytes_held
        return Delivery(record, partition.assignment)

    def _rewound(self, before: _Partition, offset: int) -> _Partition:
        """The broker has gone back, because the topic was made anew: what came before says nothing about
        it."""
        assignment = before.assignment
        self._log.error(
            "the partition went back: was its topic deleted and created again?",
            topic=assignment.topic,
            partition=assignment.partition,
            offset=offset,
            last_offset=before.offsets.last_received,
        )
        self._lost([assignment])
        after = _Partition(Assignment(assignment.topic, assignment.partition), paused=before.paused)
        self._partitions[assignment.topic, assignment.partition] = after
        return after

    def _take_finished(self, wait_s: float = 0.0) -> int:
        """How many records finished; waits `wait_s` for the first."""
        count = 0
        try:
            delivery = self._finished.get(timeout=wait_s) if wait_s else self._finished.get_nowait()
            while True:
                count += 1
                self._take(delivery)
                delivery = self._finished.get_nowait()
        except queue.Empty:
            return count

    def _take(self, finished: Delivery) -> None:
        record = finished.record
        partition = self._partitions.get((record.topic, record.partition))
        # A record of an earlier assignment says nothing about the present one.
        if partition is not None and partition.assignment is finished.assignment:
            partition.offsets.finished(record.offset)
            partition.held_bytes -= record.bytes_held
            del partition.received_at[record.offset]

    def _commit(self) -> None:
        """Ask for a commit of all that may be committed, unless one is under way; the answer comes by
        `poll`."""
        if self._committing:
            return
        offsets = _committable(self._partitions.values())
        if offsets:
            self._committing = True
            self._kafka.commit(offsets=offsets, asynchronous=True)

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        self._committing = False
        self._take_commit(error, offsets)

    def _commit_now(self, partitions: Iterable[_Partition]) -> None:
        offsets = _committable(partitions)
        if not offsets:
            return
        try:
            done = self._kafka.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            refused = error.args[0]
            self._take_commit(refused if isinstance(refused, KafkaError) else None, [])
        else:
            self._take_commit(None, done or [])

    def _take_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        failure = error or next((each.error for each in offsets if each.error is not None), None)
        if failure is not None:
            # Not fatal: the offset is asked for again, or the partition is another member's by now.
            self._metrics.committed("failed")
            self._log.warning("offsets weren't committed", error=failure.str())
            return
        of_records = False
        for each in offsets:
            partition = self._partitions.get((each.topic, each.partition))
            if partition is not None:
                partition.offsets.committed(each.offset)
                of_records |= partition.offsets.last_received >= 0
        self._metrics.committed("committed")
        if of_records:
            # The end of a partition that gave nothing is committed too; no effect stands behind that.
            failpoints.hit(failpoints.CONSUMER_OFFSETS_COMMITTED)

    def _regulate(self) -> None:
        """Pause what has enough in hand, and resume what has room again (at half, so that it doesn't
        flap)."""
        held_bytes = sum(partition.held_bytes for partition in self._partitions.values())
        pause: list[TopicPartition] = []
        resume: list[TopicPartition] = []
        for (topic, number), partition in self._partitions.items():
            factor = 0.5 if partition.paused else 1.0
            full = (
                self._pausing.is_set()
                or partition.offsets.outstanding >= factor * WINDOW_RECORDS
                or (held_bytes >= factor * HELD_BYTES and partition.held_bytes > 0)
            )
            if full != partition.paused:
                partition.paused = full
                (pause if full else resume).append(TopicPartition(topic, number))
        if pause:
            self._kafka.pause(pause)
            self._log.debug("paused", partitions=_named(pause))
        if resume:
            self._kafka.resume(resume)
            self._log.debug("resumed", partitions=_named(resume))
        self._measure()

    def _measure(self) -> None:
        held = self._partitions.values()
        # Times of receipt are in order of receipt, so that each partition's first is its oldest.
        first = min(
            (next(iter(each.received_at.values())) for each in held if each.received_at), default=None
        )
        self._metrics.holding(
            partitions=len(held),
            outstanding=sum(each.offsets.outstanding for each in held),
            paused=sum(each.paused for each in held),
            oldest_s=0.0 if first is None else time.monotonic() - first,
        )

    # Called by the consumer inside `poll` and `close`

    def _on_assign(self, _: KafkaConsumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._partitions[each.topic, each.partition] = _Partition(Assignment(each.topic, each.partition))
        self._log.info("partitions assigned", partitions=_named(partitions))

    def _on_revoke(self, _: KafkaConsumer, partitions: list[TopicPartition]) -> None:
        revoked = self._held(partitions)
        if revoked and not self._closing.is_set():
            self._log.info("partitions revoked", partitions=_named(partitions))
            self._drain([each.assignment for each in revoked])
            self._take_finished()
            self._commit_now(revoked)
        self._forget(partitions)

    def _on_lost(self, _: KafkaConsumer, partitions: list[TopicPartition]) -> None:
        self._log.warning("partitions lost: nothing of them is committed", partitions=_named(partitions))
        self._lost([each.assignment for each in self._held(partitions)])
        self._forget(partitions)

    def _held(self, partitions: Iterable[TopicPartition]) -> list[_Partition]:
        found = (self._partitions.get((each.topic, each.partition)) for each in partitions)
        return [each for each in found if each is not None]

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            self._partitions.pop((each.topic, each.partition), None)

    def _on_error(self, error: KafkaError, topic: str = "") -> None:
        if error.fatal():
            raise RelayError(
                f"The Kafka consumer of {self.group_id} can't go on: {error.str()}.",
                meaning="Nothing that wasn't finished was committed.",
                remedy="Start it again once the cause is mended.",
            )
        if topic.startswith("^"):
            return  # nothing was ever given back
        now = time.monotonic()
        complaint = (error.code(), topic)
        if now - self._complaints.get(complaint, -COMPLAINT_S) >= COMPLAINT_S:
            self._complaints[complaint] = now
            self._log.warning("kafka complains, going on", error=error.str(), code=error.name(), topic=topic)


def _committable(partitions: Iterable[_Partition]) -> list[TopicPartition]:
    return [
        TopicPartition(each.assignment.topic, each.assignment.partition, position)
        for each in partitions
        if (position := each.offsets.committable()) is not None
    ]


def _named(partitions: Iterable[TopicPartition]) -> str:
    return " ".join(sorted(f"{each.topic}[{each.partition}]" for each in partitions)) or "none"
