"""The consumer runtime against a real broker: what is committed, what comes again, and in which order."""

import re
import signal
import uuid
from collections.abc import Callable

import pytest

from fix_consumer import ProbeSite, StartProbe, Topic, headers_of, offsets_of, read_all
from fix_kafka import Kafka
from fix_waiting import eventually


@pytest.fixture
def group(topic_prefix: str) -> str:
    return f"{topic_prefix}.probe"


def test_a_record_that_finishes_early_is_not_committed_before_the_ones_in_front(
    make_topic: Callable[..., Topic], start_probe: StartProbe, probe_site: ProbeSite, group: str
) -> None:
    topic = make_topic()
    topic.instruct("first", "hold:gate", "third", "fourth")
    child = start_probe()
    child.wait_for(r"^end fourth", times=1)
    eventually(lambda: topic.committed(group) == {0: 1}, "the first record alone is committed")
    child.kill()
    probe_site.open_gate("gate")
    again = start_probe()
    topic.wait_until_drained(group)
    assert sorted(offsets_of(again.output(), "end")) == [(0, 1), (0, 2), (0, 3)]
    assert "end first" not in again.output()


def test_a_drained_group_has_no_lag_behind_transaction_markers(
    make_topic: Callable[..., Topic], start_probe: StartProbe, group: str, real_kafka: Kafka
) -> None:
    topic = make_topic(partitions=3)
    topic.instruct(*(f"n{number}" for number in range(20)), transactional=True)
    start_probe()
    topic.wait_until_drained(group)
    # 20 records and a marker on each partition that the transaction touched.
    assert sum(topic.ends().values()) > 20
    topic.instruct("one more", transactional=True)
    topic.wait_until_drained(group)


def test_a_keys_events_come_in_order_and_other_keys_do_not_wait(
    make_topic: Callable[..., Topic], start_probe: StartProbe, probe_site: ProbeSite, group: str
) -> None:
    topic = make_topic()
    key = uuid.uuid4()
    topic.instruct("hold:gate", *(f"same{number}" for number in range(5)), key=key)
    topic.instruct("another")
    child = start_probe()
    child.wait_for("^end another")
    assert "begin same" not in child.output()
    probe_site.open_gate("gate")
    topic.wait_until_drained(group)
    ended = re.findall(rf"^end (\S+) key={key}", child.output(), re.MULTILINE)
    assert ended == ["hold:gate", "same0", "same1", "same2", "same3", "same4"]


def test_a_transient_failure_keeps_its_keys_order_and_blocks_nobody_else(
    make_topic: Callable[..., Topic], start_probe: StartProbe, probe_site: ProbeSite, group: str
) -> None:
    topic = make_topic()
    key = uuid.uuid4()
    topic.instruct("transient:gate", "behind", key=key)
    topic.instruct("another")
    child = start_probe({"RELAY_CONCURRENCY": "1"})
    child.wait_for("^begin transient", times=3)
    child.wait_for("^end another")
    assert "begin behind" not in child.output()
    probe_site.open_gate("gate")
    child.wait_for("^end behind")
    topic.wait_until_drained(group)
    assert child.output().index("end transient:gate") < child.output().index("begin behind")


def test_a_parked_record_carries_its_reason_and_where_it_came_from(
    make_topic: Callable[..., Topic], start_probe: StartProbe, group: str, kafka: Kafka
) -> None:
    topic = make_topic()
    key = uuid.uuid4()
    topic.instruct("before", "permanent", "after", key=key)
    child = start_probe()
    child.wait_for("^end after")
    topic.wait_until_drained(group)
    (parked,) = read_all(kafka, f"{topic.name}.{group}.dlq", at_least=1)
    headers = headers_of(parked)
    assert parked.key() == str(key).encode()
    assert topic.catalog.decode(bytes(parked.value() or b"")).value["job_id"] == "permanent"
    assert headers["ce_type"] == topic.event_type
    assert str(uuid.UUID(headers["ce_id"])) == headers["ce_id"]
    stated = {name: value for name, value in headers.items() if name.startswith("dlq_")}
    assert stated.pop("dlq_parked_at").endswith("+00:00")
    assert int(stated.pop("dlq_timestamp_ms")) > 0
    offset = stated.pop("dlq_offset")
    assert (int(stated["dlq_partition"]), int(offset)) in offsets_of(child.output(), "begin")
    assert stated == {
        "dlq_topic": topic.name,
        "dlq_partition": stated["dlq_partition"],
        "dlq_group": group,
        "dlq_reason_code": "permanent",
        "dlq_reason": "no gate will ever open",
        "dlq_attempts": "1",
    }


