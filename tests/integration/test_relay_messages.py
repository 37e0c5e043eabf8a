"""Logical messages as the source: what commits comes once, what rolls back never, and no table is needed."""

import json
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from fix_commands import Command
from fix_relay import EVENT_TYPE, RelayUnderTest
from fix_waiting import PATIENCE_S, eventually

SOURCE = {"RELAY_OUTBOX_SOURCE": "message"}
PATIENTLY = ("--wait", str(PATIENCE_S))


class Messages:
    """`relay`, for events that come as messages: slot and publication of their own, in the same database."""

    def __init__(self, relay: RelayUnderTest) -> None:
        self.relay = relay
        relay.slot = f"messages_{relay.database.name}"
        self.settings = SOURCE | {"RELAY_PUBLICATION": "messages"}
        relay.initialise(**self.settings)

    def emit(self, count: int = 1, key: UUID | None = None) -> list[str]:
        """`count` events in one transaction, as an application's login."""
        made = []
        login = self.relay.database.url_as("relay_app")
        with self.relay.database.connect(login) as connection, connection.transaction():
            for version in range(1, count + 1):
                operation = str(key or uuid4())
                row = connection.execute(
                    "select relay.emit_event(%s, %s, %s, version => %s)",
                    [EVENT_TYPE, operation, Jsonb({"operation_id": operation, "job_id": "j"}), version],
                ).fetchone()
                assert row is not None
                made.append(str(row[0]))
        return made

    def raw(self, content: str | bytes, *, transactional: bool = True) -> None:
        """What somebody emits who doesn't use the function."""
        self.relay.owner.execute("select pg_logical_emit_message(%s, 'outbox', %s)", [transactional, content])

    def wait(self, count: int) -> None:
        eventually(lambda: len(self.relay.read()) >= count, f"{count} events are in Kafka")

    def ids(self) -> list[str]:
        return sorted(record.event_id for record in self.relay.read())


@pytest.fixture
def messages(exactly_once: RelayUnderTest) -> Messages:
    return Messages(exactly_once)


def test_committed_messages_come_once_in_order_and_those_of_a_rolled_back_transaction_never(
    messages: Messages, command: Command
) -> None:
    relay = messages.relay
    process = relay.start(**messages.settings)
    assert "repair, backfill and audit don't exist" in process.output()
    key = uuid4()
    events = messages.emit(20, key)
    with relay.owner.transaction(force_rollback=True):
        messages.raw(json.dumps({"event_id": str(uuid4()), "event_type": EVENT_TYPE}))
        relay.owner.execute("select relay.emit_event(%s, 'k', '{}')", [EVENT_TYPE])
    with relay.owner.transaction():
        relay.owner.execute("savepoint s")
        relay.owner.execute("select relay.emit_event(%s, 'k', '{}')", [EVENT_TYPE])
        relay.owner.execute("rollback to savepoint s")
    document = json.dumps(
        {"event_id": str(uuid4()), "event_type": EVENT_TYPE, "operation_id": "k", "payload": {}}
    )
    messages.raw(document, transactional=False)  # it arrives, whatever becomes of its transaction
    relay.emit(1)  # the table's events are another relay's
    events += messages.emit(1)
    relay.wait_confirmed(relay.insert_lsn(), process)

    assert messages.ids() == sorted(events)
    own = [record for record in relay.read() if record.key == str(key).encode()]
    assert [int(record.headers["operation_version"]) for record in own] == list(range(1, 21))
    assert [record.position for record in own] == sorted(record.position for record in own)
    assert all(record.headers["ce_time"].endswith(b"Z") for record in own)
    assert process.stop() == 0, process.output()
    examined = command("doctor", env=relay.environment(None, **messages.settings))
    assert "zero-length" not in examined.err, examined.err
    assert examined.status in {0, 1}, examined.err
    audited = command("outbox", "audit", env=relay.environment(None, **messages.settings))
    assert (audited.status, "logical messages" in audited.err) == (2, True)


@pytest.mark.parametrize(
    "failpoint",
    ["relay.encoded", "relay.before_kafka_commit", "relay.kafka_committed", "relay.before_feedback"],
)
def test_after_a_kill_at_any_boundary_each_message_is_there_once(failpoint: str, messages: Messages) -> None:
    relay = messages.relay
    events = messages.emit(3) + messages.emit(2)
    process = relay.failing(f"{failpoint}=kill", **messages.settings)
    assert process.wait() == -9, process.output()
    events += messages.emit(2)
    relay.wait_slot_free()
    process = relay.start(**messages.settings)
    messages.wait(len(events))
    relay.wait_confirmed(relay.insert_lsn(), process)
    assert messages.ids() == sorted(events)


