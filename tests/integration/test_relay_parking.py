"""A bad event never blocks and never vanishes: its row in Postgres, its dead letter, and the rest goes on."""

import json
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from fix_commands import Command
from fix_kafka import set_topic
from fix_relay import EVENT_TYPE, RelayUnderTest, read_topics
from fix_waiting import PATIENCE_S

SMALL_LIMIT_BYTES = 20_000
PATIENTLY = ("--wait", str(PATIENCE_S))

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
    # The relay that starts over looks at the limit again, and needs the broker's word no more.
    assert relay.one(_PARKED, parked)[0] in {"refused_by_broker", "too_large"}
    assert relay.one("select count(*) from relay.parked_event") == 1
    assert [record.event_id for record in relay.read("relay-dlq")] == [parked]
    relay.assert_clean()


def test_what_only_the_broker_refuses_is_parked_whole_and_republished_when_it_takes_it(
    exactly_once: RelayUnderTest, command: Command
) -> None:
    """A compacted topic takes no record without a key, which no limit or schema says."""
    relay = exactly_once
    relay.owner.execute("create table public.events (id uuid primary key, type text, k text, body jsonb)")
    settings = {
        "RELAY_SLOT": f"events_{relay.database.name}",
        "RELAY_PUBLICATION": "events",
        "RELAY_OUTBOX_TABLE": "public.events",
        "RELAY_OUTBOX_COLUMNS": json.dumps(
            {"event_id": "id", "event_type": "type", "operation_id": "k", "payload": "body"}
        ),
    }
    relay.slot = settings["RELAY_SLOT"]
    relay.owner.execute("grant select on public.events to relay_replicator, relay_operator")
    relay.initialise(**settings)
    process = relay.start(**settings)
    topic = f"{relay.prefix}.{EVENT_TYPE}"
    set_topic(relay.kafka.bootstrap, topic, "cleanup.policy", "compact")
    ids = [str(uuid4()) for _ in range(4)]
    refused = ids[1]
    payload = Jsonb({"operation_id": ids[0], "job_id": "j"})
    with relay.owner.transaction():
        for event_id in ids:
            key = None if event_id == refused else event_id
            relay.owner.execute(
                "insert into public.events values (%s, %s, %s, %s)", [event_id, EVENT_TYPE, key, payload]
            )
    relay.wait_confirmed(relay.insert_lsn(), process)
    assert sorted(record.event_id for record in relay.read()) == sorted(set(ids) - {refused})
    assert relay.one(_PARKED, refused) == ("refused_by_broker", EVENT_TYPE, True, True, 1, "parked")
    (dead,) = relay.read("relay-dlq")
    assert (dead.event_id, dead.headers["relay_reason_code"]) == (refused, b"refused_by_broker")
    assert b'"job_id"' in (dead.value or b"")

    env = relay.environment("relay_operator", **settings)
    asked = command("outbox", "republish", *PATIENTLY, refused, env=env)
    assert (asked.status, "parked again" in asked.out) == (1, True), asked.out + asked.err
    set_topic(relay.kafka.bootstrap, topic, "cleanup.policy", "delete")
    asked = command("outbox", "republish", *PATIENTLY, refused, env=env)
    assert (asked.status, asked.out) == (0, "1 republished\n"), asked.out + asked.err
    assert sorted(record.event_id for record in relay.read()) == sorted(ids)
    assert process.running


def test_a_republish_looks_at_the_limit_again_and_takes_what_was_not_kept_from_the_outbox(
    exactly_once: RelayUnderTest, command: Command
) -> None:
    relay = exactly_once
    process = relay.start()
    limit(relay, SMALL_LIMIT_BYTES)
    large = {"operation_id": "00000000-0000-0000-0000-000000000001", "job_id": "j" * SMALL_LIMIT_BYTES}
    (parked,) = relay.emit(1, payload=large)
    relay.wait_published(process)
    assert relay.one(_PARKED, parked)[:3] == ("too_large", EVENT_TYPE, False)
    env = relay.environment("relay_operator")
    asked = command("outbox", "republish", *PATIENTLY, parked, env=env)
    assert (asked.status, "takes 20000" in asked.out) == (1, True), asked.out

    limit(relay, 1_000_000)
    asked = command("outbox", "republish", *PATIENTLY, parked, env=env)
    assert (asked.status, asked.out) == (0, "1 republished\n"), asked.out + asked.err
    (record,) = relay.read()
    assert (record.event_id, len(record.value or b"") > SMALL_LIMIT_BYTES) == (parked, True), "nothing is cut"
    relay.assert_clean()


def test_a_payload_that_nobody_has_any_more_is_asked_for_in_words(
    relay: RelayUnderTest, command: Command
) -> None:
    process = relay.start()
    (parked,) = relay.emit(1, event_type="no.such.type")
    relay.wait_published(process)
    relay.owner.execute("update relay.parked_event set payload = null")
    with relay.owner.transaction():
        relay.owner.execute("alter table relay.outbox disable trigger user")
        relay.owner.execute("delete from relay.outbox where event_id = %s", [parked])
    asked = command("outbox", "republish", *PATIENTLY, parked, env=relay.environment("relay_operator"))
    assert asked.status == 2
    assert "was not kept" in asked.err
    assert "--payload FILE" in asked.err


def test_a_payload_of_bytes_is_republished_as_its_bytes_before_any_row_was_streamed(
    relay: RelayUnderTest, command: Command, tmp_path: Path
) -> None:
    """Debezium's table, whose rows are gone: the correction is a file of bytes."""
    relay.owner.execute(
        "create table public.aggregates (id uuid primary key, aggregatetype text not null,"
        " aggregateid text not null, type text not null, payload bytea)"
    )
    settings = {
        "RELAY_SLOT": f"bytes_{relay.database.name}",
        "RELAY_PUBLICATION": "aggregates",
        "RELAY_OUTBOX_TABLE": "public.aggregates",
        "RELAY_OUTBOX_COLUMNS": "debezium",
    }
    relay.slot = settings["RELAY_SLOT"]
    relay.initialise(**settings)
    process = relay.start(**settings)
    event_id, aggregate = str(uuid4()), f"order-{relay.prefix}"
    large = bytes(range(256)) * 5_000  # more than a topic takes
    with relay.owner.transaction():
        relay.owner.execute(
            "insert into public.aggregates values (%s, %s, 'o-7', 'OrderPlaced', %s)",
            [event_id, aggregate, large],
        )
        relay.owner.execute("delete from public.aggregates")
    relay.wait_confirmed(relay.insert_lsn(), process)
    assert relay.one(_PARKED, event_id)[:3] == ("too_large", "OrderPlaced", False)
    assert process.stop() == 0, process.output()
    env = relay.environment("relay_operator", **settings)
    asked = command("outbox", "republish", *PATIENTLY, event_id, env=env)
    assert (asked.status, "--payload FILE" in asked.err) == (2, True), asked.err

    smaller = tmp_path / "smaller.bin"
    smaller.write_bytes(large[:1000])
    relay.wait_slot_free()
    relay.start(**settings)
    asked = command(
        "outbox", "republish", event_id, "--payload", str(smaller), "--why", "cut by hand", env=env
    )
    assert (asked.status, asked.out) == (0, "1 republished\n"), asked.out + asked.err
    (record,) = read_topics(relay.kafka.bootstrap, [f"outbox.event.{aggregate}"])
    assert (record.key, record.value) == (b"o-7", large[:1000])
    assert record.headers["id"] == record.headers["ce_id"] == event_id.encode()
    assert record.headers["relay_origin"] == b"republish"
