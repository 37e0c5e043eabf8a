"""What the figures were taken on: machine, versions and settings, for the head of the results."""

import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import confluent_kafka

from bench.child import processors
from bench.servers import KAFKA_JVM, KAFKA_SETTINGS, POSTGRES_SETTINGS, Servers

GIB = 1024**3


def lines(servers: Servers, load_before: float) -> Iterator[str]:
    """Sentences without the name of the machine or a path on it; `load_before` is the load average then."""
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    yield f"{processors()} processors ({_processor()}), {memory_gib:.0f} GiB, {system}"
    yield f"load average before it began: {load_before:.1f}"
    yield (
        f"PostgreSQL {servers.postgres.version}, Apache Kafka {servers.kafka_version} (one node), "
        f"Python {platform.python_version()}, psycopg {version('psycopg')}, "
        f"confluent-kafka {version('confluent-kafka')} (librdkafka {confluent_kafka.libversion()[0]})"
    )
    yield f"outbox-relay {version('outbox-relay')}, default settings"
    yield "PostgreSQL: " + ", ".join(f"{name} = {value}" for name, value in POSTGRES_SETTINGS.items())
    settings = ", ".join(f"{name} = {value}" for name, value in KAFKA_SETTINGS.items())
    yield f"Kafka: {settings}; JVM {' '.join(KAFKA_JVM)}"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except FileNotFoundError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, platform.machine())