def test_a_kill_in_the_middle_of_a_large_transaction_of_messages_goes_on_within_it(
    messages: Messages,
) -> None:
    relay = messages.relay
    small = {"RELAY_QUEUE_BYTES": str(1024 * 1024), "RELAY_GROUP_BYTES": str(64 * 1024)}
    relay.owner.execute(
        "select count(relay.emit_event(%s, g::text, jsonb_build_object('operation_id', g, 'job_id', 'j')))"
        " from (select gen_random_uuid() as g from generate_series(1, 5000)) s",
        [EVENT_TYPE],
    )
    process = relay.failing("relay.kafka_committed=kill@2", **small, **messages.settings)
    assert process.wait() == -9, process.output()
    checkpoint = relay.checkpoint()
    assert checkpoint is not None
    assert 0 < checkpoint.index < 4_999
    relay.wait_slot_free()
    process = relay.start(**small, **messages.settings)
    relay.wait_confirmed(relay.insert_lsn(), process)
    found = messages.ids()
    assert len(found) == len(set(found)) == 5_000


def test_a_message_that_is_no_event_is_parked_and_can_be_mended(
    messages: Messages, command: Command, tmp_path: Path
) -> None:
    relay = messages.relay
    process = relay.start(**messages.settings)
    key = str(uuid4())
    good = {"event_id": str(uuid4()), "event_type": EVENT_TYPE, "operation_id": key, "schema_version": 1}
    bad: list[str | bytes] = [
        "nonsense",
        b"\x00\xff",
        json.dumps(good),  # no payload
        json.dumps(good | {"payload": {}, "occurred_at": "2026-01-01T00:00:00"}),  # no offset
        json.dumps(good | {"payload": {}, "operation_id": "a\x00b"}),
        json.dumps(good | {"payload": {}, "headers": []}),
    ]
    for content in bad:
        messages.raw(content)
    unfit = str(uuid4())
    messages.raw(json.dumps(good | {"event_id": unfit, "payload": {"operation_id": 1}}))
    events = messages.emit(2)
    messages.wait(2)
    relay.wait_confirmed(relay.insert_lsn(), process)
    assert messages.ids() == sorted(events)
    codes = relay.owner.execute(
        "select reason_code, count(*) from relay.parked_event group by 1 order by 1"
    ).fetchall()
    assert codes == [("malformed_message", len(bad)), ("payload_mismatch", 1)]
    assert len(relay.read("relay-dlq")) == len(bad) + 1

    # What is mended of a message that is no event is the message.
    (first,) = relay.owner.execute(
        "select event_id::text from relay.parked_event where payload = 'nonsense'"
    ).fetchone() or ("",)
    mended = tmp_path / "mended.json"
    mended.write_text(json.dumps(good | {"payload": {"operation_id": key, "job_id": "j"}}), encoding="utf-8")
    env = relay.environment("relay_operator", **messages.settings)
    asked = command(
        "outbox", "republish", *PATIENTLY, first, "--payload", str(mended), "--why", "typo", env=env
    )
    assert (asked.status, asked.out) == (0, "1 republished\n"), asked.out + asked.err
    assert messages.ids() == sorted([*events, first])
    mended.write_text(json.dumps({"operation_id": key, "job_id": "j"}), encoding="utf-8")
    asked = command(
        "outbox", "republish", *PATIENTLY, unfit, "--payload", str(mended), "--why", "typo", env=env
    )
    assert (asked.status, asked.out) == (0, "1 republished\n"), asked.out + asked.err
    assert messages.ids() == sorted([*events, first, unfit])


def test_a_publication_with_tables_is_refused_and_a_dropped_one_stops_the_relay(messages: Messages) -> None:
    relay = messages.relay
    relay.owner.execute("alter publication messages add table relay.outbox")
    process = relay.run(**messages.settings)
    assert process.wait() == 15, process.output()
    assert "must have none" in process.output()
    relay.owner.execute("drop publication messages")
    process = relay.run(**messages.settings)
    assert process.wait() == 15, process.output()
    relay.initialise(**messages.settings)  # what its message says
    events = messages.emit(1)
    relay.start(**messages.settings)
    messages.wait(1)
    assert messages.ids() == events
    process = relay.run(RELAY_PUBLICATION="messages")  # the same slot, read as a table's
    assert process.wait() == 2, process.output()
    assert "message:outbox" in process.output()
