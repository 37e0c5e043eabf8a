"""Reads the facts of Kafka for `relay doctor`: metadata and configurations, and never a record but the
checkpoint. It makes no topic: each is asked for only once the list of all has it.
"""

from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource  # the stub exports these nowhere else
from confluent_kafka.admin._resource import ResourceType

from relay.doctor.cluster import ClusterFacts
from relay.doctor.topics import Partition, Role, TopicFacts
from relay.errors import Unavailable
from relay.kafka.client import make, words
from relay.kafka.publisher import transaction_timeout_s
from relay.settings import Settings

REQUEST_TIMEOUT_S: Final = 5.0
# librdkafka names its embedded cluster so (rdkafka_mock.c); it describes neither topics nor configurations.
_EMBEDDED_CLUSTER: Final = "mockCluster"
_NO_TOPIC: Final = KafkaError.UNKNOWN_TOPIC_OR_PART


class KafkaReader:
    """Blocks for seconds at most. Raises UsageError for a property that librdkafka refuses."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin = make(AdminClient, settings.require_kafka())
        self.embedded = False

    def cluster(self) -> ClusterFacts:
        """Raises Unavailable when no broker answers."""
        try:
            metadata = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise Unavailable(f"Kafka doesn't answer: {words(error)}") from error
        self.embedded = str(metadata.cluster_id).startswith(_EMBEDDED_CLUSTER)
        config, refused = None, ""
        if not self.embedded:
            broker = str(next(iter(metadata.brokers)))
            config, refused = self._config(ResourceType.BROKER, broker)
        return ClusterFacts(
            brokers=len(metadata.brokers),
            embedded=self.embedded,
            config=config,
            config_refused=refused,
            exactly_once=self._settings.delivery == "exactly_once",
            transaction_timeout_ms=round(transaction_timeout_s(self._settings.require_kafka()) * 1000),
            topic_replication=self._settings.topic_replication,
        )

    def topics(self, roles: Mapping[str, Role]) -> dict[str, TopicFacts]:
        """Each of `roles`, in its order."""
        asked = self._admin.describe_topics(
            TopicCollection(list(roles)),
            request_timeout=REQUEST_TIMEOUT_S,
            include_authorized_operations=True,
        )
        found: dict[str, TopicFacts] = {}
        for name, future in asked.items():
            role = roles[name]
            try:
                described = future.result(2 * REQUEST_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() == _NO_TOPIC:
                    found[name] = TopicFacts(name=name, role=role, exists=False)
                else:
                    found[name] = TopicFacts(name=name, role=role, refused=words(error))
                continue
            except FutureTimeout:
                found[name] = TopicFacts(name=name, role=role, refused="no broker answered in time.")
                continue
            config, _ = self._config(ResourceType.TOPIC, name)
            found[name] = TopicFacts(
                name=name,
                role=role,
                partitions=tuple(_partition(partition) for partition in described.partitions),
                config=config,
                operations=_operations(described),
            )
        return {name: found[name] for name in roles}

    def _config(self, kind: ResourceType, name: str) -> tuple[dict[str, str] | None, str]:
        """Name to value, or why it may not be seen."""
        asked = self._admin.describe_configs([ConfigResource(kind, name)], request_timeout=REQUEST_TIMEOUT_S)
        try:
            entries = next(iter(asked.values())).result(2 * REQUEST_TIMEOUT_S)
        except KafkaException as error:
            return None, words(error)
        except FutureTimeout:
            return None, "no broker answered in time."
        return {entry.name: entry.value for entry in entries.values() if entry.value is not None}, ""


def _partition(described: Any) -> Partition:
    return Partition(
        number=described.id,
        replicas=len(described.replicas),
        in_sync=len(described.isr),
        has_leader=described.leader is not None and described.leader.id >= 0,
    )


def _operations(described: Any) -> frozenset[str] | None:
    """A broker without an authorizer allows everything, and says so."""
    operations = described.authorized_operations
    return None if operations is None else frozenset(operation.name for operation in operations)
