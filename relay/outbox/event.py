"""One outbox row to one Kafka record, or to the reason why it can't be one. It never does I/O.

A record is a plain tuple and a row stays a list of bytes: at tens of thousands of rows a second, what is
built per row decides the speed. What doesn't change within a transaction or a route is built once for it.
"""

import binascii
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from relay.errors import PayloadMismatch, UnknownSchema
from relay.outbox.mapping import OutboxMapping
from relay.outbox.parts import parts_of, storable
from relay.wal.lsn import format_lsn
from relay.wal.pgoutput import Begin, Relation, Row

Header = tuple[str, bytes]
Record = tuple[str, bytes | None, bytes | None, list[Header], int]
"""Topic, value, key, headers, and the commit's time in milliseconds since 1970."""

BYTEA_OID: Final = 17  # pg_type.oid of bytea, fixed (pg_type.dat)

# Kafka's record format (its documentation, 5.3): a batch of one costs 61 bytes, a record at most 26 beside
# its key, value and headers, a header at most 10 beside its name and value.
_BATCH_BYTES: Final = 61
_RECORD_BYTES: Final = 26
_HEADER_BYTES: Final = 10
_ROOM_FOR_HEADERS_BYTES: Final = 4096  # only values nearer to the limit than this are measured exactly

# W3C Trace Context: a traceparent has 55 characters; later versions may append to it.
_TRACEPARENT_BYTES: Final = 256
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_UTC_TIME: Final = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00")

HISTORY: Final = "operation.transitioned"
"""The event type that tells an operation's whole life."""

DEBEZIUM_TOPIC: Final = "outbox.event."

REPUBLISHED: Final[Header] = ("relay_origin", b"republish")

Encode = Callable[[bytes], bytes]


class Schemas(Protocol):
    """What is needed of `relay.avro.catalog.Catalog`."""

    def encoder(self, event_type: str, schema_version: int) -> Encode: ...
    def latest(self, event_type: str) -> int: ...
    def event_types(self) -> tuple[str, ...]: ...


