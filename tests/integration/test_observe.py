"""`relay observe` shows what is in the topics, from where it was asked to, and leaves no trace in Kafka."""

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from fix_consumer import ProbeSite, Topic, transitions
from fix_kafka import Kafka
from fix_process import RunProcess

Observe = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def journal(make_topic: Callable[..., Topic]) -> Topic:
    return make_topic("operation.transitioned")


@pytest.fixture
def observe(probe_site: ProbeSite, run_process: RunProcess) -> Observe:
    def run(*arguments: str) -> list[dict[str, Any]]:
        child = run_process(["observe", "--json", *arguments], probe_site.environment)
        assert child.wait() == 0, child.output()
        return [json.loads(line) for line in child.output().splitlines() if line.startswith("{")]

    return run


def test_a_life_is_shown_from_its_events_alone(journal: Topic, observe: Observe) -> None:
    whole, torn = uuid.uuid4(), uuid.uuid4()
    records = transitions(journal, whole, range(1, 6)) + transitions(journal, torn, range(1, 5))
    del records[6]
    journal.produce(records, transactional=True)
    lines = observe()
    assert [line["record"] for line in lines] == ["event"] * 8 + ["operation"] * 2
    lives = {line["operation_id"]: line for line in lines[8:]}
    assert lives[str(whole)]["phase"] == "succeeded"
    assert lives[str(whole)]["versions"] == [1, 2, 3, 4, 5]
    assert lives[str(whole)]["missing_versions"] == lives[str(whole)]["findings"] == []
    assert lives[str(torn)]["missing_versions"] == [2]
    (only,) = {line["operation_id"] for line in observe("--operation", str(torn))}
    assert only == str(torn)


def test_an_aborted_transaction_is_not_seen(journal: Topic, observe: Observe, real_kafka: Kafka) -> None:
    operation_id = uuid.uuid4()
    journal.produce(transitions(journal, operation_id, range(1, 2)))
    producer = Producer({"bootstrap.servers": real_kafka.bootstrap, "transactional.id": str(operation_id)})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(journal.name, **transitions(journal, operation_id, range(2, 3))[0])
    producer.flush(60)
    producer.abort_transaction(60)
    assert observe()[-1]["versions"] == [1]


def test_it_begins_where_it_is_told(journal: Topic, observe: Observe, real_kafka: Kafka) -> None:
    operation_id = uuid.uuid4()
    journal.produce(transitions(journal, operation_id, range(1, 3)))
    between = datetime.now(UTC)
    journal.produce(transitions(journal, operation_id, range(3, 5)))
    assert observe()[-1]["versions"] == [1, 2, 3, 4]
    assert observe("--from-offset", "3")[-1]["versions"] == [4]
    assert observe("--from-offset", "99") == []
    assert observe("--since", between.isoformat())[-1]["versions"] == [3, 4]
    assert observe("--since", "1h")[-1]["versions"] == [1, 2, 3, 4]
    assert observe("--type", "collection.requested") == []


def test_it_joins_no_group_and_commits_nothing(journal: Topic, observe: Observe, real_kafka: Kafka) -> None:
    admin = AdminClient({"bootstrap.servers": real_kafka.bootstrap})

    def groups() -> set[str]:
        found = admin.list_consumer_groups().result(60).valid or []
        return {each.group_id for each in found if each.group_id.startswith(journal.prefix)}

    journal.produce(transitions(journal, uuid.uuid4(), range(1, 4)))
    before = groups()
    assert observe()
    assert groups() == before


def test_what_cannot_be_read_is_shown_as_such(journal: Topic, observe: Observe) -> None:
    record = transitions(journal, uuid.uuid4(), range(1, 2))[0]
    journal.produce([{**record, "value": b"garbage"}])
    (line,) = observe()
    assert "no Avro single-object encoding" in line["defect"]


def test_people_get_a_table_per_operation_and_a_line_per_event_that_follows(
    journal: Topic, probe_site: ProbeSite, run_process: RunProcess
) -> None:
    operation_id = uuid.uuid4()
    journal.produce(transitions(journal, operation_id, range(1, 3)))
    shown = run_process(["observe"], probe_site.environment)
    assert shown.wait() == 0
    assert f"operation {operation_id}" in shown.output()
    assert "prepared → claimed" in shown.output()
    following = run_process(["observe", "--follow"], probe_site.environment, "prepared → claimed")
    journal.produce(transitions(journal, operation_id, range(3, 4)))
    following.wait_for(f"{operation_id}  v3  claimed → submitting  answer, as told  test")
