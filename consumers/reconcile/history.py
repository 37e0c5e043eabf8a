"""Reads Kafka's history of operations to its true end, and keeps of it what the tables don't know.

A transition is lost when it is of an epoch before the accepted rewind and the journal has no such entry. The
journal is never pruned, so this needs no outbox row. It joins no group and writes nothing.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from confluent_kafka import Consumer, KafkaException, TopicPartition

from consumers.operations.lost import Life, Transition
from consumers.runtime.consumer import Event
from consumers.runtime.properties import group_id
from consumers.runtime.record import Undecodable, event_type, from_message, to_event
from relay.avro.catalog import Catalog
from relay.errors import RelayError, Unavailable, UsageError
from relay.kafka import spans
from relay.kafka.client import make, words
from relay.kafka.partitioner import partition_of
from relay.kafka.spans import Place
from relay.settings import Settings

TRANSITIONED: Final = "operation.transitioned"
_BATCH: Final = 1_000
_ANSWER_S: Final = 30.0

Entry = tuple[UUID, int]
Known = Callable[[Sequence[Entry]], Awaitable[Mapping[Entry, tuple[datetime, str]]]]


@dataclass(frozen=True, slots=True)
class _Requested:
    dispatch_no: int
    place: Place
    offset: int


@dataclass(slots=True)
class History:
    """What was found. `read` counts transitions; `unreadable` names places whose records can't be told."""

    read: int = 0
    topic: str = ""
    partitions: int = 0
    lives: dict[UUID, Life] = field(default_factory=dict)
    kept: dict[UUID, int] = field(default_factory=dict)
    """The last entry of a subject's journal that Kafka had before the rewind."""
    grew: bool = False
    """Whether it had fewer partitions when some of its events were written."""
    incomplete: set[int] = field(default_factory=set)
    """Partitions that have lost records which may be newer than the restored state."""
    reaches_back: bool = False
    """Whether it has anything from before the rewind that the journal knows: else it may be another topic."""
    unreadable: list[str] = field(default_factory=list)
    requested: dict[UUID, _Requested] = field(default_factory=dict)
    committed: dict[Place, int] = field(default_factory=dict)
    """Of the dispatchers' group: the first offset that it isn't done with."""

    def covers(self, operation_id: UUID) -> bool:
        """Whether every transition after the restored state is still there. A topic that grew has older
        events where its fewer partitions put them, however many they were."""
        key, most = str(operation_id).encode(), self.partitions
        numbers = range(1, most + 1) if self.grew else range(most, most + 1)
        places = {partition_of(key, number) for number in numbers if number}
        return self.reaches_back and not places & self.incomplete

    def note_place(self, operation_id: UUID, partition: int) -> None:
        """An event that lies elsewhere than its key leads now was written to fewer partitions."""
        if partition_of(str(operation_id).encode(), self.partitions) != partition:
            self.grew = True

    def handled(self, operation_id: UUID) -> tuple[bool, int]:
        """Whether the dispatchers are done with an event of the operation's last dispatch, and which that
        is."""
        asked = self.requested.get(operation_id)
        if asked is None:
            return False, 0
        return self.committed.get(asked.place, 0) > asked.offset, asked.dispatch_no