class BadEvent(Exception):
    """This row can't become a record. `code` is for programs, `reason` for the person who looks at it."""

    def __init__(self, code: str, reason: str, topic: str | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.topic = topic


@dataclass(frozen=True, slots=True)
class ParkedEvent:
    """A row of `relay.parked_event`, and the dead-letter record that follows it."""

    event_id: uuid.UUID
    event_type: str
    schema_version: int | None
    operation_key: str
    commit_lsn: int
    index: int
    epoch: int
    reason_code: str
    reason: str
    topic: str | None
    payload: str | None
    payload_bytes: int
    record: Record
    parts: Mapping[str, str]
    """What a republished record needs beside its payload: the row's other columns, by our names."""


class _Route(NamedTuple):
    """What all rows of one type and version share."""

    topic: str
    encode: Encode | None
    headers: list[Header]
    limit_bytes: int


class EventEncoder:
    """Turns rows into records. Call `relation` when one is announced, `begin` at each transaction.

    `limit_bytes` gives a topic's `max.message.bytes`; `new_topics` collects topics met for the first time,
    which must exist before their records are produced. `origin` marks what isn't from the stream.
    """

    def __init__(
        self,
        mapping: OutboxMapping,
        schemas: Schemas,
        *,
        relay_id: uuid.UUID,
        epoch: int,
        topic_prefix: str,
        one_topic: str | None,
        limit_bytes: Callable[[str], int],
        origin: str | None = None,
    ) -> None:
        self._mapping = mapping
        self._schemas = schemas
        self._relay_id = relay_id
        self._epoch = epoch
        self._prefix = topic_prefix
        self._one_topic = one_topic
        self._limit_bytes = limit_bytes
        self._dead_letters = dead_letter_topic(topic_prefix)
        self.new_topics: set[str] = set()
        self._met: set[str] = set()
        # A part of an event that the table has no column for is read from the None appended to each row.
        columns = list(mapping.columns.mapped())
        at = {name: columns.index(name) if name in columns else len(columns) for name in _PARTS}
        self._event_id, self._event_type = at["event_id"], at["event_type"]
        self._schema_version, self._route_by = at["schema_version"], at["route"]
        self._key, self._version, self._payload = at["operation_id"], at["version"], at["payload"]
        self._trace, self._occurred_at = at["headers"], at["occurred_at"]
        self._their_id = mapping.columns.route is not None  # Debezium's consumers look for `id`
        self._unchanged = mapping.payload == "unchanged"
        self._from_hex = False
        self._routes: dict[tuple[bytes | None, ...], _Route] = {}
        self._always: list[Header] = [
            ("ce_source", source_of(relay_id).encode()),
            ("ce_specversion", b"1.0"),
            ("relay_epoch", str(epoch).encode()),
        ]
        if origin is not None:
            self._always.append(("relay_origin", origin.encode()))
        self._of_transaction: list[Header] = self._always
        self._commit_lsn = 0
        self._committed_at_us = 0
        self._committed_at: bytes | None = None
        self._timestamp_ms = 0

    def relation(self, relation: Relation) -> None:
        """The outbox was announced: a bytea payload travels as its bytes, anything else as its text."""
        payload = self._mapping.columns.payload
        self._from_hex = any(c.name == payload and c.type_oid == BYTEA_OID for c in relation.columns)

    def forget_routes(self) -> None:
        """Topics changed their limits: ask again."""
        self._routes.clear()

    def begin(self, begin: Begin) -> None:
        self._commit_lsn = begin.final_lsn
        self._committed_at_us = begin.committed_at_us
        self._committed_at = None
        self._timestamp_ms = begin.committed_at_us // 1000
        self._of_transaction = [*self._always, ("relay_lsn", format_lsn(begin.final_lsn).encode())]

    def record(self, row: Row, index: int) -> Record:
        """The record of the transaction's row number `index` (from 0). Raises BadEvent."""
        row.append(None)
        event_id = row[self._event_id]
        if event_id is None:
            raise BadEvent("no_event_id", "the row has no event id")
        kind = (row[self._event_type], row[self._schema_version], row[self._route_by])
        route = self._routes.get(kind) or self._route(*kind)
        payload = row[self._payload]
        value = payload
        if route.encode is not None:
            if payload is None:
                raise BadEvent("no_payload", "the row has no payload", route.topic)
            try:
                value = route.encode(payload)
            except PayloadMismatch as error:
                raise BadEvent("payload_mismatch", error.message, route.topic) from None
        elif self._from_hex and payload is not None:
            value = binascii.unhexlify(memoryview(payload)[2:])
        key = row[self._key]
        occurred_at = row[self._occurred_at]
        headers = [
            ("ce_id", event_id),
            ("ce_time", self._commit_time() if occurred_at is None else self._time(occurred_at)),
            ("relay_index", b"%d" % index),
            *self._of_transaction,
            *route.headers,
        ]
        version = row[self._version]
        if version is not None:
            headers.append(("operation_version", version))
        trace = row[self._trace]
        if trace is not None and trace != b"{}" and (parent := _traceparent(trace)):
            headers.append(("traceparent", parent))
        if self._their_id:
            headers.append(("id", event_id))
        record = (route.topic, value, key, headers, self._timestamp_ms)
        if (
            len(event_id) + len(value or b"") + len(key or b"") > route.limit_bytes - _ROOM_FOR_HEADERS_BYTES
            and (size := wire_bytes(record)) > route.limit_bytes
        ):
            raise BadEvent(
                "too_large",
                f"the record has {size} bytes, and {route.topic} takes {route.limit_bytes}",
                route.topic,
            )
        return record

    def again(self, row: Row, index: int, *, from_hex: bool) -> Record:
        """`record` for a row that was parked: of any relation, at a position of its own. Raises BadEvent."""
        announced, self._from_hex = self._from_hex, from_hex
        try:
            record = self.record(row, index)
        finally:
            self._from_hex = announced
        record[3].append(REPUBLISHED)
        return record

    def parked(self, row: Row, index: int, bad: BadEvent) -> ParkedEvent:
        """What is kept of a row that can't be sent (`record` has seen it first)."""
        raw_id = row[self._event_id]
        position = f"{format_lsn(self._commit_lsn)}/{index}"
        event_id = event_uuid(raw_id, self._relay_id, position)
        payload = row[self._payload] or b""
        event_type = (row[self._event_type] or b"").decode()
        schema_version = _as_int(row[self._schema_version])
        headers = [
            ("ce_id", str(event_id).encode() if raw_id is None else raw_id),
            ("ce_type", event_type.encode()),
            ("ce_time", self._commit_time()),
            *self._of_transaction,
            ("relay_index", b"%d" % index),
            ("relay_reason_code", bad.code.encode()),
            ("relay_reason", bad.reason.encode()),
            ("relay_payload_bytes", b"%d" % len(payload)),
        ]
        if schema_version is not None:
            headers.append(("schema_version", b"%d" % schema_version))
        if bad.topic is not None:
            headers.append(("relay_topic", bad.topic.encode()))
        key = row[self._key]
        dead: Record = (self._dead_letters, payload, key, headers, self._timestamp_ms)
        kept = bad.code != "too_large" and wire_bytes(dead) <= self._limit_bytes(self._dead_letters)
        if not kept:
            dead = (self._dead_letters, None, key, headers, self._timestamp_ms)
        return ParkedEvent(
            event_id=event_id,
            event_type=event_type,
            schema_version=schema_version,
            operation_key=(key or b"").decode(),
            commit_lsn=self._commit_lsn,
            index=index,
            epoch=self._epoch,
            reason_code=bad.code,
            reason=bad.reason,
            topic=bad.topic,
            payload=storable(payload) if kept else None,
            payload_bytes=len(payload),
            record=dead,
            parts=parts_of(self._mapping, row, from_hex=self._from_hex),
        )

    def _route(self, event_type: bytes | None, version: bytes | None, route_by: bytes | None) -> _Route:
        if event_type is None:
            raise BadEvent("no_event_type", "the row has no event type")
        name = event_type.decode()
        route = (route_by or b"").decode()
        topic = topic_of(self._mapping, self._prefix, self._one_topic, event_type=name, route=route)
        if not _TOPIC_NAME.fullmatch(topic):
            raise BadEvent("topic_name", f"{topic[:300]!r} can't be a topic's name")
        headers: list[Header] = [("ce_type", event_type)]
        encode: Encode | None = None
        if not self._unchanged:
            try:
                number = self._schemas.latest(name) if version is None else int(version)
                encode = self._schemas.encoder(name, number)
            except UnknownSchema as error:
                raise BadEvent("unknown_schema", error.message, topic) from None
            except ValueError:
                raise BadEvent("schema_version", "the schema version is not a number", topic) from None
            headers.append(("schema_version", b"%d" % number))
        if topic not in self._met:
            self._met.add(topic)
            self.new_topics.add(topic)
        made = _Route(topic, encode, headers, self._limit_bytes(topic))
        self._routes[event_type, version, route_by] = made
        return made

    def _time(self, text: bytes) -> bytes:
        """RFC 3339 of what Postgres wrote; the stream's session has DateStyle ISO and TimeZone UTC."""
        if text[-3:] == b"+00" and text[10:11] == b" ":
            return text[:10] + b"T" + text[11:-3] + b"Z"
        if _UTC_TIME.fullmatch(text + b"+00"):  # timestamp without time zone
            return text[:10] + b"T" + text[11:] + b"Z"
        return self._commit_time()  # infinity, or a year that RFC 3339 has no form for

    def _commit_time(self) -> bytes:
        # Written once a transaction: it was a quarter of the time that each of its rows took.
        if self._committed_at is None:
            at = datetime.fromtimestamp(self._committed_at_us // 1_000_000, UTC)
            self._committed_at = f"{at:%Y-%m-%dT%H:%M:%S}.{self._committed_at_us % 1_000_000:06d}Z".encode()
        return self._committed_at


_PARTS: Final = (
    "event_id",
    "event_type",
    "schema_version",
    "route",
    "operation_id",
    "version",
    "payload",
    "headers",
    "occurred_at",
)


def topic_of(
    mapping: OutboxMapping, prefix: str, one_topic: str | None, *, event_type: str, route: str
) -> str:
    """Where an event goes: one topic for all, Debezium's by its route, or one for each type."""
    if one_topic is not None:
        return one_topic
    if mapping.columns.route is not None:
        return DEBEZIUM_TOPIC + route
    return f"{prefix}.{event_type}"


def topics_from_start(
    mapping: OutboxMapping, schemas: Schemas, topic_prefix: str, one_topic: str | None
) -> list[str]:
    """The topics that are known before the first event; others are met on the way."""
    if one_topic is not None:
        return [one_topic]
    if mapping.columns.route is not None:
        return []
    return [f"{topic_prefix}.{event_type}" for event_type in schemas.event_types()]


def kept_topics(prefix: str, one_topic: str | None) -> list[str]:
    """Topics that are made to keep every record: the relay's dead letters, and the history that operations
    are rebuilt and reconciled from. A topic that everything shares is its owner's to decide."""
    return [dead_letter_topic(prefix), *([] if one_topic is not None else [f"{prefix}.{HISTORY}"])]


def source_of(relay_id: uuid.UUID) -> str:
    """The `ce_source` of a relay's records."""
    return f"/outbox-relay/{relay_id}"


def dead_letter_topic(prefix: str) -> str:
    """Where the relay's own bad events go."""
    return f"{prefix}.relay-dlq"


def wire_bytes(record: Record) -> int:
    """The most bytes that the record takes alone in a batch, which is what `max.message.bytes` bounds."""
    _, value, key, headers, _ = record
    of_headers = sum(len(name) + len(text) + _HEADER_BYTES for name, text in headers)
    return _BATCH_BYTES + _RECORD_BYTES + len(value or b"") + len(key or b"") + of_headers


def _traceparent(headers: bytes) -> bytes | None:
    try:
        parsed: Mapping[str, Any] = msgspec.json.decode(headers, type=dict[str, Any])
    except msgspec.DecodeError:
        return None  # a header for tracing is not worth an event
    parent = parsed.get("traceparent")
    if not isinstance(parent, str) or not 0 < len(parent.encode()) <= _TRACEPARENT_BYTES:
        return None
    return parent.encode()


def event_uuid(raw: bytes | None, relay_id: uuid.UUID, position: str) -> uuid.UUID:
    """The event's id; derived, and the same each time, where the table's isn't a uuid."""
    if raw is None:
        return uuid.uuid5(relay_id, position)
    try:
        return uuid.UUID(raw.decode())
    except ValueError:
        return uuid.uuid5(relay_id, raw.decode())


def _as_int(raw: bytes | None) -> int | None:
    return int(raw) if raw is not None and raw.isdigit() else None
