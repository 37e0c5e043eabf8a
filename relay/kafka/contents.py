"""What Kafka has: each record's id and place, read to the true end of every topic, kept in a temporary file.

Values are never kept, and memory doesn't grow with the number of records: SQLite holds them on disk.
"""

import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from confluent_kafka import Message

from relay.errors import DecodeError, Unavailable
from relay.kafka import spans
from relay.kafka.spans import Place, Span
from relay.wal.lsn import format_lsn, parse_lsn

TELL_EVERY: Final = 500_000
"""Records between two words of how far it is."""

_BATCH: Final = 5_000
_CACHE_KIB: Final = 8 * 1024
"""SQLite's cache; its sorter takes as much once more (SQLite, PRAGMA cache_size)."""

_TABLE: Final = """
    create table record (
      topic text not null, partition integer not null, place integer not null,
      event_id text not null, key blob, epoch integer not null, lsn integer not null,
      position integer not null, origin text not null, timestamp_ms integer not null,
      occurred_at_us integer
    )
"""
_INDEXES: Final = (
    "create index if not exists record_event on record (event_id)",
    "create index if not exists record_place on record (topic, partition, place)",
)
_INSERT: Final = "insert into record values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COLUMNS: Final = (
    "topic, partition, place, event_id, epoch, lsn, position, origin, timestamp_ms, occurred_at_us"
)
_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Record(NamedTuple):
    """One record without its value. Everything of one relay is ordered by (epoch, lsn, index)."""

    topic: str
    partition: int
    offset: int
    event_id: str
    """`ce_id`; empty where the headers can't be read, which no relay of ours has written then."""
    epoch: int
    lsn: int
    relay_index: int
    origin: str
    """`relay_origin`: empty from the stream, else repair, backfill or republish."""
    timestamp_ms: int
    occurred_at_us: int | None = None
    """`ce_time` in microseconds of Unix time."""

    @property
    def position(self) -> tuple[int, int, int]:
        """What orders all records of a relay."""
        return self.epoch, self.lsn, self.relay_index

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset} ({format_lsn(self.lsn)}/{self.relay_index})"


