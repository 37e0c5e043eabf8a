"""A parked event is published by the relay itself, in stream order, once, whatever dies on the way."""

import json
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from fix_commands import Command, Finished
from fix_process import Process
from fix_relay import EVENT_TYPE, Received, RelayUnderTest
from fix_waiting import PATIENCE_S, eventually

FITS = {"operation_id": "00000000-0000-0000-0000-000000000001", "job_id": "job-1"}
BAD = {"operation_id": 1}

KEYS = {"RELAY_ON_BAD_EVENT": "park_key"}


class Operator:
    """What a person types, as a member of relay_operator."""

    def __init__(self, relay: RelayUnderTest, command: Command) -> None:
        self._relay = relay
        self._command = command

    def __call__(self, *args: str) -> Finished:
        patiently = ("--wait", str(PATIENCE_S)) if args[0] == "republish" and "--wait" not in args else ()
        return self._command("outbox", *args, *patiently, env=self._relay.environment("relay_operator"))


@pytest.fixture
def operator(relay: RelayUnderTest, command: Command) -> Operator:
    return Operator(relay, command)


def state(relay: RelayUnderTest, event_id: str) -> str:
    return str(relay.one("select state from relay.parked_event where event_id = %s", event_id))


def correction(tmp_path: Path, payload: dict[str, object] | None = None) -> str:
    path = tmp_path / "payload.json"
    path.write_text(json.dumps(payload or FITS), encoding="utf-8")
    return str(path)


def park_one(relay: RelayUnderTest, process: Process) -> str:
    """An event that doesn't fit its schema."""
    (event_id,) = relay.emit(1, payload=BAD)
    relay.wait_published(process)
    return event_id


def ids(records: list[Received]) -> list[str]:
    return [record.event_id for record in records]


def test_a_corrected_event_is_published_once_with_its_id_and_both_payloads_stay(
    exactly_once: RelayUnderTest, operator: Operator, tmp_path: Path
) -> None:
    relay = exactly_once
    process = relay.start()
    event_id = park_one(relay, process)
    assert operator("parked", "list").out.startswith(event_id)
    assert operator("parked", "list", "--json").json["reason_code"] == "payload_mismatch"

    asked = operator("republish", event_id, "--payload", correction(tmp_path), "--why", "typo in the job")
    assert asked.status == 0, asked.out + asked.err
    assert asked.out == "1 republished\n"
    (record,) = relay.read()
    assert record.event_id == event_id
    assert record.headers["relay_origin"] == b"republish"
    assert record.headers["operation_version"] == b"1"
    assert record.headers["ce_time"].endswith(b"Z")

    shown = operator("parked", "show", event_id, "--json").json
    assert (shown["state"], json.loads(shown["payload"]), json.loads(shown["correction"])) == (
        "republished",
        BAD,
        FITS,
    )
    (entry,) = shown["history"]
    assert (entry["action"], entry["why"], entry["login"]) == (
        "republish", "typo in the job", "login_relay_operator",
    )  # fmt: skip
    assert "@" in entry["who"]
    again = operator("republish", event_id)
    assert (again.status, "republished already" in again.out) == (1, True), again.out
    later = relay.emit(1)
    relay.wait_published(process)
    assert sorted(ids(relay.read())) == sorted([event_id, *later])
    relay.assert_clean()


def test_an_event_that_is_still_bad_is_parked_again_and_nothing_stops(
    relay: RelayUnderTest, operator: Operator, tmp_path: Path
) -> None:
    process = relay.start()
    event_id = park_one(relay, process)
    still_bad = correction(tmp_path, {"operation_id": FITS["operation_id"], "job_id": 7})
    asked = operator("republish", event_id, "--payload", still_bad, "--why", "first try")
    assert asked.status == 1
    assert "parked again" in asked.out
    assert "job_id" in asked.out, "the new reason"
    assert state(relay, event_id) == "parked"

    asked = operator("republish", event_id, "--payload", correction(tmp_path), "--why", "second try")
    assert asked.status == 0, asked.out
    assert [entry["why"] for entry in operator("parked", "show", event_id, "--json").json["history"]] == [
        "first try",
        "second try",
    ]
    events = relay.emit(1)
    relay.wait_published(process)
    assert sorted(ids(relay.read())) == sorted([event_id, *events])
    assert {record.event_id for record in relay.read("relay-dlq")} == {event_id}


