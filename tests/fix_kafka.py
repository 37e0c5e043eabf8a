"""A real Apache Kafka for each run, shared by its tests; the embedded broker only without Java and Maven.

Under CI=true there is no stand-in: a missing Kafka fails the run.
"""

import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from apache_kafka import ApacheKafka, KafkaMissing
from fix_versions import in_ci, talked_to
from relay.kafka.embedded import EmbeddedKafka

_run = secrets.token_hex(3)
_numbers = itertools.count(1)

# A killed broker that comes back waits until its former self counts as dead; the default is 9 s.
QUICK_RETURN = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


@dataclass(frozen=True, slots=True)
class Kafka:
    """The broker of this run. `real` is False for the embedded one, which can't show exactly-once."""

    bootstrap: str
    version: str
    real: bool


def _described(broker: ApacheKafka) -> str:
    return f"Apache Kafka {broker.version} (KRaft, one node, from Maven Central)"


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """The broker that all tests share; each keeps to its own `topic_prefix`. None of them may stop it."""
    try:
        broker = ApacheKafka(tmp_path_factory.mktemp("kafka"))
        broker.start()
    except KafkaMissing as missing:
        if in_ci():
            pytest.fail(f"CI=true, and there is no real Kafka: {missing}.", pytrace=False)
        said = (
            f"NO REAL KAFKA ({missing}); librdkafka's embedded broker stood in, which can't show exactly-once"
        )
        talked_to(pytestconfig, "Kafka", said)
        with EmbeddedKafka() as stand_in:
            yield Kafka(stand_in.bootstrap, "embedded", real=False)
        return
    talked_to(pytestconfig, "Kafka", _described(broker))
    try:
        yield Kafka(broker.bootstrap, broker.version, real=True)
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def real_kafka(kafka: Kafka) -> Kafka:
    """The shared broker, for what only a real one can show: skips (fails under CI=true) without it."""
    if not kafka.real:
        pytest.skip("this needs a real Kafka: install Java 17 and Maven")
    return kafka


@pytest.fixture
def own_kafka(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Callable[[], ApacheKafka]]:
    """Makes brokers of the test's own, not started, that it may put behind a proxy, stop and kill."""
    brokers: list[ApacheKafka] = []

    def make() -> ApacheKafka:
        try:
            broker = ApacheKafka(tmp_path / f"kafka-{len(brokers)}", settings=QUICK_RETURN)
        except KafkaMissing as missing:
            pytest.skip(f"this needs a real Kafka: {missing}")
        brokers.append(broker)
        talked_to(pytestconfig, "Kafka", _described(broker))
        return broker

    yield make
    for broker in brokers:
        broker.stop()


@pytest.fixture
def topic_prefix() -> str:
    """Unique to the test, so that tests share one broker and never each other's topics and groups."""
    return f"t{_run}-{next(_numbers)}"


def set_topic(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Change one property of a topic, behind the back of whoever writes it."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
