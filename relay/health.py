"""Whether the relay makes progress: what its own thread says, judged when somebody asks. It does no I/O.

Health is progress, not liveness. A relay that has nothing to do is healthy, and so is a standby; one that has
events and hasn't moved for a while is not, however alive it is. Another thread answers for it, so that a
relay whose thread hangs is seen as well.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class State(StrEnum):
    STARTING = "starting"
    """No session publishes: servers are away, or the checks aren't done."""
    STANDBY = "standby"
    """Another relay has the slot; this one takes over when it is gone."""
    ACTIVE = "active"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Report:
    """`healthy`: it makes progress, or has nothing to do. `ready`: and it serves, if only as a standby."""

    healthy: bool
    ready: bool
    state: State
    reason: str
    """One sentence."""
    heartbeat_age_s: float
    last_progress_age_s: float | None
    """Since Kafka last took something durably; None before the first time."""
    behind_s: float
    """For how long there has been something to do without any progress; 0 when there is nothing."""

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "healthy": self.healthy,
            "ready": self.ready,
            "state": self.state.value,
            "reason": self.reason,
            "heartbeat_age_s": round(self.heartbeat_age_s, 3),
            "last_progress_age_s": None
            if self.last_progress_age_s is None
            else round(self.last_progress_age_s, 3),
            "behind_s": round(self.behind_s, 3),
        }


class Health:
    """The relay's thread writes, any thread asks for a `report`: each attribute is set in one step.

    `after_s` is how long it may be without progress while there is something to do, and how long its thread
    may be silent: it comes by at least once a second, while it reads, waits or pauses.
    """

    def __init__(self, after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._after_s = after_s
        self._clock = clock
        now = clock()
        self._beat_at = now
        self._state = State.STARTING
        self._doing = "it has just been started"
        self._broken = ""
        self._progressed_at: float | None = None
        # Since when there is something to do and nothing moves; None while there is nothing to do.
        self._behind_since: float | None = now
        self._streamed_to = 0
        self._waiting_in_table = False
        self._stalled_by = ""
        self.published_seq: int | None = None
        """The highest `seq` that Kafka has; None while this relay can't know."""

    # From the relay's thread

    def beat(self) -> None:
        """It still turns."""
        self._beat_at = self._clock()

    def starting(self, doing: str) -> None:
        """A session is being taken up, and this is what it does now."""
        self.beat()
        if self._state is not State.STARTING:
            self._behind_since = self._behind_since or self._beat_at
        self._state, self._doing = State.STARTING, doing

    def standby(self, reason: str) -> None:
        self.beat()
        self._state, self._doing, self._broken = State.STANDBY, reason, ""
        self._behind_since, self.published_seq = None, None

    def active(self, published_seq: int) -> None:
        """A session publishes from now on. That is no progress yet: sessions may fail one after the other."""
        self.beat()
        self._state, self._doing = State.ACTIVE, ""
        self.published_seq = published_seq

    def broken(self, reason: str) -> None:
        """The session ended by this error; another follows."""
        self._broken = reason

    def stopping(self, reason: str) -> None:
        """What is held is brought to its end; nothing more is read."""
        self.beat()
        self._state, self._doing = State.STOPPING, reason

    def progressed(self, published_seq: int) -> None:
        """Something is durable in Kafka that wasn't."""
        self._progressed_at = self._beat_at = self._clock()
        self._broken = ""
        self.published_seq = published_seq
        self._moved()

    def turned(self, *, holds: str, streamed_to: int) -> None:
        """One turn of an active relay.

        `holds` says what is read and not confirmed, and what that waits for; empty when there is none. While
        nothing is held, reading on (of WAL that isn't ours) is progress too.
        """
        self.beat()
        moved = streamed_to > self._streamed_to
        self._streamed_to = streamed_to
        self._doing = holds
        if holds:
            self._behind_since = self._behind_since or self._beat_at
        elif not self._waiting_in_table:
            self._behind_since = None
        elif moved:
            self._moved()

    def saw_table(self, *, waiting: bool, stalled_by: str = "") -> None:
        """What SQL says: whether a row waits that isn't in Kafka, and whom the walsender waits for."""
        self._waiting_in_table, self._stalled_by = waiting, stalled_by
        if waiting and self._state is not State.STANDBY:
            self._behind_since = self._behind_since or self._clock()

    def _moved(self) -> None:
        if self._behind_since is not None:
            self._behind_since = self._clock()

    # From any thread

    def report(self) -> Report:
        now = self._clock()
        state, since, progressed_at = self._state, self._behind_since, self._progressed_at
        heartbeat_age_s = now - self._beat_at
        behind_s = 0.0 if since is None else now - since
        hangs = heartbeat_age_s > self._after_s
        healthy = not hangs and (state is State.STANDBY or behind_s <= self._after_s)
        if hangs:
            reason = f"The relay's thread hangs: it hasn't come by for {heartbeat_age_s:.0f} s"
            reason += f" (it was {state.value}{': ' if self._doing else ''}{self._doing})."
        elif state is State.STANDBY:
            reason = f"Standby: {self._doing}"
        elif state is State.ACTIVE:
            reason = self._why_active(behind_s)
        else:
            reason = f"It hasn't published for {behind_s:.0f} s: {self._doing}."
            if state is State.STOPPING:
                reason = f"It stops: {self._doing}."
        if self._broken and state is not State.STANDBY:
            reason += f" Before: {self._broken}"
        return Report(
            healthy=healthy,
            ready=healthy and state in {State.ACTIVE, State.STANDBY},
            state=state,
            reason=reason,
            heartbeat_age_s=heartbeat_age_s,
            last_progress_age_s=None if progressed_at is None else now - progressed_at,
            behind_s=behind_s,
        )

    def _why_active(self, behind_s: float) -> str:
        if self._doing:
            why = self._doing
        elif self._waiting_in_table:
            why = "events are committed and Postgres hasn't sent them"
            if self._stalled_by:
                why += f": {self._stalled_by}"
        else:
            return "Everything that was read is in Kafka and confirmed."
        return f"No progress for {behind_s:.1f} s: {why}."
