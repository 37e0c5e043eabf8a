"""Whatever the encoder writes, fastavro reads as the same value; what it can't write exactly, it refuses."""

import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pytest
from fastavro import parse_schema, schemaless_reader
from hypothesis import given
from hypothesis import strategies as st

from relay.avro.encode import compile_encoder
from relay.errors import PayloadMismatch

JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def codec(field_type: Any, **field: Any) -> tuple[Callable[[str], Any], Callable[[str], bytes]]:
    """(round trip of the JSON text of field `x`, encoder of a whole payload)."""
    parsed = parse_schema(
        {"type": "record", "name": "Subject", "fields": [{"name": "x", "type": field_type, **field}]}
    )
    encode = compile_encoder(cast(Any, parsed), prefix=b"", event_type="t", schema_version=1)

    def round_trip(text: str) -> Any:
        body = io.BytesIO(encode(f'{{"x": {text}}}'.encode()))
        value = cast(dict[str, Any], schemaless_reader(body, parsed, None))["x"]
        assert body.read() == b""
        return value

    return round_trip, lambda text: encode(text.encode())


def refused(field_type: Any, text: str) -> str:
    with pytest.raises(PayloadMismatch) as caught:
        codec(field_type)[0](text)
    return str(caught.value)


LONG = codec("long")[0]
INT = codec("int")[0]
STRING = codec("string")[0]
DOUBLE = codec("double")[0]


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_long_survives(value: int) -> None:
    assert LONG(str(value)) == value


@given(st.integers().filter(lambda value: not -(2**31) <= value < 2**31))
def test_an_int_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(PayloadMismatch, match="must fit 32 bits"):
        INT(str(value))


@given(JSON_TEXT)
def test_every_text_survives(value: str) -> None:
    assert STRING(json.dumps(value)) == value
    assert STRING(json.dumps(value, ensure_ascii=False)) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_survives(value: float) -> None:
    assert DOUBLE(repr(value)) == value


@given(st.integers(0, 12), st.decimals(-(10**14), 10**14, places=12))
def test_a_decimal_is_exact_or_refused(scale: int, value: Decimal) -> None:
    round_trip, _ = codec({"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": scale})
    text = format(value, "f")
    try:
        decoded = round_trip(text)
    except PayloadMismatch:
        finer_than_scale = value.normalize().as_tuple().exponent
        assert -int(finer_than_scale) > scale or value.adjusted() + 1 + scale > 40
    else:
        assert decoded == value


def test_a_decimal_never_passes_through_a_float() -> None:
    money: dict[str, Any] = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}
    for text in ("12345678901234567890.10", '"12345678901234567890.10"', "1.2345678901234567890100e19"):
        assert codec(money)[0](text) == Decimal("12345678901234567890.10")
    assert "at most 2 digits after the point" in refused(money, "0.001")
    assert "at most 30 digits" in refused(money, "1e999999999")
    assert "after the point" in refused(money, "1e-999999999")
    assert codec(money)[0]("0e-999999999") == 0


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_fixed_decimal_keeps_its_sign(unscaled: int) -> None:
    fixed = {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 3}
    value = Decimal(unscaled).scaleb(-3)
    if abs(unscaled) >= 10**9:
        assert "at most 9 digits" in refused(fixed, str(value))
    else:
        assert codec(fixed)[0](str(value)) == value


@given(st.uuids())
def test_every_uuid_survives(value: UUID) -> None:
    assert codec({"type": "string", "logicalType": "uuid"})[0](f'"{value}"') == value


# Hypothesis takes its bounds without a zone.
FIRST, LAST = datetime(1900, 1, 1), datetime(2200, 1, 1)  # noqa: DTZ001
ZONES = st.builds(lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(-14 * 60, 14 * 60))


@given(st.datetimes(FIRST, LAST, timezones=ZONES))
def test_a_timestamp_in_any_zone_is_exact_to_the_microsecond(value: datetime) -> None:
    micros = codec({"type": "long", "logicalType": "timestamp-micros"})[0]
    assert micros(f'"{value.isoformat()}"') == value
    assert micros(f'"{value.isoformat(" ")}"') == value


