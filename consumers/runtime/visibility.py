"""For events whose row isn't visible yet: the walsender can ship a commit before Postgres shows it, for
example while a synchronous standby is down. Such an event is never acknowledged as done.
"""

import time
from typing import Final
from uuid import UUID

from consumers.runtime.consumer import Permanent, Transient

VISIBLE_WITHIN_S: Final = 60.0
"""Past this the row is taken for missing: the event is parked (design-operations, section 2)."""


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

    def seen(self, event_id: UUID) -> None:
        """The row is there."""
        self._since.pop(event_id, None)
