"""Somebody who watches the demo sees phases move, on a terminal and in a log."""

import io

from rich.console import Console

from consumers.demo.live import LiveView, PlainView
from consumers.operations.progress import Progress


def progress(**phases: int) -> Progress:
    counted = {("generation", phase): count for phase, count in phases.items()}
    return Progress(counted, busy=frozenset(), given_up=frozenset(), waiting={})


def test_a_terminal_shows_each_phase_with_its_number_and_what_happened() -> None:
    screen = io.StringIO()
    with LiveView(Console(file=screen, force_terminal=True, width=100, height=40)) as view:
        view.say("SIGKILL to dispatch")
        view.show(progress(prepared=3, uncertain=17))
    shown = screen.getvalue()
    assert "SIGKILL to dispatch" in shown
    assert "uncertain" in shown
    assert "17" in shown


def test_a_log_gets_a_line_for_each_sentence_and_for_phases_that_changed() -> None:
    log = io.StringIO()
    with PlainView(log) as view:
        view.say("started")
        view.show(progress(prepared=3, strange=1))
        view.show(progress(prepared=3, strange=1))
    lines = [line.split(" s  ", 1)[1] for line in log.getvalue().splitlines()]
    assert lines == ["started", "generation: 3 prepared, 1 strange"]


def test_nothing_is_shown_of_no_operations() -> None:
    log = io.StringIO()
    PlainView(log).show(progress())
    assert log.getvalue() == ""