def test_a_bug_of_the_handler_is_retried_and_then_parked_with_its_name(
    make_topic: Callable[..., Topic], start_probe: StartProbe, group: str, kafka: Kafka
) -> None:
    topic = make_topic()
    topic.instruct("broken")
    child = start_probe({"RELAY_RETRY_FOR_S": "0.5"})
    (parked,) = read_all(kafka, f"{topic.name}.{group}.dlq", at_least=1)
    headers = headers_of(parked)
    assert headers["dlq_reason_code"] == "exhausted"
    assert headers["dlq_reason"] == "ZeroDivisionError: a bug of the handler"
    assert int(headers["dlq_attempts"]) >= 2
    topic.wait_until_drained(group)
    assert "Traceback" in child.output()


def test_what_cannot_be_decoded_is_parked_and_the_next_record_is_handled(
    make_topic: Callable[..., Topic], start_probe: StartProbe, group: str, kafka: Kafka
) -> None:
    topic = make_topic()
    good = topic.record({"operation_id": str(uuid.uuid4()), "job_id": "good"})
    headers = dict(good["headers"])

    def damaged(**changes: object) -> dict[str, object]:
        return {**good, **changes}

    topic.produce(
        [
            damaged(value=b"not avro"),
            damaged(value=b"\xc3\x01" + bytes(8)),
            damaged(value=None),
            damaged(value=good["value"][:-1]),
            damaged(headers=[]),
            damaged(headers=list({**headers, "ce_id": b"x"}.items())),
            damaged(headers=list({**headers, "ce_type": b"delivery.requested"}.items())),
            damaged(key=b"\xff\xff"),
            damaged(key=None),
            good,
        ]
    )
    child = start_probe()
    child.wait_for("^end good", times=2)
    topic.wait_until_drained(group)
    parked = read_all(kafka, f"{topic.name}.{group}.dlq", at_least=8)
    assert sorted(headers_of(each)["dlq_reason_code"] for each in parked) == [
        "bad_header",
        "bad_key",
        "missing_header",
        "undecodable",
        "undecodable",
        "undecodable",
        "unknown_schema",
        "wrong_type",
    ]


def test_a_full_window_pauses_the_partition_and_the_member_stays(
    make_topic: Callable[..., Topic], start_probe: StartProbe, probe_site: ProbeSite, group: str
) -> None:
    topic = make_topic()
    topic.instruct("hold:gate", *(f"n{number}" for number in range(2_500)))
    child = start_probe({"RELAY_LOG_LEVEL": "debug", "RELAY_KAFKA_MAX_POLL_INTERVAL_MS": "6000"})
    child.wait_for("paused")
    # One batch of 256 may pass the window of 1,000 before it is seen to be full.
    assert len(offsets_of(child.output(), "begin")) <= 1_000 + 256
    assert topic.committed(group) in ({}, {0: 0})
    probe_site.open_gate("gate")
    child.wait_for("resumed")
    topic.wait_until_drained(group)
    assert len(offsets_of(child.output(), "end")) == 2_501
    assert "lost" not in child.output()


@pytest.mark.slow
def test_work_that_outlasts_the_poll_interval_keeps_its_partition(
    make_topic: Callable[..., Topic], start_probe: StartProbe, group: str
) -> None:
    topic = make_topic()
    topic.instruct("last:8")
    child = start_probe({"RELAY_KAFKA_MAX_POLL_INTERVAL_MS": "6000"})
    child.wait_for("^end last")
    topic.wait_until_drained(group)
    assert len(offsets_of(child.output(), "begin")) == 1
    assert "lost" not in child.output()


