"""Deliver: download the outputs of a succeeded operation under a claim, and store each once it is whole.

It never gives a file its final name before all of its bytes are on disk, never downloads again what is
stored, and never makes a job: an expired URL is refreshed by one GET of the job that was paid for.
"""

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

import psycopg

from consumers.operations import deliveries, observations
from consumers.operations.access import require_worker
from consumers.operations.deliveries import ClaimLost, Held, Part
from consumers.operations.lifecycle import Hold, Phase
from consumers.operations.polling import jitter
from consumers.providers.destination import DownloadError, OutputCut, OutputExpired, OutputRefused
from consumers.providers.download import Downloaded, download
from consumers.providers.profile import Profile
from consumers.providers.request import download_headers
from consumers.registered import Provider, Providers
from consumers.runtime import Consumer, Context, Event
from consumers.runtime.visibility import Unseen
from consumers.storage import StorageError, Wanted, open_storage, output_key
from relay import failpoints
from relay.errors import Unavailable, UsageError

SWEEP_AFTER_S: Final = 3600.0
"""What nobody has written to for an hour, and no live claim owns, was left by a process that died."""
GIVE_BACK_S: Final = 5.0
"""For the one transaction with which a stopping process returns its claim; its lease does it otherwise."""
ANY_BYTES: Final = frozenset({"application/octet-stream", "binary/octet-stream"})
"""What a file server says of a file whose type it doesn't know."""


class CancelRequested(Exception):
    """Somebody asked for a cancel while the outputs were being downloaded."""


@dataclass(frozen=True, slots=True)
class Work:
    """A claim with what it takes to fulfil it. `deadline` is by the event loop's clock."""

    held: Held
    profile: Profile
    """The one that was approved: it says how the job is observed, and how long is waited."""
    provider: Provider
    """By the account's profile of today, which says where files may come from and how large they may be."""
    deadline: float


