"""Whether one Avro schema can read what another wrote: schema resolution as a comparison. Pure.

Avro 1.12, "Schema Resolution". It looks at schemas alone and never at data.
"""

from collections.abc import Mapping
from typing import Any, Final

Schema = Any
"""As fastavro's `parse_schema` gives it: a name, a list (union) or a mapping."""

_PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
# A logical type that changes gives the same bytes another meaning, which resolution alone doesn't see.
_MEANING: Final = ("logicalType", "scale", "precision")


def why_unreadable(reader: Schema, writer: Schema) -> str | None:
    """What in `writer`'s data `reader` couldn't read, with its path; None when it reads all of them."""
    return _Comparison(_names(reader), _names(writer)).compare(reader, writer, "")


class _Comparison:
    def __init__(self, of_reader: Mapping[str, Schema], of_writer: Mapping[str, Schema]) -> None:
        self._of_reader = of_reader
        self._of_writer = of_writer
        self._under_way: set[tuple[str, str]] = set()

    def compare(self, reader: Schema, writer: Schema, path: str) -> str | None:
        reader, writer = self._of_reader.get(_key(reader), reader), self._of_writer.get(_key(writer), writer)
        if isinstance(writer, list):
            return next((why for one in writer if (why := self.compare(reader, one, path))), None)
        if isinstance(reader, list):
            reasons = [self.compare(one, writer, path) for one in reader]
            return None if None in reasons else f"{_at(path)}: no branch reads {_kind(writer)}"
        ours, theirs = _kind(reader), _kind(writer)
        if ours != theirs:
            if ours in _PROMOTIONS.get(theirs, frozenset()):
                return None
            return f"{_at(path)}: {theirs} became {ours}"
        if _meaning(reader) != _meaning(writer):
            return f"{_at(path)}: its logical type changed"
        if theirs in {"record", "error"}:
            return self._record(reader, writer, path)
        if theirs == "enum":
            lost = [s for s in writer["symbols"] if s not in reader["symbols"]]
            bad = lost and "default" not in reader
            return f"{_at(path)}: the symbols {', '.join(lost)} are gone" if bad else None
        if theirs == "fixed":
            return None if reader["size"] == writer["size"] else f"{_at(path)}: its size changed"
        if theirs == "array":
            return self.compare(reader["items"], writer["items"], f"{path}[]")
        if theirs == "map":
            return self.compare(reader["values"], writer["values"], f"{path}{{}}")
        return None

    def _record(self, reader: Schema, writer: Schema, path: str) -> str | None:
        pair = (str(reader.get("name")), str(writer.get("name")))
        if pair in self._under_way:  # a recursive type: it is being compared already
            return None
        self._under_way.add(pair)
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            name = next((n for n in (field["name"], *field.get("aliases", ())) if n in written), None)
            below = f"{path}.{field['name']}" if path else field["name"]
            if name is None:
                if "default" not in field:
                    return f"{below}: it is new and has no default"
            elif why := self.compare(field["type"], written[name]["type"], below):
                return why
        return None


def _names(schema: Schema) -> dict[str, Schema]:
    """Every named type that is defined in `schema`."""
    found: dict[str, Schema] = {}
    if isinstance(schema, list):
        for one in schema:
            found |= _names(one)
    elif isinstance(schema, Mapping):
        if schema.get("type") in _NAMED:
            found[str(schema["name"])] = schema
        for inner in ("type", "items", "values"):
            if not isinstance(schema.get(inner), str):
                found |= _names(schema.get(inner))
        for field in schema.get("fields", ()):
            found |= _names(field["type"])
    return found


def _key(schema: Schema) -> str:
    return schema if isinstance(schema, str) else ""


def _kind(schema: Schema) -> str:
    if isinstance(schema, Mapping):
        inner = schema["type"]
        return inner if isinstance(inner, str) else _kind(inner)
    return "a union" if isinstance(schema, list) else str(schema)


def _meaning(schema: Schema) -> tuple[Any, ...]:
    return tuple(schema.get(name) for name in _MEANING) if isinstance(schema, Mapping) else (None,) * 3


def _at(path: str) -> str:
    return path or "the record"
