"""How far the operations are, for somebody who watches. It never writes and decides nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg

from consumers.operations.queries import Queries

_SQL: Final = Queries("progress")


@dataclass(frozen=True, slots=True)
class Progress:
    """`phases`: (kind, phase) to how many. `busy`: operations that move without a person. `waiting`: reason
    of a hold that passes by itself to how many."""

    phases: Mapping[tuple[str, str], int]
    busy: int
    waiting: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.phases.values())


def read_progress(connection: psycopg.Connection[Any]) -> Progress:
    """Raises psycopg's errors."""
    phases = {(kind, phase): count for kind, phase, count in connection.execute(_SQL["phases"]).fetchall()}
    busy = connection.execute(_SQL["busy"]).fetchone()
    waiting = dict(connection.execute(_SQL["waiting"]).fetchall())
    return Progress(phases, int(busy[0]) if busy else 0, waiting)


def submitting(connection: psycopg.Connection[Any]) -> dict[UUID, str]:
    """Operations whose POST is under way, and the worker that claimed each (name@host:pid)."""
    return dict(connection.execute(_SQL["submitting"]).fetchall())


def paused_accounts(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Provider accounts that were paused, and why."""
    return dict(connection.execute(_SQL["paused"]).fetchall())
