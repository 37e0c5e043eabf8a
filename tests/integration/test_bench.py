"""The benchmark measures what it says, on the tests' own servers: a small drain and a short load by each."""

from pathlib import Path

import pytest

from bench import drain, latency
from bench.__main__ import SUBJECTS
from bench.plan import Drain, Latency
from bench.servers import Servers
from fix_kafka import Kafka
from relay.embedded_postgres import EmbeddedPostgres

ROWS = 5_000


@pytest.fixture
def servers(postgres: EmbeddedPostgres, real_kafka: Kafka, tmp_path: Path) -> Servers:
    return Servers(postgres, real_kafka.bootstrap, None, real_kafka.version, tmp_path)


@pytest.mark.parametrize("shape", ["bytes", "native"])
def test_a_drain_is_measured_for_each_subject(servers: Servers, shape: str, topic_prefix: str) -> None:
    said: list[str] = []
    name = topic_prefix.replace("-", "_")
    result = drain.measure(servers, Drain(shape, rows=ROWS), SUBJECTS, 1, said.append, name=name)
    assert set(result.runs) == {subject.name for subject in SUBJECTS}
    for subject, (run,) in result.runs.items():
        assert run.rows == ROWS
        assert 0 < run.first_s <= run.done_s
        # pg_recvlogical may need less than one tick of the clock for so few rows.
        assert run.cpu_s_per_million["subject"] > 0 or subject == "pg_recvlogical"
        assert run.peak_bytes > 0
    assert sum("each row read once, in order by key" in sentence for sentence in said) == len(SUBJECTS) - 1


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["bytes", "native"])
def test_latency_is_measured_for_each_subject(servers: Servers, shape: str, topic_prefix: str) -> None:
    name = topic_prefix.replace("-", "_")
    load = Latency(shape, rate_per_s=100, seconds=1.0)
    result = latency.measure(servers, load, SUBJECTS, 1, lambda _: None, name=name)
    for runs in result.runs.values():
        (run,) = runs
        assert run.count > 0
        assert 0 < run.p50_ms <= run.p99_ms <= run.p999_ms <= run.most_ms
