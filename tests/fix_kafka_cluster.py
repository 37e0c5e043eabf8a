"""Three real brokers for the tests of one module: started once, since that is what takes time."""

from collections.abc import Iterator

import pytest

from apache_kafka import KafkaMissing
from fix_versions import in_ci, talked_to
from kafka_cluster import KafkaCluster


@pytest.fixture(scope="module")
def kafka_cluster(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaCluster]:
    """All three run; a test that stops one starts it again."""
    try:
        cluster = KafkaCluster(tmp_path_factory.mktemp("kafka-cluster"))
        cluster.start()
    except KafkaMissing as missing:
        if in_ci():
            pytest.fail(f"CI=true, and there is no real Kafka: {missing}.", pytrace=False)
        pytest.skip(f"this needs a real Kafka: {missing}")
    talked_to(pytestconfig, "Kafka cluster", f"Apache Kafka {cluster.version} (KRaft, three nodes)")
    try:
        yield cluster
    finally:
        cluster.stop()
