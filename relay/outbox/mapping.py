"""Which column of the outbox is what: the presets `native` and `debezium`, or a mapping of your own.

It only knows names. It never reads a value and never opens a connection.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, Protocol

from relay.errors import UsageError

NATIVE_OUTBOX: Final = "relay.outbox"
"""The table that the migrations make."""

_IDENTIFIER: Final = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\s".]+))\s*(?:\.|$)')
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")
_IDENTIFIER_BYTES: Final = 63  # NAMEDATALEN - 1; Postgres would cut a longer name silently


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The column that holds each part of an event; None where the table has no such column."""

    event_id: str
    seq: str | None = None
    """Ascends in commit order within an operation; with it a skipped row is noticed."""
    event_type: str
    schema_version: str | None = None
    route: str | None = None
    """Debezium's `aggregatetype`: the topic is ``outbox.event.<value>``."""
    operation_id: str
    """The Kafka key."""
    version: str | None = None
    payload: str
    headers: str | None = None
    occurred_at: str | None = None

    def mapped(self) -> dict[str, str]:
        """Our name to the table's, in the order in which the decoder is to hand them over."""
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {ours: theirs for ours, theirs in pairs if theirs is not None}


@dataclass(frozen=True, slots=True)
class OutboxMapping:
    """What `RELAY_OUTBOX_TABLE`, `RELAY_OUTBOX_COLUMNS` and `RELAY_OUTBOX_ROWS` say together."""

    schema: str
    table: str
    columns: Columns
    payload: Literal["avro", "unchanged"]
    """`avro`: the JSON is encoded by its schema; `unchanged`: bytea as its bytes, all else as its text."""
    rows_kept: bool
    """Whether rows stay in the table, so that they can be counted against the stream."""
    source: Literal["table", "message"] = "table"
    """`message`: events come as logical messages, and there is no table at all."""

    @property
    def name(self) -> str:
        """As a person writes it: quoted only where that is needed. What `source_identity` keeps."""
        if self.source == "message":
            return MESSAGES
        parts = (self.schema, self.table)
        return ".".join(
            part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in parts
        )

    @property
    def qualified_name(self) -> str:
        """Quoted, for SQL."""
        return ".".join('"' + name.replace('"', '""') + '"' for name in (self.schema, self.table))

    @property
    def lacks(self) -> str | None:
        """What can't exist with such an outbox, for whoever starts it; None when nothing is missing."""
        if self.source == "message":
            return f"events come as logical messages: no table keeps them, so {_NOT_WITHOUT_ROWS}"
        if not self.rows_kept:
            return f"rows don't stay in {self.name} (outbox_rows = deleted), so {_NOT_WITHOUT_ROWS}"
        if self.columns.seq is None:
            return f"{self.name} has no ordering column (seq): after a repair, order isn't promised"
        return None


MESSAGES: Final = "message:outbox"
"""What stands for the table's name where events come as logical messages with the prefix `outbox`."""

_NOT_WITHOUT_ROWS: Final = "repair, backfill and audit don't exist here; a lost slot loses events"

NATIVE: Final = Columns(
    event_id="event_id",
    seq="seq",
    event_type="event_type",
    schema_version="schema_version",
    operation_id="operation_id",
    version="version",
    payload="payload",
    headers="headers",
    occurred_at="occurred_at",
)

DEBEZIUM: Final = Columns(
    event_id="id", event_type="type", route="aggregatetype", operation_id="aggregateid", payload="payload"
)
"""The table of Debezium's outbox event router (its documentation, "Basic outbox table")."""


class OutboxSettings(Protocol):
    """What is needed of `relay.settings.Settings`."""

    @property
    def outbox_table(self) -> str: ...
    @property
    def outbox_columns(self) -> str: ...
    @property
    def outbox_rows(self) -> Literal["kept", "deleted"] | None: ...
    @property
    def outbox_source(self) -> Literal["table", "message"]: ...


def parse(
    table: str,
    columns: str,
    rows: Literal["kept", "deleted"] | None = None,
    source: Literal["table", "message"] = "table",
) -> OutboxMapping:
    """Read the settings. Raises UsageError with one sentence that names the setting.

    With `message` only `columns` could matter, and a message has its own names: it must be `native`.
    """
    if source == "message":
        if columns != "native":
            raise UsageError("outbox_source = message has no columns to map: leave outbox_columns = native.")
        return OutboxMapping("", "", replace(NATIVE, seq=None), "avro", rows_kept=False, source=source)
    schema, name = parse_table(table)
    if columns == "debezium":
        return OutboxMapping(schema, name, DEBEZIUM, "unchanged", rows == "kept")
    mapped = NATIVE if columns == "native" else _custom(columns)
    return OutboxMapping(schema, name, mapped, "avro", rows != "deleted")


def of_settings(settings: OutboxSettings) -> OutboxMapping:
    """The outbox that `settings` name. Raises UsageError as `parse` does."""
    return parse(settings.outbox_table, settings.outbox_columns, settings.outbox_rows, settings.outbox_source)


def parse_table(text: str) -> tuple[str, str]:
    """``schema.table`` as SQL reads it: unquoted parts fold to lower case, quoted ones are taken as they are.

    A name without a schema is in `public`. Raises UsageError.
    """
    parts: list[str] = []
    at = 0
    while at < len(text):
        found = _IDENTIFIER.match(text, at)
        if found is None or (found.end() == len(text) and text.endswith(".")):
            raise UsageError(f"The setting outbox_table is wrong: {text!r} is not schema.table.")
        parts.append(found[1].replace('""', '"') if found[1] else found[2].lower())
        at = found.end()
    if not 1 <= len(parts) <= 2 or any(len(part.encode()) > _IDENTIFIER_BYTES for part in parts):
        raise UsageError(f"The setting outbox_table is wrong: {text!r} is not schema.table.")
    return ("public", parts[0]) if len(parts) == 1 else (parts[0], parts[1])


def _custom(text: str) -> Columns:
    ours = [field.name for field in fields(Columns) if field.name != "route"]
    try:
        document = json.loads(text)
    except ValueError:
        raise UsageError(
            f"The setting outbox_columns is wrong: {text!r} is neither native nor debezium nor a JSON object."
        ) from None
    if not isinstance(document, Mapping):
        raise UsageError(f"The setting outbox_columns is wrong: {text!r} is not a JSON object.")
    for name, column in document.items():
        if name not in ours:
            raise UsageError(
                f"The setting outbox_columns names {name!r}, which is not a part of an event.",
                remedy=f"Its parts are {', '.join(ours)}.",
            )
        if not isinstance(column, str) or not 0 < len(column.encode()) <= _IDENTIFIER_BYTES:
            raise UsageError(f"The setting outbox_columns gives {name} no column name.")
    missing = [name for name in ("event_id", "event_type", "operation_id", "payload") if name not in document]
    if missing:
        raise UsageError(f"The setting outbox_columns says no column for {', '.join(missing)}.")
    if len(set(document.values())) != len(document):
        raise UsageError("The setting outbox_columns gives one column two meanings.")
    return Columns(**document)
