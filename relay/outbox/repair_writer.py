"""Rows that Kafka lacks to committed Kafka transactions, in the order given. It never writes a checkpoint.

Rows are gathered and only then sent: no Kafka transaction stays open while millions of rows are compared.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog

from relay import failpoints
from relay.errors import BadEventHalt, Unavailable
from relay.intake import RECORD_WIRE_BYTES
from relay.kafka.checkpoint import Checkpoint
from relay.kafka.publisher import Publisher, RecordRefused
from relay.kafka.topics import Topics
from relay.outbox.bad_event import OnBadEvent, Verdicts, halt
from relay.outbox.event import BadEvent, EventEncoder, ParkedEvent, Record
from relay.outbox.parking import park
from relay.wal.pgoutput import Row

log = structlog.get_logger("relay")


@dataclass(frozen=True, slots=True)
class _Gathered:
    row: Row
    index: int
    record: Record
    parked: ParkedEvent | None


class RepairWriter:
    """`add` rows, then `flush`. `publisher` may be another one afterwards: `close` it through here.

    `reopen` makes a new publisher, which shuts out the one before. `verdicts` knows the keys that wait, and
    `key_at` is where a row has its key. Raises psycopg.Error, Unavailable, Fenced
    or BadEventHalt.
    """

    def __init__(
        self,
        publisher: Publisher,
        reopen: Callable[[], Publisher],
        encoder: EventEncoder,
        topics: Topics,
        connection: psycopg.Connection[Any],
        relay_id: uuid.UUID,
        verdicts: Verdicts,
        *,
        key_at: int,
        on_bad_event: OnBadEvent,
        group_bytes: int,
    ) -> None:
        self.publisher = publisher
        self._reopen = reopen
        self._encoder = encoder
        self._topics = topics
        self._connection = connection
        self._relay_id = relay_id
        self._verdicts = verdicts
        self._key_at = key_at
        self._on_bad_event = on_bad_event
        self._group_bytes = group_bytes
        self._group: list[_Gathered] = []
        self._bytes = 0
        self._next = 0
        self.published = 0
        self.parked = 0

    @property
    def last_index(self) -> int:
        """The index of the last row added; -1 before the first."""
        return self._next - 1

    def add(self, row: Row, decided: BadEvent | None = None) -> None:
        """`decided`: why it is parked, where that was decided before."""
        bad = decided or self._verdicts.of((0, self._next), row[self._key_at])
        gathered = self._as_parked(row, self._next, bad) if bad else self._encode(row, self._next)
        self._next += 1
        self._group.append(gathered)
        self._bytes += len(gathered.record[1] or b"") + len(gathered.record[2] or b"") + RECORD_WIRE_BYTES
        if self._bytes >= self._group_bytes:
            self.flush()

    def flush(self) -> None:
        """Commit what was added."""
        group, self._group, self._bytes = self._group, [], 0
        if not group:
            return
        try:
            self._send(group)
        except RecordRefused as refused:
            if len(group) == 1:
                self._park_refused(group[0], refused)
            else:
                # Nothing of it is committed; one by one shows which record it is.
                self._renew()
                for gathered in group:
                    self._send_alone(gathered)
        failpoints.hit(failpoints.REPAIR_RECORDS_COMMITTED)

    def _encode(self, row: Row, index: int) -> _Gathered:
        try:
            return _Gathered(row, index, self._encoder.record(list(row), index), None)
        except BadEvent as bad:
            parked = self._as_parked(row, index, bad)
            self._found_bad(parked)
            return parked

    def _as_parked(self, row: Row, index: int, bad: BadEvent) -> _Gathered:
        parked = self._encoder.parked([*row, None], index, bad)
        return _Gathered(row, index, parked.record, parked)

    def _found_bad(self, gathered: _Gathered) -> None:
        """As `on_bad_event` says: park it, let its key wait, or stop where everything before it is sent."""
        event = gathered.parked
        assert event is not None
        if self._on_bad_event == "halt":
            self.flush()
            stop = halt(event)
            raise BadEventHalt(
                stop.message,
                meaning="Whatever was missing before it is in Kafka (on_bad_event = halt); the state stays"
                " `repairing`.",
                remedy=stop.remedy.replace("start `relay run`", "run `relay outbox repair`"),
            )
        if self._on_bad_event == "park_key":
            full = self._verdicts.parked((0, gathered.index), gathered.row[self._key_at])
            if full is not None:
                raise full

    def _send_alone(self, gathered: _Gathered) -> None:
        try:
            self._send([gathered])
        except RecordRefused as refused:
            self._park_refused(gathered, refused)

    def _park_refused(self, gathered: _Gathered, refused: RecordRefused) -> None:
        self._renew()
        bad = BadEvent("refused_by_broker", refused.reason, gathered.record[0])
        parked = self._as_parked(gathered.row, gathered.index, bad)
        self._found_bad(parked)
        try:
            self._send([parked])
        except RecordRefused as again:
            raise BadEventHalt(
                f"Kafka refuses even the dead-letter record of an event: {again.reason}.",
                meaning="The event is in relay.parked_event, and the repair can't go past it.",
                remedy="Look at the dead-letter topic's settings and permissions, then run"
                " `relay outbox repair` again.",
            ) from again

    def _send(self, group: list[_Gathered]) -> None:
        """One Kafka transaction. Postgres first: a dead-letter record exists only for a committed row."""
        bad = [gathered.parked for gathered in group if gathered.parked is not None]
        if bad:
            park(self._connection, self._relay_id, bad)
            for event in bad:
                log.warning(
                    "parked",
                    event_id=str(event.event_id),
                    event_type=event.event_type,
                    reason_code=event.reason_code,
                    reason=event.reason,
                )
        if self._encoder.new_topics:
            self._topics.ensure(sorted(self._encoder.new_topics))
            self._encoder.new_topics.clear()
        self.publisher.open()
        self.publisher.produce([gathered.record for gathered in group])
        self.publisher.commit(None)
        self.parked += len(bad)
        self.published += len(group) - len(bad)

    def _renew(self) -> None:
        self.publisher.discard()
        self.publisher = self._reopen()


def commit_checkpoint(publisher: Publisher, checkpoint: Checkpoint) -> None:
    """The new epoch's, alone. Raises Unavailable when Kafka refuses it."""
    publisher.open()
    try:
        publisher.commit(checkpoint)
    except RecordRefused as refused:
        raise Unavailable(
            f"Kafka refused the checkpoint: {refused.reason}.",
            remedy="See to the checkpoint topic's settings and permissions, then run `relay outbox repair`.",
        ) from refused
