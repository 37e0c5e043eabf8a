"""How far the slot may be confirmed: never past an event that Kafka doesn't durably have. It does no I/O.

Commits get ordinals in stream order. A keepalive's position belongs to the last commit before it in the
stream and counts only once that commit, and so everything before it, is durable.
"""

from collections import deque


class Watermark:
    """`confirmed` is where the slot stands at the start (its `confirmed_flush_lsn`)."""

    def __init__(self, confirmed: int) -> None:
        self._lsn = confirmed
        self._read = 0
        self._durable = 0
        self._waiting: deque[tuple[int, int]] = deque()  # (ordinal, lsn), both ascending

    @property
    def lsn(self) -> int:
        """The highest LSN that may be confirmed."""
        return self._lsn

    @property
    def outstanding(self) -> int:
        """Commits read whose events are not all durable yet."""
        return self._read - self._durable

    def commit(self, end_lsn: int) -> int:
        """A commit with events of ours was read to its end; returns the ordinal to give to `durable`."""
        self._read += 1
        self._waiting.append((self._read, end_lsn))
        return self._read

    def passed(self, lsn: int) -> None:
        """The stream has reached `lsn` without an event of ours: a keepalive, or an empty transaction."""
        if self._durable >= self._read:
            self._lsn = max(self._lsn, lsn)
        else:
            ordinal, before = self._waiting[-1]
            self._waiting[-1] = (ordinal, max(before, lsn))

    def durable(self, ordinal: int) -> None:
        """Every event of the commits up to `ordinal` is in Kafka, committed."""
        self._durable = max(self._durable, ordinal)
        while self._waiting and self._waiting[0][0] <= self._durable:
            self._lsn = max(self._lsn, self._waiting.popleft()[1])
