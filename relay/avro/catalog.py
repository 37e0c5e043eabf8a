"""The Avro schemas of this process: folders of ``<event_type>/v<N>.avsc``, read once and never written.

Reading resolves for real: the fingerprint finds the writer's schema, and the latest version known reads.
"""

import io
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from fastavro import schemaless_reader
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from relay.avro import framing
from relay.avro.encode import compile_encoder
from relay.avro.scalars import Misfit
from relay.contracts import AVRO
from relay.errors import DecodeError, SchemaError, UnknownSchema, UsageError

Encoder = Callable[[bytes], bytes]

_FILE: Final = re.compile(r"v([1-9][0-9]*)\.avsc", re.ASCII)


@dataclass(frozen=True, slots=True)
class EventSchema:
    """One version of one event type. `parsed` is fastavro's form; `fingerprint` is what the wire carries."""

    event_type: str
    schema_version: int
    parsed: Mapping[str, Any]
    fingerprint: bytes
    path: Path

    def __str__(self) -> str:
        return f"{self.event_type} v{self.schema_version}"


@dataclass(frozen=True, slots=True)
class Decoded:
    """`value` has the fields of the latest version known; `schema_version` is the one that was written."""

    event_type: str
    schema_version: int
    value: dict[str, Any]


class Catalog:
    """Schemas by event type and version, and by fingerprint. Safe to share between threads once loaded."""

    def __init__(self, schemas: Sequence[EventSchema]) -> None:
        """Raises SchemaError when versions have a hole or two schemas share a fingerprint."""
        self._versions: dict[str, dict[int, EventSchema]] = {}
        self._by_fingerprint: dict[bytes, EventSchema] = {}
        self._encoders: dict[tuple[str, int], Encoder] = {}
        for schema in schemas:
            self._add(schema)
        for event_type, versions in self._versions.items():
            if sorted(versions) != list(range(1, len(versions) + 1)):
                raise SchemaError(
                    f"The schemas of {event_type} are versions {', '.join(map(str, sorted(versions)))}.",
                    meaning="A version is missing, and records that were written with it couldn't be read.",
                    remedy="Versions run from 1 without holes; restore the missing file.",
                )

    @classmethod
    def load(cls, folders: Sequence[Path] = ()) -> "Catalog":
        """Read the shipped folder, then `folders`. Raises SchemaError that names the file which
        is wrong, UsageError for a folder that isn't there."""
        return cls([schema for folder in (AVRO, *folders) for schema in _read_folder(folder)])

    def _add(self, schema: EventSchema) -> None:
        versions = self._versions.setdefault(schema.event_type, {})
        known = versions.get(schema.schema_version)
        if known is not None:
            if known.parsed != schema.parsed:
                raise SchemaError(
                    f"{schema} is in {known.path} and, differently, in {schema.path}.",
                    meaning="A released version never changes: what was written with it must stay readable.",
                    remedy=f"Make yours version {max(versions) + 1}.",
                )
            return
        same = self._by_fingerprint.get(schema.fingerprint)
        if same is not None:
            raise SchemaError(
                f"{schema} ({schema.path}) has the same Avro fingerprint as {same} ({same.path}).",
                meaning="It leaves out logical types, defaults, docs and aliases, so that a reader couldn't "
                "tell which of the two was written.",
                remedy="Give another event type another record name; in a version, change or add a field.",
            )
        versions[schema.schema_version] = schema
        self._by_fingerprint[schema.fingerprint] = schema

    def event_types(self) -> tuple[str, ...]:
        return tuple(sorted(self._versions))

    def latest(self, event_type: str) -> int:
        """The highest version known. Raises UnknownSchema."""
        return max(self._known(event_type))

    def schema(self, event_type: str, schema_version: int) -> EventSchema:
        """Raises UnknownSchema."""
        versions = self._known(event_type)
        if schema_version not in versions:
            raise UnknownSchema(
                f"{event_type} has no version {schema_version}; the latest known is {max(versions)}.",
                remedy="Upgrade this process, or add the folder with that version to RELAY_SCHEMAS.",
            )
        return versions[schema_version]

    def encoder(self, event_type: str, schema_version: int) -> Encoder:
        """JSON text (UTF-8) to framed Avro, compiled once. Raises UnknownSchema.

        The encoder itself raises PayloadMismatch.
        """
        found = self._encoders.get((event_type, schema_version))
        if found is None:
            schema = self.schema(event_type, schema_version)
            found = self._encoders[event_type, schema_version] = compile_encoder(
                schema.parsed,
                prefix=framing.header(schema.fingerprint),
                event_type=event_type,
                schema_version=schema_version,
            )
        return found

    def decode(self, data: bytes) -> Decoded:
        """Read a framed value with the latest version as the reader's schema.

        Raises UnknownSchema for a fingerprint that no known schema has, DecodeError for bytes that aren't
        what their schema says (trailing bytes included).
        """
        fingerprint = framing.unframe(data)
        writer = self._by_fingerprint.get(fingerprint)
        if writer is None:
            raise UnknownSchema(
                f"No known schema has the fingerprint {fingerprint.hex()}.",
                meaning="The value was written with a version that this process doesn't have.",
                remedy="Upgrade this process, or add the folder with that schema to RELAY_SCHEMAS.",
            )
        versions = self._versions[writer.event_type]
        reader = versions[len(versions)]
        body = io.BytesIO(data)
        body.seek(framing.HEADER_BYTES)
        try:
            value = schemaless_reader(
                body, cast(Any, writer.parsed), None if reader is writer else cast(Any, reader.parsed)
            )
        except _BROKEN_BODY as error:
            raise DecodeError(
                f"A value of {len(data)} bytes has the fingerprint of {writer} and another form: "
                f"{type(error).__name__}."
            ) from error
        if body.tell() != len(data):
            raise DecodeError(
                f"A value of {len(data)} bytes goes on after its {writer}, which ends at byte {body.tell()}."
            )
        return Decoded(writer.event_type, writer.schema_version, cast(dict[str, Any], value))

    def _known(self, event_type: str) -> dict[int, EventSchema]:
        versions = self._versions.get(event_type)
        if versions is None:
            raise UnknownSchema(
                f"There is no schema for the event type {event_type!r}.",
                remedy=f"Known are {', '.join(self.event_types())}; RELAY_SCHEMAS adds folders.",
            )
        return versions


