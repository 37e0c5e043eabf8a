"""What becomes of a bad event, decided without a server: which keys wait, what stands, and when it halts."""

import json
import uuid

import pytest

from relay.avro.catalog import Catalog
from relay.outbox import message as messages
from relay.outbox.bad_event import KEYS_MOST, REPUBLISH, Decided, OnBadEvent, Verdicts, read_request
from relay.outbox.event import BadEvent, EventEncoder
from relay.outbox.mapping import parse
from relay.outbox.parts import parts_of, row_of
from relay.wal.pgoutput import Begin
from stream_scene import Scene, begin, commit, message, row

NATIVE = parse("relay.outbox", "native")
MESSAGES = parse("relay.outbox", "native", source="message")
EVENT_ID = "8ab1f9a4-9c1c-4a5e-9d3a-2f6a3c1f0b11"


def scene(on_bad_event: OnBadEvent, verdicts: Verdicts | None = None) -> Scene:
    return Scene(on_bad_event=on_bad_event, verdicts=Verdicts() if verdicts is None else verdicts)


def feed(place: Scene, lsn: int, *bodies: bytes) -> None:
    for body in (begin(lsn), *bodies, commit(lsn, lsn + 1)):
        if not place.intake.waits:
            place.intake.feed(body)


def codes(place: Scene) -> list[str | None]:
    return [
        part.parked[at].reason_code if at in part.parked else None
        for part in place.parts()
        for at in range(len(part.records))
    ]


def test_with_park_the_key_goes_on() -> None:
    place = scene("park")
    feed(place, 10, row(1, "no.such.type"), row(1), row(2))
    assert codes(place) == ["unknown_schema", None, None]


def test_with_park_key_the_keys_later_events_wait_and_no_others() -> None:
    place = scene("park_key")
    feed(place, 10, row(1, "no.such.type"), row(1), row(2))
    feed(place, 20, row(1), row(2))
    assert codes(place) == ["unknown_schema", "behind", None, "behind", None]


def test_keys_that_waited_at_the_start_wait_until_they_are_released() -> None:
    key = str(uuid.uuid5(uuid.NAMESPACE_OID, "1"))
    verdicts = Verdicts([key])
    place = scene("park_key", verdicts)
    feed(place, 10, row(1))
    verdicts.release(key)
    feed(place, 20, row(1))
    assert codes(place) == ["behind", None]


def test_what_was_parked_and_committed_stays_parked_where_it_would_fit_by_now() -> None:
    decided = Decided("unknown_schema", "it was unknown", "app.t", waits=True)
    place = scene("park_key", Verdicts(decided=[((10, 1), decided)]))
    feed(place, 10, row(1), row(2), row(2))
    assert codes(place) == [None, "unknown_schema", "behind"]


def test_a_key_does_not_wait_for_what_was_discarded_meanwhile() -> None:
    decided = Decided("unknown_schema", "it was unknown", "app.t", waits=False)
    place = scene("park_key", Verdicts(decided=[((10, 0), decided)]))
    feed(place, 10, row(1), row(1))
    assert codes(place) == ["unknown_schema", None]


def test_more_waiting_keys_than_can_be_held_stop_the_relay() -> None:
    verdicts = Verdicts(map(str, range(KEYS_MOST)))
    place = scene("park_key", verdicts)
    feed(place, 10, row(1, "no.such.type"))
    assert place.intake.stop is not None
    assert place.intake.waits
    assert str(KEYS_MOST) in place.intake.stop.message


def test_halt_waits_before_the_event_and_holds_its_transaction_back() -> None:
    place = scene("halt")
    feed(place, 10, row(1))
    feed(place, 20, row(2), row(3, "no.such.type"), row(4))
    assert codes(place) == [None]
    stop = place.intake.stop
    assert stop is not None
    assert stop.exit_status == 22
    assert "RELAY_SCHEMAS" in stop.remedy
    assert "0/14/1" in stop.message


def test_a_request_counts_as_an_index_and_the_intake_stands_before_it_until_it_is_answered() -> None:
    place = scene("park")
    place.intake.feed(begin(10))
    place.intake.feed(row(1))
    place.intake.feed(message(REPUBLISH, b"{}"))
    assert (place.intake.waits, place.intake.asked) == (True, ((10, 1), b"{}"))
    place.intake.answer(None)
    assert (place.intake.waits, place.intake.asked) == (False, None)
    place.intake.feed(row(2))
    place.intake.feed(commit(10, 11))
    (part,) = place.parts()
    assert [dict(record[3])["relay_index"] for record in part.records] == [b"0", b"2"]


