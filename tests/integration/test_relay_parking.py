"""A bad event never blocks and never vanishes: its row in Postgres, its dead letter, and the rest goes on."""

import pytest

from fix_kafka import set_topic
from fix_relay import EVENT_TYPE, RelayUnderTest

SMALL_LIMIT_BYTES = 20_000

_PARKED = """
    select reason_code, event_type, payload is not null, payload_bytes > 0, commit_index, state
    from relay.parked_event where event_id = %s
"""


def limit(relay: RelayUnderTest, size: int) -> None:
    """Set `max.message.bytes` of the topic that events go to."""
    set_topic(relay.kafka.bootstrap, f"{relay.prefix}.{EVENT_TYPE}", "max.message.bytes", str(size))


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"event_type": "no.such.type"}, "unknown_schema"),
        ({"schema_version": 99}, "unknown_schema"),
        ({"payload": {"operation_id": 1}}, "payload_mismatch"),
    ],
)
def test_a_bad_event_is_parked_and_the_rest_goes_on(
    bad: dict[str, object], code: str, relay: RelayUnderTest
) -> None:
    process = relay.start()
    before = relay.emit(1)
    (parked,) = relay.emit(1, **bad)  # type: ignore[arg-type]
    after = relay.emit(1)
    relay.wait_published(process)

    assert sorted(record.event_id for record in relay.read()) == sorted(before + after)
    found = relay.one(_PARKED, parked)
    assert found == (code, bad.get("event_type", EVENT_TYPE), True, True, 0, "parked")
    (dead,) = relay.read("relay-dlq")
    assert dead.event_id == parked
    assert dead.headers["relay_reason_code"] == code.encode()


def test_a_parked_event_is_parked_once_however_often_its_relay_dies(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    (parked,) = relay.emit(1, event_type="no.such.type")
    process = relay.failing("relay.encoded=kill")
    assert process.wait() == -9, process.output()
    assert relay.one(_PARKED, parked)[0] == "unknown_schema", "the row is committed first"
    assert relay.read("relay-dlq") == []
    # The first commit of a process is none of events only when it is the relay's very first.
    process = relay.failing("relay.kafka_committed=kill")
    assert process.wait() == -9, process.output()
    process = relay.start()
    relay.wait_published(process)
    assert [record.event_id for record in relay.read("relay-dlq")] == [parked]
    assert relay.one("select count(*) from relay.parked_event") == 1


def test_an_event_that_is_too_large_for_its_topic_is_parked_without_its_payload(
    exactly_once: RelayUnderTest,
) -> None:
    relay = exactly_once
    process = relay.start()
    assert process.stop() == 0, process.output()  # the topics exist
    limit(relay, SMALL_LIMIT_BYTES)

    process = relay.start()
    large = {"operation_id": "00000000-0000-0000-0000-000000000001", "job_id": "j" * SMALL_LIMIT_BYTES}
    small = relay.emit(100)
    (parked,) = relay.emit(1, payload=large)
    small += relay.emit(100)
    relay.wait_published(process)
    assert sorted(record.event_id for record in relay.read()) == sorted(small)
    assert relay.one(_PARKED, parked) == ("too_large", EVENT_TYPE, False, True, 0, "parked")
    (dead,) = relay.read("relay-dlq")
    assert dead.value is None
    assert int(dead.headers["relay_payload_bytes"]) > SMALL_LIMIT_BYTES


def test_a_record_that_the_broker_refuses_is_found_and_parked_and_no_other(
    exactly_once: RelayUnderTest,
) -> None:
    relay = exactly_once
    process = relay.start()
    events = relay.emit(1)
    relay.wait_published(process)
    limit(relay, SMALL_LIMIT_BYTES)  # behind the relay's back
    large = {"operation_id": "00000000-0000-0000-0000-000000000001", "job_id": "j" * SMALL_LIMIT_BYTES}
    with relay.owner.transaction():
        events += relay.emit(2, connection=relay.owner)
        (parked,) = relay.emit(1, connection=relay.owner, payload=large)
        events += relay.emit(2, connection=relay.owner)
    events += relay.emit(3)
    relay.wait_published(process)

    assert sorted(record.event_id for record in relay.read()) == sorted(events)
    assert relay.one(_PARKED, parked)[0] in {"refused_by_broker", "too_large"}
    assert relay.one("select count(*) from relay.parked_event") == 1
