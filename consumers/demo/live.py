"""What somebody sees while the demo runs: on a terminal a table of phases that move, else plain lines. It
asks for nothing itself.
"""

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Final, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from consumers.operations.progress import Progress

PHASES: Final[Mapping[str, tuple[str, ...]]] = {
    "generation": (
        "prepared",
        "claimed",
        "submitting",
        "accepted",
        "succeeded",
        "failed",
        "rejected",
        "held",
        "uncertain",
    ),
    "delivery": ("prepared", "claimed", "stored", "failed", "held"),
}
_STYLES: Final = {
    "uncertain": "yellow",
    "held": "yellow",
    "failed": "red",
    "rejected": "red",
    "succeeded": "green",
    "stored": "green",
}
_SENTENCES_SHOWN: Final = 8
"""With the table it fits into a terminal of 24 lines."""
_LINE_EVERY_S: Final = 2.0
_BAR: Final = 40


class View(Protocol):
    """What the scenario tells."""

    def say(self, sentence: str) -> None:
        """Something happened."""

    def show(self, progress: Progress) -> None:
        """This is where the operations are now."""


class LiveView:
    """For a terminal."""

    def __init__(self, console: Console) -> None:
        self._started = time.monotonic()
        self._sentences: deque[str] = deque(maxlen=_SENTENCES_SHOWN)
        self._progress: Progress | None = None
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def say(self, sentence: str) -> None:
        self._sentences.append(f"{time.monotonic() - self._started:5.1f} s  {sentence}")

    def show(self, progress: Progress) -> None:
        self._progress = progress

    def _render(self) -> Group:
        lines = Text("\n".join(self._sentences))
        return Group(lines) if self._progress is None else Group(_table(self._progress), lines)


class PlainView:
    """For a pipe or a log: a line for each sentence, and phases when they have changed."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._started = time.monotonic()
        self._shown = ""
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, sentence: str) -> None:
        self._write(sentence)

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        line = "  ".join(
            f"{kind}: " + ", ".join(f"{count} {phase}" for phase, count in counts)
            for kind, counts in _in_order(progress).items()
        )
        if line and line != self._shown and now - self._shown_at >= _LINE_EVERY_S:
            self._shown, self._shown_at = line, now
            self._write(line)

    def _write(self, text: str) -> None:
        self._stream.write(f"{time.monotonic() - self._started:5.1f} s  {text}\n")
        self._stream.flush()


def _in_order(progress: Progress) -> dict[str, list[tuple[str, int]]]:
    """Kind to its phases that have operations, in the order of a life; unknown ones last."""
    found: dict[str, list[tuple[str, int]]] = {}
    for kind in sorted({kind for kind, _ in progress.phases}, key=lambda kind: kind != "generation"):
        counts = {phase: count for (of, phase), count in progress.phases.items() if of == kind}
        known = [phase for phase in PHASES.get(kind, ()) if phase in counts]
        others = sorted(set(counts) - set(known))
        found[kind] = [(phase, counts[phase]) for phase in (*known, *others)]
    return found


def _table(progress: Progress) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    most = max(progress.phases.values(), default=1)
    for kind in PHASES:
        for phase in PHASES[kind]:
            count = progress.phases.get((kind, phase), 0)
            style = _STYLES.get(phase, "cyan") if count else "dim"
            bar = "█" * round(_BAR * count / most)
            number = Text(str(count), style, justify="right")
            shown = kind if phase == PHASES[kind][0] else ""
            table.add_row(shown, Text(phase, style), number, Text(bar, style))
    return table
