"""A real PostgreSQL and a real Apache Kafka for the length of a benchmark, set up as on a small server.

Durability is never traded for figures: fsync is on, commits wait, Kafka is its own distribution's defaults.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from apache_kafka import ApacheKafka
from bench.topics import Topic, client
from relay.embedded_postgres import EmbeddedPostgres
from relay.errors import UsageError

POSTGRES_SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "256MB",
    # A checkpoint in mid-run would be one subject's bad luck.
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "log_min_messages": "warning",
}

# What kafka-server-start.sh and kafka-run-class.sh of the distribution give the JVM.
KAFKA_JVM: Final = (
    "-server",
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
KAFKA_SETTINGS: Final[Mapping[str, str]] = {"num.network.threads": "3", "num.io.threads": "8"}

WARM_UP_RECORDS: Final = 300_000
_WARM_UP_GROUP: Final = 5_000
_REQUEST_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Servers:
    """`folder` is for logs and sockets of what runs beside them."""

    postgres: EmbeddedPostgres
    bootstrap: str
    broker_pid: int | None
    """None where it isn't ours to look at."""
    kafka_version: str
    folder: Path

    def warm_up_broker(self) -> None:
        """Records in transactions, until the JVM has compiled what every subject is going to use."""
        topic = Topic(self.bootstrap, "bench-warm-up")
        topic.make()
        producer = Producer({**client(self.bootstrap), "transactional.id": topic.name, "linger.ms": 1})
        producer.init_transactions(_REQUEST_TIMEOUT_S)
        value = bytes(250)
        for number in range(WARM_UP_RECORDS):
            if number % _WARM_UP_GROUP == 0:
                producer.begin_transaction()
            producer.produce(topic.name, value, b"%d" % (number % 1000))
            if number % _WARM_UP_GROUP == _WARM_UP_GROUP - 1:
                producer.commit_transaction(_REQUEST_TIMEOUT_S)
        topic.drop()


@contextmanager
def servers(keep: Path | None = None) -> Iterator[Servers]:
    """Both servers, in a folder of their own that is removed afterwards, unless `keep` names one to use.

    Raises KafkaMissing without Java and Maven, UsageError or Unavailable as `EmbeddedPostgres` does, and
    UsageError when `keep` holds something already.
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(f"The folder {keep} isn't empty.", remedy="Name one that is, or none.")
    folder = keep.absolute() if keep else Path(tempfile.mkdtemp(prefix="relay-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    # As root, Postgres runs as somebody else, who has to get to its folder below this one.
    folder.chmod(0o755)
    broker = ApacheKafka(folder / "kafka", settings=KAFKA_SETTINGS, jvm=KAFKA_JVM)
    postgres = EmbeddedPostgres(folder / "postgres", settings=POSTGRES_SETTINGS)
    try:
        broker.start()
        postgres.start()
        yield Servers(postgres, broker.bootstrap, broker.pid, broker.version, folder)
    finally:
        postgres.stop("immediate")
        broker.stop()
        if keep is None:
            shutil.rmtree(folder)
