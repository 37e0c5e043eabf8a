"""Which offset of a partition may be committed. It never lets one pass a record that isn't finished.

Records finish in any order; what is committed is the position after the prefix of finished records *in the
order received*. Offsets aren't consecutive (transaction markers, aborted and compacted records leave holes),
so the prefix is of what was received, not of numbers. When everything received is finished, the committed
position is the end of the partition as the broker reported it, so that the lag of a drained group is 0
despite a marker at the end.
"""

from collections import deque


class PartitionOffsets:
    """One partition during one assignment. Offsets and positions are Kafka's; a position is the next
    offset."""

    def __init__(self) -> None:
        self._unfinished: deque[int] = deque()
        self._finished_early: set[int] = set()
        self.last_received = -1
        """The highest offset handed over; -1 before the first."""
        self._position: int | None = None
        self._end = -1
        self._committed: int | None = None

    @property
    def outstanding(self) -> int:
        """Records received whose position isn't committable: what a crash would deliver again."""
        return len(self._unfinished)

    def received(self, offset: int) -> None:
        """A record was handed over. Raises ValueError when `offset` isn't above every earlier one."""
        if offset <= self.last_received:
            raise ValueError(f"offset {offset} was received after {self.last_received}")
        self.last_received = offset
        self._unfinished.append(offset)

    def finished(self, offset: int) -> None:
        """The record needs nothing more. Raises ValueError when it isn't outstanding."""
        if not self._unfinished or offset < self._unfinished[0] or offset in self._finished_early:
            raise ValueError(f"offset {offset} finished and was not outstanding")
        self._finished_early.add(offset)
        while self._unfinished and self._unfinished[0] in self._finished_early:
            first = self._unfinished.popleft()
            self._finished_early.discard(first)
            self._position = first + 1

    def reached_end(self, position: int) -> None:
        """The broker has nothing below `position` that wasn't received."""
        if position > 0:
            self._end = max(self._end, position)

    def committable(self) -> int | None:
        """The position to commit, or None when there is nothing new."""
        position = self._position
        if not self._unfinished and self._end > self.last_received:
            position = max(self._end, position or 0)
        return None if position == self._committed else position

    def committed(self, position: int) -> None:
        """The broker has acknowledged `position`."""
        self._committed = position
