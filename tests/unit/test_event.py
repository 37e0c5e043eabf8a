"""Rows to records: headers, keys, topics, sizes, and the reasons why a row can't be one."""

import json
import uuid
from collections.abc import Callable

import pytest

from relay.avro.catalog import Catalog
from relay.outbox.event import BadEvent, EventEncoder, Record, wire_bytes
from relay.outbox.mapping import parse
from relay.wal.pgoutput import Begin, Column, Relation, Row

RELAY_ID = uuid.UUID("00000000-0000-0000-0000-0000000000aa")
KEY = "11111111-1111-1111-1111-111111111111"
EVENT = "22222222-2222-2222-2222-222222222222"
COMMITTED_AT_US = 1_764_417_600_123_456  # 2025-11-29 12:00:00.123456 UTC
BEGIN = Begin(0x16_B374D848, COMMITTED_AT_US, 7)
PAYLOAD = json.dumps({"operation_id": KEY, "job_id": "j"}).encode()
NATIVE: Row = [
    EVENT.encode(),
    b"41",
    b"collection.requested",
    b"1",
    KEY.encode(),
    b"3",
    PAYLOAD,
    b"{}",
    b"2025-11-29 11:59:59.5+00",
]


def encoder(
    columns: str = "native", topic: str | None = None, limit: Callable[[str], int] = lambda _: 1_048_588
) -> EventEncoder:
    made = EventEncoder(
        parse("relay.outbox", columns),
        Catalog.load(),
        relay_id=RELAY_ID,
        epoch=4,
        topic_prefix="app",
        one_topic=topic,
        limit_bytes=limit,
    )
    made.begin(BEGIN)
    return made


def native(**changed: bytes | None) -> Row:
    names = list(parse("relay.outbox", "native").columns.mapped())
    row = list(NATIVE)
    for name, value in changed.items():
        row[names.index(name)] = value
    return row


def headers(record: Record) -> dict[str, str]:
    assert len({name for name, _ in record[3]}) == len(record[3])
    return {name: value.decode() for name, value in record[3]}


def test_a_record_says_what_where_from_and_where_in_the_log() -> None:
    record = encoder().record(native(), 5)
    topic, value, key, _, timestamp_ms = record
    assert (topic, key, timestamp_ms) == ("app.collection.requested", KEY.encode(), COMMITTED_AT_US // 1000)
    assert value is not None
    assert Catalog.load().decode(value).value["job_id"] == "j"
    assert headers(record) == {
        "ce_id": EVENT,
        "ce_type": "collection.requested",
        "ce_source": f"/outbox-relay/{RELAY_ID}",
        "ce_time": "2025-11-29T11:59:59.5Z",
        "ce_specversion": "1.0",
        "relay_lsn": "16/B374D848",
        "relay_index": "5",
        "relay_epoch": "4",
        "operation_version": "3",
        "schema_version": "1",
    }


def test_a_traceparent_travels_and_nothing_else_of_the_headers_does() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    row = native(headers=json.dumps({"traceparent": parent, "secret": "x"}).encode())
    found = headers(encoder().record(row, 0))
    assert found["traceparent"] == parent
    assert "secret" not in found


@pytest.mark.parametrize("text", [b'{"traceparent": 3}', b'{"traceparent": ""}', b"[]", b"not json"])
def test_a_broken_trace_header_is_not_worth_an_event(text: bytes) -> None:
    assert "traceparent" not in headers(encoder().record(native(headers=text), 0))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"2025-11-29 11:59:59+00", "2025-11-29T11:59:59Z"),
        (b"2025-11-29 11:59:59.25", "2025-11-29T11:59:59.25Z"),
        (b"infinity", "2025-11-29T12:00:00.123456Z"),
        (None, "2025-11-29T12:00:00.123456Z"),
    ],
)
def test_the_time_is_rfc_3339_and_the_commits_where_the_row_has_none(
    written: bytes | None, said: str
) -> None:
    assert headers(encoder().record(native(occurred_at=written), 0))["ce_time"] == said


def test_one_topic_takes_every_event() -> None:
    assert encoder(topic="all").record(native(), 0)[0] == "all"


