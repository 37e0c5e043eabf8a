"""What is copied from a screen, an id or a command, is whole at any width."""

import io
import re
import shlex

import pytest
from rich.console import Console, Group, RenderableType

from consumers.terminal import CommandLine, Indented, table

ID = "9b63eb2a-aa28-44a2-b944-a5808022fba3"
COMMAND = f"relay review resolve {ID} accepted --job-id 'a job' --revision 12 --reason '…'"
WIDTHS = (44, 60, 80, 100, 200)


def drawn(part: RenderableType, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(Indented(Group(part), 2))
    return out.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
def test_an_id_is_never_broken(width: int) -> None:
    columns = ("urgency", "review", "kind", "owner", "key", "why", "deadline")
    row = (1, ID, "uncertain_submission", "studio", "frame-0001/1", "sender_lost", "2026-11-29 19:12:31Z")
    shown = drawn(table(columns, [row, row]), width)
    assert shown.count(ID) == 2
    for cell in row:
        assert str(cell) in re.sub(r"\s+", " ", shown)
    assert max(map(len, shown.splitlines())) <= width


def test_a_table_that_fits_is_a_table() -> None:
    header, row = drawn(table(("review", "kind"), [(ID, "hold")]), 80).rstrip().splitlines()
    assert header.index("kind") == row.index("hold")


def test_markup_and_control_characters_from_outside_are_text() -> None:
    shown = drawn(table(("key",), [("[red]x[/] \x1b[2J",)]), 80)
    assert "[red]x[/] \\x1b[2J" in shown


@pytest.mark.parametrize("width", WIDTHS)
def test_a_command_is_the_same_command_when_it_is_copied_from_the_screen(width: int) -> None:
    shown = drawn(CommandLine(COMMAND), width)
    # What the shell makes of a backslash before the end of a line; a blank between would end the command.
    assert shlex.split(shown.replace("\\\n", "")) == shlex.split(COMMAND)
    assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_an_option_keeps_its_value_beside_it(width: int) -> None:
    assert any("--revision 12" in line for line in drawn(CommandLine(COMMAND), width).splitlines())
