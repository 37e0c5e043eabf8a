"""Runs one consumer as a process: starts its parts, waits for a signal or a failure, and ends without losing
work.

The event loop, on the main thread, runs the handlers; `Group` owns the Kafka consumer on another. It ends
only when what must not be cancelled is done.
"""

import asyncio
import random
import signal
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Final, TypeVar

import psycopg
import psycopg_pool
import structlog

from consumers.connection import patient_conninfo
from consumers.runtime.consumer import Consumer, Context, Pool
from consumers.runtime.group import Group
from consumers.runtime.handling import Handling
from consumers.runtime.inbox import Inbox
from consumers.runtime.parking import Parking
from consumers.runtime.retry import Again, Failure, decide
from relay.avro.catalog import Catalog
from relay.errors import RelayError, Unavailable, UsageError
from relay.exposition import serve
from relay.settings import Settings

SPARE_CONNECTIONS: Final = 4
"""Beyond one per handler: the inbox, and handlers that hold a second one for a moment."""
CONNECTION_S: Final = 10.0
"""How long a handler waits for a connection before it is told that Postgres is away."""
FAILED_GRACE_S: Final = 5.0
"""Grace when the process itself has failed: what finishes now can perhaps not even be committed."""
CLOSE_S: Final = 30.0
"""How long the last commit and leaving the group may take; after that the broker finds out by itself."""

Argument = TypeVar("Argument")


def topics_of(consumer: type[Consumer], settings: Settings, catalog: Catalog) -> list[str]:
    """The Kafka topics to subscribe to. Raises UsageError for an event type that has no schema."""
    unknown = [each for each in consumer.topics if each not in catalog.event_types()]
    if not consumer.topics or (unknown and consumer.decodes):
        named = f"the event type {unknown[0]!r}, which has no schema" if unknown else "no event type"
        raise UsageError(
            f"The consumer {consumer.name!r} names {named}.",
            remedy=f"Known are {', '.join(catalog.event_types())}; RELAY_SCHEMAS adds folders.",
        )
    if settings.topic is not None:
        return [settings.topic]
    return [f"{settings.topic_prefix}.{event_type}" for event_type in consumer.topics]


async def run(consumer_class: type[Consumer], settings: Settings) -> None:
    """Run until SIGTERM or SIGINT; returns when the work in flight is done and committed.

    Raises RelayError when the process can't go on.
    """
    await Process(consumer_class, settings).run()


class Process:
    """The parts of one consumer process, and their end."""

    def __init__(self, consumer_class: type[Consumer], settings: Settings) -> None:
        """Raises UsageError or SchemaError for settings that can't work; connects to nothing."""
        self._settings = settings
        self._catalog = Catalog.load(settings.schemas)
        self._topics = topics_of(consumer_class, settings, self._catalog)
        self._consumer = consumer_class()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind(
            consumer=consumer_class.name
        )

    async def run(self) -> None:
        """See `run` of this module."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop, number.name)
        serve(self._settings.metrics_port)
        async with AsyncExitStack() as stack:
            pool = await self._open_pool(stack)
            context = Context(self._settings, self._log, self._stopping, opened_pool=pool)
            if not await self._open_consumer(context):
                return
            stack.push_async_callback(self._consumer.close)
            await self._consume(context, pool)
        if self._failure is not None:
            raise self._explained(self._failure)
        self._log.info("consumer stopped")

    async def _open_pool(self, stack: AsyncExitStack) -> Pool | None:
        if not self._settings.database_url.get_secret_value():
            self._log.warning("no database is set: deliveries aren't recorded in the inbox")
            return None
        pool: Pool = psycopg_pool.AsyncConnectionPool(
            patient_conninfo(self._settings.require_database(), f"relay consume {self._consumer.name}"),
            min_size=1,
            max_size=self._settings.concurrency + SPARE_CONNECTIONS,
            timeout=CONNECTION_S,
            # A server that came back has none of our old connections; a handler shouldn't be the one to find
            # out.
            check=psycopg_pool.AsyncConnectionPool.check_connection,
            open=False,
        )
        await pool.open(wait=False)
        stack.push_async_callback(pool.close)
        return pool

    async def _open_consumer(self, context: Context) -> bool:
        """False when the process was stopped before its consumer could open."""
        attempt = 0
        while not self._stopping.is_set():
            try:
                await self._consumer.open(context)
            except (Unavailable, psycopg.OperationalError) as error:
                attempt += 1
                again = decide(
                    Failure.UNAVAILABLE, attempt=attempt, failing_for_s=0, retry_for_s=0, draw=random.random()
                )
                assert isinstance(again, Again)
                self._log.warning(
                    "can't start yet", reason=str(error).strip(), delay_s=round(again.delay_s, 3)
                )
                await _within(self._stopping.wait(), again.delay_s)
            else:
                return True
        return False

    async def _consume(self, context: Context, pool: Pool | None) -> None:
        group = Group(
            self._settings,
            self._consumer.name,
            self._topics,
            log=self._log,
            deliver=lambda deliveries: self._call_soon(handling.receive, deliveries),
            drain=lambda revoked: self._call(handling.drain(revoked, grace_s=self._settings.grace_s)),
            lost=lambda assignments: self._call_soon(handling.end, assignments),
            failed=lambda error: self._call_soon(self._fail, error),
        )
        inbox = None if pool is None else Inbox(pool, group.group_id, self._log)
        handling = Handling(
            self._consumer,
            context,
            self._catalog,
            parking=Parking(self._settings, group.group_id, self._log),
            inbox=inbox,
            finished=group.finished,
            failed=self._fail,
        )
        inbox_task = None if inbox is None else asyncio.create_task(inbox.run())
        if inbox_task is not None:
            inbox_task.add_done_callback(self._inbox_ended)
        group.start()
        self._log.info("consumer started", group=group.group_id, topics=" ".join(self._topics))
        await self._stopping.wait()
        group.pause()
        grace_s = self._settings.grace_s
        if self._failure is not None:
            grace_s = min(grace_s, FAILED_GRACE_S)
        await handling.drain(grace_s=grace_s, wait_for_protected=True)
        # Joined elsewhere: the group's thread may be inside a revoke, which needs this loop to answer.
        if not await asyncio.to_thread(group.close, CLOSE_S):
            self._log.warning("left without goodbye: Kafka didn't answer", waited_s=CLOSE_S)
        if inbox_task is not None:
            inbox_task.cancel()
            await asyncio.wait({inbox_task})

    # From the group's thread

    def _call_soon(self, function: Callable[[Argument], None], argument: Argument) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, argument)

    def _call(self, coroutine: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # On the event loop

    def _stop(self, why: str) -> None:
        if self._stopping.is_set():
            self._log.warning("already stopping: work in flight is finishing", signal=why)
            return
        self._log.info("stopping", signal=why)
        self._stopping.set()

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._stopping.set()

    def _inbox_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _explained(self, error: BaseException) -> RelayError:
        if isinstance(error, RelayError):
            return error
        self._log.error("the runtime failed", exc_info=error)
        explained = RelayError(
            f"The consumer {self._consumer.name!r} stopped: {type(error).__name__}: {error}.",
            meaning="Nothing that wasn't finished was committed; it will be delivered again.",
            remedy="The log has the traceback. Start it again once the cause is mended.",
        )
        explained.__cause__ = error
        return explained


async def _within(awaitable: Coroutine[object, object, object], timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await awaitable
    except TimeoutError:
        pass
