"""A traceback in a log shows where it went wrong, and none of the values that were at hand there."""

import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from relay import logs


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """`configure` is for a whole process, and these tests share theirs."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_shows_no_local_variable(
    form: Literal["console", "json"], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(authorization: str) -> None:
        raise ZeroDivisionError(len(authorization))

    logs.configure(form, "info")
    try:
        fail("".join(["hunter", "2"]))
    except ZeroDivisionError:
        structlog.get_logger().exception("it failed")
    shown = capsys.readouterr().err
    assert "ZeroDivisionError" in shown
    assert "hunter2" not in shown
