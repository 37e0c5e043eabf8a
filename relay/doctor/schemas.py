"""Checks of the Avro schemas: each event has one, and the newest reads what older ones wrote. Pure."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from relay.avro.catalog import EventSchema
from relay.avro.compatibility import why_unreadable
from relay.doctor.finding import Finding, error, ok, warning
from relay.errors import UnknownSchema


class Schemas(Protocol):
    """What is needed of `relay.avro.catalog.Catalog`."""

    def event_types(self) -> tuple[str, ...]: ...
    def latest(self, event_type: str) -> int: ...
    def schema(self, event_type: str, schema_version: int) -> EventSchema: ...


def check_compatible(schemas: Schemas) -> Iterator[Finding]:
    """The newest version of each type reads every older one (BACKWARD, transitive)."""
    broken = False
    for event_type in schemas.event_types():
        newest = schemas.latest(event_type)
        reader = schemas.schema(event_type, newest)
        for version in range(1, newest):
            why = why_unreadable(reader.parsed, schemas.schema(event_type, version).parsed)
            if why is not None:
                broken = True
                yield error(
                    "schemas.compatible",
                    f"{event_type} v{newest} can't read what v{version} wrote: {why}.",
                    "Consumers read with the newest version: they park every event of the older one.",
                    f"Correct {reader.path} before it is released: a new field needs a default.",
                )
    if not broken:
        count = len(schemas.event_types())
        yield ok("schemas.compatible", f"{count} event types, each readable by its newest version")


def check_known(schemas: Schemas, event_types: Iterable[tuple[str, int | None]]) -> Finding:
    """Types and versions that stand in the outbox."""
    unknown = []
    seen = 0
    for event_type, version in sorted(event_types, key=str):
        seen += 1
        try:
            schemas.schema(event_type, schemas.latest(event_type) if version is None else version)
        except UnknownSchema as missing:
            unknown.append(missing.message.removesuffix("."))
    if not unknown:
        return ok("schemas.known", f"{seen} event types and versions are in the outbox, all known")
    return warning(
        "schemas.known",
        f"The outbox has events that no schema is known for: {'; '.join(unknown)}.",
        "The relay parks them, and their consumers don't hear of them.",
        "Add the folder that has it to RELAY_SCHEMAS (RELAY_SCHEMAS=/path/to/schemas), then `relay run`",
    )


def check_loads(reason: str, remedy: str) -> Finding:
    return error(
        "schemas.load",
        reason,
        "Without its schemas the relay doesn't start.",
        remedy or "Correct the file, or RELAY_SCHEMAS.",
    )
