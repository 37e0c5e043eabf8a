"""Makes librdkafka's clients: their logs go where ours go, and a property that is none is a sentence."""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from relay.errors import UsageError, as_sentence

Client = TypeVar("Client")

SAY_AGAIN_S: Final = 30.0
"""librdkafka says one line for each attempt to connect, up to twenty in a second; each is said this often."""
_LINES_KNOWN: Final = 1_000
"""Most different lines that are remembered; then all may be said again."""
# What differs between two lines that say the same: the client's number, and how long the attempt took.
_PASSING: Final = re.compile(r"rdkafka#\w+-\d+|\d+ ?ms\b")


class SaidOnce(logging.Filter):
    """Lets a line through, and the same line again only `SAY_AGAIN_S` later, with how many were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        line = _PASSING.sub("", message)
        now = self._clock()
        with self._lock:
            said_at, left_out = self._said.get(line, (now - SAY_AGAIN_S, 0))
            if now - said_at < SAY_AGAIN_S:
                self._said[line] = (said_at, left_out + 1)
                return False
            if len(self._said) >= _LINES_KNOWN:
                self._said.clear()
            self._said[line] = (now, 0)
        if left_out:
            record.msg, record.args = f"{message} ({left_out} more like it since {now - said_at:.0f} s)", ()
        return True


LOGGER: Final = logging.getLogger("relay.librdkafka")
LOGGER.addFilter(SaidOnce())


def make(kind: Callable[..., Client], properties: Mapping[str, Any]) -> Client:
    """A Producer, Consumer or AdminClient. Raises UsageError for properties that librdkafka refuses."""
    given = dict(properties)
    if "transactional.id" not in given:
        given.pop("transaction.timeout.ms", None)  # the transactions' own; librdkafka would warn of it
    try:
        return kind(given, logger=LOGGER)
    except (KafkaException, ValueError) as error:
        raise UsageError(
            f"librdkafka refuses a Kafka setting: {words(error)}",
            remedy="Correct RELAY_KAFKA_…; its names are librdkafka's properties, dots as underscores.",
        ) from error


def words(error: Exception | KafkaError) -> str:
    """What Kafka or librdkafka said, closed like a sentence."""
    said = error.args[0] if isinstance(error, Exception) and error.args else error
    return as_sentence(said.str() if isinstance(said, KafkaError) else said)
