"""Bytes of a logical replication stream to messages: `pgoutput`, protocol 1, text values. It never does I/O.

Format: Postgres 18, 54.5 (streaming replication protocol) and 54.9 (logical replication message formats). A
row's decoder is prepared when its Relation is announced and touches only the mapped columns; a row is a list
of the values' text bytes, in the order of the mapping: anything richer costs more than the rest of the path.
"""

import struct
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from relay.errors import DecodeError, OutboxAltered

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01 00:00 UTC in microseconds since 1970: replication times count from there."""

Row = list[bytes | None]
"""The mapped columns of one inserted row, NULL as None."""


class Keepalive(NamedTuple):
    wal_end: int
    """The server has sent everything up to here, in stream order."""
    reply_requested: bool


class Begin(NamedTuple):
    final_lsn: int
    """LSN of the commit record; the transaction's place in `relay_lsn`."""
    committed_at_us: int
    """Microseconds since 1970, UTC."""
    xid: int


class Commit(NamedTuple):
    commit_lsn: int
    end_lsn: int
    """Where the next record starts: what feedback confirms."""


class Column(NamedTuple):
    name: str
    type_oid: int


class Relation(NamedTuple):
    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]
    mapped: bool
    """Whether this is the outbox that the decoder was made for."""


class LogicalMessage(NamedTuple):
    transactional: bool
    """A non-transactional one arrives even when its transaction rolled back."""
    lsn: int
    prefix: str
    content: bytes


class Ignored(NamedTuple):
    """A message that changes nothing for the relay; `kind` says which, for counting."""

    kind: str


Message = Keepalive | Begin | Commit | Relation | LogicalMessage | Ignored | Row

_XLOG_DATA: Final = ord("w")
_KEEPALIVE: Final = ord("k")
_XLOG_HEADER_BYTES: Final = 25  # 'w', start, end, send time; the end is never confirmed
_INSERT: Final = ord("I")
_NEW_TUPLE: Final = ord("N")
_TEXT: Final = ord("t")
_NULL: Final = ord("n")
_INSERT_ROW_AT: Final = _XLOG_HEADER_BYTES + 8  # 'I', relation oid, 'N', number of columns

_IGNORED: Final = {
    ord("O"): "origin",
    ord("Y"): "type",
    ord("U"): "update",
    ord("D"): "delete",
    ord("T"): "truncate",
}

_keepalive = Struct(">cQqB")
_begin = Struct(">QqI")
_commit = Struct(">BQQq")
_insert = Struct(">BIBH")
_length = Struct(">I")
_relation_oid = Struct(">I")
_column_count = Struct(">H")
_column_type = Struct(">Ii")
_message = Struct(">BQ")

RowDecoder = Callable[[bytes], Row]


