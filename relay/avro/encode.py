"""JSON text to Avro binary, checked field by field. It never guesses, rounds or drops a value.

The encoder of a schema is compiled once into one function per type; encoding then makes a single pass over
the parsed JSON and writes bytes. A number with a fraction is carried as its text (`Decimal`), never through a
float. What JSON has no form for is written as Postgres writes it into jsonb: bytes as ``\\x…`` hexadecimal,
times in ISO 8601 with their zone.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec

from relay.avro import scalars
from relay.avro.scalars import Misfit, Writer, write_long
from relay.errors import PayloadMismatch

_ABSENT: Final = object()

# msgspec parses integers of any length as int; everything else numeric reaches Decimal as text.
_JSON: Final = msgspec.json.Decoder(float_hook=Decimal)


def parse_json(text: bytes) -> object:
    """The value of a JSON text in UTF-8, numbers exact. Raises ValueError when it isn't JSON."""
    try:
        return _JSON.decode(text)
    except (msgspec.DecodeError, RecursionError, ArithmeticError) as error:
        raise ValueError(f"not JSON: {error}") from None


def compile_encoder(
    schema: Mapping[str, Any], *, prefix: bytes, event_type: str, schema_version: int
) -> Callable[[bytes], bytes]:
    """A function from JSON text (UTF-8) to `prefix` + Avro binary of the record `schema` (as fastavro parsed
    it).

    The function raises PayloadMismatch, which names the field and never shows a value.
    """
    write = _Compiler(schema.get("__named_schemas", {})).writer(schema)

    def encode(text: bytes) -> bytes:
        out = bytearray(prefix)
        try:
            write(parse_json(text), out)
        except Misfit as misfit:
            raise PayloadMismatch(event_type, schema_version, misfit.path(), misfit.reason) from None
        except ValueError as error:
            raise PayloadMismatch(event_type, schema_version, "", f"is {error}") from None
        return bytes(out)

    return encode


class _Compiler:
    """Builds a writer per schema node. With `defaults`, JSON is read as Avro writes a field's default."""

    def __init__(self, named: Mapping[str, Any], *, defaults: bool = False) -> None:
        self._named = named
        self._defaults = defaults
        self._built: dict[str, Writer] = {}

    def writer(self, schema: Any) -> Writer:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return self._named_writer(schema) if schema in self._named else self._scalar({"type": schema})
        kind = schema["type"]
        if kind in {"record", "error"}:
            return self._record(schema)
        if kind == "array":
            return self._array(schema)
        if kind == "map":
            return self._map(schema)
        if kind == "enum":
            return scalars.enum(schema["symbols"])
        if isinstance(kind, str) and kind not in self._named:
            return self._scalar(schema)
        return self.writer(kind)

    def _scalar(self, schema: Mapping[str, Any]) -> Writer:
        return scalars.default_writer(schema) if self._defaults else scalars.writer(schema)

    def _named_writer(self, name: str) -> Writer:
        # A schema may contain itself, so a name is looked up when it is first written, not while compiling.
        def write(value: object, out: bytearray) -> None:
            if (built := self._built.get(name)) is None:
                built = self._built[name] = self.writer(self._named[name])
            built(value, out)

        return write

    def _record(self, schema: Mapping[str, Any]) -> Writer:
        fields: list[tuple[str, Writer, bytes | None]] = []
        for field in schema["fields"]:
            default = self._default_bytes(field) if "default" in field else None
            fields.append((field["name"], self.writer(field["type"]), default))
        names = frozenset(name for name, _, _ in fields)

        def write(value: object, out: bytearray) -> None:
            if not isinstance(value, dict):
                raise Misfit("must be an object", value)
            taken = 0
            for name, write_field, default in fields:
                item = value.get(name, _ABSENT)
                if item is _ABSENT:
                    if default is None:
                        raise Misfit("is missing and has no default").within(name)
                    out += default
                    continue
                taken += 1
                try:
                    write_field(item, out)
                except Misfit as misfit:
                    raise misfit.within(name) from None
            if taken != len(value):
                unknown = min(key for key in value if key not in names)
                raise Misfit("is not in the schema, and would be lost").within(unknown)

        return write

    def _default_bytes(self, field: Mapping[str, Any]) -> bytes:
        out = bytearray()
        _Compiler(self._named, defaults=True).writer(field["type"])(field["default"], out)
        return bytes(out)

    def _array(self, schema: Mapping[str, Any]) -> Writer:
        write_item = self.writer(schema["items"])

        def write(value: object, out: bytearray) -> None:
            if not isinstance(value, list):
                raise Misfit("must be an array", value)
            if value:
                write_long(len(value), out)
                for index, item in enumerate(value):
                    try:
                        write_item(item, out)
                    except Misfit as misfit:
                        raise misfit.within(f"[{index}]") from None
            out.append(0)

        return write

    def _map(self, schema: Mapping[str, Any]) -> Writer:
        write_item = self.writer(schema["values"])

        def write(value: object, out: bytearray) -> None:
            if not isinstance(value, dict):
                raise Misfit("must be an object", value)
            if value:
                write_long(len(value), out)
                for key, item in value.items():
                    scalars.write_text(key, out)
                    try:
                        write_item(item, out)
                    except Misfit as misfit:
                        raise misfit.within(key) from None
            out.append(0)

        return write

    def _union(self, branches: list[Any]) -> Writer:
        """null takes the null branch; any other value the first branch that it fits."""
        null_at = next((index for index, branch in enumerate(branches) if _is_null(branch)), None)
        null_bytes = b"" if null_at is None else scalars.long_bytes(null_at)
        others = [
            (scalars.long_bytes(index), self.writer(branch))
            for index, branch in enumerate(branches)
            if index != null_at
        ]

        def write(value: object, out: bytearray) -> None:
            if value is None and null_at is not None:
                out += null_bytes
                return
            start = len(out)
            first: Misfit | None = None
            for branch_bytes, write_branch in others:
                out += branch_bytes
                try:
                    write_branch(value, out)
                    return
                except Misfit as misfit:
                    del out[start:]
                    first = first or misfit
            if first is not None and len(others) == 1:
                raise first
            raise Misfit("fits no branch of the union", value)

        return write


def _is_null(branch: Any) -> bool:
    return branch == "null" or (isinstance(branch, Mapping) and branch.get("type") == "null")
