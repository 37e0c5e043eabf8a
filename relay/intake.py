"""Messages of the stream to parts of Kafka transactions: counts positions, skips what Kafka has, encodes.

It does no I/O and holds nothing back from the watermark: a commit counts as passed only when it has no event
of ours that isn't in Kafka already.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from relay.errors import BadEventHalt, DecodeError, UsageError
from relay.outbox import message as messages
from relay.outbox.bad_event import REPUBLISH, OnBadEvent, Verdicts, halt
from relay.outbox.event import BadEvent, EventEncoder, ParkedEvent, Record
from relay.outbox.mapping import OutboxMapping
from relay.wal.pgoutput import Begin, Commit, Decoder, Ignored, Keepalive, LogicalMessage, Relation, Row
from relay.wal.watermark import Watermark

Position = tuple[int, int]
"""Commit LSN and index within the transaction: the same however often the WAL is decoded."""

# What one record costs in memory beside its payload: the tuple, the list of headers and the small bytes
# objects in it (sys.getsizeof over a record of the native outbox, CPython 3.11).
RECORD_OVERHEAD_BYTES: Final = 1200

# What the headers and framing of one record take on the wire beside key and value: ten headers of ours.
RECORD_WIRE_BYTES: Final = 350


INTEGER_OIDS: Final = frozenset({20, 21, 23})  # pg_type.oid of int8, int2, int4 (pg_type.dat)


@dataclass(slots=True)
class Part:
    """A whole transaction's records, or a piece of one that is larger than what may be held."""

    records: list[Record] = field(default_factory=list)
    parked: dict[int, ParkedEvent] = field(default_factory=dict)
    """Place in `records` of a dead-letter record to its event, whose row must be committed first."""
    held_bytes: int = 0
    wire_bytes: int = 0
    last: Position = (0, -1)
    last_event_id: str = ""
    seq: int = 0
    """The highest `seq` streamed so far."""
    end_lsn: int = 0
    """The transaction's end; 0 while more of it follows."""
    ordinal: int = 0
    """What to tell the watermark when it is durable; 0 while more of it follows."""


class Asked(NamedTuple):
    """A message about a parked event: the intake stands before it until `answer` is called."""

    position: Position
    content: bytes