@pytest.mark.parametrize(
    "failpoint",
    [
        "relay.republish_taken",
        "relay.before_kafka_commit",
        "relay.kafka_committed",
        "relay.republished",
    ],
)
def test_a_republish_comes_once_and_its_row_says_so_wherever_the_relay_dies(
    failpoint: str, exactly_once: RelayUnderTest, operator: Operator, tmp_path: Path
) -> None:
    relay = exactly_once
    process = relay.start()
    event_id = park_one(relay, process)
    assert process.stop() == 0, process.output()
    asked = operator(
        "republish", event_id, "--payload", correction(tmp_path), "--why", "w", "--wait", "0", "--json"
    )
    assert asked.json["events"] == {event_id: "requested"}
    relay.wait_slot_free()
    process = relay.failing(f"{failpoint}=kill")  # at its first passage: the republish's
    assert process.wait() == -9, process.output()
    later = relay.emit(1)
    process = relay.start()
    relay.wait_published(process)
    eventually(lambda: state(relay, event_id) == "republished", "the row says that it is published")
    assert sorted(ids(relay.read())) == sorted([event_id, *later])
    relay.assert_clean()


def test_requests_that_nobody_made_are_ignored_and_counted(
    relay: RelayUnderTest, operator: Operator, tmp_path: Path
) -> None:
    """Anybody may emit a message with any prefix: without an operator's request it publishes nothing."""
    process = relay.start()
    event_id = park_one(relay, process)
    relay_id = relay.one("select relay_id from relay.source_identity")

    def message(relay_id: object, event_id: object, number: int = 1, *, transactional: bool = True) -> None:
        content = json.dumps({"relay_id": str(relay_id), "event_id": str(event_id), "request": number})
        relay.owner.execute(
            "select pg_logical_emit_message(%s, 'relay.republish', %s)", [transactional, content]
        )

    message(relay_id, event_id)  # forged: no operator asked
    message(relay_id, uuid4())
    message(uuid4(), event_id)
    message(relay_id, event_id, transactional=False)
    relay.owner.execute("select pg_logical_emit_message(true, 'relay.republish', 'nonsense')")
    assert operator("parked", "discard", event_id, "--why", "not worth it").status == 0
    message(relay_id, event_id)
    events = relay.emit(2)
    relay.wait_published(process)

    assert sorted(ids(relay.read())) == sorted(events)
    assert state(relay, event_id) == "discarded"
    said = process.output()
    for why in ("not_requested", "unknown", "unreadable", "discarded"):
        assert f'"why": "{why}"' in said, why
    refused = operator("republish", event_id)
    assert (refused.status, "discarded already" in refused.out) == (1, True)


