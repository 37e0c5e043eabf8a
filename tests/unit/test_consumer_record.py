"""A record of the relay becomes the event that it carries; any other says which part of it is wrong."""

import contextlib
import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.runtime import Position
from consumers.runtime.record import Record, Undecodable, event_id, to_event
from relay.avro.catalog import Catalog

CATALOG = Catalog.load()
OPERATION = "0192f0c1-2b3c-7d4e-8f50-617283940a1b"
EVENT_ID = UUID("0192f0c1-2b3c-7d4e-8f50-617283940a1c")
HEADERS = {
    "ce_id": str(EVENT_ID),
    "ce_type": "collection.requested",
    "ce_source": "/outbox-relay/x",
    "ce_time": "2026-11-29T16:44:01.123456Z",
    "ce_specversion": "1.0",
    "relay_lsn": "1/16B3748",
    "relay_index": "2",
    "relay_epoch": "3",
    "operation_version": "4",
    "schema_version": "1",
}
VALUE = CATALOG.encoder("collection.requested", 1)(
    json.dumps({"operation_id": OPERATION, "job_id": "j1"}).encode()
)


def encoded(headers: dict[str, str]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, text.encode()) for name, text in headers.items())


RECORD = Record("t", 1, 7, OPERATION.encode(), VALUE, encoded(HEADERS), 1_764_434_641_123)


def test_every_header_of_the_relay_reaches_the_event() -> None:
    event = to_event(RECORD, CATALOG)
    assert event.event_id == EVENT_ID
    assert event.type == "collection.requested"
    assert event.key == OPERATION
    assert event.version == 4
    assert event.schema_version == 1
    assert event.payload == {"operation_id": UUID(OPERATION), "job_id": "j1"}
    assert event.occurred_at == datetime(2026, 11, 29, 16, 44, 1, 123456, UTC)
    assert event.position == Position(3, 0x1_016B_3748, 2)
    assert event.headers["ce_source"] == b"/outbox-relay/x"
    assert (event.topic, event.partition, event.offset) == ("t", 1, 7)
    assert event.raw == VALUE


def test_positions_order_by_epoch_then_lsn_then_index() -> None:
    assert Position(1, 9, 9) < Position(2, 1, 5) < Position(2, 2, 0) < Position(2, 2, 1)


def test_a_record_of_another_producer_has_no_position_and_may_have_no_version() -> None:
    own = {name: text for name, text in HEADERS.items() if name.startswith("ce_")}
    event = to_event(replace(RECORD, headers=encoded(own)), CATALOG)
    assert event.position is None
    assert event.version is None


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("ce_id", "7", "bad_header"),
        ("ce_time", "yesterday", "bad_header"),
        ("ce_time", "2026-11-29T16:44:01", "bad_header"),
        ("ce_type", "delivery.requested", "wrong_type"),
        ("relay_lsn", "16B3748", "bad_header"),
        ("relay_index", "-1", "bad_header"),
        ("operation_version", "four", "bad_header"),
    ],
)
def test_a_header_that_is_wrong_is_named(name: str, text: str, code: str) -> None:
    with pytest.raises(Undecodable) as caught:
        to_event(replace(RECORD, headers=encoded({**HEADERS, name: text})), CATALOG)
    assert caught.value.reason_code == code
    assert name in caught.value.reason


@pytest.mark.parametrize("name", ["ce_id", "ce_type", "ce_time", "relay_epoch", "relay_index"])
def test_a_header_that_is_missing_is_named(name: str) -> None:
    rest = {each: text for each, text in HEADERS.items() if each != name}
    with pytest.raises(Undecodable, match=name) as caught:
        to_event(replace(RECORD, headers=encoded(rest)), CATALOG)
    assert caught.value.reason_code == "missing_header"


HEADER_NAMES = st.sampled_from([*HEADERS, "other"])
GARBAGE = st.builds(
    Record,
    topic=st.just("t"),
    partition=st.just(0),
    offset=st.integers(0, 9),
    key=st.none() | st.binary(max_size=20),
    value=st.none() | st.binary(max_size=40) | st.just(VALUE),
    headers=st.lists(st.tuples(HEADER_NAMES, st.none() | st.binary(max_size=20)), max_size=12).map(tuple),
    timestamp_ms=st.just(0),
)


@given(GARBAGE)
def test_no_record_does_anything_but_decode_or_say_why_not(record: Record) -> None:
    event_id(record)
    with contextlib.suppress(Undecodable):
        to_event(record, CATALOG)


def test_the_last_of_two_headers_counts() -> None:
    other = uuid.uuid4()
    record = replace(RECORD, headers=(*RECORD.headers, ("ce_id", str(other).encode())))
    assert to_event(record, CATALOG).event_id == event_id(record) == other
