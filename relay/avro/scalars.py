"""One writer per Avro type that holds a single value, logical types included. It knows no records.

A writer checks the JSON value and appends Avro binary (Avro 1.12, "Binary encoding"); `Misfit` says what
doesn't fit and never carries the value, since payloads may hold what must not reach a log.
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

Writer = Callable[[Any, bytearray], None]

INT_BITS: Final = 32
LONG_BITS: Final = 64
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNIX_EPOCH_DAYS: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_MICROS_PER_MILLI: Final = 1_000

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
# RFC 3339, and the form Postgres prints (a space, a zone of hours alone). Finer than a microsecond doesn't
# match: datetime.fromisoformat would cut it off without a word.
_CLOCK: Final = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
_LOCAL: Final = re.compile(rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[T ]{_CLOCK}", re.ASCII)
_ZONED: Final = re.compile(rf"{_LOCAL.pattern}(Z|[+-][0-9]{{2}}(:?[0-9]{{2}}){{0,2}})", re.ASCII)
_TIME: Final = re.compile(_CLOCK, re.ASCII)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_POSTGRES_HEX: Final = re.compile(r"\\x([0-9a-fA-F]{2})*", re.ASCII)


class Misfit(Exception):
    """A value doesn't fit its schema: `reason` in words; `path()` grows while the error leaves nested
    values."""

    def __init__(self, reason: str, found: object = ...) -> None:
        self.reason = reason if found is ... else f"{reason}, not {_kind(found)}"
        self._steps: list[str] = []
        super().__init__(self.reason)

    def within(self, step: str) -> "Misfit":
        """The same error, seen from the value that contains it."""
        self._steps.append(step)
        return self

    def path(self) -> str:
        """``outputs[2].url``; empty for the payload itself."""
        return ".".join(reversed(self._steps)).replace(".[", "[")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case Decimal():
            return "a number"
        case str():
            return "text"
        case list():
            return "an array"
        case _:
            return "an object"


def long_bytes(value: int) -> bytes:
    """Zig-zag, variable length: Avro's int and long."""
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


_SMALL: Final = 1024
_SMALL_LONGS: Final = tuple(long_bytes(value) for value in range(_SMALL))


def write_long(value: int, out: bytearray) -> None:
    out += _SMALL_LONGS[value] if 0 <= value < _SMALL else long_bytes(value)


def write_bytes(value: bytes, out: bytearray) -> None:
    write_long(len(value), out)
    out += value


def write_text(value: str, out: bytearray) -> None:
    write_bytes(value.encode(), out)


def writer(schema: Mapping[str, Any]) -> Writer:
    """The writer of a scalar type; an unknown logical type is ignored, as the specification demands."""
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        return _decimal(schema["precision"], schema.get("scale", 0), schema.get("size"))
    if logical == "uuid" and kind == "fixed":
        return _uuid_fixed
    if (found := _LOGICAL.get((kind, logical))) is not None:
        return found
    if kind == "fixed":
        return _fixed(schema["size"])
    return _PLAIN[kind]


def default_writer(schema: Mapping[str, Any]) -> Writer:
    """The writer of a default as schemas state it: the underlying type; bytes as code points 0 to 255."""
    kind = schema["type"]
    if kind == "bytes":
        return lambda value, out: write_bytes(value.encode("latin-1"), out)
    if kind == "fixed":
        return lambda value, out: out.extend(value.encode("latin-1"))
    return _PLAIN[kind]


def enum(symbols: Sequence[str]) -> Writer:
    positions = {symbol: long_bytes(index) for index, symbol in enumerate(symbols)}

    def write(value: object, out: bytearray) -> None:
        if not isinstance(value, str):
            raise Misfit("must be one of " + ", ".join(symbols), value)
        if value not in positions:
            raise Misfit("must be one of " + ", ".join(symbols))
        out += positions[value]

    return write


def _null(value: object, out: bytearray) -> None:  # noqa: ARG001 - a writer's form; null has no bytes
    if value is not None:
        raise Misfit("must be null", value)


def _boolean(value: object, out: bytearray) -> None:
    if not isinstance(value, bool):
        raise Misfit("must be a boolean", value)
    out.append(value)


def _integer(bits: int) -> Writer:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def write(value: object, out: bytearray) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Misfit("must be an integer", value)
        if not least <= value <= most:
            raise Misfit(f"must fit {bits} bits")
        write_long(value, out)

    return write


def _floating(code: str) -> Writer:
    pack = struct.Struct(code).pack

    def write(value: object, out: bytearray) -> None:
        # The schema's author chose a float: the nearest one is what they asked for.
        if not isinstance(value, (int, Decimal)) or isinstance(value, bool):
            raise Misfit("must be a number", value)
        try:
            packed = pack(float(value))
        except OverflowError:
            raise Misfit("is too large for a float of this size") from None
        if packed in {pack(float("inf")), pack(float("-inf"))}:
            raise Misfit("is too large for a float of this size")
        out += packed

    return write


def _string(value: object, out: bytearray) -> None:
    if not isinstance(value, str):
        raise Misfit("must be text", value)
    write_text(value, out)


def _hexadecimal(value: object) -> bytes:
    if not isinstance(value, str):
        raise Misfit(r"must be bytes in Postgres's form, \x and hexadecimal", value)
    if not _POSTGRES_HEX.fullmatch(value):
        raise Misfit(r"must be bytes in Postgres's form, \x and hexadecimal")
    return bytes.fromhex(value[2:])


def _bytes(value: object, out: bytearray) -> None:
    write_bytes(_hexadecimal(value), out)


