"""From a Kafka record to an `Event`, or to the reason why it can't be one. It opens nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

from confluent_kafka import Message

from consumers.runtime.consumer import Event, Position
from relay.avro.catalog import Catalog
from relay.errors import RelayError


@dataclass(frozen=True, slots=True)
class Record:
    """What Kafka delivered, untouched. `timestamp_ms` is the record's, since 1970."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int

    @property
    def bytes_held(self) -> int:
        """Bytes of memory, roughly: key, value and headers."""
        held = len(self.key or b"") + len(self.value or b"")
        return held + sum(len(name) + len(value or b"") for name, value in self.headers)

    def header(self, name: str) -> bytes | None:
        """The last header of that name, as CloudEvents and Kafka's own libraries read them."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


def from_message(message: Message) -> Record:
    """`message` must be a record and not an error."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise ValueError("a message without its place is no record")
    return Record(
        topic=topic,
        partition=partition,
        offset=offset,
        key=message.key(),
        value=message.value(),
        # Given as a list of (text, bytes), whatever its type allows in produce.
        headers=tuple(cast("list[tuple[str, bytes | None]]", message.headers() or [])),
        timestamp_ms=message.timestamp()[1],
    )


class Undecodable(Exception):
    """The record is no event that this process can read. `reason_code` is one of a few words."""

    def __init__(self, reason_code: str, reason: str) -> None:
        super().__init__(reason)
        self.reason_code = reason_code
        self.reason = reason


def event_type(record: Record) -> str | None:
    """The `ce_type` header."""
    found = record.header("ce_type")
    return None if found is None else found.decode(errors="replace")


def event_id(record: Record) -> UUID | None:
    """The `ce_id` header, where it is a UUID."""
    try:
        return UUID(_text(record, "ce_id"))
    except (Undecodable, ValueError):
        return None


def to_event(record: Record, catalog: Catalog, *, decodes: bool = True) -> Event:
    """Raises Undecodable: a header is missing or malformed, or the value is not what it says."""
    headers = {name: value for name, value in record.headers if value is not None}
    payload: Mapping[str, object] = {}
    stated_type = _text(record, "ce_type")
    schema_version = _integer(record, "schema_version", default=0)
    raw = record.value or b""
    if decodes:
        try:
            decoded = catalog.decode(raw)
        except RelayError as error:
            raise Undecodable(_CODES.get(type(error).__name__, "undecodable"), str(error)) from error
        if decoded.event_type != stated_type:
            raise Undecodable(
                "wrong_type", f"The header ce_type says {stated_type}, and the value is {decoded.event_type}."
            )
        payload, schema_version = decoded.value, decoded.schema_version
    return Event(
        event_id=_uuid(record, "ce_id"),
        type=stated_type,
        schema_version=schema_version,
        key=_key(record),
        version=_integer(record, "operation_version") if "operation_version" in headers else None,
        payload=payload,
        raw=raw,
        occurred_at=_time(record, "ce_time"),
        position=_position(record) if "relay_lsn" in headers else None,
        headers=headers,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )


_CODES = {"UnknownSchema": "unknown_schema", "DecodeError": "undecodable"}


def _text(record: Record, name: str) -> str:
    value = record.header(name)
    if value is None:
        raise Undecodable("missing_header", f"The record has no header {name}.")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Undecodable("bad_header", f"The header {name} is not UTF-8 text.") from None


def _key(record: Record) -> str:
    try:
        return (record.key or b"").decode()
    except UnicodeDecodeError:
        raise Undecodable("bad_key", "The record's key is not UTF-8 text.") from None


def _integer(record: Record, name: str, default: int | None = None) -> int:
    if default is not None and record.header(name) is None:
        return default
    text = _text(record, name)
    if not (text.isascii() and text.isdigit()):
        raise Undecodable("bad_header", f"The header {name} is not a number.")
    return int(text)


def _uuid(record: Record, name: str) -> UUID:
    try:
        return UUID(_text(record, name))
    except ValueError:
        raise Undecodable("bad_header", f"The header {name} is not a UUID.") from None


def _time(record: Record, name: str) -> datetime:
    try:
        moment = datetime.fromisoformat(_text(record, name))
    except ValueError:
        raise Undecodable("bad_header", f"The header {name} is not a time in RFC 3339.") from None
    if moment.tzinfo is None:
        raise Undecodable("bad_header", f"The header {name} is a time without its zone.")
    return moment


def _position(record: Record) -> Position:
    high, slash, low = _text(record, "relay_lsn").partition("/")
    try:
        if not slash:
            raise ValueError
        lsn = (int(high, 16) << 32) | int(low, 16)
    except ValueError:
        raise Undecodable("bad_header", "The header relay_lsn is not an LSN.") from None
    return Position(_integer(record, "relay_epoch"), lsn, _integer(record, "relay_index"))
