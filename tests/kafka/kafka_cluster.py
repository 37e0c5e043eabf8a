"""Three brokers that are their own controllers: replication factor 3, two of them in sync for each write."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient

from apache_kafka import ApacheKafka, new_cluster_id

NODES: Final = 3

SETTINGS: Final[Mapping[str, str]] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    # So that a test sees leaders and coordinators move within seconds.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "5000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    # The transactions of a test's relay end when they should, not at the broker's next round of ten seconds.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}

# Three of them share a small machine.
JVM: Final = ("-Xms96m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class KafkaCluster:
    """`start` all, then stop, kill and start single ones of `brokers`."""

    def __init__(self, folder: Path) -> None:
        cluster_id = new_cluster_id()
        self.brokers = [
            ApacheKafka(
                folder / f"broker-{node}", settings=SETTINGS, jvm=JVM, node_id=node, cluster_id=cluster_id
            )
            for node in range(1, NODES + 1)
        ]
        voters = ",".join(broker.voter for broker in self.brokers)
        for broker in self.brokers:
            broker.voters = voters

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def version(self) -> str:
        return self.brokers[0].version

    def start(self) -> None:
        """Start those that don't run, all at once: none answers before two of them are there."""
        with ThreadPoolExecutor(NODES) as pool:
            list(pool.map(ApacheKafka.start, self.brokers))

    def stop(self) -> None:
        """End them all; a controlled shutdown of the last would wait for the others."""
        for broker in self.brokers:
            broker.kill()

    def in_sync(self, *topics: str) -> bool:
        """Whether every partition of the topics has all its replicas."""
        known = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=10).topics
        partitions = [p for name in topics if name in known for p in known[name].partitions.values()]
        return bool(partitions) and all(len(p.isrs) == NODES and p.leader >= 0 for p in partitions)

    def leader(self, topic: str, partition: int = 0) -> ApacheKafka:
        """The broker that leads a partition. Raises StopIteration while none does."""
        found = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(topic, timeout=10).topics
        node = found[topic].partitions[partition].leader
        return next(broker for broker in self.brokers if broker.node_id == node)