# What fastavro raises on bytes that its schema doesn't describe.
_BROKEN_BODY: Final = (
    EOFError,
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    struct.error,
    SchemaResolutionError,
)


def _read_folder(folder: Path) -> list[EventSchema]:
    if not folder.is_dir():
        raise UsageError(
            f"The schema folder {folder} doesn't exist.", remedy="RELAY_SCHEMAS names it; correct the path."
        )
    schemas = []
    for path in sorted(folder.glob("*/*.avsc")):
        if not (match := _FILE.fullmatch(path.name)):
            raise SchemaError(f"The schema file {path} must be named v1.avsc, v2.avsc and so on.")
        schemas.append(_read_schema(path, path.parent.name, int(match[1])))
    return schemas


def _read_schema(path: Path, event_type: str, schema_version: int) -> EventSchema:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.get("type") != "record":
            raise SchemaError(f"The schema in {path} must be a record: an event's payload is a JSON object.")
        parsed = cast(dict[str, Any], parse_schema(document))
        schema = EventSchema(event_type, schema_version, parsed, framing.fingerprint_of(document), path)
        # Compiled here for its defaults: one that doesn't fit its own field is found now, not at an event.
        compile_encoder(parsed, prefix=b"", event_type=event_type, schema_version=schema_version)
        return schema
    except (OSError, ValueError, KeyError, SchemaParseException, UnknownType) as error:
        raise SchemaError(f"The schema file {path} is not an Avro schema: {error}.") from None
    except Misfit as misfit:
        raise SchemaError(
            f"The schema file {path} has a default that its field doesn't take: {misfit}."
        ) from None
