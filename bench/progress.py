"""Watches a drain while it goes on, at little cost to it: what is visible to readers, and CPU seconds.

It samples; `bench.curve` calculates. Afterwards it counts what a read_committed consumer gets.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench import child as processes
from bench.child import Child
from bench.curve import MACHINE, Point, visible
from bench.readers import TopicReader
from bench.subjects.subject import Run
from bench.tally import Broken, Tally
from bench.topics import PARTITIONS, Topic

# A look costs one to two milliseconds of CPU, the answer by the broker included.
LOOK_EVERY_S: Final = 0.04
LOOK_FOR_FIRST_EVERY_S: Final = 0.02

STILL_FOR_S: Final = 1.0
"""So long without a change, with as many offsets as rows: the drain is over, or a reader will tell."""

STALLED_AFTER_S: Final = 120.0


@dataclass(slots=True)
class _Sample:
    at_s: float
    ends: list[int]
    cpu_s: Mapping[str, float]


class Progress(ABC):
    """`watch` a started subject until its drain is over; then ask for the `curve`."""

    def __init__(self, run: Run, child: Child, rows: int, others: Mapping[str, int]) -> None:
        """`others` are pids beside the subject's own whose CPU is watched, by name."""
        self._run = run
        self._child = child
        self._rows = rows
        self._pids: dict[str, int] = {"subject": child.pid, "bench": os.getpid(), **others}
        self._before = {
            name: processes.cpu_s(pid) or 0.0 for name, pid in self._pids.items() if name != "subject"
        }
        self._machine_before_s = processes.machine_cpu_s()
        self._cpu_s: dict[str, float] = {}
        self._samples: list[_Sample] = []
        self.peak_bytes = 0

    @abstractmethod
    def ends(self) -> list[int]:
        """How far it is: what grows with the rows done."""

    @abstractmethod
    def over(self) -> bool:
        """Whether it has come to rest with all rows done, as far as can be seen without reading them."""

    @abstractmethod
    def curve(self) -> list[Point]:
        """Read and count. Raises Broken when a row is missing, doubled or out of order."""

    def watch(self, started_at: float) -> None:
        """`started_at` is of time.monotonic. Raises Ended, or Broken when nothing moves for a long time."""
        moved_at = time.monotonic()
        last: list[int] = []
        while True:
            ends = self.ends()
            now = time.monotonic()
            began = sum(ends) > 0
            if began and "walsender" not in self._pids:
                self._watch_walsender()
            if not self._samples or ends != last:
                moved_at, last = now, ends
            self._look_at_processes()
            self._samples.append(_Sample(now - started_at, ends, dict(self._cpu_s)))
            if began and self.over() and (self._child.ended or now - moved_at >= STILL_FOR_S):
                return
            if now - moved_at > STALLED_AFTER_S:
                raise Broken(f"Nothing has moved for {STALLED_AFTER_S:g} s:\n{self._child.said()}")
            if not self.over():
                self._child.require_running()
            time.sleep(LOOK_EVERY_S if began else LOOK_FOR_FIRST_EVERY_S)

    def _watch_walsender(self) -> None:
        pid = self._run.source.walsender(self._run.name)
        if pid is not None:
            self._pids["walsender"] = pid

    def _look_at_processes(self) -> None:
        for name, pid in self._pids.items():
            used_s = processes.cpu_s(pid)
            if used_s is not None:
                self._cpu_s[name] = used_s - self._before.get(name, 0.0)
        self._cpu_s[MACHINE] = processes.machine_cpu_s() - self._machine_before_s
        self.peak_bytes = max(self.peak_bytes, processes.peak_bytes(self._child.pid) or 0)


class TopicProgress(Progress):
    """By the last stable offsets of the topic: what a read_committed consumer could have got at the time."""

    def __init__(self, run: Run, child: Child, rows: int, others: Mapping[str, int]) -> None:
        super().__init__(run, child, rows, others)
        self._topic = Topic(run.bootstrap, run.topic)
        self._ends = [0] * PARTITIONS

    def ends(self) -> list[int]:
        self._ends = self._topic.stable_offsets()
        return self._ends

    def over(self) -> bool:
        # Where transactions end there are offsets without a record, so this may be early by as many.
        return sum(self._ends) >= self._rows

    def curve(self) -> list[Point]:
        reader = TopicReader(self._run.bootstrap, self._run.topic, self._run.source.shape.name)
        tally = Tally()
        offsets: list[list[int]] = [[] for _ in range(PARTITIONS)]
        give_up_at = time.monotonic() + STALLED_AFTER_S
        for received in reader.read_in_batches():
            if received is not None:
                tally.take(received.key, received.mark.n)
                offsets[received.partition].append(received.offset)
            elif tally.distinct >= self._rows or time.monotonic() > give_up_at:
                break
        tally.require(self._rows, self._run.name)
        curve = [Point(sample.at_s, visible(offsets, sample.ends), sample.cpu_s) for sample in self._samples]
        if curve[-1].rows < self._rows:
            raise Broken(
                f"The drain stood still for {STILL_FOR_S:g} s at {curve[-1].rows:,} of {self._rows:,} rows."
            )
        return curve


class WrittenProgress(Progress):
    """By the bytes that the subject has written; each row takes the same number of them.

    They go to /dev/null: there is nothing to read and count, and the server's word is taken for it.
    """

    def ends(self) -> list[int]:
        written = processes.written_bytes(self._child.pid)
        if written is not None:
            return [written]
        return self._samples[-1].ends if self._samples else [0]

    def over(self) -> bool:
        return self._child.ended

    def curve(self) -> list[Point]:
        total = self._samples[-1].ends[0]
        return [
            Point(sample.at_s, sample.ends[0] * self._rows // max(total, 1), sample.cpu_s)
            for sample in self._samples
        ]
