"""What every subject of the benchmark does: be prepared before any row exists, be started, be ended.

A peer is one more module here: it makes its own slot on the same table and publishes to the run's topic (or,
like the floor, writes the stream to the run's output).
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.child import Child
from bench.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one subject, with names of its own."""

    source: Source
    bootstrap: str
    name: str
    """Its slot's name; also where its topic's name begins."""
    folder: Path
    """For its logs and files."""
    output: Path = Path(os.devnull)
    """Where a subject that doesn't publish writes the stream."""
    until_lsn: int | None = None
    """Where a subject that doesn't publish ends by itself."""

    @property
    def topic(self) -> str:
        return f"{self.name}.events"


class Subject(Protocol):
    @property
    def name(self) -> str:
        """How tables call it."""

    @property
    def delivery(self) -> str:
        """exactly_once, at_least_once, or `floor` for what doesn't publish."""

    def prepare(self, run: Run) -> None:
        """Make what it needs, its slot among it. Raises Ended."""

    def start(self, run: Run) -> Child:
        """Start it; returns at once."""
