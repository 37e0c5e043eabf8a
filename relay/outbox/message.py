"""A logical message to the row that it stands for: `RELAY_OUTBOX_SOURCE = message`. It never does I/O.

The document that `relay.emit_event` writes: `event_id` (a UUID), `event_type`, `operation_id` (the key) and
`payload`; and, each of them optional, `schema_version`, `version`, `headers` (an object) and `occurred_at`
(RFC 3339).
The payload's bytes are carried to the encoder as they stand, so that no digit of a number is lost.
"""

import uuid
from datetime import UTC, datetime
from typing import Final

import msgspec

from relay.outbox.event import BadEvent
from relay.outbox.mapping import OutboxMapping
from relay.wal.pgoutput import Row

PREFIX: Final = "outbox"
"""Of the messages that are events. Only transactional ones count: others outlive a rollback."""

MALFORMED: Final = "malformed_message"


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    event_id: uuid.UUID
    event_type: str
    operation_id: str
    payload: msgspec.Raw
    schema_version: int | None = None
    version: int | None = None
    headers: msgspec.Raw = msgspec.Raw(b"{}")
    occurred_at: str | None = None


_decoder: Final = msgspec.json.Decoder(_Document)


def row_of(content: bytes, mapping: OutboxMapping) -> Row:
    """The mapped columns, in their order. Raises BadEvent for a message that is no event."""
    try:
        document = _decoder.decode(content)
        occurred_at = None if document.occurred_at is None else _moment(document.occurred_at)
        msgspec.json.decode(document.headers, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise BadEvent(MALFORMED, f"the message is no event: {error}") from None
    texts = {
        "event_id": str(document.event_id),
        "event_type": document.event_type,
        "schema_version": None if document.schema_version is None else str(document.schema_version),
        "operation_id": document.operation_id,
        "version": None if document.version is None else str(document.version),
        "occurred_at": occurred_at,
    }
    if any(text is not None and "\0" in text for text in texts.values()):
        raise BadEvent(
            MALFORMED, "the message is no event: a field has the character NUL, which Postgres has not"
        )
    try:
        values = {name: None if text is None else text.encode() for name, text in texts.items()}
    except UnicodeEncodeError:
        raise BadEvent(MALFORMED, "the message is no event: a field has half a surrogate pair") from None
    values |= {"payload": bytes(document.payload), "headers": bytes(document.headers)}
    return [values[name] for name in mapping.columns.mapped()]


def unreadable(content: bytes, mapping: OutboxMapping) -> Row:
    """What stands for a message that is no event: its content in the payload's place, and nothing else."""
    return [content if name == "payload" else None for name in mapping.columns.mapped()]


def _moment(text: str) -> str:
    """As the stream writes a timestamptz. Raises ValueError for a time without its offset."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("occurred_at has no offset from UTC")
    at = at.astimezone(UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond:06d}+00"
