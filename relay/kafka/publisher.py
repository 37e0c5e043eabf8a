"""Records and checkpoint into Kafka: in one transaction, or acknowledged before the checkpoint is written.

It never repeats a record of its own accord: after an abort or a fatal error it is thrown away, and everything
is read from the WAL again. `produce` and `poll` belong to the relay's thread, `commit` to the one that waits.
"""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from relay import failpoints
from relay.errors import Fenced, Unavailable, UsageError
from relay.kafka import checkpoint as checkpoints
from relay.kafka.checkpoint import Checkpoint
from relay.kafka.client import make, words
from relay.outbox.event import Record

TRANSACTION_TIMEOUT_MS: Final = 60_000
"""`transaction.timeout.ms` where RELAY_KAFKA_TRANSACTION_TIMEOUT_MS says nothing."""

# Below, a slow commit would be taken for a dead relay; above, brokers refuse it (transaction.max.timeout.ms).
_TIMEOUT_BOUNDS_MS: Final = (5_000, 900_000)

# Transactions back to back meet CONCURRENT_TRANSACTIONS while the last one's markers are written, and
# librdkafka then waits 20 ms: commit p99 25 ms. After this pause it is 10 ms (Kafka 4.4).
PAUSE_AFTER_COMMIT_S: Final = 0.002

_COMMIT_WAIT_S: Final = 30.0
_RETRY_PAUSE_S: Final = 0.1
_ABORT_WAIT_S: Final = 2.0
_QUEUE_FULL_WAIT_S: Final = 0.05
_INIT_TIMEOUT_S: Final = 30.0

_QUEUE_MOST_KIB: Final = 2_097_151  # librdkafka's largest: far above what the relay holds

# Above any topic's limit: sizes are checked against the topics, and the broker has the last word.
_MESSAGE_MAX_BYTES: Final = 100 * 1024 * 1024
_BATCH_BYTES: Final = 1_000_000  # librdkafka's default, just under Kafka's default max.message.bytes

log = structlog.get_logger("relay")

# What a broker says of one record, not of itself (Kafka protocol, error codes).
_REFUSALS: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
    }
)
# librdkafka's own codes have a leading _.
_FENCINGS: Final = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}  # noqa: SLF001
)
_DISCARDED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001


def transaction_timeout_s(properties: Mapping[str, str]) -> float:
    """Seconds after which Kafka ends a transaction that its producer left open. Raises UsageError."""
    text = properties.get("transaction.timeout.ms", str(TRANSACTION_TIMEOUT_MS))
    least, most = _TIMEOUT_BOUNDS_MS
    if not text.isdecimal() or not least <= int(text) <= most:
        raise UsageError(
            f"RELAY_KAFKA_TRANSACTION_TIMEOUT_MS is {text!r}, and {least} to {most} are possible.",
            remedy="Leave it out for the default of a minute.",
        )
    return int(text) / 1000