class Intake:
    """`after` is the checkpoint's position: events up to it are in Kafka and are not made again.

    `refused` holds positions that the broker refused, with the reason. Up to `one_by_one_until` each event is
    a part of its own, so that the one that the broker refuses can be told. `verdicts` decides about events
    that an earlier life has parked, or whose key waits. Feed nothing while `waits`.
    """

    def __init__(
        self,
        mapping: OutboxMapping,
        encoder: EventEncoder,
        watermark: Watermark,
        *,
        after: Position,
        seq: int,
        cut_bytes: int,
        one_by_one_until: Position = (0, -1),
        refused: Mapping[Position, str] | None = None,
        verdicts: Verdicts | None = None,
        on_bad_event: OnBadEvent = "park",
    ) -> None:
        columns = mapping.columns.mapped()
        self._decode = Decoder(mapping.schema, mapping.table, tuple(columns.values())).decode
        self._encoder = encoder
        self._watermark = watermark
        self._after = after
        self._cut_bytes = cut_bytes
        self._one_by_one_until = one_by_one_until
        self._refused = dict(refused or {})
        self._verdicts = Verdicts() if verdicts is None else verdicts  # an empty one is false
        self._on_bad_event = on_bad_event
        self._mapping = mapping
        self._event_prefix = messages.PREFIX if mapping.source == "message" else None
        self._seq_column = mapping.columns.seq
        self._seq_at = list(columns).index("seq") if "seq" in columns else -1
        self._id_at = list(columns).index("event_id")
        self._key_at = list(columns).index("operation_id")
        self._commit_lsn = 0
        self._index = 0
        self._skip_through = -1
        self._cut = False
        self._part = Part()
        self.seq = seq
        self.streamed_to = 0
        """Everything that was committed below this LSN has come by."""
        self.waits = False
        """Whether nothing may be fed: a message is `asked`, or the relay is to `stop`."""
        self.asked: Asked | None = None
        self.stop: BadEventHalt | None = None
        """Raise it once everything before it is in Kafka and confirmed."""
        self.reply_requested = False
        self.in_transaction = False
        self.ready: deque[Part] = deque()
        self.ready_bytes = 0
        self.ignored: Counter[str] = Counter()
        """Messages that changed nothing, by kind."""
        self.skipped = 0
        """Events that came again and are in Kafka already."""

    @property
    def held_bytes(self) -> int:
        """About what the records held here take in memory."""
        return self.ready_bytes + self._part.held_bytes

    def take(self) -> Part:
        """The next part, in stream order. Raises IndexError when none is ready."""
        part = self.ready.popleft()
        self.ready_bytes -= part.held_bytes
        return part

    def feed(self, data: bytes) -> None:
        """One CopyData body from the stream. Raises DecodeError or OutboxAltered."""
        message = self._decode(data)
        if type(message) is list:
            self._row(message)
        elif type(message) is Begin:
            self._begin(message)
        elif type(message) is Commit:
            self._commit(message)
        elif type(message) is Keepalive:
            self._watermark.passed(message.wal_end)
            self.streamed_to = max(self.streamed_to, message.wal_end)
            self.reply_requested = self.reply_requested or message.reply_requested
        elif type(message) is Relation:
            if message.mapped:
                self._relation(message)
        elif type(message) is LogicalMessage:
            self._message(message)
        elif type(message) is Ignored:
            self.ignored[message.kind] += 1

    def _relation(self, relation: Relation) -> None:
        self._encoder.relation(relation)
        numbers = {column.name for column in relation.columns if column.type_oid in INTEGER_OIDS}
        if self._seq_column is not None and self._seq_column not in numbers:
            raise UsageError(
                f"The setting outbox_columns gives seq the column {self._seq_column!r}, not an integer.",
                remedy="Map seq to an ascending bigint (an identity column), or leave it out.",
            )

    def _begin(self, begin: Begin) -> None:
        if self.in_transaction:
            raise _disordered("a transaction begins in another one")
        self.in_transaction = True
        self._commit_lsn = begin.final_lsn
        # Commits arrive in LSN order: what committed before this one has come by.
        self.streamed_to = max(self.streamed_to, begin.final_lsn)
        self._index = 0
        self._cut = False
        after_lsn, after_index = self._after
        if begin.final_lsn > after_lsn:
            self._skip_through = -1
        else:
            self._skip_through = after_index if begin.final_lsn == after_lsn else _ALL
        self._encoder.begin(begin)

    def _row(self, row: Row, unreadable: BadEvent | None = None) -> None:
        if not self.in_transaction:
            raise _disordered("a row outside of any transaction")
        index = self._index
        self._index = index + 1
        if self._seq_at >= 0 and (seq := row[self._seq_at]) is not None:
            self.seq = max(self.seq, int(seq))
        if index <= self._skip_through:
            self.skipped += 1
            return
        position = (self._commit_lsn, index)
        try:
            if self._verdicts and (bad := self._verdicts.of(position, row[self._key_at])) is not None:
                raise bad
            if unreadable is not None:
                raise unreadable
            record = self._encoder.record(row, index)
            if self._refused and position in self._refused:
                raise BadEvent("refused_by_broker", self._refused[position], record[0])
        except BadEvent as bad:
            self._bad(row, index, bad)
            return
        self._add(record, position, row[self._id_at])

    def _message(self, message: LogicalMessage) -> None:
        """A message of ours counts like a row; anybody else's, and one that outlives a rollback, doesn't."""
        if message.prefix not in {REPUBLISH, self._event_prefix}:
            self.ignored["message"] += 1
        elif not message.transactional:
            self.ignored["message_not_transactional"] += 1
        elif not self.in_transaction:
            raise _disordered("a transactional message outside of any transaction")
        elif message.prefix == REPUBLISH:
            index = self._index
            self._index = index + 1
            if index <= self._skip_through:
                self.skipped += 1
                return
            if self._part.parked:
                self._cut = True
                self._finish()  # what it is about may be in there: its row comes first
            self.asked = Asked((self._commit_lsn, index), message.content)
            self.waits = True
        else:
            try:
                self._row(messages.row_of(message.content, self._mapping))
            except BadEvent as bad:
                self._row(messages.unreadable(message.content, self._mapping), bad)

    def answer(self, record: Record | None) -> None:
        """What becomes of the message that was `asked`: a record, or nothing."""
        asked, self.asked, self.waits = self.asked, None, False
        if asked is not None and record is not None:
            self._add(record, asked.position, dict(record[3])["ce_id"])

    def refusal(self, position: Position) -> str | None:
        """What the broker said when it refused the record of `position` before."""
        return self._refused.get(position)

    def _bad(self, row: Row, index: int, bad: BadEvent) -> None:
        """Park it; or stop before it, once what came before is in Kafka."""
        position = (self._commit_lsn, index)
        if len(row) == len(self._mapping.columns.mapped()):
            row.append(None)  # as the encoder's `record` does
        parked = self._encoder.parked(row, index, bad)
        if self._on_bad_event == "halt" and not self._verdicts.is_parked(position):
            self.stop, self.waits = halt(parked), True
            return
        if self._on_bad_event == "park_key" and (stop := self._verdicts.parked(position, row[self._key_at])):
            self.stop, self.waits = stop, True
            return
        self._part.parked[len(self._part.records)] = parked
        self._add(parked.record, position, row[self._id_at])

    def _add(self, record: Record, position: Position, event_id: bytes | None) -> None:
        part = self._part
        part.records.append(record)
        size = len(record[1] or b"") + len(record[2] or b"")
        part.wire_bytes += size + RECORD_WIRE_BYTES
        part.held_bytes += size + RECORD_OVERHEAD_BYTES
        part.last = position
        part.last_event_id = event_id.decode() if event_id is not None else ""
        if part.held_bytes >= self._cut_bytes or position <= self._one_by_one_until:
            self._cut = True
            self._finish()

    def _commit(self, commit: Commit) -> None:
        if not self.in_transaction or commit.commit_lsn != self._commit_lsn:
            raise _disordered("a commit of a transaction that didn't begin")
        self.in_transaction = False
        if self._part.records or self._cut:
            self._part.end_lsn = commit.end_lsn
            self._part.ordinal = self._watermark.commit(commit.end_lsn)
            self._finish()
        else:
            self._watermark.passed(commit.end_lsn)
        self.streamed_to = max(self.streamed_to, commit.end_lsn)

    def _finish(self) -> None:
        part = self._part
        part.seq = self.seq
        self.ready.append(part)
        self.ready_bytes += part.held_bytes
        self._part = Part()


def _disordered(what: str) -> DecodeError:
    """Rows get their place from the Begin before them: out of order they would get another's."""
    return DecodeError(
        f"The replication stream is out of order: {what}.",
        meaning="Nothing was skipped or confirmed since.",
        remedy="Check that nothing between relay and Postgres alters the stream, then start the relay again.",
    )


_ALL: Final = 2**63
"""Above every index: the whole transaction is in Kafka."""
