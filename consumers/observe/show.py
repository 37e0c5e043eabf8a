"""How observed events look: a line each, for people or for programs, and a list per operation. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from rich.console import Group, RenderableType
from rich.text import Text

from consumers.observe.history import Life
from consumers.runtime.consumer import Event
from consumers.runtime.record import Record
from consumers.terminal import plain as plain_text
from consumers.terminal import table

TRANSITIONED = "operation.transitioned"


@dataclass(frozen=True, slots=True)
class Observed:
    """A record, with the event that it is or the reason why it is none."""

    record: Record
    event: Event | None
    defect: str | None

    @property
    def operation(self) -> str:
        """The operation's id: the record's key."""
        return (self.record.key or b"").decode(errors="replace")

    @property
    def place(self) -> str:
        return f"{self.record.topic}[{self.record.partition}]@{self.record.offset}"


def plain(value: Any) -> Any:
    """For `json.dumps(default=…)`: ids, times and decimals as text."""
    match value:
        case UUID() | Decimal():
            return str(value)
        case datetime():
            return value.isoformat()
        case bytes():
            return value.hex()
        case _:
            raise TypeError(f"{type(value).__name__} has no form in JSON")


def event_document(observed: Observed) -> dict[str, Any]:
    """One line of ``relay observe --json``."""
    record, event = observed.record, observed.event
    document: dict[str, Any] = {
        "record": "event",
        "operation_id": observed.operation,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
    }
    if event is None:
        return {**document, "defect": observed.defect}
    position = event.position
    return {
        **document,
        "event_id": event.event_id,
        "event_type": event.type,
        "schema_version": event.schema_version,
        "operation_version": event.version,
        "occurred_at": event.occurred_at,
        "epoch": None if position is None else position.epoch,
        "lsn": None if position is None else f"{position.lsn >> 32:X}/{position.lsn & 0xFFFFFFFF:X}",
        "index": None if position is None else position.index,
        "payload": event.payload,
    }


def life_document(life: Life) -> dict[str, Any]:
    """The last lines of ``relay observe --json``: one for each operation whose transitions were seen."""
    return {
        "record": "operation",
        "operation_id": life.operation_id,
        "owner_id": life.owner_id,
        "kind": life.kind,
        "phase": life.phase,
        "versions": sorted(life.transitions),
        "missing_versions": life.missing_versions(),
        "findings": [*life.breaks(), *life.contradictions],
    }


def _moment(event: Event) -> str:
    return event.occurred_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _what(event: Event) -> str:
    if event.type != TRANSITIONED:
        return event.type
    return f"{event.payload['from_phase'] or '(new)'} → {event.payload['to_phase']}"


def _why(event: Event) -> str:
    payload = event.payload
    if event.type != TRANSITIONED:
        return f"dispatch {payload['dispatch_no']}" if "dispatch_no" in payload else ""
    told = [str(payload[name]) for name in ("cause", "reason") if payload[name]]
    told += [f"job {payload['job_id']}"] if payload["job_id"] else []
    return ", ".join(dict.fromkeys(told))


def event_line(observed: Observed) -> str:
    """One line of ``relay observe --follow``."""
    event = observed.event
    if event is None:
        return f"{observed.place}  {observed.operation}  not readable: {observed.defect}"
    version = "-" if event.version is None else event.version
    who = event.payload["actor"] if event.type == TRANSITIONED else ""
    return "  ".join(
        filter(None, [_moment(event), observed.operation, f"v{version}", _what(event), _why(event), who])
    )


def life_table(operation: str, life: Life | None, events: Iterable[Observed]) -> Group:
    """Everything seen of one operation, by version and then by time."""
    title = f"operation {operation}"
    if life is not None:
        title += f"  {life.kind} of {life.owner_id}: {life.phase}"
    rows: list[tuple[str, ...]] = []
    for observed in sorted(events, key=_place_in_life):
        event = observed.event
        if event is None:
            rows.append(("-", "-", "not readable", observed.defect or "", "", observed.place))
            continue
        version = "-" if event.version is None else str(event.version)
        who = str(event.payload["actor"]) if event.type == TRANSITIONED else ""
        rows.append((version, _moment(event), _what(event), _why(event), who, observed.place))
    parts: list[RenderableType] = [
        Text(f"\n{title}", style="bold"),
        table(("v", "when (UTC)", "what", "why", "who", "where"), rows),
    ]
    if life is not None:
        missing = ", ".join(map(str, life.missing_versions()))
        notes = [f"versions not seen: {missing}"] if missing else []
        notes += [*life.breaks(), *life.contradictions]
        if notes:
            parts.append(plain_text("; ".join(notes)))
    return Group(*parts)


def _place_in_life(observed: Observed) -> tuple[int, bool, int, int]:
    event = observed.event
    if event is None:
        return (-1, False, observed.record.partition, observed.record.offset)
    # A transition comes before the request that was written with it.
    return (event.version or 0, event.type != TRANSITIONED, observed.record.partition, observed.record.offset)
