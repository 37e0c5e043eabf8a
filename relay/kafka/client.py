"""Makes librdkafka's clients: their logs go where ours go, and a property that is none is a sentence."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException

from relay.errors import UsageError

Client = TypeVar("Client")

_LOGGER: Final = logging.getLogger("relay.librdkafka")


def make(kind: Callable[..., Client], properties: Mapping[str, Any]) -> Client:
    """A Producer, Consumer or AdminClient. Raises UsageError for properties that librdkafka refuses."""
    try:
        return kind(dict(properties), logger=_LOGGER)
    except KafkaException as error:
        raise UsageError(
            f"librdkafka refuses a Kafka setting: {error.args[0].str()}.",
            remedy="Correct RELAY_KAFKA_…; its names are librdkafka's properties, dots as underscores.",
        ) from error
