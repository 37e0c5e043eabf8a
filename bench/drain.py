"""Drains of a committed backlog, the subjects in turn (A B C A B C), each run with a slot of its own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.child import processors
from bench.curve import Drained, drained
from bench.plan import Drain
from bench.progress import Progress, TopicProgress, WrittenProgress
from bench.servers import Servers
from bench.shape import SHAPES
from bench.source import Source, source
from bench.subjects.subject import Run, Subject
from bench.topics import Topic

DRAIN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class DrainResult:
    drain: Drain
    runs: dict[str, list[Drained]]
    """By the subject's name, in the order measured."""
    deliveries: dict[str, str]


def measure(
    servers: Servers,
    drain: Drain,
    subjects: Sequence[Subject],
    repetitions: int,
    say: Callable[[str], None],
    *,
    name: str,
) -> DrainResult:
    """All runs of one drain. `name` makes the names of database, slots and topics.

    Raises Broken when a run lost, doubled or disordered a row, and Ended when a subject failed.
    """
    with source(servers.postgres, name, SHAPES[drain.shape]) as outbox:
        runs = [
            (subject, _make_run(servers, outbox, f"{name}_{turn}_{place}"))
            for turn in range(repetitions)
            for place, subject in enumerate(subjects)
        ]
        for subject, run in runs:
            subject.prepare(run)
        until_lsn = outbox.fill(drain.rows, drain.rows_per_transaction, drain.payload_bytes)
        result = DrainResult(
            drain,
            {subject.name: [] for subject in subjects},
            {subject.name: subject.delivery for subject in subjects},
        )
        for subject, run in runs:
            measured = _drain_once(servers, subject, replace(run, until_lsn=until_lsn), drain.rows)
            result.runs[subject.name].append(measured)
            verified = "" if subject.delivery == "floor" else "; each row read once, in order by key"
            say(f"  {subject.name}: {measured.done_s:.2f} s, {measured.whole_per_s:,.0f} events/s{verified}")
        return result


def _make_run(servers: Servers, outbox: Source, name: str) -> Run:
    folder = servers.folder / name
    folder.mkdir()
    return Run(source=outbox, bootstrap=servers.bootstrap, name=name, folder=folder)


def _drain_once(servers: Servers, subject: Subject, run: Run, rows: int) -> Drained:
    publishes = subject.delivery != "floor"
    topic = Topic(servers.bootstrap, run.topic)
    if publishes:
        topic.make()
    make: type[Progress] = TopicProgress if publishes else WrittenProgress
    started_at = time.monotonic()
    child = subject.start(run)
    try:
        others = {} if servers.broker_pid is None else {"broker": servers.broker_pid}
        progress = make(run, child, rows, others)
        progress.watch(started_at)
        curve = progress.curve()
        if publishes:
            child.stop()
        else:
            child.wait(DRAIN_TIMEOUT_S)
    finally:
        child.kill()
    run.source.drop_slot(run.name)
    if publishes:
        topic.drop()
    return drained(curve, rows, peak_bytes=progress.peak_bytes, processors=processors())
