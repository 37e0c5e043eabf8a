"""What a consumer's author writes and gets: `Consumer`, `Event`, `Context`, and how to say that it failed.

A handler may be called again with the same event at any time, from any offset, in any process: it must do
nothing the second time. Nothing here moves an offset.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

import psycopg
import psycopg_pool
import structlog

from relay.errors import UsageError
from relay.settings import Settings

Pool = psycopg_pool.AsyncConnectionPool[psycopg.AsyncConnection[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where the relay read the event: these three order all events of one relay."""

    epoch: int
    lsn: int
    index: int


@dataclass(frozen=True, slots=True)
class Event:
    """One record, decoded. `ce_id` (`event_id`) is its identity: a redelivery has the same."""

    event_id: UUID
    type: str
    schema_version: int
    """The version that was written; `payload` has the fields of the latest version known here."""
    key: str
    """The operation's id, for the relay's own events."""
    version: int | None
    """The operation's version, which orders its events across topics; None for events without an
    operation."""
    payload: Mapping[str, Any]
    """Empty when the consumer has `decodes = False`."""
    raw: bytes
    """The record's value as it came."""
    occurred_at: datetime
    position: Position | None
    """None when another producer than the relay wrote the record."""
    headers: Mapping[str, bytes]
    topic: str
    partition: int
    offset: int


class Transient(Exception):
    """It may work later: tried again in place up to `retry_for_s`, then parked.

    `reason` says what happened, in words; it goes to the log, the inbox and the parking topic.
    `retry_after_s` is the least delay before the next attempt.
    """

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Permanent(Exception):
    """It will never work: parked at once, with `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AtWork:
    """One call of a handler, which may be cancelled when its time is over, except while it is protected."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False
        self._protected = 0

    @property
    def protected(self) -> bool:
        return self._protected > 0

    def cancel(self) -> None:
        """End the call: at once, or when it leaves the outermost `Context.uncancelled`."""
        self.cancelled = True
        self._cancel_unless_protected()

    def protect(self) -> None:
        self._protected += 1

    def unprotect(self) -> None:
        self._protected -= 1
        if self.cancelled:
            # Not before the handler's next wait: one that has nothing left to do has finished, and counts so.
            asyncio.get_running_loop().call_soon(self._cancel_unless_protected)

    def _cancel_unless_protected(self) -> None:
        if not self.protected and self.task is not None:
            self.task.cancel()


@dataclass(frozen=True)
class Context:
    """What a handler may use. `stopping` is set as soon as the process is asked to end."""

    settings: Settings
    log: structlog.typing.FilteringBoundLogger
    stopping: asyncio.Event
    at_work: AtWork = field(default_factory=AtWork, repr=False)
    opened_pool: Pool | None = field(default=None, repr=False)

    @property
    def pool(self) -> Pool:
        """Connections to Postgres, not in autocommit. Raises UsageError when no database is set.

        A connection that can't be had raises `psycopg.OperationalError`: let it pass, the event is then tried
        again for as long as Postgres is away.
        """
        if self.opened_pool is None:
            self.settings.require_database()
            raise UsageError("The connection pool is open only while a consumer runs.")
        return self.opened_pool

    @asynccontextmanager
    async def uncancelled(self) -> AsyncIterator[None]:
        """Work inside is never cancelled: it ends by its own deadline, and the process waits for it.

        For what must not stop half-way, such as a POST whose answer would be lost. Take no longer in it than
        `stop_grace_period` (or its like) leaves before SIGKILL.
        """
        self.at_work.protect()
        try:
            yield
        finally:
            self.at_work.unprotect()

    def for_event(self, event: Event, at_work: AtWork) -> "Context":
        """This context for one call of a handler."""
        log = self.log.bind(
            event_id=str(event.event_id), event_type=event.type, key=event.key, offset=event.offset
        )
        return replace(self, log=log, at_work=at_work)


class Consumer:
    """Subclass it, name it in the entry-point group `relay.consumers`, and `relay consume NAME` runs it.

    `topics` are event types; the prefix is added. Handlers run concurrently (`RELAY_CONCURRENCY`), but never
    two at once for the same key, and a key's events come in order.
    """

    name: ClassVar[str]
    topics: ClassVar[tuple[str, ...]]
    decodes: ClassVar[bool] = True
    """False: `Event.payload` stays empty and `Event.raw` is whatever the record holds."""

    async def open(self, ctx: Context) -> None:
        """Called once before the first event. An exception here ends the process."""

    async def handle(self, event: Event, ctx: Context) -> None:
        """Do the work. Returning means done: the offset may be committed.

        Raise `Transient` or `Permanent`; `relay.errors.Unavailable` and `psycopg.OperationalError` are tried
        again for as long as it takes; any other exception is taken for transient, and its traceback logged.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Called once after the last event."""
