"""The catalog reads what it wrote, whatever version wrote it, and refuses what would be read wrongly."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.avro.catalog import Catalog
from relay.avro.framing import HEADER_BYTES, MARKER, fingerprint_of
from relay.errors import DecodeError, PayloadMismatch, SchemaError, UnknownSchema, UsageError

OPERATION = "0192f0c1-2b3c-7d4e-8f50-617283940a1b"
REQUESTED_V1 = {
    "operation_id": OPERATION,
    "owner_id": "studio",
    "kind": "generation",
    "dispatch_no": 1,
    "provider": "genace",
    "specification_hash": "ab" * 32,
}


def write_schema(
    folder: Path, event_type: str, version: int, fields: list[dict[str, Any]], **more: object
) -> None:
    (folder / event_type).mkdir(parents=True, exist_ok=True)
    name = "".join(part.title() for part in event_type.split("."))
    document = {"type": "record", "name": name, "namespace": "test", "fields": fields, **more}
    (folder / event_type / f"v{version}.avsc").write_text(json.dumps(document))


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog.load([])


def test_a_fingerprint_is_the_one_of_the_specification() -> None:
    # Avro's own test vectors (share/test/data/schema-tests.txt), little-endian on the wire.
    assert fingerprint_of({"type": "int"}) == 0x7275D51A3F395C8F.to_bytes(8, "little")
    assert fingerprint_of({"type": "null"}) == 0x63DD24E7CC258F8A.to_bytes(8, "little")


def test_a_record_written_with_an_old_version_has_the_new_versions_default(catalog: Catalog) -> None:
    framed = catalog.encoder("generation.requested", 1)(json.dumps(REQUESTED_V1).encode())
    decoded = catalog.decode(framed)
    assert (decoded.event_type, decoded.schema_version) == ("generation.requested", 1)
    assert decoded.value == REQUESTED_V1 | {"operation_id": UUID(OPERATION), "source_ref": None}
    assert catalog.latest("generation.requested") == 2


def test_the_newest_version_round_trips(catalog: Catalog) -> None:
    payload = REQUESTED_V1 | {"source_ref": "frame/7@3"}
    decoded = catalog.decode(catalog.encoder("generation.requested", 2)(json.dumps(payload).encode()))
    assert decoded.value == payload | {"operation_id": UUID(OPERATION)}
    assert decoded.schema_version == 2


def test_a_timestamp_as_jsonb_prints_it_is_exact_to_the_microsecond(catalog: Catalog) -> None:
    payload = {
        "operation_id": OPERATION,
        "owner_id": "o",
        "kind": "generation",
        "version": 1,
        "to_phase": "prepared",
        "cause": "prepared",
        "reason": "",
        "actor": "app",
        "dispatch_no": 1,
        "specification_hash": "00",
        "transitioned_at": "2026-11-29T16:44:01.123456+00:00",
    }
    decoded = catalog.decode(catalog.encoder("operation.transitioned", 1)(json.dumps(payload).encode()))
    assert decoded.value["transitioned_at"] == datetime(2026, 11, 29, 16, 44, 1, 123456, UTC)
    assert decoded.value["from_phase"] is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"surprise": 1}, "the field surprise is not in the schema"),
        ({"dispatch_no": "1"}, "the field dispatch_no must be an integer, not text"),
        ({"dispatch_no": 2**31}, "the field dispatch_no must fit 32 bits"),
        ({"operation_id": OPERATION.upper()}, "the field operation_id must be a UUID in lowercase"),
        ({"owner_id": None}, "the field owner_id must be text, not null"),
    ],
)
def test_a_payload_that_fits_no_schema_names_its_field(
    catalog: Catalog, change: dict[str, object], words: str
) -> None:
    with pytest.raises(PayloadMismatch) as caught:
        catalog.encoder("generation.requested", 1)(json.dumps(REQUESTED_V1 | change).encode())
    assert words in str(caught.value)
    assert caught.value.path == next(iter(change))


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"null", b"\xff", b'"\\ud800"', b"[" * 100_000])
def test_what_is_no_json_object_is_a_mismatch(catalog: Catalog, text: bytes) -> None:
    with pytest.raises(PayloadMismatch):
        catalog.encoder("collection.requested", 1)(text)


def test_a_message_never_shows_a_value(catalog: Catalog) -> None:
    with pytest.raises(PayloadMismatch) as caught:
        catalog.encoder("generation.requested", 1)(
            json.dumps(REQUESTED_V1 | {"dispatch_no": "hunter2"}).encode()
        )
    assert "hunter2" not in f"{caught.value!s}{caught.value!r}"


def test_unknown_names_versions_and_fingerprints_are_unknown_schemas(catalog: Catalog) -> None:
    for event_type, version in (("no.such", 1), ("generation.requested", 99)):
        with pytest.raises(UnknownSchema):
            catalog.encoder(event_type, version)
    with pytest.raises(UnknownSchema):
        catalog.decode(MARKER + bytes(8))


@given(st.binary(max_size=80))
def test_bytes_of_somebody_else_are_a_decode_error(data: bytes) -> None:
    with pytest.raises((DecodeError, UnknownSchema)):
        Catalog.load([]).decode(data)


@given(data=st.data())
def test_a_damaged_record_is_a_decode_error_or_another_value_and_nothing_else(data: st.DataObject) -> None:
    catalog = Catalog.load([])
    framed = catalog.encoder("generation.requested", 1)(json.dumps(REQUESTED_V1).encode())
    cut = data.draw(st.integers(HEADER_BYTES, len(framed) - 1))
    with pytest.raises(DecodeError):
        catalog.decode(framed[:cut])
    with pytest.raises(DecodeError):
        catalog.decode(framed + b"\0")
    damaged = bytearray(framed)
    damaged[cut] = data.draw(st.integers(0, 255))
    try:
        catalog.decode(bytes(damaged))
    except DecodeError:
        pass


def test_versions_that_differ_by_a_logical_type_alone_are_refused(tmp_path: Path) -> None:
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 10}
    write_schema(tmp_path, "money.moved", 1, [{"name": "amount", "type": amount | {"scale": 2}}])
    write_schema(tmp_path, "money.moved", 2, [{"name": "amount", "type": amount | {"scale": 4}}])
    with pytest.raises(SchemaError, match="same Avro fingerprint"):
        Catalog.load([tmp_path])


def test_a_hole_in_the_versions_is_refused(tmp_path: Path) -> None:
    write_schema(tmp_path, "a.b", 1, [])
    write_schema(tmp_path, "a.b", 3, [{"name": "x", "type": "int", "default": 0}])
    with pytest.raises(SchemaError, match="versions 1, 3"):
        Catalog.load([tmp_path])


def test_a_released_version_that_a_folder_states_differently_is_refused(tmp_path: Path) -> None:
    write_schema(tmp_path, "collection.requested", 1, [{"name": "x", "type": "int"}])
    with pytest.raises(SchemaError, match="Make yours version 2"):
        Catalog.load([tmp_path])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not an Avro schema"),
        ('{"type": "string"}', "must be a record"),
        (
            '{"type": "record", "name": "A", "fields": [{"name": "x", "type": "nonsense"}]}',
            "is not an Avro schema",
        ),
        (
            '{"type": "record", "name": "A", "fields": [{"name": "x", "type": "int", "default": "a"}]}',
            "is not an Avro schema",
        ),
        (
            '{"type":"record","name":"A","fields":[{"name":"x","type":"int","default":3000000000}]}',
            "default that its field doesn't take",
        ),
    ],
)
def test_a_schema_file_that_is_none_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.b").mkdir()
    (tmp_path / "a.b" / "v1.avsc").write_text(text)
    with pytest.raises(SchemaError, match=words) as caught:
        Catalog.load([tmp_path])
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_is_no_version_is_named_and_a_missing_folder_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="doesn't exist"):
        Catalog.load([tmp_path / "absent"])
    (tmp_path / "a.b").mkdir()
    (tmp_path / "a.b" / "V1.avsc").write_text("{}")
    with pytest.raises(SchemaError, match=r"must be named v1\.avsc"):
        Catalog.load([tmp_path])
