"""A Kafka broker inside this process: librdkafka's mock cluster, for `relay demo` and quick tests.

It must never stand for a broker of a deployment: it keeps nothing, has no CreateTopics, and shows aborted
records to `read_committed` readers, so it proves nothing about exactly-once (librdkafka, rdkafka_mock.h).
"""

from types import TracebackType
from typing import Final, Self

from confluent_kafka import Producer

from relay.errors import Unavailable

PARTITIONS: Final = 4
"""Of every topic, made at first use; librdkafka offers no way to ask for another number."""

_METADATA_TIMEOUT_S: Final = 10.0


class EmbeddedKafka:
    """The cluster lives as long as the producer that holds it; other processes connect to `bootstrap`."""

    def __init__(self, brokers: int = 1) -> None:
        self._brokers = brokers
        self._holder: Producer | None = None
        self._bootstrap = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """``host:port`` of each broker, with commas. Raises Unavailable before `start`."""
        if not self._bootstrap:
            raise Unavailable("The embedded broker is not running.", remedy="Start it first.")
        return self._bootstrap

    def start(self) -> None:
        """Raises Unavailable when the brokers don't answer."""
        if self._holder is not None:
            return
        holder = Producer({"test.mock.num.brokers": self._brokers, "log_level": 3})
        brokers = holder.list_topics(timeout=_METADATA_TIMEOUT_S).brokers.values()
        if not brokers:
            raise Unavailable("The embedded broker did not start.", remedy="Use a real Kafka.")
        self._holder = holder
        self._bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def stop(self) -> None:
        """Everything that the brokers held is gone."""
        self._holder = None
        self._bootstrap = ""
