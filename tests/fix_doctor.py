"""Runs `relay doctor --json` and gives its findings by check."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from fix_commands import Command
from fix_postgres import bindir
from relay.embedded_postgres import EmbeddedPostgres


@dataclass(frozen=True, slots=True)
class Examined:
    """What it found, and how it ended."""

    status: int
    findings: list[dict[str, Any]]

    def of(self, check: str, about: str = "") -> dict[str, Any]:
        """The one finding of `check` (with `about` in what it says)."""
        found = [f for f in self.findings if f["check"] == check and about in f["what"]]
        assert len(found) == 1, (check, about, found or self.findings)
        return found[0]

    def severity(self, check: str, about: str = "") -> str:
        return str(self.of(check, about)["severity"])

    def wrong(self, check: str, about: str = "") -> tuple[str, str]:
        """Severity and command; it must say why it matters."""
        found = self.of(check, about)
        assert found["why"]
        return found["severity"], found["command"]


class Examine(Protocol):
    """``relay doctor --json`` with the environment `env`."""

    def __call__(self, env: Mapping[str, str], *args: str) -> Examined: ...


@pytest.fixture
def examine(command: Command) -> Examine:
    def run(env: Mapping[str, str], *args: str) -> Examined:
        done = command("doctor", "--json", *args, env=env)
        assert done.status in {0, 1}, done.err
        assert "Traceback" not in done.err
        return Examined(done.status, done.json)

    return run


@contextmanager
def own_server(settings: Mapping[str, str]) -> Iterator[EmbeddedPostgres]:
    """A server with `settings` and otherwise the manual's defaults, which ALTER SYSTEM can change."""
    folder = Path(tempfile.mkdtemp(prefix="relay-test-doctor-"))
    server = EmbeddedPostgres(folder, settings={"shared_buffers": "64MB", **settings}, bindir=bindir())
    try:
        server.start()
        yield server
    finally:
        server.stop("immediate")
        shutil.rmtree(folder)
