"""Answers webhooks: a genuine one makes schedule look at its job now. Nothing else follows from one: it
changes no phase, and what it says of the job's state is not even read.
"""

import asyncio
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import psycopg
import psycopg_pool
import structlog

from consumers.connection import patient_conninfo
from consumers.operations import nudges, providers
from consumers.operations.access import require_worker
from consumers.providers import webhooks
from consumers.providers.profile import Profile
from consumers.providers.webhooks import Forged
from consumers.runtime.consumer import Pool
from consumers.webhooks import metrics, server
from consumers.webhooks.server import Reply, Request
from relay.errors import SchemaError, UsageError
from relay.exposition import serve
from relay.health import Report, State
from relay.settings import Settings

REFRESH_S: Final = 10.0
"""A pushed profile, or a rotated secret, is in force after this."""
REMEMBERED: Final = 10_000
"""Signatures of the last webhooks: a copy of one asks the database nothing."""
CONNECTIONS: Final = 4
_DATABASE_S: Final = 5.0
_ACCEPTED: Final = Reply(202)
_LATER: Final = Reply(503, (("Retry-After", "30"),))

Key = tuple[str, str]
"""Provider and account."""


class Receiver:
    """`run` until SIGTERM or SIGINT."""

    def __init__(self, settings: Settings) -> None:
        """Raises UsageError when no database is set."""
        self._settings = settings
        self._conninfo = patient_conninfo(settings.require_database(), "relay receive-webhooks")
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind(part="webhooks")
        self._profiles: dict[Key, Profile] = {}
        self._secrets: dict[str, tuple[str, ...]] = {}
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._nudging: dict[tuple[Key, str], asyncio.Task[int]] = {}
        self._at_once = asyncio.Semaphore(CONNECTIONS)
        self._started_s = time.monotonic()
        self._refreshed_s: float | None = None
        self.stopping = asyncio.Event()

    async def run(self, ready: Callable[[int], None] | None = None) -> None:
        """Serve. Raises UsageError when this login can't do the work, and Unavailable without the port."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        serve(self._settings.metrics_port, self.report)
        pool: Pool = psycopg_pool.AsyncConnectionPool(
            self._conninfo,
            min_size=1,
            max_size=CONNECTIONS,
            timeout=_DATABASE_S,
            check=psycopg_pool.AsyncConnectionPool.check_connection,
            open=False,
        )
        async with pool:
            self._pool = pool
            refreshing = asyncio.create_task(self._refresh_always())
            serving = asyncio.create_task(
                server.serve(
                    self._settings.webhooks_host,
                    self._settings.webhooks_port,
                    self.answer,
                    ready=ready or self._say,
                    stopping=self.stopping,
                )
            )
            # Either may fail, and then the process ends with its reason.
            await asyncio.wait({refreshing, serving}, return_when=asyncio.FIRST_COMPLETED)
            self.stopping.set()
            await asyncio.gather(serving, refreshing)
        self._log.info("webhooks stopped")

    def report(self) -> Report:
        """Healthy while the database was read not long ago: without it every webhook is answered with 503."""
        since_s = time.monotonic() - (self._refreshed_s or self._started_s)
        healthy = since_s < self._settings.unhealthy_after_s
        ready = healthy and self._refreshed_s is not None
        why = "the database answers" if healthy else f"the database hasn't been read for {since_s:.0f} s"
        return Report(
            healthy=healthy,
            ready=ready,
            state=State.ACTIVE if ready else State.STARTING,
            reason=f"{why}.",
            heartbeat_age_s=since_s,
            last_progress_age_s=None if self._refreshed_s is None else since_s,
            behind_s=0.0 if healthy else since_s,
        )

    # One webhook ------------------------------------------------------------------------------------------

    async def answer(self, request: Request) -> Reply:
        """202 for every genuine one, whatever we know of its job: an answer tells a stranger nothing."""
        parts = request.path.strip("/").split("/")
        if parts[0] != "webhooks" or len(parts) not in (2, 3):
            return Reply(404)
        if request.method != "POST":
            return Reply(405, (("Allow", "POST"),))
        if self._refreshed_s is None:
            return _LATER
        key = (parts[1], parts[2] if len(parts) == 3 else "default")
        profile = self._profiles.get(key)
        if profile is None or profile.webhooks is None:
            return Reply(404)
        outcome, reply = await self._judge(key, profile, profile.webhooks, request)
        metrics.RECEIVED.labels(profile.name, outcome).inc()
        return reply

    async def _judge(
        self, key: Key, profile: Profile, scheme: webhooks.Webhooks, request: Request
    ) -> tuple[str, Reply]:
        secrets = self._secrets.get(profile.name, ())
        if not secrets:
            variable = f"RELAY_PROVIDER_{profile.name.upper().replace('-', '_')}_WEBHOOK_SECRET"
            self._log.error("a webhook can't be checked", provider=profile.name, set=variable)
            return "no_secret", _LATER
        try:
            verdict = webhooks.verify(
                scheme, request.headers, request.body, secrets=secrets, now_s=time.time()
            )
        except ValueError as error:
            self._log.error("a webhook can't be checked", provider=profile.name, error=str(error))
            return "no_secret", _LATER
        if isinstance(verdict, Forged):
            self._log.warning("refused", provider=profile.name, why=verdict.why)
            return verdict.why, Reply(401)
        if verdict.signature in self._seen:
            return "repeated", _ACCEPTED
        job_id = webhooks.job_of(scheme, request.body)
        if job_id is None:
            self._log.warning("a webhook without a job", provider=profile.name, path=scheme.job_id)
            return "no_job", _ACCEPTED
        try:
            found = await self._nudge(key, job_id)
        except (psycopg.Error, psycopg_pool.PoolTimeout) as error:
            said = str(error).strip()
            self._log.warning("not written: the database is away", error=said)
            return "unavailable", _LATER
        self._remember(verdict.signature)
        self._log.info("a webhook", provider=profile.name, job_id=job_id, operations=found)
        return ("asked" if found else "unknown_job"), _ACCEPTED

    async def _nudge(self, key: Key, job_id: str) -> int:
        """How many operations are looked at for it. Whoever comes before it begins shares one: a flood about
        one job is a few statements."""
        name = (key, job_id)
        task = self._nudging.get(name)
        if task is None:
            task = asyncio.create_task(self._nudge_alone(name))
            self._nudging[name] = task
        # The others still want it when the connection of one of them is cut.
        return await asyncio.shield(task)

    async def _nudge_alone(self, name: tuple[Key, str]) -> int:
        (provider, account), job_id = name
        own = self._nudging[name]
        try:
            async with self._at_once, self._pool.connection() as connection:
                del self._nudging[name]
                return await nudges.nudge(connection, provider, account, job_id, self._min_s)
        finally:
            if self._nudging.get(name) is own:
                del self._nudging[name]

    async def _min_s(
        self, connection: psycopg.AsyncConnection[tuple[object, ...]], provider: str, digest: str
    ) -> float:
        for profile in self._profiles.values():
            if (profile.name, profile.digest) == (provider, digest):
                return profile.poll.min_s
        return (await providers.profile(connection, provider, digest)).poll.min_s

    def _remember(self, signature: bytes) -> None:
        self._seen[signature] = None
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

    # What it needs to know -------------------------------------------------------------------------------

    async def _refresh_always(self) -> None:
        while not self.stopping.is_set():
            try:
                await self.refresh()
            except (psycopg.Error, psycopg_pool.PoolTimeout, SchemaError) as error:
                self._log.warning("the profiles can't be read", error=str(error).strip())
            try:
                async with asyncio.timeout(REFRESH_S if self._refreshed_s else REFRESH_S / 10):
                    await self.stopping.wait()
            except TimeoutError:
                pass

    async def refresh(self) -> None:
        """Read profiles and secrets. What a forger sends is judged by these alone, without the database."""
        async with self._pool.connection() as connection:
            if self._refreshed_s is None:
                await require_worker(connection, inbox=False)
            self._profiles = await providers.current(connection)
        for name in {name for name, _ in self._profiles}:
            try:
                self._secrets[name] = self._settings.webhook_secrets(name)
            except UsageError as error:
                # Those of before still hold: a file that is being replaced is no reason to refuse anybody.
                self._log.error("the secrets of webhooks can't be read", provider=name, error=error.message)
        self._refreshed_s = time.monotonic()

    def _say(self, port: int) -> None:
        self._log.info("receiving webhooks", host=self._settings.webhooks_host, port=port, pid=os.getpid())
