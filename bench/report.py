"""Results as Markdown tables, the same on a terminal and in a file; and what `--check` says of them. Pure."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from bench.curve import Drained
from bench.drain import DrainResult
from bench.latency import LatencyResult
from bench.plan import too_slow
from bench.spread import Spread

T = TypeVar("T")

FLOOR: Final = "pg_recvlogical"

_MB: Final = 1_000_000
_THOUSAND: Final = 1_000


def drain_table(result: DrainResult) -> str:
    """One row per subject; a cell is min / median / max."""
    head = [
        "",
        "events/s, k",
        "of the floor",
        "second half, k/s",
        "of the floor",
        "first record, s",
        "CPU s per million",
        "second half",
        "walsender CPU",
        "broker CPU",
        "peak MB",
        "others, %",
    ]
    floor = result.runs.get(FLOOR)
    rows = []
    for name, runs in result.runs.items():
        rows.append(
            [
                name,
                _cell(runs, lambda run: run.whole_per_s / _THOUSAND, 1),
                _share(runs, floor, lambda run: run.whole_per_s),
                _cell(runs, lambda run: run.second_half_per_s / _THOUSAND, 1),
                _share(runs, floor, lambda run: run.second_half_per_s),
                _cell(runs, lambda run: run.first_s, 2),
                _cell(runs, lambda run: run.cpu_s_per_million["subject"], 1),
                _cell(runs, lambda run: run.second_half_cpu_s_per_million["subject"], 1),
                _cell(runs, lambda run: run.cpu_s_per_million.get("walsender", 0.0), 1),
                _cell(runs, lambda run: run.cpu_s_per_million.get("broker", 0.0), 1),
                _cell(runs, lambda run: run.peak_bytes / _MB, 0),
                _cell(runs, lambda run: run.others_share * 100, 0),
            ]
        )
    return _table(f"Drain, {result.drain.title}", head, rows)


def latency_table(result: LatencyResult) -> str:
    """One row per subject, in milliseconds; a cell is min / median / max over the repetitions."""
    head = ["", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "events/s reached"]
    rows = []
    for name, runs in result.runs.items():
        rows.append(
            [
                name,
                _cell(runs, lambda run: run.p50_ms, 1),
                _cell(runs, lambda run: run.p99_ms, 1),
                _cell(runs, lambda run: run.p999_ms, 1),
                _cell(runs, lambda run: run.most_ms, 1),
                _cell(runs, lambda run: run.reached_per_s, 0),
            ]
        )
    return _table(f"Latency, {result.latency.title}", head, rows)


def failings(results: Sequence[DrainResult]) -> list[str]:
    """A sentence for each subject that is slower, beside the floor of the same run, than its bound allows."""
    said = []
    for result in results:
        floor = result.runs.get(FLOOR)
        if floor is None:
            continue
        for name, runs in result.runs.items():
            ratio = _ratio(runs, floor, lambda run: run.whole_per_s)
            sentence = too_slow(result.drain.shape, result.deliveries[name], ratio)
            if sentence is not None:
                said.append(sentence)
    return said


def _cell(runs: Sequence[T], of: Callable[[T], float], digits: int) -> str:
    spread = Spread.of([of(run) for run in runs])
    if len(runs) == 1:
        return f"{spread.median:,.{digits}f}"
    return " / ".join(f"{value:,.{digits}f}" for value in (spread.least, spread.median, spread.most))


def _share(runs: Sequence[Drained], floor: Sequence[Drained] | None, of: Callable[[Drained], float]) -> str:
    return "" if floor is None else f"{_ratio(runs, floor, of):.2f}"


def _ratio(runs: Sequence[Drained], floor: Sequence[Drained], of: Callable[[Drained], float]) -> float:
    """Of the medians."""
    return Spread.of([of(run) for run in runs]).median / Spread.of([of(run) for run in floor]).median


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "| " + " | ".join([cells[0].ljust(widths[0]), *aligned[1:]]) + " |"

    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([f"### {title}", "", line(head), f"|{rule}|", *(line(row) for row in rows)])
