"""For events whose commit isn't visible yet: the walsender can ship it before Postgres shows it, for example
while a synchronous standby is down. Then the row is missing, or is still as it was before that commit. Such
an event is never acknowledged as done.
"""

import time
from typing import Final, Protocol, TypeVar
from uuid import UUID

from consumers.runtime.consumer import Event, Permanent, Transient

VISIBLE_WITHIN_S: Final = 60.0
"""Past this the row is taken for missing: the event is parked (design-operations, section 2)."""


class Versioned(Protocol):
    """A row whose version the event carries."""

    @property
    def version(self) -> int: ...


Row = TypeVar("Row", bound=Versioned)


class Unseen:
    """When each event whose row is missing was first looked for, in this process."""

    def __init__(self, within_s: float = VISIBLE_WITHIN_S) -> None:
        self._within_s = within_s
        self._since: dict[UUID, float] = {}

    def missing(self, event_id: UUID, reason: str) -> Transient | Permanent:
        """What to raise: Transient at first, Permanent when the row stayed away too long."""
        since = self._since.setdefault(event_id, time.monotonic())
        if time.monotonic() - since < self._within_s:
            return Transient(reason)
        del self._since[event_id]
        return Permanent(f"{reason} It stayed so for {self._within_s:g} s.")

    def require(self, event: Event, row: Row | None, what: str) -> Row:
        """`row`, when it is as new as the event says; else raises what `missing` gives."""
        if row is None:
            raise self.missing(event.event_id, f"There is no {what} {event.key} (yet).")
        if event.version is not None and row.version < event.version:
            raise self.missing(
                event.event_id,
                f"The {what} {event.key} is at version {row.version}, and not (yet) at the event's "
                f"{event.version}.",
            )
        self.seen(event.event_id)
        return row

    def seen(self, event_id: UUID) -> None:
        """The row is there."""
        self._since.pop(event_id, None)
