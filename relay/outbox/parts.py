"""A parked event's row, taken apart for `relay.parked_event` and put together again. It never does I/O.

The payload stands in a column of its own, where a correction can stand beside it; everything else of the row
is kept as text, by our names, so that a republished record is the one that the row would have been.
"""

from collections.abc import Mapping
from typing import Final

from relay.outbox.mapping import OutboxMapping
from relay.wal.pgoutput import Row

_FORM: Final = "payload_form"
_HEX: Final = "hex"
_APART: Final = frozenset({"seq", "payload"})


def parts_of(mapping: OutboxMapping, row: Row, *, from_hex: bool) -> dict[str, str]:
    """Every mapped column but seq and payload, NULLs left out; `from_hex` says that the payload is bytea."""
    named = zip(mapping.columns.mapped(), row, strict=False)  # the encoder has appended its None
    parts = {
        name: text
        for name, value in named
        if name not in _APART and value is not None and (text := storable(value)) is not None
    }
    return {**parts, _FORM: _HEX} if from_hex else parts


def row_of(mapping: OutboxMapping, parts: Mapping[str, str], payload: str | None) -> Row:
    """The row as the stream would hand it over."""
    values = {**parts, "payload": payload}
    return [
        None if (value := values.get(name)) is None else value.encode() for name in mapping.columns.mapped()
    ]


def is_hex(parts: Mapping[str, str]) -> bool:
    """Whether the payload is a bytea's text: `\\x` and hexadecimal digits."""
    return parts.get(_FORM) == _HEX


def storable(value: bytes) -> str | None:
    """As Postgres's text takes it: UTF-8 without NUL; None for anything else, which a message may hold."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
