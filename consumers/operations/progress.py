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
    """`phases`: (kind, phase) to how many. `busy`: operations that move without a person. `given_up`: those
    whose job takes too long, which are asked for slowly and have a review. `waiting`: reason of a hold that
    passes by itself to how many."""

    phases: Mapping[tuple[str, str], int]
    busy: frozenset[UUID]
    given_up: frozenset[UUID]
    waiting: Mapping[str, int]


def read_progress(connection: psycopg.Connection[Any]) -> Progress:
    """Raises psycopg's errors."""
    phases = {(kind, phase): count for kind, phase, count in connection.execute(_SQL["phases"]).fetchall()}
    moving = connection.execute(_SQL["moving"]).fetchall()
    waiting = dict(connection.execute(_SQL["waiting"]).fetchall())
    return Progress(
        phases,
        busy=frozenset(operation for operation, given_up in moving if not given_up),
        given_up=frozenset(operation for operation, given_up in moving if given_up),
        waiting=waiting,
    )


def submitting(connection: psycopg.Connection[Any]) -> dict[UUID, str]:
    """Operations whose POST is under way, and the worker that claimed each (name@host:pid)."""
    return dict(connection.execute(_SQL["submitting"]).fetchall())


def paused_accounts(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Provider accounts that were paused, and why."""
    return dict(connection.execute(_SQL["paused"]).fetchall())
