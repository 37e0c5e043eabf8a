"""The process of `relay schedule`: rounds until a signal, over a connection that is made again when lost.

Two of them at once are harmless. It is never in the way of an effect: it only writes rows.
"""

import asyncio
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import psycopg
import structlog

from consumers.connection import patient_conninfo
from consumers.operations.access import require_worker
from consumers.registered import Providers
from consumers.schedule import metrics
from consumers.schedule.allowance import Allowance
from consumers.schedule.round import Done, Round
from relay.errors import Unavailable, as_sentence
from relay.exposition import serve
from relay.settings import Settings

RECONNECT_S: Final = (0.2, 5.0)
"""First and longest wait before the database is tried again; it doubles in between."""
SAY_AGAIN_S: Final = 60.0
"""While something is overdue the log says so this often."""
_STATEMENT_TIMEOUT_S: Final = 60
_LOCK_TIMEOUT_S: Final = 5


class Schedule:
    """`settings.schedule_every_s` seconds between rounds; none while there is a backlog."""

    def __init__(self, settings: Settings) -> None:
        """Raises UsageError when no database is set."""
        self._settings = settings
        self._conninfo = patient_conninfo(settings.require_database(), "relay schedule")
        self._actor = f"schedule@{socket.gethostname()}:{os.getpid()}"
        self._providers = Providers(settings)
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind(part="schedule")
        self._polls = Allowance(settings.polls_per_s)
        self._stopping = asyncio.Event()
        self._overdue_said_at = -SAY_AGAIN_S
        self._reconnect_s = RECONNECT_S[0]

    async def run(self) -> None:
        """Until SIGTERM or SIGINT; the round that is under way then is finished. Raises UsageError when this
        login can't do the work, or the metrics port can't be had."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number.name)
        serve(self._settings.metrics_port)
        while not self._stopping.is_set():
            try:
                async with await self._connect() as connection:
                    self._log.info("schedule started", actor=self._actor)
                    await self._rounds(connection)
            except psycopg.Error as error:
                metrics.HEALTHY.set(0)
                # Half fixed, half random: a database that comes back isn't met by everybody at once.
                delay_s = self._reconnect_s / 2 + random.uniform(0, self._reconnect_s / 2)
                away = isinstance(error, psycopg.OperationalError)
                self._log.warning(
                    "the database is away" if away else "the database refuses a round",
                    error=as_sentence(error),
                    delay_s=round(delay_s, 2),
                )
                await self._wait(delay_s)
                self._reconnect_s = min(RECONNECT_S[1], self._reconnect_s * 2)
        self._log.info("schedule stopped")

    async def once(self) -> Done:
        """Rounds until nothing more is due. Raises Unavailable when the database is away, and UsageError as
        `run` does."""
        try:
            async with await self._connect() as connection:
                round_ = self._round(connection)
                total = await round_.run()
                while total.more:
                    done = await round_.run()
                    done.actions += total.actions
                    total = done
                return total
        except psycopg.OperationalError as error:
            raise Unavailable(
                f"The database is away: {as_sentence(error)}",
                meaning="What was due is due still.",
                remedy="Look at RELAY_DATABASE_URL and at the server.",
            ) from error

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        await connection.execute(
            "select set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),"
            " set_config('idle_in_transaction_session_timeout', '15s', false)",
            [f"{_STATEMENT_TIMEOUT_S}s", f"{_LOCK_TIMEOUT_S}s"],
        )
        await require_worker(connection, inbox=False)
        return connection

    def _round(self, connection: psycopg.AsyncConnection[Any], polls: Allowance | None = None) -> Round:
        return Round(connection, actor=self._actor, providers=self._providers, log=self._log, polls=polls)

    async def _rounds(self, connection: psycopg.AsyncConnection[Any]) -> None:
        round_ = self._round(connection, self._polls)
        while not self._stopping.is_set():
            done = await round_.run()
            self._reconnect_s = RECONNECT_S[0]
            self._tell(done)
            if not done.more:
                await self._wait(self._settings.schedule_every_s)

    def _tell(self, done: Done, clock: Callable[[], float] = time.monotonic) -> None:
        for action, times in done.actions.items():
            metrics.ACTIONS.labels(action).inc(times)
        metrics.OVERDUE.set(done.overdue)
        metrics.OLDEST_OVERDUE.set(done.oldest_overdue_s)
        metrics.HEALTHY.set(int(done.healthy))
        metrics.LAST_ROUND.set_to_current_time()
        if done.actions.total():
            self._log.info("round", actions=dict(done.actions))
        if not done.healthy and clock() - self._overdue_said_at >= SAY_AGAIN_S:
            self._overdue_said_at = clock()
            self._log.error(
                "unhealthy: operations are overdue",
                overdue=done.overdue,
                oldest_s=round(done.oldest_overdue_s),
            )

    async def _wait(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _stop(self, why: str) -> None:
        self._log.info("stopping", signal=why)
        self._stopping.set()