class Contents:
    """A context manager; its file goes with it. `collect` first, then ask.

    `source` is the relay's `ce_source`: topics may hold the records of other relays, which don't count.
    """

    def __init__(self, source: str, folder: Path | None = None) -> None:
        self._source = source.encode()
        self._folder = tempfile.TemporaryDirectory(prefix="outbox-relay-", dir=folder)
        self._database = sqlite3.connect(Path(self._folder.name) / "contents.sqlite", isolation_level=None)
        # Thrown away with the process: nothing has to survive a crash.
        for setting in (
            "journal_mode=off",
            "synchronous=off",
            f"cache_size=-{_CACHE_KIB}",
            "temp_store=file",
            "locking_mode=exclusive",
        ):
            self._database.execute(f"pragma {setting}")
        self._database.execute(_TABLE)
        self.spans: dict[Place, Span] = {}
        """Where each partition began and ended when it was read."""

    def __enter__(self) -> "Contents":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()
        self._folder.cleanup()

    def collect(
        self,
        properties: Mapping[str, str],
        topics: Iterable[str],
        *,
        timeout_s: float = spans.PATIENT_TIMEOUT_S,
        tell: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Read every committed record of `topics` to the true end; called again, what has come since.

        Returns how many records of `source` came. Raises Unavailable when Kafka is away or somebody's
        hanging transaction hides an end.
        """
        now = spans.find(properties, topics)
        came = {
            place: Span(self.spans[place].end, span.end) for place, span in now.items() if place in self.spans
        }
        count = 0
        rows: list[tuple[object, ...]] = []
        self._database.execute("begin")
        try:
            for message in spans.read(properties, {**now, **came}, timeout_s=timeout_s):
                row = _row(message, self._source)
                if row is None:
                    continue
                rows.append(row)
                count += 1
                if count % TELL_EVERY == 0:
                    tell(count)
                if len(rows) >= _BATCH:
                    self._database.executemany(_INSERT, rows)
                    rows.clear()
        except spans.Stalled as stalled:
            raise Unavailable(
                str(stalled),
                meaning="Another producer's transaction hangs there; what comes behind it can't be read.",
                remedy=stalled.remedy,
            ) from None
        self._database.executemany(_INSERT, rows)
        self._database.execute("commit")
        for index in _INDEXES:
            self._database.execute(index)
        self.spans = {
            place: Span(self.spans[place].first, span.end) if place in self.spans else span
            for place, span in now.items()
        }
        return count

    def has(self, event_ids: Sequence[str], *, except_topic: str = "") -> set[str]:
        """Those of `event_ids` that have a record in any topic but `except_topic`."""
        marks = ", ".join("?" * len(event_ids))
        found = self._database.execute(
            f"select distinct event_id from record where event_id in ({marks}) and topic <> ?",
            [*event_ids, except_topic],
        )
        return {row[0] for row in found}

    def doubled(self, *, except_topic: str = "") -> Iterator[tuple[str, list[Record]]]:
        """Each event that has more than one record, republished ones apart, with its records."""
        doubled = self._database.execute(
            "select event_id from record where topic <> ? and origin <> 'republish' and event_id <> ''"
            " group by event_id having count(*) > 1",
            [except_topic],
        )
        for (event_id,) in doubled:
            yield event_id, [record for record in self.of(event_id) if record.topic != except_topic]

    def disordered(self, *, except_topic: str = "") -> Iterator[tuple[Record, Record]]:
        """Records of a key that stand behind one that comes after them in the WAL, with that one.

        Republished records are late by nature (promise P3), and of a doubled event only the first counts.
        """
        ordered = self._database.execute(
            f"select {_COLUMNS}, key from record where topic <> ? and origin <> 'republish'"
            " and event_id <> '' order by topic, partition, key, place",
            [except_topic],
        )
        of: tuple[str, int, bytes | None] | None = None
        highest: Record | None = None
        for *columns, key in ordered:
            record = Record(*columns)
            lane = (record.topic, record.partition, key)
            if lane != of or highest is None:
                of, highest = lane, record
            elif record.position > highest.position:
                highest = record
            elif self._is_first(record):
                yield highest, record

    def _is_first(self, record: Record) -> bool:
        """Whether no earlier record of its partition has the same event."""
        earlier = self._database.execute(
            "select 1 from record where event_id = ? and topic = ? and partition = ? and place < ? limit 1",
            [record.event_id, record.topic, record.partition, record.offset],
        )
        return earlier.fetchone() is None

    def first_of(self, place: Place) -> Record | None:
        """The first record that the partition still has."""
        found = self._database.execute(
            f"select {_COLUMNS} from record where topic = ? and partition = ? order by place limit 1", place
        ).fetchone()
        return None if found is None else Record(*found)

    def newest_epoch(self) -> int:
        """The highest epoch of any record; 0 without one."""
        return int(self._database.execute("select coalesce(max(epoch), 0) from record").fetchone()[0])

    def batches(self, size: int = _BATCH) -> Iterator[list[Record]]:
        """Every record, in order of its place, in lists of `size`."""
        cursor = self._database.execute(f"select {_COLUMNS} from record order by topic, partition, place")
        while rows := cursor.fetchmany(size):
            yield [Record(*row) for row in rows]

    def of(self, event_id: str) -> list[Record]:
        """All records of one event."""
        found = self._database.execute(
            f"select {_COLUMNS} from record where event_id = ? order by topic, partition, place", [event_id]
        )
        return [Record(*row) for row in found]


def _row(message: Message, source: bytes) -> tuple[object, ...] | None:
    """What is kept of a record; None when it isn't of `source`."""
    headers: dict[str, bytes] = {}
    for header in message.headers() or []:
        value = header[1]
        headers[str(header[0])] = value if isinstance(value, bytes) else b""
    if headers.get("ce_source") != source:
        return None
    _, timestamp_ms = message.timestamp()
    try:
        epoch = int(headers.get("relay_epoch", b"0"))
        lsn = parse_lsn(headers["relay_lsn"].decode()) if "relay_lsn" in headers else 0
        index = int(headers.get("relay_index", b"0"))
        event_id = headers.get("ce_id", b"").decode()
        origin = headers.get("relay_origin", b"").decode()
        occurred_at_us = _microseconds(headers.get("ce_time"))
    except (ValueError, DecodeError):
        # Somebody wrote headers of our names by hand: it's no event of ours.
        epoch, lsn, index, event_id, origin, occurred_at_us = 0, 0, 0, "", "", None
    return (
        message.topic(),
        message.partition(),
        message.offset(),
        event_id,
        message.key(),
        epoch,
        lsn,
        index,
        origin,
        timestamp_ms,
        occurred_at_us,
    )


def _microseconds(ce_time: bytes | None) -> int | None:
    """Unix time. Raises ValueError for what isn't RFC 3339 with an offset."""
    if ce_time is None:
        return None
    at = datetime.fromisoformat(ce_time.decode())
    if at.tzinfo is None:
        raise ValueError("a time without an offset")
    return (at - _UNIX) // _MICROSECOND