def test_new_topics_are_named_before_their_first_record_is_produced() -> None:
    made = encoder()
    made.record(native(), 0)
    assert made.new_topics == {"app.collection.requested"}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"event_type": b"no.such.type"}, "unknown_schema"),
        ({"schema_version": b"99"}, "unknown_schema"),
        ({"payload": b'{"operation_id": 1}'}, "payload_mismatch"),
        ({"payload": None}, "no_payload"),
        ({"event_type": None}, "no_event_type"),
        ({"event_type": b"a b"}, "topic_name"),
        ({"event_id": None}, "no_event_id"),
    ],
)
def test_a_bad_row_says_why_and_is_kept_whole(changed: dict[str, bytes | None], code: str) -> None:
    made = encoder()
    row = native(**changed)
    with pytest.raises(BadEvent) as caught:
        made.record(row, 2)
    assert caught.value.code == code
    parked = made.parked(row, 2, caught.value)
    assert (parked.reason_code, parked.index, parked.epoch) == (code, 2, 4)
    assert parked.operation_key == KEY
    assert parked.record[0] == "app.relay-dlq"
    assert headers(parked.record)["relay_reason_code"] == code
    assert parked.record[1] == (row[6] or b"")


def test_an_event_without_an_id_gets_the_same_one_each_time() -> None:
    made = encoder()
    first, second = native(event_id=None), native(event_id=None)
    bad = BadEvent("no_event_id", "x")
    for row in (first, second):
        with pytest.raises(BadEvent):
            made.record(row, 2)
    assert made.parked(first, 2, bad).event_id == made.parked(second, 2, bad).event_id


def test_a_record_that_is_too_large_is_told_before_it_is_produced_and_its_payload_is_not_kept() -> None:
    size = wire_bytes(encoder().record(native(), 0))
    encoder(limit=lambda _: size).record(native(), 0)
    made = encoder(limit=lambda _: size - 1)
    row = native()
    with pytest.raises(BadEvent) as caught:
        made.record(row, 0)
    assert caught.value.code == "too_large"
    parked = made.parked(row, 0, caught.value)
    assert parked.payload is None
    assert parked.record[1] is None
    assert parked.payload_bytes == len(PAYLOAD)


# Debezium's table: id, type, aggregatetype, aggregateid, payload, in the order of the mapping.
DEBEZIUM: Row = [b"e-1", b"OrderPlaced", b"order", b"o-7", b'{"n": 1}']


def test_debeziums_table_routes_by_its_aggregate_and_keeps_its_header() -> None:
    record = encoder("debezium").record(list(DEBEZIUM), 0)
    assert record[:3] == ("outbox.event.order", b'{"n": 1}', b"o-7")
    found = headers(record)
    assert (found["id"], found["ce_id"], found["ce_type"]) == ("e-1", "e-1", "OrderPlaced")
    assert "schema_version" not in found


def test_a_bytea_payload_travels_as_its_bytes() -> None:
    made = encoder("debezium")
    made.relation(Relation(1, "relay", "outbox", (Column("payload", 17),), True))
    row = [*DEBEZIUM[:4], b"\\x00ff10"]
    assert made.record(row, 0)[1] == b"\x00\xff\x10"


def test_a_text_payload_that_looks_like_hex_stays_as_it_is() -> None:
    made = encoder("debezium")
    made.relation(Relation(1, "relay", "outbox", (Column("payload", 25),), True))
    assert made.record([*DEBEZIUM[:4], b"\\x00ff10"], 0)[1] == b"\\x00ff10"


def test_a_null_payload_is_a_tombstone() -> None:
    assert encoder("debezium").record([*DEBEZIUM[:4], None], 0)[1] is None


def test_an_id_that_is_no_uuid_is_parked_under_one_derived_from_it() -> None:
    made = encoder("debezium")
    row = [*DEBEZIUM[:2], b"bad topic", *DEBEZIUM[3:]]
    with pytest.raises(BadEvent) as caught:
        made.record(row, 0)
    assert made.parked(row, 0, caught.value).event_id == uuid.uuid5(RELAY_ID, "e-1")


def test_a_mapping_without_versions_encodes_by_the_latest_schema() -> None:
    columns = '{"event_id": "i", "event_type": "t", "operation_id": "k", "payload": "p"}'
    row: Row = [EVENT.encode(), b"generation.requested", KEY.encode(), PAYLOAD]
    made = encoder(columns)
    with pytest.raises(BadEvent) as caught:
        made.record(row, 0)
    assert caught.value.code == "payload_mismatch"  # so the type was known, without a version
