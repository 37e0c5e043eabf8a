"""Order per key: records of one key are worked one after another, those of different keys side by side.

Pure bookkeeping. A lane exists while its key has work and is gone when it is empty, so that memory follows
what is in hand and not what was ever seen. It never reorders a lane.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """At most one item per key is at work; the others wait behind it in the order of arrival."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[T]] = {}

    def __len__(self) -> int:
        """Keys that have work."""
        return len(self._waiting)

    @property
    def queued(self) -> int:
        """Items that wait behind another of their key."""
        return sum(map(len, self._waiting.values()))

    def arrive(self, key: Hashable, item: T) -> bool:
        """True when `item` may be worked on now; otherwise it waits, and `leave` will return it."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque()
            return True
        waiting.append(item)
        return False

    def leave(self, key: Hashable) -> T | None:
        """The item at work on `key` is done: the next one, which is now at work, or None. KeyError if
        idle."""
        waiting = self._waiting[key]
        if waiting:
            return waiting.popleft()
        del self._waiting[key]
        return None

    def withdraw(self, drop: Callable[[T], bool]) -> Iterator[T]:
        """Take out and yield each waiting item that `drop` names; what is at work stays."""
        for key, waiting in self._waiting.items():
            kept: deque[T] = deque()
            for item in waiting:
                if drop(item):
                    yield item
                else:
                    kept.append(item)
            self._waiting[key] = kept
