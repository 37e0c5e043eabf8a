"""Latency under a steady load: from `clock_timestamp()` inside the insert to a reader in another process.

The time that the commit itself takes is in it, for every subject alike.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.plan import Latency
from bench.readers import StreamReader, TopicReader
from bench.receiver import Latencies, Receiver
from bench.servers import Servers
from bench.shape import SHAPES
from bench.source import source
from bench.spread import percentile
from bench.subjects.subject import Run, Subject
from bench.topics import Topic

WARM_UP_S = 3.0
"""Of the load, not measured."""

_US_PER_MS = 1000
_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class Delays:
    """Of one run, in milliseconds; `reached_per_s` is the rate that was really committed and read."""

    count: int
    reached_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    most_ms: float


@dataclass(frozen=True, slots=True)
class LatencyResult:
    latency: Latency
    runs: dict[str, list[Delays]]


def delays(latencies: Latencies, seconds: float, warm_up_s: float) -> Delays:
    """Of the records inserted in the `seconds` after the warm-up. Raises ValueError when there are none.

    The first record is the one that was waited for before the load began.
    """
    stamps = latencies.stamped_at_us[1:]
    began_us = min(stamps, default=0) + round(warm_up_s * _US_PER_S)
    ended_us = began_us + round(seconds * _US_PER_S)
    taken = zip(stamps, latencies.took_us[1:], strict=True)
    ascending = sorted(took for stamp, took in taken if began_us <= stamp < ended_us)
    return Delays(
        count=len(ascending),
        reached_per_s=len(ascending) / seconds,
        p50_ms=percentile(ascending, 0.5) / _US_PER_MS,
        p99_ms=percentile(ascending, 0.99) / _US_PER_MS,
        p999_ms=percentile(ascending, 0.999) / _US_PER_MS,
        most_ms=percentile(ascending, 1.0) / _US_PER_MS,
    )


def measure(
    servers: Servers,
    latency: Latency,
    subjects: Sequence[Subject],
    repetitions: int,
    say: Callable[[str], None],
    *,
    name: str,
) -> LatencyResult:
    """All runs of one load. Raises as `bench.drain.measure` does."""
    result = LatencyResult(latency, {subject.name: [] for subject in subjects})
    for turn in range(repetitions):
        for place, subject in enumerate(subjects):
            measured = _measure_once(servers, latency, subject, f"{name}_{turn}_{place}")
            result.runs[subject.name].append(measured)
            say(
                f"  {subject.name}: p50 {measured.p50_ms:.1f} ms, p99 {measured.p99_ms:.1f} ms "
                f"at {measured.reached_per_s:,.0f} events/s; each row read once, in order by key"
            )
    return result


def _measure_once(servers: Servers, latency: Latency, subject: Subject, name: str) -> Delays:
    folder = servers.folder / name
    folder.mkdir()
    publishes = subject.delivery != "floor"
    with source(servers.postgres, name, SHAPES[latency.shape]) as outbox:
        run = Run(source=outbox, bootstrap=servers.bootstrap, name=name, folder=folder)
        subject.prepare(run)
        topic = Topic(servers.bootstrap, run.topic)
        reader: TopicReader | StreamReader
        if publishes:
            topic.make()
            reader = TopicReader(servers.bootstrap, run.topic, latency.shape)
        else:
            run = replace(run, output=folder / "stream")
            os.mkfifo(run.output)
            reader = StreamReader(run.output, latency.shape)
        receiver = Receiver(reader)
        child = subject.start(run)
        try:
            outbox.add_one(latency.payload_bytes)
            receiver.wait_for_first()
            outbox.steady(latency.rate_per_s, WARM_UP_S + latency.seconds, latency.payload_bytes, run.folder)
            child.require_running()
            taken = receiver.finish(outbox.committed_rows(), f"{subject.name}, {latency.title}")
            child.stop()
        finally:
            receiver.close()
            child.kill()
    if publishes:
        topic.drop()
    return delays(taken, latency.seconds, WARM_UP_S)
