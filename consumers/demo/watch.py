"""How the scenario waits: it looks, shows what it sees, and notices a child that died. It changes nothing."""

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar
from uuid import UUID

import psycopg

from consumers.demo.live import View
from consumers.demo.processes import Children
from consumers.operations.progress import Progress, read_progress, submitting
from relay.errors import RelayError

LOOK_EVERY_S: Final = 0.03
SHOW_EVERY_S: Final = 0.2

Seen = TypeVar("Seen")


class Watch:
    """Eyes on the database, as a reader's login."""

    def __init__(self, connection: psycopg.Connection[Any], children: Children, view: View) -> None:
        self._connection = connection
        self._children = children
        self._view = view
        self._shown_at = 0.0

    def until(self, look: Callable[[], Seen], what: str, timeout_s: float) -> Seen:
        """Look until what is seen is true. Raises RelayError when a child dies or the time is over."""
        deadline = time.monotonic() + timeout_s
        while not (seen := look()):
            self._children.require_running()
            if time.monotonic() > deadline:
                counts = self.progress().phases.items()
                now = ", ".join(f"{count} {kind} {phase}" for (kind, phase), count in counts)
                raise RelayError(f"After {timeout_s:g} s the demo still waits until {what}. Now: {now}.")
            self.show()
            time.sleep(LOOK_EVERY_S)
        self.show(now=True)
        return seen

    def show(self, *, now: bool = False) -> None:
        """Show the phases, at most every `SHOW_EVERY_S` unless `now`."""
        if now or time.monotonic() - self._shown_at >= SHOW_EVERY_S:
            self._view.show(self.progress())
            self._shown_at = time.monotonic()

    def progress(self) -> Progress:
        return read_progress(self._connection)

    def posting(self, pid: int) -> set[UUID]:
        """Operations in `submitting` under a claim of the worker with this pid."""
        found = submitting(self._connection)
        return {operation for operation, worker in found.items() if worker.endswith(f":{pid}")}

    def first_events(self, operations: list[UUID]) -> set[UUID]:
        """The events that the approval of `operations` committed."""
        rows = self._connection.execute(
            "select event_id from relay.outbox where operation_id = any(%s) and version = 1", [operations]
        )
        return {event_id for (event_id,) in rows.fetchall()}

    def events(self, event_type: str | None = None) -> set[UUID]:
        """Every committed event, or those of one type."""
        rows = self._connection.execute(
            "select event_id from relay.outbox where %(type)s::text is null or event_type = %(type)s",
            {"type": event_type},
        )
        return {event_id for (event_id,) in rows.fetchall()}

    def delivered_since(self, group_id: str, since: object) -> set[UUID]:
        """What the inbox says was handed to the group since then, and is done with."""
        rows = self._connection.execute(
            "select event_id from relay.event_delivery"
            " where group_id = %s and last_seen_at >= %s and last_outcome <> 'retrying'",
            [group_id, since],
        )
        return {event_id for (event_id,) in rows.fetchall()}

    def parked_by_consumers(self) -> int:
        row = self._connection.execute(
            "select count(*) from relay.event_delivery where last_outcome = 'parked'"
        ).fetchone()
        return int(row[0]) if row else 0

    def now(self) -> object:
        """The database's clock."""
        row = self._connection.execute("select relay.now()").fetchone()
        if row is None:
            raise RuntimeError("relay.now() returned no row")
        return row[0]
