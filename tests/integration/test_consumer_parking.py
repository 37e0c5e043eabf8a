"""A parked record is whole, in order, and kept; when it can't be whole, it says what is missing and where it
is."""

import uuid
from dataclasses import replace

import pytest
import structlog
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from consumers.runtime.parking import Parking, Reason, parking_topic
from consumers.runtime.record import Record
from fix_consumer import headers_of, read_all
from fix_kafka import Kafka
from fix_waiting import PATIENCE_S
from relay.settings import Settings

pytestmark = pytest.mark.anyio

NEAR_THE_LIMIT = b"x" * 1_048_000
"""A value that fits Kafka's default limit of 1,048,588 bytes only without further headers."""


@pytest.fixture
def record(topic_prefix: str) -> Record:
    return Record(
        topic=f"{topic_prefix}.events",
        partition=3,
        offset=41,
        key=b"key",
        value=b"value",
        headers=(("ce_id", str(uuid.uuid4()).encode()), ("empty", None)),
        timestamp_ms=1_764_434_641_123,
    )


@pytest.fixture
def group(topic_prefix: str) -> str:
    return f"{topic_prefix}.group"


@pytest.fixture
def parking(kafka: Kafka, group: str) -> Parking:
    return Parking(
        Settings.model_validate({"kafka": {"bootstrap.servers": kafka.bootstrap}}),
        group,
        structlog.get_logger(),
    )


def only(kafka: Kafka, topic: str) -> Message:
    (message,) = read_all(kafka, topic, at_least=1)
    return message


async def test_key_value_and_headers_are_the_records_own(
    parking: Parking, record: Record, kafka: Kafka
) -> None:
    topic = await parking.park(record, Reason("permanent", "because", attempts=2))
    message = only(kafka, topic)
    assert (message.key(), message.value()) == (record.key, record.value)
    assert tuple(message.headers() or [])[:2] == record.headers
    assert headers_of(message)["dlq_reason"] == "because"


async def test_what_is_parked_stays_in_order_and_is_kept_for_ever(
    parking: Parking, record: Record, real_kafka: Kafka
) -> None:
    for offset in range(20):
        topic = await parking.park(replace(record, offset=offset), Reason("permanent", "", attempts=1))
    messages = read_all(real_kafka, topic, at_least=20)
    assert [int(headers_of(message)["dlq_offset"]) for message in messages] == list(range(20))
    admin = AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    config = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert config["retention.ms"].value == "-1"
    assert len(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == 1


async def test_a_record_at_the_limit_is_parked_whole(
    parking: Parking, record: Record, real_kafka: Kafka
) -> None:
    topic = await parking.park(replace(record, value=NEAR_THE_LIMIT), Reason("permanent", "", attempts=1))
    assert only(real_kafka, topic).value() == NEAR_THE_LIMIT


async def test_a_record_that_is_too_large_to_park_leaves_its_value_and_says_so(
    parking: Parking, record: Record, group: str, real_kafka: Kafka
) -> None:
    topic = parking_topic(record.topic, group)
    admin = AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    small = NewTopic(topic, 1, 1, config={"max.message.bytes": "2000"})
    admin.create_topics([small])[topic].result(PATIENCE_S)
    await parking.park(replace(record, value=bytes(5_000)), Reason("permanent", "", attempts=1))
    message = only(real_kafka, topic)
    assert message.value() is None
    headers = headers_of(message)
    assert headers["dlq_value_omitted_bytes"] == "5000"
    assert (headers["dlq_topic"], headers["dlq_offset"]) == (record.topic, "41")