def test_what_a_request_is_about_is_handed_on_before_it() -> None:
    place = scene("park")
    place.intake.feed(begin(10))
    place.intake.feed(row(1, "no.such.type"))
    place.intake.feed(message(REPUBLISH, b"{}"))
    assert [len(part.parked) for part in place.parts()] == [1]


def test_a_request_up_to_the_checkpoint_is_not_taken_up_again() -> None:
    place = Scene(after=(10, 0))
    feed(place, 10, message(REPUBLISH, b"{}"), row(1))
    assert not place.intake.waits
    assert [len(part.records) for part in place.parts()] == [1]


def test_a_message_that_outlives_a_rollback_counts_for_nothing() -> None:
    place = scene("park")
    feed(place, 10, message(REPUBLISH, b"{}", transactional=False), message("other", b""), row(1))
    assert place.intake.ignored == {"message_not_transactional": 1, "message": 1}
    (part,) = place.parts()
    assert part.last == (10, 0)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff", b"[]", b'{"relay_id": 1}'])
def test_a_request_that_is_none_is_told(content: bytes) -> None:
    assert read_request(content) is None


# Messages as events -----------------------------------------------------------------------------------------


def document(**other: object) -> bytes:
    whole = {"event_id": EVENT_ID, "event_type": "t", "operation_id": "k", "payload": {"a": 1}}
    return json.dumps({**whole, **other}).encode()


def test_a_message_becomes_the_row_that_it_stands_for() -> None:
    content = document(schema_version=2, version=3, occurred_at="2026-12-01T01:02:03.5+01:00")
    content = content.replace(b'{"a": 1}', b'{"a": 12345678901234567890.10}')
    named = dict(zip(MESSAGES.columns.mapped(), messages.row_of(content, MESSAGES), strict=True))
    assert named == {
        "event_id": EVENT_ID.encode(),
        "event_type": b"t",
        "schema_version": b"2",
        "operation_id": b"k",
        "version": b"3",
        "payload": b'{"a": 12345678901234567890.10}',
        "headers": b"{}",
        "occurred_at": b"2026-12-01 00:02:03.500000+00",
    }


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff",
        b"[]",
        document(event_id="7"),
        document(version="one"),
        document(occurred_at="yesterday"),
        document(occurred_at="2026-12-01T01:02:03"),
        document(headers=[]),
        document(operation_id="a\x00b"),
        document(event_type="\ud800"),
        document(unknown=1),
        b'{"event_id": "' + EVENT_ID.encode() + b'", "event_type": "t", "operation_id": "k"}',
    ],
)
def test_a_message_that_is_no_event_is_a_bad_one(content: bytes) -> None:
    with pytest.raises(BadEvent) as caught:
        messages.row_of(content, MESSAGES)
    assert caught.value.code == messages.MALFORMED


def test_what_postgres_cannot_store_of_a_message_goes_to_the_dead_letters_alone() -> None:
    encoder = EventEncoder(
        MESSAGES,
        Catalog.load(),
        relay_id=uuid.UUID(int=1),
        epoch=1,
        topic_prefix="app",
        one_topic=None,
        limit_bytes=lambda _: 1_000_000,
    )
    encoder.begin(Begin(10, 0, 1))
    for content, kept in ((b"text", "text"), (b"\x00", None), (b"\xff", None)):
        unreadable = [*messages.unreadable(content, MESSAGES), None]
        parked = encoder.parked(unreadable, 0, BadEvent(messages.MALFORMED, "no event"))
        assert (parked.payload, parked.record[1], parked.payload_bytes) == (kept, content, len(content))


# A row, and back --------------------------------------------------------------------------------------------


def test_a_row_that_was_parked_is_the_same_row_again() -> None:
    values = [
        b"id",
        b"7",
        b"t",
        b"1",
        b"k",
        None,
        b'{"a": 1}',
        b'{"traceparent": "x"}',
        b"2026-12-01 00:00:00+00",
    ]
    parts = parts_of(NATIVE, [*values, None], from_hex=False)
    assert "payload" not in parts
    assert row_of(NATIVE, parts, '{"a": 1}') == [
        None if name == "seq" else value for name, value in zip(NATIVE.columns.mapped(), values, strict=True)
    ]