class Deliver(Consumer):
    """One claim stores all outputs of one operation, or as many as its deadline allows; the next goes on."""

    name = "deliver"
    topics = ("delivery.requested",)

    def __init__(self) -> None:
        self._actor = f"deliver@{socket.gethostname()}:{os.getpid()}"
        self._unseen = Unseen()
        # Claims whose end isn't recorded yet, so that a handler that is tried again goes on with its own.
        self._at_work: dict[UUID, Work] = {}

    async def open(self, ctx: Context) -> None:
        self._providers = Providers(ctx.settings)
        self._storage = open_storage(ctx.settings.outputs_url)
        async with ctx.pool.connection() as connection:
            await require_worker(connection)
        try:
            await self._sweep(ctx)
        except StorageError as error:
            # Deliveries say the same and are tried again; a process that ended here would not be.
            ctx.log.warning("what was left half-written is not swept", error=str(error))

    async def _sweep(self, ctx: Context) -> None:
        left = await self._storage.leftovers(SWEEP_AFTER_S)
        if not left:
            return
        async with ctx.pool.connection() as connection:
            phases = await deliveries.phases(connection, left)
        dead: list[str] = []
        for operation_id, names in left.items():
            phase = phases.get(operation_id)
            if self._storage.knows_its_own if phase is None else phase not in self._storage.kept_in:
                dead += names
        await self._storage.sweep(dead)
        ctx.log.info("swept what was left half-written", files=len(dead))

    async def handle(self, event: Event, ctx: Context) -> None:
        work = await self._claim(event, ctx)
        if work is None:
            return
        operation_id = work.held.delivery.operation_id
        failpoints.hit(failpoints.DELIVER_CLAIMED)
        try:
            await self._deliver(work, ctx)
        except ClaimLost as error:
            ctx.log.warning("claim lost", error=str(error))
        except asyncio.CancelledError:
            await self._give_back(work, ctx)
            raise
        # An error of the database leaves the claim with us, for when this handler is tried again.
        del self._at_work[operation_id]

    # The claim -----------------------------------------------------------------------------------------

    async def _claim(self, event: Event, ctx: Context) -> Work | None:
        operation_id = UUID(str(event.payload["operation_id"]))
        async with ctx.pool.connection() as connection:
            found = await deliveries.load(connection, operation_id)
            delivery = self._unseen.require(event, found, "delivery")
            ours = self._at_work.pop(operation_id, None)
            if ours is not None and ours.held.token == delivery.claim_token and delivery.lease_alive:
                self._at_work[operation_id] = ours
                return ours
            if delivery.phase != Phase.PREPARED:
                ctx.log.debug("not claimed", phase=delivery.phase)
                return None
            profile = await self._providers.profile(connection, delivery.provider, delivery.profile_digest)
            today = await self._providers.profile(connection, delivery.provider, delivery.current_digest)
            provider = self._usable(today)
            download_s = today.limits.download_deadline_s
            deadline = asyncio.get_running_loop().time() + download_s
            held = await deliveries.claim(
                connection,
                delivery,
                dispatch_no=int(event.payload["dispatch_no"]),
                token=uuid4(),
                actor=self._actor,
                lease_s=download_s + today.margin_s,
            )
        if held is None:
            ctx.log.debug("not claimed", why="another dispatch, too early, or somebody else was first")
            return None
        work = self._at_work[operation_id] = Work(held, profile, provider, deadline)
        return work

    def _usable(self, profile: Profile) -> Provider:
        """A process that can't reach the provider must not claim what another process could deliver."""
        try:
            provider = self._providers.provider(profile)
            download_headers(profile, provider.secret)
        except UsageError as error:
            raise Unavailable(error.message, meaning="Nothing was claimed.", remedy=error.remedy) from error
        return provider

    # The download --------------------------------------------------------------------------------------

    async def _deliver(self, work: Work, ctx: Context) -> None:
        """Download what is missing, and end the claim by what that came to. Raises ClaimLost and psycopg's
        errors."""
        try:
            async with asyncio.timeout_at(work.deadline):
                await self._fetch_missing(work, ctx)
        except TimeoutError:
            await self._again(work, "deadline", "the time for one claim is over; what is stored stays", ctx)
        except CancelRequested:
            async with ctx.pool.connection() as connection:
                await deliveries.cancel(connection, work.held)
        except OutputExpired as error:
            await self._expired(work, error, ctx)
        except (OutputCut, StorageError) as error:
            await self._again(work, _code(error), str(error), ctx)
        except DownloadError as error:
            await self._hold(work, _code(error), str(error), ctx)
        else:
            async with ctx.pool.connection() as connection:
                await deliveries.stored(connection, work.held)
            failpoints.hit(failpoints.DELIVER_STORED)
            ctx.log.info("stored", parent=str(work.held.delivery.parent_operation_id))

    async def _fetch_missing(self, work: Work, ctx: Context) -> None:
        # Parts whose URL is new, with no byte from any since: a URL that expires later is asked for again.
        fresh: set[int] = set()
        while missing := await self._missing(work, ctx):
            for part in missing:
                try:
                    await self._fetch(work, part, fresh, ctx)
                except OutputExpired:
                    if part.ordinal in fresh:
                        raise
                    await self._refresh(work, ctx)
                    fresh = {one.ordinal for one in missing}
                    break  # the other URLs are new too

    async def _missing(self, work: Work, ctx: Context) -> list[Part]:
        async with ctx.pool.connection() as connection:
            parts = await deliveries.parts(connection, work.held.delivery)
        if not parts:
            raise OutputRefused("The parent operation has no outputs: there is nothing to deliver.")
        return [part for part in parts if part.stored_key is None]

    async def _fetch(self, work: Work, part: Part, fresh: set[int], ctx: Context) -> None:
        """Download one output and give it its final name. Raises DownloadError, StorageError, ClaimLost."""
        delivery = work.held.delivery
        key = output_key(delivery.owner_id, delivery.parent_operation_id, part.ordinal, part.name)
        wanted = Wanted(delivery=delivery.operation_id, token=work.held.token, ordinal=part.ordinal, key=key)
        async with self._storage.incoming(wanted) as incoming:
            before = incoming.size
            try:
                downloaded = await download(
                    part.url, target=incoming, rules=work.provider.client.download_rules()
                )
            finally:
                if incoming.size != before:
                    fresh.clear()
            failpoints.hit(failpoints.DELIVER_DOWNLOADED)
            wrong = differs(part, downloaded)
            if wrong is not None:
                await incoming.restart(None)
                raise OutputCut(f"The output {part.name} {wrong}.")
            # Whoever lost the claim while it slept must not replace what another one has placed.
            async with ctx.pool.connection() as connection:
                await deliveries.require(connection, work.held)
            await incoming.place()
        failpoints.hit(failpoints.DELIVER_PLACED)
        async with ctx.pool.connection() as connection:
            cancelled = await deliveries.record_part(
                connection, work.held, part, key=key, downloaded=downloaded
            )
        failpoints.hit(failpoints.DELIVER_RECORDED)
        if cancelled:
            raise CancelRequested

    async def _refresh(self, work: Work, ctx: Context) -> None:
        """New URLs by observing the job. Raises OutputExpired when the provider has none any more, and
        OutputCut when it can't be asked now."""
        delivery = work.held.delivery
        async with ctx.pool.connection() as connection:
            parent = await observations.load(connection, delivery.parent_operation_id)
            if parent is None:
                raise ClaimLost(f"The parent {delivery.parent_operation_id} is gone.")
            asked = await observations.begin(connection, parent, delivery.job_id, self._actor)
        answer, observation = await self._providers.observe(work.profile, delivery.job_id)
        async with ctx.pool.connection() as connection:
            await observations.apply_observation(
                connection,
                operation_id=delivery.parent_operation_id,
                asked=asked,
                observation=observation,
                status=answer.status,
                profile=work.profile,
                actor=self._actor,
            )
            if observation.state in ("error", "unrecognised", "running"):
                raise OutputCut(
                    f"The URL has expired, and the job can't be asked for a new one: {observation.reason}."
                )
            if observation.state != "succeeded" or not observation.outputs:
                raise OutputExpired(f"The URL has expired, and the job is {observation.state}.")
            await deliveries.refresh_urls(connection, work.held, observation.outputs)

    # How it ended --------------------------------------------------------------------------------------

    async def _again(self, work: Work, reason: str, why: str, ctx: Context) -> None:
        """claimed → prepared with backoff; held when that has gone on for the profile's `give_up_s`."""
        delivery = work.held.delivery
        async with ctx.pool.connection() as connection:
            count, since = await deliveries.tries(connection, delivery)
            evidence = {"error": why, "tries": count}
            if since.total_seconds() > work.profile.give_up_s:
                await deliveries.hold(connection, work.held, reason=Hold.UNREACHABLE, evidence=evidence)
                ctx.log.error("held", reason=why, tries=count)
                return
            delay_s = work.profile.poll.delay_s(max(count - 1, 0), jitter(delivery.operation_id, count))
            await deliveries.retry(connection, work.held, reason=reason, evidence=evidence, delay_s=delay_s)
        ctx.log.warning("tried again later", reason=why, tries=count, delay_s=round(delay_s, 1))

    async def _hold(self, work: Work, reason: str, why: str, ctx: Context) -> None:
        async with ctx.pool.connection() as connection:
            await deliveries.hold(connection, work.held, reason=reason, evidence={"error": why})
        ctx.log.error("held", reason=why)

    async def _expired(self, work: Work, error: OutputExpired, ctx: Context) -> None:
        async with ctx.pool.connection() as connection:
            await deliveries.expired(
                connection,
                work.held,
                evidence={"error": str(error)},
                deadline_s=work.profile.review_deadline_s("output_expired"),
            )
        ctx.log.error("expired undelivered", reason=str(error))

    async def _give_back(self, work: Work, ctx: Context) -> None:
        """The process ends: another one may go on at once."""
        del self._at_work[work.held.delivery.operation_id]
        try:
            async with asyncio.timeout(GIVE_BACK_S), ctx.pool.connection() as connection:
                await deliveries.retry(
                    connection, work.held, reason="stopped", evidence={"stopped": self._actor}, delay_s=0.0
                )
        except (psycopg.Error, TimeoutError, ClaimLost) as error:
            ctx.log.warning("the claim stays until its lease runs out", error=str(error))


def differs(part: Part, downloaded: Downloaded) -> str | None:
    """How a whole download isn't the file that the provider announced, in words; None when it is."""
    if not downloaded.framed and part.expected_bytes is None and part.expected_sha256 is None:
        return "came without a length and none was announced, so nobody can tell whether it is whole"
    if part.expected_bytes is not None and downloaded.size != part.expected_bytes:
        return f"has {downloaded.size} bytes, and {part.expected_bytes} were announced"
    if part.expected_sha256 is not None:
        if downloaded.sha256 != part.expected_sha256:
            return f"has the SHA-256 {downloaded.sha256}, and {part.expected_sha256} was announced"
        return None  # these are the bytes, whatever the file server calls them
    announced, said = _media_type(part.content_type), _media_type(downloaded.content_type)
    if announced and said and announced != said and said not in ANY_BYTES and announced not in ANY_BYTES:
        return f"is {said}, and {announced} was announced"
    return None


def _media_type(content_type: str | None) -> str:
    """Without parameters, lower case (RFC 9110, 8.3.1)."""
    return (content_type or "").partition(";")[0].strip().lower()


def _code(error: Exception) -> str:
    """OutputTooLarge → output_too_large: a reason for journal and attempt."""
    name = type(error).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
