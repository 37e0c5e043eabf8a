"""The decoder against bytes recorded from PostgreSQL 18.6 (tests/record_pgoutput.py), whole and damaged."""

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import DecodeError, OutboxAltered
from relay.wal.pgoutput import (
    Begin,
    Commit,
    Decoder,
    Ignored,
    Keepalive,
    LogicalMessage,
    Message,
    Relation,
)

CORPUS = [
    bytes.fromhex(line)
    for line in (Path(__file__).parents[1] / "corpus" / "pgoutput-18.6.hex").read_text().split()
]
COLUMNS = ("id", "kind", "body", "raw", "at")
ID = b"00000000-0000-0000-0000-000000000"


def decoded(*columns: str) -> list[Message]:
    decoder = Decoder("public", "box", columns or COLUMNS)
    return [decoder.decode(data) for data in CORPUS]


def rows(*columns: str) -> list[list[bytes | None]]:
    return [message for message in decoded(*columns) if isinstance(message, list)]


def relation(*columns: str, table: str = "box", oid: int = 7) -> bytes:
    body = b"R" + struct.pack(">I", oid) + b"public\0" + table.encode() + b"\0d"
    body += struct.pack(">H", len(columns))
    for column in columns:
        body += b"\0" + column.encode() + b"\0" + struct.pack(">Ii", 25, -1)
    return xlog(body)


def insert(*values: bytes | None, oid: int = 7) -> bytes:
    body = b"I" + struct.pack(">I", oid) + b"N" + struct.pack(">H", len(values))
    for value in values:
        body += b"n" if value is None else b"t" + struct.pack(">I", len(value)) + value
    return xlog(body)


def xlog(body: bytes) -> bytes:
    return b"w" + bytes(24) + body


def test_rows_are_the_mapped_columns_as_text_bytes_and_null_as_none() -> None:
    found = rows()
    assert found[0] == [ID + b"001", b"plain", b'{"a": 1}', b"\\x00ff", b"2026-11-29 12:00:00.5+00"]
    assert found[1] == [ID + b"002", b"nulls", None, None, None]
    assert found[2][1] == "ünïcödé".encode()


def test_postgres_15_sends_the_same_rows_messages_and_kinds() -> None:
    oldest = Path(__file__).parents[1] / "corpus" / "pgoutput-15.18.hex"
    decode = Decoder("public", "box", COLUMNS).decode
    found = [decode(bytes.fromhex(line)) for line in oldest.read_text().split()]
    assert [message for message in found if isinstance(message, list)] == rows()
    assert [message.kind for message in found if isinstance(message, Ignored)] == [
        message.kind for message in decoded() if isinstance(message, Ignored)
    ]
    assert [message.content for message in found if isinstance(message, LogicalMessage)] == [
        b"transactional",
        b"at once",
    ]
    assert any(isinstance(message, Relation) and message.mapped for message in found)


def test_nothing_of_a_rolled_back_transaction_is_in_the_stream() -> None:
    assert [row[1] for row in rows() if row[1] != b"many"] == [
        b"plain",
        b"nulls",
        "ünïcödé".encode(),
        b"typed",
    ]


def test_rows_stand_between_the_begin_and_commit_of_their_transaction() -> None:
    open_at: int | None = None
    for message in decoded():
        if isinstance(message, Begin):
            assert open_at is None
            open_at = message.final_lsn
        elif isinstance(message, Commit):
            assert message.commit_lsn == open_at
            assert message.end_lsn > message.commit_lsn
            open_at = None
        elif isinstance(message, list):
            assert open_at is not None


def test_commits_and_keepalives_ascend() -> None:
    ends = [message.end_lsn for message in decoded() if isinstance(message, Commit)]
    keepalives = [message.wal_end for message in decoded() if isinstance(message, Keepalive)]
    assert ends == sorted(ends)
    assert keepalives == sorted(keepalives)


def test_updates_deletes_truncates_and_types_are_named_for_counting() -> None:
    kinds = {message.kind for message in decoded() if isinstance(message, Ignored)}
    assert kinds == {"update", "delete", "truncate", "type"}


