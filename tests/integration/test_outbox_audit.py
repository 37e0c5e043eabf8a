"""The audit names every event that isn't where it should be, and calls nothing wrong that is right."""

import json
from uuid import UUID

import msgspec
import pytest
from confluent_kafka import Producer

from fix_process import RunProcess
from fix_relay import EVENT_TYPE, Received, RelayUnderTest
from relay.errors import UsageError
from relay.kafka import checkpoint as checkpoints
from relay.outbox.audit import Audit
from relay.outbox.mapping import parse
from relay.settings import load


def send_again(relay: RelayUnderTest, record: Received, **headers: bytes) -> None:
    """The record once more, as another producer would, with other values of some headers."""
    said: dict[str, str | bytes | None] = {**record.headers, **headers}
    producer = Producer({"bootstrap.servers": relay.kafka.bootstrap, "partitioner": "murmur2_random"})
    producer.produce(record.topic, record.value, record.key, headers=said)
    assert producer.flush(20) == 0


def pretend_published(relay: RelayUnderTest) -> None:
    """A checkpoint that says that all which is committed now is in Kafka."""
    checkpoint = relay.checkpoint()
    assert checkpoint is not None
    relay_id: UUID = relay.one("select relay_id from relay.source_identity")
    said = msgspec.structs.replace(
        checkpoint,
        confirmed_lsn=relay.insert_lsn() + 1_000_000,
        seq=relay.one("select max(seq) from relay.outbox"),
    )
    producer = Producer({"bootstrap.servers": relay.kafka.bootstrap})
    name = checkpoints.topic(relay.prefix, relay_id)
    producer.produce(name, checkpoints.encode(said), relay_id.bytes, partition=checkpoints.PARTITION)
    assert producer.flush(20) == 0


def published(relay: RelayUnderTest, count: int) -> list[str]:
    process = relay.start()
    events = [event for _ in range(count) for event in relay.emit()]
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    return events


def test_what_is_right_is_clean(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    published(relay, 5)
    summary, findings = relay.audit()
    assert summary.clean
    assert findings == []
    assert (summary.rows, summary.records) == (5, 5)


def test_a_missing_event_is_named_and_the_command_fails(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    relay = exactly_once
    published(relay, 2)
    (lost,) = relay.emit()
    summary, findings = relay.audit(wait_s=0)
    assert [(finding.kind, finding.event_id) for finding in findings] == [("unpublished", lost)]
    assert "relay status" in summary.remedy

    pretend_published(relay)
    process = run_process(["outbox", "audit", "--json"], relay.environment("relay_reader"))
    assert process.wait() == 1
    lines = [json.loads(line) for line in process.output().splitlines() if line.startswith("{")]
    assert [(line["kind"], line["event_id"]) for line in lines[:-1]] == [("missing", lost)]
    assert lines[-1]["summary"]["clean"] is False
    assert lines[-1]["summary"]["verdicts"] == {"missing": 1, "present": 2}


def test_a_row_that_comes_while_the_audit_waits_is_not_missing(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    published(relay, 1)
    relay.emit(3)
    told: list[str] = []

    def progress(what: str) -> None:
        told.append(what)
        if "waiting for the relay" in what:
            relay.run()

    settings = load(environ=relay.environment(None)).settings
    audit = Audit(settings, parse(settings.outbox_table, settings.outbox_columns), progress=progress)
    findings = list(audit.findings())
    assert audit.summary.clean, findings
    assert any("waiting for the relay" in what for what in told)


def test_doubled_events_are_a_fault_only_where_exactly_once_is_promised(relay: RelayUnderTest) -> None:
    events = published(relay, 3)
    send_again(relay, next(record for record in relay.read() if record.event_id == events[1]))
    summary, findings = relay.audit()
    assert not summary.clean
    assert [(finding.kind, finding.event_id) for finding in findings] == [("doubled", events[1])]
    summary, _ = relay.audit(RELAY_DELIVERY="at_least_once")
    assert summary.clean


def test_an_event_that_only_kafka_has_is_named(relay: RelayUnderTest) -> None:
    events = published(relay, 3)
    # As after a restore: the database has forgotten one.
    relay.owner.execute("alter table relay.outbox disable trigger user")
    relay.owner.execute("delete from relay.outbox where event_id = %s", [events[2]])
    summary, findings = relay.audit()
    assert not summary.clean
    assert [(finding.kind, finding.event_id) for finding in findings] == [("phantom", events[2])]
    assert f"{relay.prefix}.{EVENT_TYPE}/" in findings[0].place


def test_records_of_another_relay_on_the_same_topics_are_nobodys_fault(relay: RelayUnderTest) -> None:
    events = published(relay, 2)
    send_again(relay, relay.read()[0], ce_source=b"/outbox-relay/00000000-0000-0000-0000-0000000000aa")
    summary, findings = relay.audit()
    assert summary.clean, findings
    assert summary.records == len(events)


def test_where_rows_do_not_stay_there_is_no_audit(relay: RelayUnderTest) -> None:
    with pytest.raises(UsageError, match="There is no audit for an outbox of rows that don't stay"):
        relay.audit(RELAY_OUTBOX_ROWS="deleted")
