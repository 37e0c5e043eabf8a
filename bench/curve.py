"""How a drain went: when it had done how many rows, for how much CPU. Pure; it samples nothing."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MILLION = 1_000_000

MACHINE = "machine"
"""Among processes: all processors of the machine together."""


@dataclass(frozen=True, slots=True)
class Point:
    """A moment after the start: `rows` were done, and each process had used its CPU seconds."""

    at_s: float
    rows: int
    cpu_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain's table shows. CPU is in seconds per million rows, by process."""

    rows: int
    first_s: float
    done_s: float
    whole_per_s: float
    second_half_per_s: float
    cpu_s_per_million: Mapping[str, float]
    second_half_cpu_s_per_million: Mapping[str, float]
    peak_bytes: int
    others_share: float
    """Of the machine's processors, what went to processes that have nothing to do with the run."""


def visible(offsets: Sequence[Sequence[int]], ends: Sequence[int]) -> int:
    """How many records lie below `ends`, the last stable offset of each partition.

    `offsets` are the records' own, ascending, by partition: offsets have holes where transactions end.
    """
    return sum(bisect_left(found, end) for found, end in zip(offsets, ends, strict=True))


def drained(curve: Sequence[Point], rows: int, *, peak_bytes: int, processors: int) -> Drained:
    """Raises ValueError when the curve doesn't reach `rows`, or holds nothing before it."""
    first = next((point for point in curve if point.rows > 0), None)
    done = next((point for point in curve if point.rows >= rows), None)
    if first is None or done is None:
        raise ValueError(f"the curve ends at {curve[-1].rows if curve else 0} of {rows} rows")
    half = _at(curve, rows / 2)
    known_s = sum(cpu_s for name, cpu_s in done.cpu_s.items() if name != MACHINE)
    others_s = max(0.0, done.cpu_s.get(MACHINE, known_s) - known_s)
    second_s = max(done.at_s - half.at_s, 1e-9)
    return Drained(
        rows=rows,
        first_s=first.at_s,
        done_s=done.at_s,
        whole_per_s=rows / done.at_s,
        second_half_per_s=rows / 2 / second_s,
        cpu_s_per_million={name: cpu_s * MILLION / rows for name, cpu_s in done.cpu_s.items()},
        second_half_cpu_s_per_million={
            name: (cpu_s - half.cpu_s.get(name, 0.0)) * MILLION / (rows / 2)
            for name, cpu_s in done.cpu_s.items()
        },
        peak_bytes=peak_bytes,
        others_share=others_s / (done.at_s * processors),
    )


def _at(curve: Sequence[Point], rows: float) -> Point:
    """The moment at which `rows` were done, between two points if need be."""
    place = next(index for index, point in enumerate(curve) if point.rows >= rows)
    after = curve[place]
    if place == 0:
        return after
    before = curve[place - 1]
    share = (rows - before.rows) / (after.rows - before.rows)
    return Point(
        before.at_s + share * (after.at_s - before.at_s),
        round(rows),
        {
            name: before.cpu_s.get(name, 0.0) + share * (cpu_s - before.cpu_s.get(name, 0.0))
            for name, cpu_s in after.cpu_s.items()
        },
    )