def _fixed(size: int) -> Writer:
    def write(value: object, out: bytearray) -> None:
        found = _hexadecimal(value)
        if len(found) != size:
            raise Misfit(f"must have {size} bytes, not {len(found)}")
        out += found

    return write


def _text_of(form: re.Pattern[str], words: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if not isinstance(value, str):
            raise Misfit(f"must be {words}", value)
        if not form.fullmatch(value):
            raise Misfit(f"must be {words}")
        return value

    return check


_uuid_text: Final = _text_of(_UUID, "a UUID in lowercase hexadecimal with hyphens")
_zoned_text: Final = _text_of(_ZONED, "a date and time with its zone (RFC 3339), no finer than a microsecond")
_local_text: Final = _text_of(_LOCAL, "a date and time without a zone, no finer than a microsecond")
_time_text: Final = _text_of(_TIME, "a time of day, no finer than a microsecond")
_date_text: Final = _text_of(_DATE, "a date (YYYY-MM-DD)")


def _uuid_string(value: object, out: bytearray) -> None:
    write_text(_uuid_text(value), out)


def _uuid_fixed(value: object, out: bytearray) -> None:
    out += UUID(_uuid_text(value)).bytes


def _datetime(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise Misfit("must be a date and time that exists") from None


def _time_of_day(text: str) -> time:
    try:
        return time.fromisoformat(text)
    except ValueError:
        raise Misfit("must be a time of day that exists") from None


def _micros_since_epoch(moment: datetime) -> int:
    return (moment - _UNIX_EPOCH) // _MICROSECOND


def _millis(micros: int) -> int:
    if micros % _MICROS_PER_MILLI:
        raise Misfit("must be no finer than a millisecond")
    return micros // _MICROS_PER_MILLI


def _timestamp_micros(value: object, out: bytearray) -> None:
    write_long(_micros_since_epoch(_datetime(_zoned_text(value))), out)


def _timestamp_millis(value: object, out: bytearray) -> None:
    write_long(_millis(_micros_since_epoch(_datetime(_zoned_text(value)))), out)


def _local_timestamp_micros(value: object, out: bytearray) -> None:
    write_long(_micros_since_epoch(_datetime(_local_text(value)).replace(tzinfo=UTC)), out)


def _local_timestamp_millis(value: object, out: bytearray) -> None:
    write_long(_millis(_micros_since_epoch(_datetime(_local_text(value)).replace(tzinfo=UTC))), out)


def _micros_of_day(text: str) -> int:
    clock = _time_of_day(text)
    seconds = (clock.hour * 60 + clock.minute) * 60 + clock.second
    return seconds * 1_000_000 + clock.microsecond


def _time_micros(value: object, out: bytearray) -> None:
    write_long(_micros_of_day(_time_text(value)), out)


def _time_millis(value: object, out: bytearray) -> None:
    write_long(_millis(_micros_of_day(_time_text(value))), out)


def _date(value: object, out: bytearray) -> None:
    text = _date_text(value)
    try:
        days = date.fromisoformat(text).toordinal() - _UNIX_EPOCH_DAYS
    except ValueError:
        raise Misfit("must be a date that exists") from None
    write_long(days, out)


def _decimal(precision: int, scale: int, size: int | None) -> Writer:
    """Two's complement, big-endian, of value x 10^scale; `size` bytes when fixed. Never rounds."""

    def write(value: object, out: bytearray) -> None:
        unscaled = _unscaled(value, precision, scale)
        if size is None:
            write_bytes(unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True), out)
            return
        try:
            out += unscaled.to_bytes(size, "big", signed=True)
        except OverflowError:
            raise Misfit(f"must fit a decimal of {size} bytes") from None

    return write


def _unscaled(value: object, precision: int, scale: int) -> int:
    if isinstance(value, str):
        if not _DECIMAL_TEXT.fullmatch(value):
            raise Misfit("must be a number, or a number as text")
    elif not isinstance(value, (int, Decimal)) or isinstance(value, bool):
        raise Misfit("must be a number, or a number as text", value)
    number = Decimal(value)
    if not number:
        return 0
    # Looked at before any power of ten is built: 1e999999999 is nine digits of text.
    if number.adjusted() + 1 + scale > precision:
        raise Misfit(f"must have at most {precision} digits, {scale} of them after the point")
    sign, digits, exponent = number.as_tuple()
    shift = int(exponent) + scale
    unscaled: int = int("".join(map(str, digits)))
    if shift >= 0:
        unscaled *= int(10**shift)
    else:
        rest = 1 if -shift > len(digits) else unscaled % int(10**-shift)
        if rest:
            raise Misfit(f"must have at most {scale} digits after the point")
        unscaled //= int(10**-shift)
    return -unscaled if sign else unscaled


_DECIMAL_TEXT: Final = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?", re.ASCII)

_PLAIN: Final[Mapping[str, Writer]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _integer(INT_BITS),
    "long": _integer(LONG_BITS),
    "float": _floating("<f"),
    "double": _floating("<d"),
    "bytes": _bytes,
    "string": _string,
}

_LOGICAL: Final[Mapping[tuple[str, Any], Writer]] = {
    ("string", "uuid"): _uuid_string,
    ("long", "timestamp-micros"): _timestamp_micros,
    ("long", "timestamp-millis"): _timestamp_millis,
    ("long", "local-timestamp-micros"): _local_timestamp_micros,
    ("long", "local-timestamp-millis"): _local_timestamp_millis,
    ("long", "time-micros"): _time_micros,
    ("int", "time-millis"): _time_millis,
    ("int", "date"): _date,
}
