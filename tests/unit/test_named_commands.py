"""A person at three in the morning types what a message says: each command that is named must exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

from relay.cli import relay

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ("relay/**/*.py", "consumers/**/*.py", "consumers/**/*.sql", "schemas/postgres/*.sql")
TEXTS: Final = ("README.md", "docs/**/*.md", "bench/README.md")
_NAMED: Final = re.compile(r"`relay ([^`]+)`")
# The seam between two adjacent literals of one message.
_SEAM: Final = re.compile(r'"\s*\n\s*f?"')


def named() -> Iterator[tuple[str, str]]:
    """File and what stands behind `relay` in backticks."""
    for pattern in (*SOURCES, *TEXTS):
        for path in sorted(ROOT.glob(pattern)):
            text = _SEAM.sub("", path.read_text(encoding="utf-8"))
            for found in _NAMED.finditer(text):
                yield path.relative_to(ROOT).as_posix(), " ".join(found[1].split())


def wrong(words: list[str]) -> str | None:
    """What of a command line doesn't exist; None when all of it does."""
    command: click.Command = relay
    context = click.Context(relay)
    options = {option for parameter in relay.params for option in parameter.opts}
    for word in words:
        if word.startswith("--"):
            if word not in options | {"--help", "--version"}:
                return word
        elif isinstance(command, click.Group) and not word.startswith("-"):
            found = command.get_command(context, word)
            if found is None:
                # `relay COMMAND --help` stands for any of them.
                return None if word.isupper() else word
            command = found
            options |= {option for parameter in found.params for option in parameter.opts}
    return None


def test_every_command_that_is_named_exists() -> None:
    seen = list(named())
    assert len(seen) > 30
    assert [(path, words, wrong(words.split())) for path, words in seen if wrong(words.split())] == []


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("outbox mend", "mend"),
        ("review forget ID", "forget"),
        ("init --accept-everything", "--accept-everything"),
        ("review show {review_id}", None),
        ("COMMAND --help", None),
        ("init", None),
    ],
)
def test_the_rule_sees_what_is_missing(line: str, missing: str | None) -> None:
    assert wrong(line.split()) == missing


def test_no_line_of_the_list_of_commands_is_cut_off() -> None:
    runner = CliRunner()
    listed = runner.invoke(relay, ["--help"], terminal_width=80).output
    groups = [name for name in relay.list_commands(click.Context(relay)) if name in listed]
    shown = [listed, *(runner.invoke(relay, [name, "--help"], terminal_width=80).output for name in groups)]
    lines = [line for text in shown for line in text.splitlines() if not line.startswith("Usage:")]
    assert [line for line in lines if line.endswith("...")] == []