class Decoder:
    """Decodes one stream. Make a new one for each connection: the server announces its relations again."""

    def __init__(self, schema: str, table: str, columns: Sequence[str]) -> None:
        self._schema = schema
        self._table = table
        self._columns = tuple(columns)
        self._rows: dict[int, RowDecoder] = {}
        self._others: dict[int, str] = {}

    def decode(self, data: bytes) -> Message:
        """One CopyData body.

        Raises DecodeError for bytes that are not of the protocol, and OutboxAltered when a mapped column is
        missing or a row of a table that isn't the outbox arrives.
        """
        try:
            if data[0] == _XLOG_DATA:
                kind = data[_XLOG_HEADER_BYTES]
                if kind == _INSERT:
                    return self._insert(data)
                return self._other(kind, data)
            if data[0] == _KEEPALIVE:
                _, wal_end, _, reply = _keepalive.unpack(data)
                return Keepalive(wal_end, reply == 1)
        except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
            raise _broken(data, str(error)) from None
        raise _broken(data, "unknown message")

    def _insert(self, data: bytes) -> Row:
        _, oid, tuple_kind, _ = _insert.unpack_from(data, _XLOG_HEADER_BYTES)
        decode_row = self._rows.get(oid)
        if decode_row is None:
            raise self._unmapped(oid, data)
        if tuple_kind != _NEW_TUPLE:
            raise _broken(data, "an insert without a new row")
        return decode_row(data)

    def _other(self, kind: int, data: bytes) -> Message:
        body = _XLOG_HEADER_BYTES + 1
        if kind == ord("B"):
            final_lsn, committed_at, xid = _begin.unpack(data[body:])
            return Begin(final_lsn, committed_at + POSTGRES_EPOCH_US, xid)
        if kind == ord("C"):
            _, commit_lsn, end_lsn, _ = _commit.unpack(data[body:])
            return Commit(commit_lsn, end_lsn)
        if kind == ord("R"):
            return self._relation(data, body)
        if kind == ord("M"):
            return _logical_message(data, body)
        if kind in _IGNORED:
            return Ignored(_IGNORED[kind])
        raise _broken(data, f"unknown message kind {kind:#04x}")

    def _relation(self, data: bytes, at: int) -> Relation:
        (oid,) = _relation_oid.unpack_from(data, at)
        schema, at = _text(data, at + 4)
        name, at = _text(data, at)
        at += 1  # replica identity: irrelevant to inserts
        (count,) = _column_count.unpack_from(data, at)
        at += 2
        columns = []
        for _ in range(count):
            column, at = _text(data, at + 1)  # the flag says whether it is of the key
            type_oid, _ = _column_type.unpack_from(data, at)
            at += _column_type.size
            columns.append(Column(column, type_oid))
        if at != len(data):
            raise _broken(data, "a relation of another length")
        if len({column.name for column in columns}) != count:
            raise _broken(data, "a relation that has a column twice")
        # An empty schema name means pg_catalog (54.9).
        mapped = (schema or "pg_catalog", name) == (self._schema, self._table)
        if mapped:
            self._rows[oid] = self._prepare([column.name for column in columns])
            self._others.pop(oid, None)
        else:
            self._rows.pop(oid, None)
            self._others[oid] = f"{schema}.{name}"
        return Relation(oid, schema, name, tuple(columns), mapped)

    def _prepare(self, present: list[str]) -> RowDecoder:
        missing = [name for name in self._columns if name not in present]
        if missing:
            table = f"{quote(self._schema)}.{quote(self._table)}"
            raise OutboxAltered(
                f"The outbox {table} arrives without the mapped column {', '.join(missing)}.",
                meaning="Nothing was skipped or confirmed since; rows written without it stay so in the WAL, "
                "whatever the table becomes.",
                remedy=f"Rename it back (`ALTER TABLE {table} RENAME COLUMN … TO {quote(missing[0])};`), add "
                "it again, drop a column list from the publication, or change RELAY_OUTBOX_COLUMNS; then run "
                "`relay outbox repair`, which publishes from the table what is missing, and start again.",
            )
        wanted = [name in self._columns for name in present]
        last = max(index for index, take in enumerate(wanted) if take)
        read = _row_reader(tuple(wanted[: last + 1]), len(present))
        in_table_order = [name for name in present if name in self._columns]
        if in_table_order == list(self._columns):
            return read
        order = [in_table_order.index(name) for name in self._columns]

        def read_reordered(data: bytes) -> Row:
            row = read(data)
            return [row[index] for index in order]

        return read_reordered

    def _unmapped(self, oid: int, data: bytes) -> Exception:
        other = self._others.get(oid)
        if other is None:
            return _broken(data, f"a row of relation {oid}, which was never announced")
        schema, _, name = other.partition(".")
        return OutboxAltered(
            f"The publication sends rows of {other}, which is not the outbox {self._schema}.{self._table}.",
            meaning="Nothing was skipped or confirmed since; the rows wait in the WAL.",
            remedy=f"`ALTER PUBLICATION … DROP TABLE {quote(schema)}.{quote(name)};` (the outbox must be its "
            "only table; for a partitioned one set publish_via_partition_root), then start the relay again.",
        )


def quote(identifier: str) -> str:
    """An identifier as Postgres reads it back exactly, always in double quotes."""
    return '"' + identifier.replace('"', '""') + '"'


def _row_reader(wanted: tuple[bool, ...], column_count: int) -> RowDecoder:
    """Reads the columns up to the last wanted one; what comes after it is not even looked at."""
    length_at = _length.unpack_from
    whole = len(wanted) == column_count

    def read(data: bytes) -> Row:
        if int.from_bytes(data[_INSERT_ROW_AT - 2 : _INSERT_ROW_AT], "big") != column_count:
            raise _broken(data, "a row with another number of columns than its relation")
        at = _INSERT_ROW_AT
        row: Row = []
        append = row.append
        for take in wanted:
            kind = data[at]
            if kind == _TEXT:
                start = at + 5
                at = start + length_at(data, at + 1)[0]
                if take:
                    append(data[start:at])
            elif kind == _NULL:
                at += 1
                if take:
                    append(None)
            else:
                raise _broken(data, f"a column value of kind {kind:#04x}")
        if at > len(data) or (whole and at != len(data)):
            raise _broken(data, "a row of another length")
        return row

    return read


def _logical_message(data: bytes, at: int) -> LogicalMessage:
    flags, lsn = _message.unpack_from(data, at)
    prefix, at = _text(data, at + _message.size)
    (length,) = _length.unpack_from(data, at)
    content = data[at + 4 :]
    if len(content) != length:
        raise _broken(data, "a logical message of another length")
    return LogicalMessage(bool(flags & 1), lsn, prefix, content)


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1


def _broken(data: bytes, what: str) -> DecodeError:
    # Bytes of rows are never shown: they can be anybody's data.
    kind = data[_XLOG_HEADER_BYTES : _XLOG_HEADER_BYTES + 1] if data[:1] == b"w" else data[:1]
    return DecodeError(
        f"The replication stream has a message that is not pgoutput protocol 1: {what} "
        f"(kind {kind!r}, {len(data)} bytes).",
        meaning="Nothing was skipped or confirmed since.",
        remedy="Check that nothing between relay and Postgres alters the stream, then start the relay again.",
    )