class Reading:
    """`epochs` are those in force by `ce_source`: what they wrote is of this database. `subjects` are the
    operations whose dispatches are of interest."""

    def __init__(
        self,
        settings: Settings,
        *,
        epochs: Mapping[str, int],
        subjects: frozenset[UUID],
        requested: Sequence[str],
        known: Known,
    ) -> None:
        self._settings = settings
        self._properties = settings.require_kafka()
        self._catalog = Catalog.load(settings.schemas)
        self._epochs = epochs
        self._subjects = subjects
        self._requested = frozenset(requested)
        self._known = known
        self._history = History(topic=self._topic(TRANSITIONED))
        self._first_is_kept: dict[int, bool] = {}

    async def read(self) -> History:
        """Raises UsageError without the topic, Unavailable when Kafka can't be read to its end."""
        history = self._history
        topics = {history.topic, *(self._topic(name) for name in self._requested)}
        found = spans.find(self._properties, topics)
        mine = {place[1]: span for place, span in found.items() if place[0] == history.topic}
        if not mine:
            raise UsageError(
                f"Kafka has no topic {history.topic}.",
                meaning="Without the history nobody can tell what was submitted; nothing was changed.",
                remedy="Correct RELAY_KAFKA_BOOTSTRAP or RELAY_TOPIC_PREFIX; `relay settings` shows them.",
            )
        history.partitions = len(mine)
        batch: list[Event] = []
        try:
            for message in spans.read(self._properties, found, timeout_s=spans.PATIENT_TIMEOUT_S):
                record = from_message(message)
                kind = event_type(record)
                if kind != TRANSITIONED and kind not in self._requested:
                    continue
                try:
                    event = to_event(record, self._catalog)
                except Undecodable as error:
                    history.unreadable.append(
                        f"{record.topic}/{record.partition}@{record.offset}: {error.reason}"
                    )
                    history.incomplete.add(record.partition)
                    continue
                batch.append(event)
                if len(batch) >= _BATCH:
                    await self._take(batch)
                    batch.clear()
        except spans.Stalled as stalled:
            raise Unavailable(
                str(stalled), meaning="Nothing was changed.", remedy=stalled.remedy
            ) from stalled
        await self._take(batch)
        # A partition that forgot its beginning has all that is newer than the restored state only if the
        # first transition it still has is one that was restored.
        history.incomplete |= {
            partition
            for partition, span in mine.items()
            if span.first > 0 and not self._first_is_kept.get(partition, False)
        }
        history.committed = self._committed({one.place for one in history.requested.values()})
        return history

    def _topic(self, event_type: str) -> str:
        return self._settings.topic or f"{self._settings.topic_prefix}.{event_type}"

    async def _take(self, batch: Sequence[Event]) -> None:
        before = [event for event in batch if self._is_before(event)]
        told = [event for event in before if event.type == TRANSITIONED]
        entries = [(_operation(event), int(event.payload["version"])) for event in told]
        known = await self._known(entries) if entries else {}
        kept_ids: set[int] = set()
        for event, entry in zip(told, entries, strict=True):
            self._history.note_place(entry[0], event.partition)
            found = known.get(entry)
            kept = found == (event.payload["transitioned_at"], event.payload["to_phase"])
            if kept:
                kept_ids.add(id(event))
                self._history.reaches_back = True
                if entry[0] in self._subjects:
                    self._history.kept[entry[0]] = max(entry[1], self._history.kept.get(entry[0], 0))
            else:
                self._lose(event)
        for event in batch:
            if event.type == TRANSITIONED:
                self._history.read += 1
                self._first_is_kept.setdefault(event.partition, id(event) in kept_ids)
        for event in before:
            if event.type != TRANSITIONED and _operation(event) in self._subjects:
                self._ask(event)

    def _is_before(self, event: Event) -> bool:
        """Whether it was published before the rewind was accepted; of a relay that this database doesn't
        know, always."""
        source = event.headers.get("ce_source", b"")
        in_force = self._epochs.get(source.decode(errors="replace"))
        return in_force is None or event.position is None or event.position.epoch < in_force

    def _lose(self, event: Event) -> None:
        payload = event.payload
        operation_id = _operation(event)
        life = self._history.lives.get(operation_id)
        if life is None:
            life = self._history.lives[operation_id] = Life(
                operation_id, payload["owner_id"], payload["kind"], payload["specification_hash"]
            )
        if any(one.event_id == event.event_id for one in life.transitions):
            return  # at least once: the same event again
        position = event.position
        life.transitions.append(
            Transition(
                version=payload["version"],
                from_phase=payload["from_phase"],
                to_phase=payload["to_phase"],
                cause=payload["cause"],
                reason=payload["reason"],
                actor=payload["actor"],
                dispatch_no=payload["dispatch_no"],
                job_id=payload["job_id"],
                attempt_id=payload["attempt_id"],
                at=payload["transitioned_at"],
                event_id=event.event_id,
                place=f"{event.topic}/{event.partition}@{event.offset}",
                order=(position.epoch, position.lsn, position.index) if position else (0, 0, 0),
            )
        )

    def _ask(self, event: Event) -> None:
        """Of the last dispatch, the first event: who is done with a later one was done with it."""
        operation_id, dispatch_no = _operation(event), int(event.payload["dispatch_no"])
        asked = self._history.requested.get(operation_id)
        if asked is None or dispatch_no > asked.dispatch_no:
            place = (event.topic, event.partition)
            self._history.requested[operation_id] = _Requested(dispatch_no, place, event.offset)

    def _committed(self, places: set[Place]) -> dict[Place, int]:
        if not places:
            return {}
        group = group_id(self._settings, "dispatch")
        consumer = make(Consumer, {**self._properties, "group.id": group, "enable.auto.commit": False})
        try:
            asked = [TopicPartition(*place) for place in sorted(places)]
            return {
                (one.topic, one.partition): one.offset for one in consumer.committed(asked, timeout=_ANSWER_S)
            }
        except KafkaException as error:
            raise RelayError(
                f"Kafka doesn't say how far the group {group} is: {words(error)}",
                meaning="Nothing was changed.",
                remedy="See to the brokers and to this login's rights on groups, then run it again.",
            ) from error
        finally:
            consumer.close()


def _operation(event: Event) -> UUID:
    return UUID(str(event.payload["operation_id"]))
