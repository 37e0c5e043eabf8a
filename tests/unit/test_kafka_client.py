"""librdkafka's log is readable while a broker is away, and its refusals are sentences."""

import logging

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from relay.errors import UsageError
from relay.kafka.client import SAY_AGAIN_S, SaidOnce, make, words


def line(message: str) -> logging.LogRecord:
    return logging.LogRecord("relay.librdkafka", logging.ERROR, "", 0, "%s", (message,), None)


def test_each_attempt_to_connect_says_the_same_and_it_is_said_once_with_a_count() -> None:
    now = 0.0
    said = SaidOnce(clock=lambda: now)
    refused = "FAIL [rdkafka#consumer-{}] Connect to {} failed: refused (after {}ms in state CONNECT)"
    assert said.filter(line(refused.format(1, "a:9092", 0)))
    for number in range(20):
        now += 0.05
        assert not said.filter(line(refused.format(number, "a:9092", number)))
    assert said.filter(line(refused.format(1, "b:9092", 0)))  # another broker is other news
    now = SAY_AGAIN_S
    again = line(refused.format(1, "a:9092", 0))
    assert said.filter(again)
    assert again.getMessage().endswith("(20 more like it since 30 s)")
    assert not said.filter(line(refused.format(1, "a:9092", 0)))


def test_what_librdkafka_remembers_is_bounded() -> None:
    said = SaidOnce(clock=lambda: 0.0)
    for number in range(5_000):
        assert said.filter(line(f"line {number}"))
    assert said.filter(line("line 0"))


@pytest.mark.parametrize(
    "properties", [{"nonsense": "1"}, {"group.id": "g", "session.timeout.ms": "soon"}, {}], ids=str
)
def test_a_property_that_is_none_is_wrong_use_in_a_sentence(properties: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        make(Consumer, properties)
    assert "RELAY_KAFKA_" in caught.value.remedy
    assert "KafkaError{" not in caught.value.message


def test_what_kafka_says_is_a_sentence_and_not_a_structure() -> None:
    error = KafkaError(KafkaError._TRANSPORT, "Failed to get metadata")
    assert words(KafkaException(error)) == words(error) == "Failed to get metadata."
    assert words(TimeoutError("nothing\ncame")) == "nothing came."
