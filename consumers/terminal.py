"""Draws lists and commands for a terminal of any width: what a person copies from it, an id or a command, is
never broken in two. What came from outside is shown as plain text: none of it moves a cursor.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

PIPE_COLUMNS: Final = 200
"""How wide it is drawn when nobody looks: a pipe has no width."""
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ANY_WIDTH: Final = 100_000
_WORD: Final = re.compile(r"(?:[^\s']|'[^']*')+")
_GOES_ON: Final = " \\"
"""To the shell, the command goes on in the next line."""


def plain(value: object) -> Text:
    """`value` as text without markup and without control characters, which are shown by their numbers."""
    return Text("".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in str(value)))


def draw(*parts: RenderableType) -> None:
    """Print `parts` for people."""
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = max(console.width, PIPE_COLUMNS)
    for part in parts:
        console.print(part)


@dataclass(frozen=True, slots=True)
class Indented:
    """`body`, moved to the right, nothing behind its lines: a blank after a backslash breaks a command."""

    body: RenderableType
    columns: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        inner = options.update(max_width=options.max_width - self.columns)
        for line in console.render_lines(self.body, inner, pad=False):
            yield Segment(" " * self.columns)
            yield from line
            yield Segment.line()


@dataclass(frozen=True, slots=True)
class Rows:
    """A table where it fits. Where it doesn't, each row is a paragraph that begins with its id."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawn = self._table()
        wanted = Measurement.get(console, options.update(max_width=_ANY_WIDTH), drawn).maximum
        if wanted <= options.max_width:
            yield drawn
        else:
            yield from self._paragraphs()

    def _table(self) -> Table:
        drawn = Table(box=None, pad_edge=False, header_style="dim")
        for column in self.columns:
            drawn.add_column(column, no_wrap=True, overflow="ignore")
        for row in self.rows:
            drawn.add_row(*row)
        return drawn

    def _paragraphs(self) -> Iterator[RenderableType]:
        for row in self.rows:
            cells = list(zip(self.columns, row, strict=True))
            first = next((cell for cell in cells if _ID.fullmatch(cell[1].plain)), None)
            if first is None:
                first = cells[0]
                yield Text.assemble((f"{first[0]} ", "dim"), first[1])
            else:
                yield first[1]
            said = [
                Text.assemble((column, "dim"), " " if column else "", cell)
                for column, cell in cells
                if cell is not first[1] and cell.plain
            ]
            yield Indented(Text(", ").join(said), 4)


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Rows:
    """`rows` under `columns`; None is empty."""
    return Rows(tuple(columns), [[plain("" if cell is None else cell) for cell in row] for row in rows])


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command that can be copied at any width: a line that is too long goes on after a backslash."""

    command: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = ""
        for part in self._parts(options.max_width):
            longer = f"{line} {part}" if line else part
            if line and len(longer) > options.max_width - len(_GOES_ON):
                yield Text(f"{line}{_GOES_ON}", no_wrap=True, overflow="ignore")
                line = f"    {part}"
            else:
                line = longer
        yield Text(line, no_wrap=True, overflow="ignore")

    def _parts(self, width: int) -> Iterator[str]:
        """An option with its value, where that fits; else word by word."""
        for part in re.split(r" (?=--)", self.command):
            yield from [part] if len(part) + len(_GOES_ON) <= width else _WORD.findall(part)