def test_sigterm_finishes_what_is_in_flight_commits_it_and_starts_nothing_more(
    make_topic: Callable[..., Topic], start_probe: StartProbe, probe_site: ProbeSite, group: str
) -> None:
    topic = make_topic()
    key = uuid.uuid4()
    topic.instruct("hold:gate", "behind", key=key)
    child = start_probe()
    child.wait_for("^begin hold:gate")
    child.signal(signal.SIGTERM)
    child.wait_for("stopping")
    probe_site.open_gate("gate")
    assert child.wait() == 0
    assert "end hold:gate" in child.output()
    assert "begin behind" not in child.output()
    assert "probe closed" in child.output()
    assert topic.committed(group) == {0: 1}


def test_grace_cancels_the_ordinary_and_waits_for_the_uncancelled(
    make_topic: Callable[..., Topic], start_probe: StartProbe, probe_site: ProbeSite, group: str
) -> None:
    topic = make_topic()
    topic.instruct("protected:gate", "hold:never")
    child = start_probe({"RELAY_GRACE_S": "0.5"})
    child.wait_for("^begin protected")
    child.wait_for("^begin hold")
    child.signal(signal.SIGTERM)
    child.wait_for("^cancelled hold:never")
    child.wait_for("waiting for work that must not be cancelled")
    assert child.running
    probe_site.open_gate("gate")
    assert child.wait() == 0
    assert "unprotected protected:gate" in child.output()
    assert topic.committed(group) == {0: 1}


def test_a_crash_after_the_handler_delivers_the_record_again(
    make_topic: Callable[..., Topic], start_probe: StartProbe, group: str
) -> None:
    topic = make_topic()
    topic.instruct("once")
    failpoint = {"RELAY_ALLOW_FAILPOINTS": "1", "RELAY_FAILPOINTS": "consumer.handled=kill"}
    child = start_probe(failpoint, wait_for=None)
    assert child.wait() == -9
    assert "end once" in child.output()
    assert topic.committed(group) in ({}, {0: 0})
    again = start_probe(
        {"RELAY_ALLOW_FAILPOINTS": "1", "RELAY_FAILPOINTS": "consumer.offsets_committed=kill"}
    )
    assert again.wait() == -9
    assert "end once" in again.output()
    assert topic.committed(group) == {0: 1}


@pytest.mark.parametrize("point", ["consumer.handled", "consumer.offsets_committed"])
def test_a_failure_of_the_runtime_itself_ends_the_process_with_a_sentence(
    make_topic: Callable[..., Topic], start_probe: StartProbe, point: str
) -> None:
    topic = make_topic()
    topic.instruct("once")
    failpoint = {"RELAY_ALLOW_FAILPOINTS": "1", "RELAY_FAILPOINTS": f"{point}=raise"}
    child = start_probe(failpoint, wait_for=None)
    assert child.wait() == 1
    assert f"relay: The consumer 'probe' stopped: FailpointReached: {point}." in child.output()
    assert "probe closed" in child.output()


def test_one_topic_for_everything_is_filtered_by_type(
    make_topic: Callable[..., Topic], start_probe: StartProbe, topic_prefix: str, group: str
) -> None:
    topic = make_topic()
    topic.instruct("mine")
    foreign = topic.record({"operation_id": str(uuid.uuid4()), "job_id": "foreign"})
    foreign["headers"] = [
        (name, b"somebody.elses" if name == "ce_type" else value) for name, value in foreign["headers"]
    ]
    topic.produce([foreign])
    topic.instruct("mine too")
    child = start_probe({"RELAY_TOPIC": topic.name})
    child.wait_for("^end mine too")
    topic.wait_until_drained(group)
    assert "foreign" not in child.output()


def test_a_consumer_that_decodes_nothing_gets_the_bytes(
    make_topic: Callable[..., Topic], start_probe: StartProbe, topic_prefix: str
) -> None:
    topic = make_topic()
    record = topic.record({"operation_id": str(uuid.uuid4()), "job_id": "x"})
    topic.produce([{**record, "value": b"anything"}])
    child = start_probe(name="raw")
    child.wait_for(r"^raw b'anything' payload=\{\}")
    topic.wait_until_drained(f"{topic_prefix}.raw")