def test_logical_messages_say_whether_they_belong_to_a_transaction() -> None:
    found = [message for message in decoded() if isinstance(message, LogicalMessage)]
    assert [(m.transactional, m.prefix, m.content) for m in found] == [
        (True, "prefix", b"transactional"),
        (False, "prefix", b"at once"),
    ]


def test_columns_come_in_the_order_of_the_mapping_whatever_the_tables_is() -> None:
    assert rows("kind", "id")[0] == [b"plain", ID + b"001"]


def test_a_new_relation_message_rebuilds_the_decoder() -> None:
    decoder = Decoder("public", "box", ("a", "b"))
    decoder.decode(relation("a", "b"))
    assert decoder.decode(insert(b"1", b"2")) == [b"1", b"2"]
    decoder.decode(relation("b", "new", "a"))
    assert decoder.decode(insert(b"2", None, b"1")) == [b"1", b"2"]


def test_columns_after_the_last_mapped_one_are_not_looked_at() -> None:
    decoder = Decoder("public", "box", ("a",))
    decoder.decode(relation("a", "secret"))
    assert decoder.decode(insert(b"1", b"x" * 100)) == [b"1"]


def test_a_missing_mapped_column_stops_with_the_alter_that_mends_it() -> None:
    decoder = Decoder("public", "box", ("id", "gone"))
    with pytest.raises(
        OutboxAltered, match=re.escape('ALTER TABLE "public"."box" RENAME COLUMN … TO "gone"')
    ):
        decoder.decode(relation("id", "renamed"))


def test_a_row_of_another_table_stops_with_the_alter_that_mends_it() -> None:
    decoder = Decoder("public", "box", ("id",))
    decoder.decode(relation("id", table="other"))
    with pytest.raises(OutboxAltered, match=re.escape('DROP TABLE "public"."other"')):
        decoder.decode(insert(b"1"))


def test_a_row_of_a_relation_that_was_never_announced_is_no_protocol() -> None:
    with pytest.raises(DecodeError, match="never announced"):
        Decoder("public", "box", ("id",)).decode(insert(b"1"))


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"w",
        b"k\0",
        b"?" + bytes(30),
        xlog(b""),
        xlog(b"?"),
        xlog(b"B\0"),
        insert(b"1", b"2")[:-1],
        insert(b"1", b"2") + b"x",
        insert(b"1"),
        insert(b"1", b"2", b"3"),
        insert(b"1", b"2").replace(b"N", b"K", 1),
        insert(b"1", b"2").replace(b"t\0\0\0\x01", b"u\0\0\0\x01", 1),
        insert(b"1", b"2").replace(b"\0\0\0\x011", b"\xff\xff\xff\xff1", 1),
    ],
)
def test_hostile_bytes_are_a_decode_error(damaged: bytes) -> None:
    decoder = Decoder("public", "box", ("a", "b"))
    decoder.decode(relation("a", "b"))
    with pytest.raises(DecodeError):
        decoder.decode(damaged)


def test_an_error_never_shows_a_rows_bytes() -> None:
    decoder = Decoder("public", "box", ("a",))
    decoder.decode(relation("a"))
    with pytest.raises(DecodeError) as caught:
        decoder.decode(insert(b"secret-value") + b"x")
    assert "secret-value" not in str(caught.value)


@given(st.sampled_from(CORPUS), st.data())
def test_a_truncated_message_never_passes_for_a_whole_one(data: bytes, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data) - 1))
    decoder = _prepared()
    try:
        message = decoder.decode(data[:cut])
    except DecodeError:
        return
    # Only kinds of which nothing is read may lose their tail unnoticed.
    assert isinstance(message, Ignored)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_the_typed_errors(data: bytes) -> None:
    decoder = _prepared()
    for body in (data, xlog(data), xlog(b"I" + data), xlog(b"R" + data), xlog(b"M" + data)):
        try:
            decoder.decode(body)
        except (DecodeError, OutboxAltered):
            continue


def _prepared() -> Decoder:
    decoder = Decoder("public", "box", COLUMNS)
    for data in CORPUS:
        if isinstance(decoder.decode(data), Relation):
            break
    return decoder
