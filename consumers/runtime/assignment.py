"""A partition while this process has it, and a record that came under it. Nothing here talks to Kafka."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from consumers.runtime.record import Record


@dataclass(eq=False)
class Assignment:
    """One partition from its assignment to its end; if it comes back, that is another assignment.

    After its end nothing of it is started, tried again or committed. Its events are used on the event loop
    alone.
    """

    topic: str
    partition: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    _at_work: int = 0

    def __post_init__(self) -> None:
        self.idle.set()

    def begin(self) -> None:
        """Something is at work whose end decides about an offset."""
        self._at_work += 1
        self.idle.clear()

    def finish(self) -> None:
        self._at_work -= 1
        if not self._at_work:
            self.idle.set()

    @contextmanager
    def work(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.finish()

    async def ended_within(self, timeout_s: float) -> bool:
        """True as soon as it ends; False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.ended.wait()
        except TimeoutError:
            return False
        return True


async def all_idle(assignments: Iterable[Assignment], timeout_s: float) -> bool:
    """True once nothing of these is at work; False after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            for assignment in assignments:
                await assignment.idle.wait()
    except TimeoutError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record, and the assignment under which it came."""

    record: Record
    assignment: Assignment
