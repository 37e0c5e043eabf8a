"""Runs `relay ARGS` in this process, through its very entry point: one start of Python less for each."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from relay.cli import main


@dataclass(frozen=True, slots=True)
class Finished:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed for programs."""
        return json.loads(self.out)


class Command(Protocol):
    """``relay ARGS`` with the environment `env` and no other setting."""

    def __call__(self, *args: str, env: Mapping[str, str]) -> Finished: ...


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*args: str, env: Mapping[str, str]) -> Finished:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name in os.environ:
                if name.startswith(("RELAY_", "PG")):
                    patch.delenv(name)
            for name, value in env.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["relay", *args])
            status = 0
            try:
                main()
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(bool(end.code))
        said = capsys.readouterr()
        return Finished(status, said.out, said.err)

    return run
