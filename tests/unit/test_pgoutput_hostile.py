"""Recorded streams, damaged in every way that a wire or a stranger can: a typed error, never a wrong row."""

import resource
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_oracle import NotProtocol, Oracle
from relay.errors import DecodeError, OutboxAltered
from relay.wal.pgoutput import Decoder, Keepalive

FOLDER: Final = Path(__file__).parents[1] / "corpus"
CORPORA: Final = {
    path.stem: [bytes.fromhex(line) for line in path.read_text(encoding="ascii").split()]
    for path in sorted(FOLDER.glob("*.hex"))
}
MAPPINGS: Final = (
    ("id", "kind", "body", "raw", "at"),
    ("kind", "id"),
    ("body",),
)
# Lengths and counts that break arithmetic: nothing, one, the signs' edges, all ones.
LENGTHS: Final = (0, 1, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
FEW: Final = settings(max_examples=150, print_blob=True, deadline=None)
MANY: Final = settings(max_examples=2_000, print_blob=True, deadline=None)


def judge(stream: Sequence[bytes], columns: tuple[str, ...]) -> int:
    """Decode `stream` beside the oracle; returns how many rows both saw. An error ends it."""
    decoder = Decoder("public", "box", columns)
    oracle = Oracle("public", "box", columns)
    rows = 0
    for data in stream:
        try:
            message = decoder.decode(data)
        except (DecodeError, OutboxAltered):
            return rows
        if isinstance(message, list):
            assert message == oracle.row(data)
            rows += 1
        else:
            try:
                oracle.note(data)
            except NotProtocol as why:
                pytest.fail(f"the decoder took for {message!r} what is none: {why}")
    return rows


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """One message with one kind of harm."""
    at = draw(st.integers(0, len(data) - 1))
    kind = draw(st.sampled_from(["cut", "flip", "replace", "length", "insert", "remove", "double"]))
    if kind == "cut":
        return data[:at]
    if kind == "flip":
        return data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
    if kind == "replace":
        return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    if kind == "length":
        return data[:at] + struct.pack(">I", draw(st.sampled_from(LENGTHS))) + data[at + 4 :]
    if kind == "insert":
        return data[:at] + draw(st.binary(min_size=1, max_size=9)) + data[at:]
    if kind == "remove":
        return data[:at] + data[at + draw(st.integers(1, 9)) :]
    return data + data[draw(st.integers(0, len(data) - 1)) :]


@pytest.mark.parametrize("columns", MAPPINGS)
@pytest.mark.parametrize("corpus", CORPORA)
def test_a_recorded_stream_is_what_the_oracle_says(corpus: str, columns: tuple[str, ...]) -> None:
    assert judge(CORPORA[corpus], columns) >= 8


@pytest.mark.parametrize("corpus", CORPORA)
@MANY
@given(st.data())
def test_a_damaged_message_never_becomes_a_wrong_row(corpus: str, drawn: st.DataObject) -> None:
    stream = list(CORPORA[corpus])
    at = drawn.draw(st.integers(0, len(stream) - 1), label="which message")
    stream[at] = drawn.draw(damaged(stream[at]), label="damaged")
    judge(stream, drawn.draw(st.sampled_from(MAPPINGS)))


@pytest.mark.parametrize("corpus", CORPORA)
@FEW
@given(st.data())
def test_messages_in_another_order_never_become_a_wrong_row(corpus: str, drawn: st.DataObject) -> None:
    stream = drawn.draw(st.permutations(CORPORA[corpus]))
    judge(stream, drawn.draw(st.sampled_from(MAPPINGS)))


@pytest.mark.parametrize("corpus", CORPORA)
@FEW
@given(st.data())
def test_two_damaged_streams_in_one_never_become_a_wrong_row(corpus: str, drawn: st.DataObject) -> None:
    stream: list[bytes] = []
    for data in CORPORA[corpus]:
        choice = drawn.draw(st.integers(0, 19))
        if choice == 0:
            stream.append(drawn.draw(damaged(data)))
        elif choice != 1:  # 1: lost
            stream += [data] * (2 if choice == 2 else 1)
    judge(stream, drawn.draw(st.sampled_from(MAPPINGS)))


def _relation(names: Sequence[bytes], count: int | None = None) -> bytes:
    body = b"R" + struct.pack(">I", 7) + b"public\0box\0d" + struct.pack(">H", count or len(names))
    return b"w" + bytes(24) + body + b"".join(b"\0" + name + b"\0" + bytes(8) for name in names)


@pytest.mark.parametrize(
    "data",
    [
        _relation([b"id", b"id"]),
        _relation([b"\xff\xfe"]),
        _relation([b"id"], count=65535),
        b"w" + bytes(24) + b"R" + bytes(4) + b"public",
        b"k" + bytes(16),
        b"k" + bytes(40),
        b"w" + bytes(24) + b"M\x01" + bytes(8) + b"prefix\0" + b"\xff\xff\xff\xff" + b"short",
        b"w" + bytes(24) + b"M\x01" + bytes(8) + b"\xff\0" + bytes(4),
    ],
)
def test_what_can_not_be_read_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        Decoder("public", "box", ("id",)).decode(data)


def test_a_relation_of_all_columns_there_can_be_is_read() -> None:
    names = [b"c%d" % number for number in range(65535)]
    decoder = Decoder("public", "box", ("c0", "c65534"))
    decoder.decode(_relation(names))
    row = b"w" + bytes(24) + b"I" + struct.pack(">IcH", 7, b"N", 65535) + b"n" * 65534 + b"t\0\0\0\x01x"
    assert decoder.decode(row) == [None, b"x"]


def test_a_length_of_four_gigabytes_allocates_nothing() -> None:
    decoder = Decoder("public", "box", ("id",))
    decoder.decode(_relation([b"id"]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for length in LENGTHS[4:]:
        data = b"w" + bytes(24) + b"I" + struct.pack(">IcHcI", 7, b"N", 1, b"t", length) + b"short"
        with pytest.raises(DecodeError):
            decoder.decode(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


def test_a_keepalive_is_read_to_its_last_byte() -> None:
    assert Decoder("public", "box", ("id",)).decode(b"k" + bytes(7) + b"\x05" + bytes(8) + b"\x01") == (
        Keepalive(5, reply_requested=True)
    )