@pytest.mark.parametrize(
    ("field_type", "text", "value"),
    [
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            '"2026-11-29T16:44:01.123Z"',
            datetime(2026, 11, 29, 16, 44, 1, 123000, UTC),
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            '"1999-12-31 23:59:59+00"',
            datetime(1999, 12, 31, 23, 59, 59, 0, UTC),
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-micros"},
            '"2026-11-29T16:44:01.123456"',
            datetime(2026, 11, 29, 16, 44, 1, 123456),  # noqa: DTZ001 - a local timestamp has no zone
        ),
        ({"type": "int", "logicalType": "date"}, '"2026-02-28"', date(2026, 2, 28)),
        ({"type": "long", "logicalType": "time-micros"}, '"23:59:59.999999"', time(23, 59, 59, 999999)),
        ({"type": "int", "logicalType": "time-millis"}, '"00:00:00.001"', time(0, 0, 0, 1000)),
        ("bytes", r'"\\x00ff"', b"\x00\xff"),
        ({"type": "fixed", "name": "F", "size": 2}, r'"\\x00FF"', b"\x00\xff"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, '"B"', "B"),
        ({"type": "array", "items": "int"}, "[1, -1, 70000]", [1, -1, 70000]),
        ({"type": "array", "items": "int"}, "[]", []),
        ({"type": "map", "values": ["null", "double"]}, '{"a": null, "é": 0.5}', {"a": None, "é": 0.5}),
        (["null", "string"], "null", None),
        (["string", "null"], "null", None),
        (["null", "int", "string"], '"7"', "7"),
        (["null", "int", "string"], "7", 7),
        ("boolean", "true", True),
        ({"type": "string", "logicalType": "made-up"}, '"as is"', "as is"),
    ],
)
def test_each_type_reads_back(field_type: Any, text: str, value: object) -> None:
    assert codec(field_type)[0](text) == value


@pytest.mark.parametrize(
    ("field_type", "text"),
    [
        ("int", "true"),
        ("int", "1.0"),
        ("int", "null"),
        ("long", "9223372036854775808"),
        ("string", "1"),
        ("boolean", "1"),
        ("double", '"1"'),
        ("float", "1e39"),
        ("double", "1e400"),
        ("bytes", '"00ff"'),
        ({"type": "fixed", "name": "F", "size": 2}, r'"\\x00"'),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, '"a"'),
        ({"type": "long", "logicalType": "timestamp-micros"}, '"2026-11-29T16:44:01"'),
        ({"type": "long", "logicalType": "timestamp-micros"}, '"2026-11-29T16:44:01.1234567Z"'),
        ({"type": "long", "logicalType": "timestamp-micros"}, '"2026-02-30T00:00:00Z"'),
        ({"type": "long", "logicalType": "timestamp-micros"}, '"infinity"'),
        ({"type": "long", "logicalType": "timestamp-micros"}, "1764434641"),
        ({"type": "long", "logicalType": "timestamp-millis"}, '"2026-11-29T16:44:01.1234Z"'),
        ({"type": "string", "logicalType": "uuid"}, '"0192F0C1-2B3C-7D4E-8F50-617283940A1B"'),
        ({"type": "string", "logicalType": "uuid"}, '"0192f0c12b3c7d4e8f50617283940a1b"'),
        (["null", "int"], '"x"'),
    ],
)
def test_what_would_be_changed_is_refused(field_type: Any, text: str) -> None:
    assert "the field x " in refused(field_type, text)


def test_a_nested_misfit_shows_its_whole_path() -> None:
    item = {"type": "record", "name": "Item", "fields": [{"name": "url", "type": ["null", "string"]}]}
    nested = {"type": "map", "values": {"type": "array", "items": item}}
    assert "the field x.frames[1].url must be text, not an integer" in refused(
        nested, '{"frames": [{"url": null}, {"url": 5}]}'
    )
    assert "the field x.frames[0].uri is not in the schema" in refused(
        nested, '{"frames": [{"url": null, "uri": ""}]}'
    )


def test_a_missing_field_takes_its_default_and_without_one_is_refused() -> None:
    defaults: list[tuple[Any, Any, Any]] = [
        (["null", "string"], None, None),
        ("bytes", "\u00ff\u0000", b"\xff\x00"),
        ({"type": "long", "logicalType": "timestamp-micros"}, 0, datetime(1970, 1, 1, tzinfo=UTC)),
        ({"type": "array", "items": "string"}, ["a"], ["a"]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ]
    for field_type, default, value in defaults:
        parsed = parse_schema(
            {"type": "record", "name": "S", "fields": [{"name": "x", "type": field_type, "default": default}]}
        )
        encode = compile_encoder(cast(Any, parsed), prefix=b"", event_type="t", schema_version=1)
        assert schemaless_reader(io.BytesIO(encode(b"{}")), parsed, None) == {"x": value}
    with pytest.raises(PayloadMismatch, match="the field x is missing and has no default"):
        codec(["null", "string"])[1]("{}")


def test_a_schema_that_contains_itself_encodes() -> None:
    tree = {
        "type": "record",
        "name": "Tree",
        "fields": [
            {"name": "leaf", "type": "int"},
            {"name": "next", "type": ["null", "Tree"], "default": None},
        ],
    }
    assert codec(tree)[0]('{"leaf": 1, "next": {"leaf": 2}}') == {
        "leaf": 1,
        "next": {"leaf": 2, "next": None},
    }