def test_an_operator_can_republish_and_forge_nothing(relay: RelayUnderTest) -> None:
    event_id = park_one(relay, relay.start())
    url = relay.database.url_as("relay_operator")
    forbidden = [
        "update relay.parked_event set payload = '{}'",
        "update relay.parked_event set state = 'republished'",
        "insert into relay.parked_event select * from relay.parked_event",
        "insert into relay.outbox (event_type) values ('collection.requested')",
        "select relay.emit_event('collection.requested', 'k', '{}')",
    ]
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in forbidden:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
        relay_id = relay.one("select relay_id from relay.source_identity")
        with pytest.raises(psycopg.errors.NullValueNotAllowed):  # a correction says why
            connection.execute(
                "select relay.republish_parked(%s, %s, 'me', null, '{}')", [relay_id, event_id]
            )
    for role in ("relay_app", "relay_worker", "relay_replicator", "relay_reader"):
        with (
            psycopg.connect(relay.database.url_as(role), autocommit=True) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute("select relay.republish_parked(%s, %s, 'me')", [uuid4(), event_id])


def test_a_request_is_made_once_in_an_epoch_and_not_under_a_repair(
    relay: RelayUnderTest, operator: Operator
) -> None:
    """A repair makes the slot anew: the message of an earlier request may be gone with the old one."""
    process = relay.start()
    event_id = park_one(relay, process)
    assert process.stop() == 0, process.output()
    relay.owner.execute("update relay.source_identity set state = 'repairing'")
    refused = operator("republish", event_id)
    assert (refused.status, "under repair" in refused.out) == (1, True), refused.out
    relay.owner.execute("update relay.source_identity set state = 'running'")
    assert operator("republish", event_id, "--wait", "0").status == 0
    refused = operator("republish", event_id)
    assert (refused.status, "on its way already" in refused.out) == (1, True), refused.out
    assert operator("parked", "list", "--json").json["state"] == "requested"
    relay.owner.execute("update relay.source_identity set epoch = epoch + 1")
    assert operator("republish", event_id, "--wait", "0").status == 0
    assert relay.one("select request_no from relay.parked_event") == 2


def test_all_of_a_type_are_published_in_the_order_of_their_commits(
    relay: RelayUnderTest, operator: Operator
) -> None:
    """The schema comes later: then everything of its type can go."""
    process = relay.start()
    operation = uuid4()
    # To what an operator asks for while the relay is down, it comes when it runs again.
    parked = [relay.emit(1, operation_id=operation, version=n, schema_version=9)[0] for n in (1, 2, 3)]
    other = relay.emit(1, event_type="no.such.type")
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    relay.owner.execute(
        "update relay.parked_event set parts = jsonb_set(parts, '{schema_version}', '\"1\"')"
        " where schema_version = 9"
    )
    asked = operator("republish", "--all-of-type", EVENT_TYPE, "--wait", "0", "--json")
    assert set(asked.json["events"].values()) == {"requested"}
    relay.wait_slot_free()
    relay.start()
    eventually(lambda: state(relay, parked[-1]) == "republished", "the relay has come to the requests")
    assert ids(relay.read()) == parked
    assert state(relay, other[0]) == "parked"


# park_key ---------------------------------------------------------------------------------------------------


def test_later_events_of_a_key_wait_behind_a_parked_one_and_are_released_in_order(
    exactly_once: RelayUnderTest, operator: Operator, tmp_path: Path
) -> None:
    relay = exactly_once
    operation = uuid4()
    process = relay.start(**KEYS)
    (first,) = relay.emit(1, operation_id=operation, version=1)
    (culprit,) = relay.emit(1, operation_id=operation, version=2, payload=BAD)
    (third,) = relay.emit(1, operation_id=operation, version=3)
    others = relay.emit(2)
    relay.wait_published(process)
    process.kill()
    relay.wait_slot_free()
    (fourth,) = relay.emit(1, operation_id=operation, version=4)
    process = relay.start(**KEYS)  # the keys that wait survive the crash
    relay.wait_published(process)
    assert sorted(ids(relay.read())) == sorted([first, *others])
    codes = {row["event_id"]: row["reason_code"] for row in lines(operator("parked", "list", "--json"))}
    assert codes == {culprit: "payload_mismatch", third: "behind", fourth: "behind"}
    assert operator("parked", "show", fourth, "--json").json["first_of_its_key"] == culprit

    early = operator("republish", third)
    assert (early.status, "earlier event of its key" in early.out) == (1, True), early.out
    asked = operator("republish", culprit, "--payload", correction(tmp_path), "--why", "w")
    assert asked.status == 0, asked.out
    (fifth,) = relay.emit(1, operation_id=operation, version=5)  # the key is still held by those that wait
    relay.wait_published(process)
    assert state(relay, fifth) == "parked"
    asked = operator("republish", "--behind", str(operation))
    assert (asked.status, asked.out) == (0, "3 republished\n"), asked.out
    (sixth,) = relay.emit(1, operation_id=operation, version=6)
    relay.wait_published(process)

    own = [record for record in relay.read() if record.key == str(operation).encode()]
    assert ids(own) == [first, culprit, third, fourth, fifth, sixth]
    relay.assert_clean()


def test_a_key_goes_on_when_its_culprit_is_discarded(relay: RelayUnderTest, operator: Operator) -> None:
    operation = uuid4()
    process = relay.start(**KEYS)
    (culprit,) = relay.emit(1, operation_id=operation, version=1, payload=BAD)
    (second,) = relay.emit(1, operation_id=operation, version=2)
    relay.wait_published(process)
    assert operator("parked", "discard", culprit, "--why", "a test").status == 0
    asked = operator("republish", "--behind", str(operation))
    assert (asked.status, asked.out) == (0, "1 republished\n"), asked.out
    (third,) = relay.emit(1, operation_id=operation, version=3)
    relay.wait_published(process)
    assert ids(relay.read()) == [second, third]


def test_what_was_parked_before_a_crash_stays_parked_though_it_would_fit_by_now(
    exactly_once: RelayUnderTest, operator: Operator
) -> None:
    """The row is committed and Kafka has nothing: to publish it now would make its republish a second one."""
    relay = exactly_once
    operation = uuid4()
    (culprit,) = relay.emit(1, operation_id=operation, version=1, payload=BAD)
    (second,) = relay.emit(1, operation_id=operation, version=2)
    process = relay.failing("relay.encoded=kill@2", **KEYS)
    assert process.wait() == -9, process.output()
    assert relay.one("select count(*) from relay.parked_event") == 2
    relay.wait_slot_free()
    # While nobody runs: the culprit is given up, and the one behind it is asked for.
    assert operator("parked", "discard", culprit, "--why", "a test").status == 0
    operator("republish", second, "--wait", "0")
    process = relay.start(**KEYS)
    eventually(lambda: state(relay, second) == "republished", "the relay has come to the request")
    (third,) = relay.emit(1, operation_id=operation, version=3)
    relay.wait_published(process)
    assert ids(relay.read()) == [second, third]


def lines(finished: Finished) -> list[dict[str, str]]:
    return [json.loads(line) for line in finished.out.splitlines()]


# halt -------------------------------------------------------------------------------------------------------


def test_halt_stops_before_the_event_with_all_before_it_in_kafka_and_goes_on_after_the_mend(
    exactly_once: RelayUnderTest, tmp_path: Path
) -> None:
    relay = exactly_once
    before = relay.emit(3)
    (bad,) = relay.emit(1, event_type="order.placed")
    after = relay.emit(2)
    for _ in range(2):  # it stops there each time
        process = relay.run(RELAY_ON_BAD_EVENT="halt")
        assert process.wait() == 22, process.output()
        said = process.output()
        assert bad in said
        assert "order.placed" in said
        assert "RELAY_SCHEMAS" in said
        assert "RELAY_ON_BAD_EVENT=park" in said
        assert sorted(ids(relay.read())) == sorted(before)
        relay.wait_slot_free()
    assert relay.one("select count(*) from relay.parked_event") == 0
    assert relay.read("relay-dlq") == []

    folder = tmp_path / "schemas" / "order.placed"
    folder.mkdir(parents=True)
    (folder / "v1.avsc").write_text(
        json.dumps(
            {
                "type": "record",
                "name": "OrderPlaced",
                "namespace": "app",
                "fields": [
                    {"name": "operation_id", "type": "string"},
                    {"name": "job_id", "type": "string"},
                ],
            }
        ),
        encoding="utf-8",
    )
    process = relay.start(RELAY_ON_BAD_EVENT="halt", RELAY_SCHEMAS=str(tmp_path / "schemas"))
    relay.wait_published(process)
    assert sorted(ids(relay.read())) == sorted(before + after)
    assert ids(relay.read("order.placed")) == [bad]
    relay.assert_clean()


def test_after_a_halt_the_event_can_be_parked_and_nothing_is_lost(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    with relay.owner.transaction():  # the good events of its transaction wait with it
        events = relay.emit(2, connection=relay.owner)
        (bad,) = relay.emit(1, payload=BAD, connection=relay.owner)
        events += relay.emit(2, connection=relay.owner)
    process = relay.run(RELAY_ON_BAD_EVENT="halt")
    assert process.wait() == 22, process.output()
    relay.wait_slot_free()
    process = relay.start(RELAY_ON_BAD_EVENT="park")
    relay.wait_published(process)
    assert sorted(ids(relay.read())) == sorted(events)
    assert state(relay, bad) == "parked"