class RecordRefused(Exception):
    """The broker refused a record of the transaction: `reason` in its words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Publisher(ABC):
    """One producer's life. Whatever it raises, discard it.

    `batch_bytes` is the smallest `max.message.bytes` of its topics: the broker measures whole batches by it.
    """

    def __init__(
        self, properties: Mapping[str, str], *, prefix: str, relay_id: uuid.UUID, batch_bytes: int
    ) -> None:
        self.transaction_timeout_s = transaction_timeout_s(properties)
        self._opened_at: float | None = None
        self._discarded = False
        self._refused: str | None = None
        self._failed: KafkaError | None = None
        self._fatal: KafkaError | None = None
        self._checkpoint_topic = checkpoints.topic(prefix, relay_id)
        self._checkpoint_key = relay_id.bytes
        self._producer = make(
            Producer,
            {
                "batch.size": min(batch_bytes, _BATCH_BYTES),
                "message.max.bytes": _MESSAGE_MAX_BYTES,
                **properties,
                # The relay bounds what it hands over. A queue of librdkafka's that fills would hold up the
                # relay's thread, and with it the feedback, for as long as Kafka is away.
                "queue.buffering.max.messages": 0,
                "queue.buffering.max.kbytes": _QUEUE_MOST_KIB,
                # Not for anybody to change: promises P3 and P4 rest on them.
                "acks": "all",
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "delivery.report.only.error": True,
                "on_delivery": self._on_delivery,
            },
        )
        self._send: Callable[..., None] = self._producer.produce

    @abstractmethod
    def start(self) -> None:
        """Before the checkpoint is read: shuts out a former self. Raises Fenced or Unavailable."""

    @abstractmethod
    def open(self) -> None:
        """Before the first record of a group."""

    @abstractmethod
    def commit(self, checkpoint: Checkpoint | None) -> None:
        """Make the group and `checkpoint` durable. Blocks; records may be produced again after `open`.

        Without one, the relay's position stays what it was (a repair writes it once, at the end).
        Raises RecordRefused, Fenced or Unavailable.
        """

    def produce(self, records: Sequence[Record]) -> None:
        """Hand records to librdkafka, in order. Raises RecordRefused, Fenced or Unavailable."""
        send = self._send
        try:
            for topic, value, key, headers, timestamp_ms in records:
                while True:
                    try:
                        send(topic, value, key, headers=headers, timestamp=timestamp_ms)
                        break
                    except BufferError:
                        self._serve(_QUEUE_FULL_WAIT_S)
                        if self._fatal is not None:
                            raise KafkaException(self._fatal) from None
        except KafkaException as error:
            raise self._classified(error) from error

    def poll(self) -> None:
        """Serve librdkafka's callbacks, at once. Raises Fenced or Unavailable after a fatal error."""
        self._serve(0)
        if self._fatal is not None:
            raise self._classified(KafkaException(self._fatal))

    def discard(self) -> None:
        """Drop what is queued and in flight; nothing of it is ever sent again."""
        # Before the purge: a commit that still waits must not take an emptied queue for an acknowledged one.
        self._discarded = True
        self._producer.purge(in_queue=True, in_flight=True)
        self._serve(0)

    def _put_checkpoint(self, checkpoint: Checkpoint) -> None:
        try:
            self._producer.produce(
                self._checkpoint_topic,
                checkpoints.encode(checkpoint),
                self._checkpoint_key,
                partition=checkpoints.PARTITION,
            )
        except (KafkaException, BufferError) as error:
            raise self._classified(error) from error

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        if error.code() in _REFUSALS:
            self._refused = f"{message.topic()}: {error.str()}"
        elif error.code() not in _DISCARDED:
            self._failed = error

    def _serve(self, timeout_s: float) -> None:
        """librdkafka's callbacks. A fatal error comes out of whichever poll is next, in whichever thread:
        it is kept, and raised where it is classified."""
        try:
            self._producer.poll(timeout_s)
        except KafkaException as error:
            self._fatal = error.args[0]

    def _classified(self, error: Exception) -> Exception:
        """What an exception of librdkafka means for the relay."""
        self._serve(0)  # the delivery report that says why may still be waiting
        reason = self._fatal or (error.args[0] if isinstance(error, KafkaException) else None)
        code = reason.code() if isinstance(reason, KafkaError) else None
        if code in _FENCINGS:
            open_s = 0.0 if self._opened_at is None else time.monotonic() - self._opened_at
            if open_s >= self.transaction_timeout_s:
                # Kafka shuts out the producer of a transaction that it ends, as it would for another relay.
                return Unavailable(
                    f"Kafka ended the transaction, which was open for {open_s:.0f} s (transaction.timeout.ms "
                    f"is {self.transaction_timeout_s:.0f} s).",
                    meaning="None of it is visible; it is read from the WAL again.",
                )
            return Fenced(
                "Another relay has taken over this relay's transactional id.",
                meaning="It publishes as this relay; this one has published nothing since.",
                remedy="If this process was frozen or cut off, start it again: it waits as a standby. Else a "
                "copy of this database has a relay of its own on the same Kafka: stop one of them, and give "
                "the copy another RELAY_TOPIC_PREFIX and a slot of its own (`relay init`).",
            )
        if self._refused is not None or code in _REFUSALS:
            return RecordRefused(self._refused or str(reason))
        return Unavailable(f"Kafka failed the transaction: {words(self._failed or error)}")


class Transactional(Publisher):
    """Exactly once for `read_committed` readers (KIP-98)."""

    def __init__(
        self, properties: Mapping[str, str], *, prefix: str, relay_id: uuid.UUID, batch_bytes: int
    ) -> None:
        own = {
            "transactional.id": f"{prefix}.relay.{relay_id}",
            "transaction.timeout.ms": str(int(transaction_timeout_s(properties) * 1000)),
        }
        super().__init__({**properties, **own}, prefix=prefix, relay_id=relay_id, batch_bytes=batch_bytes)
        self._is_open = False

    def start(self) -> None:
        try:
            self._producer.init_transactions(_INIT_TIMEOUT_S)
        except KafkaException as error:
            raise self._classified(error) from error

    def open(self) -> None:
        self._opened_at = time.monotonic()
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._classified(error) from error
        self._is_open = True

    def discard(self) -> None:
        """Also end an open transaction: read_committed readers would wait for its timeout, a minute."""
        super().discard()
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._producer.abort_transaction(_ABORT_WAIT_S)
        except KafkaException as error:
            # Fenced, away, or a commit under way: then the next relay's start ends it, or Kafka does.
            log.info("an open transaction was left to Kafka", reason=words(error))

    def commit(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None:
            self._put_checkpoint(checkpoint)
        failpoints.hit(failpoints.RELAY_BEFORE_KAFKA_COMMIT)
        while True:
            try:
                self._producer.commit_transaction(_COMMIT_WAIT_S)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if self._discarded:
                    raise self._classified(error) from error
                if reason.retriable() and not reason.fatal() and not reason.txn_requires_abort():
                    time.sleep(_RETRY_PAUSE_S)
                    continue
                raise self._classified(error) from error
            self._is_open = False
            self._opened_at = None
            failpoints.hit(failpoints.RELAY_KAFKA_COMMITTED)
            return


class Acknowledged(Publisher):
    """At least once: the checkpoint is written only when every record before it is acknowledged."""

    def start(self) -> None:
        return

    def open(self) -> None:
        return

    def commit(self, checkpoint: Checkpoint | None) -> None:
        self._wait()
        failpoints.hit(failpoints.RELAY_BEFORE_KAFKA_COMMIT)
        if checkpoint is not None:
            self._put_checkpoint(checkpoint)
            self._wait()
        failpoints.hit(failpoints.RELAY_KAFKA_COMMITTED)

    def _wait(self) -> None:
        try:
            while self._producer.flush(_COMMIT_WAIT_S) > 0:
                if self._failed or self._refused:
                    break
        except KafkaException as error:
            raise self._classified(error) from error
        if self._discarded:
            raise Unavailable("The producer was discarded before Kafka had acknowledged everything.")
        if self._refused is not None:
            raise RecordRefused(self._refused)
        if self._failed is not None:
            raise self._classified(KafkaException(self._failed))
