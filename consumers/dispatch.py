"""Dispatch: claim an operation, check it, POST once, and record what came back by the attempt.

It never sends before `submitting` is committed and the spool has said so, never sends twice under one claim,
and never decides from the event alone. Read it beside design-operations, section 3.
"""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID, uuid4

import psycopg

from consumers import permits
from consumers.leftover import told
from consumers.operations import claims
from consumers.operations.access import require_worker
from consumers.operations.answers import Applied, apply_submission, attempted
from consumers.operations.lifecycle import Hold
from consumers.operations.specification import specification_hash
from consumers.payloads import PayloadChanged, Payloads, PayloadUnreachable
from consumers.providers.answer import Answer, to_record
from consumers.providers.outcome import Submission, classify_submission
from consumers.providers.profile import Profile
from consumers.providers.request import Request, idempotency_key, render_submit
from consumers.providers.spool import Spool, SpoolEntry, SpoolError, read_entry
from consumers.registered import Provider, Providers
from consumers.runtime import Consumer, Context, Event
from consumers.runtime.visibility import Unseen
from relay import failpoints
from relay.errors import SchemaError, Unavailable, UsageError

APPLY_BACKOFF_S: Final = (0.1, 5.0)
"""First and longest wait before an answer is written again, while the database is away."""


class Dispatch(Consumer):
    name = "dispatch"
    topics = ("generation.requested",)

    def __init__(self) -> None:
        self._worker = f"dispatch@{socket.gethostname()}:{os.getpid()}"
        self._in_flight: set[str] = set()
        self._unwritten: set[UUID] = set()
        self._unseen = Unseen()
        self._opened: Spool | None = None
        self._leftovers = True
        self._one_at_leftovers = asyncio.Lock()

    async def open(self, ctx: Context) -> None:
        self._providers = Providers(ctx.settings)
        self._payloads = Payloads(ctx.settings.payload_sources, lease_s=ctx.settings.claim_lease_s)
        async with ctx.pool.connection() as connection:
            await require_worker(connection)
        # May be called again while the database is away: the spool stays ours.
        self._opened = self._opened or Spool.open(ctx.settings.spool)
        # Whatever an earlier process sent or was told comes first; until it is applied nothing is claimed.
        await self._apply_leftovers(ctx)

    async def close(self) -> None:
        self._spool.close()

    @property
    def _spool(self) -> Spool:
        if self._opened is None:
            raise RuntimeError("the dispatcher is not open")
        return self._opened

    async def handle(self, event: Event, ctx: Context) -> None:
        self._require_written()
        with _the_workers_own_fault():
            await self._apply_leftovers(ctx)
            # Seen only in the hook, it would count as a provider that can't be reached.
            self._spool.require_room()
        asked = _asked(event)
        async with permits.to_submit(self._providers, *asked, ctx, worker=self._worker) as permitted:
            if permitted:
                failpoints.hit(failpoints.DISPATCH_BEFORE_CLAIM)
                await self._claim_and_send(event, ctx)

    async def _claim_and_send(self, event: Event, ctx: Context) -> None:
        async with ctx.uncancelled():
            async with ctx.pool.connection() as connection:
                claimed = await self._claim(connection, event, ctx)
                if claimed is None:
                    return
                failpoints.hit(failpoints.DISPATCH_CLAIMED)
                checked = await self._check(connection, claimed, ctx)
                if checked is None:
                    return
                provider, request = checked
                failpoints.hit(failpoints.DISPATCH_REQUEST_RENDERED)
                answer = await self._send(connection, claimed, provider, request)
            await self._record(claimed, provider.profile, answer, ctx)
        if answer.cancelled:
            raise asyncio.CancelledError
        if isinstance(answer.hook_error, SpoolError):
            with _the_workers_own_fault():
                raise answer.hook_error

    # Before the first byte ---------------------------------------------------------------------------

    async def _claim(
        self, connection: psycopg.AsyncConnection[tuple[object, ...]], event: Event, ctx: Context
    ) -> claims.Claim | None:
        operation_id, dispatch_no = _asked(event)
        try:
            result = await claims.claim(
                connection,
                operation_id=operation_id,
                dispatch_no=dispatch_no,
                token=uuid4(),
                worker=self._worker,
                lease_s=ctx.settings.claim_lease_s,
                event_version=event.version,
            )
        except claims.OperationMissing as error:
            raise self._unseen.missing(event.event_id, str(error)) from error
        self._unseen.seen(event.event_id)
        if isinstance(result, claims.NotClaimed):
            ctx.log.info("not claimed", why=result.why)
            return None
        return result

    async def _check(
        self, connection: psycopg.AsyncConnection[tuple[object, ...]], claimed: claims.Claim, ctx: Context
    ) -> tuple[Provider, Request] | None:
        """What to send, and to whom; None when the operation is held instead."""
        found = specification_hash(
            kind=claimed.kind,
            provider=claimed.provider,
            profile_digest=claimed.profile_digest,
            payload_version=claimed.payload_version,
            max_cost=claimed.max_cost,
            cost_unit=claimed.cost_unit,
            payload=claimed.content,
        )
        if found != claimed.specification_hash:
            words = f"the specification hashes to {found}, and {claimed.specification_hash} was approved"
            evidence = {"approved": claimed.specification_hash, "found": found}
            await claims.hold(connection, claimed, Hold.SPECIFICATION, self._worker, words, incident=evidence)
            ctx.log.error("held", reason=words)
            return None
        try:
            async with connection.transaction():
                profile = await self._providers.profile(connection, claimed.provider, claimed.profile_digest)
            payload = await self._payload(claimed)
            failpoints.hit(failpoints.DISPATCH_PAYLOAD_CHECKED)
            provider = self._providers.provider(profile)
            request = render_submit(
                profile,
                provider.base_url,
                operation_id=str(claimed.operation_id),
                payload=payload,
                secret=provider.secret,
                idempotency_key=idempotency_key(profile, str(claimed.operation_id)),
            )
        except PayloadUnreachable as error:
            unsent = Submission(
                verdict="unsent", reason="payload_unreachable", evidence={"error": str(error)}
            )
            await self._apply(claimed.token, claimed.operation_id, unsent, profile, ctx)
            return None
        except PayloadChanged as error:
            await claims.hold(
                connection, claimed, Hold.SPECIFICATION, self._worker, str(error), incident=error.evidence
            )
            ctx.log.error("held", reason=str(error))
            return None
        except (UsageError, SchemaError) as error:
            await claims.hold(connection, claimed, Hold.CONFIGURATION, self._worker, str(error))
            ctx.log.error("held", reason=str(error))
            return None
        async with connection.transaction():
            earlier = await claims.earlier_request(connection, claimed, request.sha256)
        if earlier is not None:
            words = f"the request would be {request.sha256}, and an earlier attempt's was {earlier}"
            await claims.hold(connection, claimed, Hold.SPECIFICATION, self._worker, words)
            ctx.log.error("held", reason=words)
            return None
        return provider, request

    async def _payload(self, claimed: claims.Claim) -> bytes:
        """The approved bytes. Raises PayloadUnreachable, PayloadChanged, and UsageError."""
        content = claimed.content
        return content.encode() if isinstance(content, str) else await self._payloads.fetch(content)

    # The POST ----------------------------------------------------------------------------------------

    async def _send(
        self,
        connection: psycopg.AsyncConnection[tuple[object, ...]],
        claimed: claims.Claim,
        provider: Provider,
        request: Request,
    ) -> Answer:
        profile = provider.profile
        attempt = str(claimed.token)
        sending = claims.Sending(
            request_sha256=request.sha256,
            idempotency_key=idempotency_key(profile, str(claimed.operation_id)),
            spool=str(self._spool.folder),
            deadline_s=profile.submit.deadline_s,
            margin_s=profile.margin_s,
            late_delivery_s=profile.late_delivery_s,
        )

        async def before_first_byte() -> None:
            failpoints.hit(failpoints.DISPATCH_HOOK_BEFORE_COMMIT)
            await claims.begin_submission(connection, claimed, sending, self._worker)
            failpoints.hit(failpoints.DISPATCH_HOOK_COMMITTED)
            self._in_flight.add(attempt)
            self._spool.sending(attempt, str(claimed.operation_id))
            failpoints.hit(failpoints.DISPATCH_HOOK_SPOOLED)

        deadline = time.monotonic() + profile.submit.deadline_s
        answer = await provider.client.submit(request, before_first_byte=before_first_byte, deadline=deadline)
        failpoints.hit(failpoints.DISPATCH_ANSWER_RECEIVED)
        return answer

    # After it ----------------------------------------------------------------------------------------

    async def _record(self, claimed: claims.Claim, profile: Profile, answer: Answer, ctx: Context) -> None:
        attempt = str(claimed.token)
        try:
            if attempt in self._in_flight:
                try:
                    self._spool.answer(attempt, to_record(answer))
                except SpoolError as error:
                    # The database is the better place anyway: an id must not be lost to a full disk.
                    ctx.log.error("the answer could not be spooled", error=str(error))
            failpoints.hit(failpoints.DISPATCH_ANSWER_SPOOLED)
            # Not before: whatever goes wrong in reading the answer, it is on the disk.
            outcome = classify_submission(profile, answer)
            await self._apply(claimed.token, claimed.operation_id, outcome, profile, ctx)
        except BaseException:
            self._leftovers = True
            raise
        finally:
            self._in_flight.discard(attempt)
        failpoints.hit(failpoints.DISPATCH_ANSWER_APPLIED)
        try:
            self._spool.applied(attempt)
        except SpoolError as error:
            # The event is done. The entry is applied again, without effect, before the next claim.
            ctx.log.error("the spool's entry could not be removed", error=str(error))
            self._leftovers = True

    async def _apply(
        self, attempt_id: UUID, operation_id: UUID, outcome: Submission, profile: Profile, ctx: Context
    ) -> None:
        """Write the outcome, for as long as the database is away; the POST is never part of a retry.

        Raises Unavailable when the process must end first, or the database refuses it: the spool keeps it.
        """
        try:
            applied = await self._written(attempt_id, operation_id, outcome, profile, ctx)
        finally:
            self._unwritten.discard(attempt_id)
        if applied is Applied.NO_ATTEMPT:
            raise self._unknown_attempt(attempt_id)
        about = {"operation_id": str(operation_id), "reason": outcome.reason, "result": str(applied)}
        if outcome.verdict == "unknown":
            ctx.log.warning("uncertain", look=f"relay review show {operation_id}", **about)
        else:
            ctx.log.info("answer applied", verdict=outcome.verdict, **about)

    async def _written(
        self, attempt_id: UUID, operation_id: UUID, outcome: Submission, profile: Profile, ctx: Context
    ) -> Applied:
        wait_s, longest_s = APPLY_BACKOFF_S
        while True:
            try:
                async with ctx.pool.connection() as connection:
                    return await apply_submission(
                        connection,
                        attempt_id=attempt_id,
                        operation_id=operation_id,
                        outcome=outcome,
                        profile=profile,
                        actor=self._worker,
                    )
            except psycopg.OperationalError as error:
                self._unwritten.add(attempt_id)
                ctx.log.warning("the answer is not written yet: the database is away", error=str(error))
                if ctx.stopping.is_set():
                    raise Unavailable(
                        f"The answer of attempt {attempt_id} could not be written: the database is away.",
                        meaning="It is kept in the spool, and nothing is sent again.",
                        remedy="Start the dispatcher again on this host when the database is back.",
                    ) from error
                await asyncio.sleep(wait_s)
                wait_s = min(longest_s, wait_s * 2)
            except psycopg.Error as error:
                # No event is at fault, so none may be parked: the worker waits until it is mended.
                raise Unavailable(
                    f"The database refuses the answer of attempt {attempt_id}: {str(error).strip()}",
                    meaning="It is kept in the spool, nothing is sent again, and nothing new is claimed.",
                    remedy=f"`relay ops show {operation_id}` shows how the operation is now.",
                ) from error

    def _require_written(self) -> None:
        """While an answer can't be written, nothing more is sent whose answer couldn't be either."""
        if self._unwritten:
            raise Unavailable(
                f"The answer of attempt {min(self._unwritten)} is not written yet.",
                meaning="It is in the spool and is being written; until then this worker claims nothing.",
                remedy="See that the database can be reached.",
            )

    async def _apply_leftovers(self, ctx: Context) -> None:
        """Apply what the spool has and nobody is at work on. While any of it can't be, nothing is claimed."""
        async with self._one_at_leftovers:
            if not self._leftovers:
                return
            # Before the spool is listed: what fails from here on is to be read again.
            self._leftovers = False
            try:
                for listed in list(self._spool.pending()):
                    if listed.attempt_id in self._in_flight:
                        continue
                    # What was in flight may have been answered, even applied, since the listing.
                    entry = read_entry(listed.path)
                    if entry is not None:
                        await self._apply_leftover(entry, ctx)
            except BaseException:
                self._leftovers = True
                raise

    async def _apply_leftover(self, entry: SpoolEntry, ctx: Context) -> None:
        try:
            attempt_id = UUID(entry.attempt_id)
        except ValueError:
            raise SpoolError(
                f"The spool has {entry.path}, which is not an attempt's entry.",
                meaning="It may hold an answer; this worker claims nothing beside it.",
                remedy="Move it out of the spool if it is none of the dispatcher's.",
            ) from None
        async with ctx.pool.connection() as connection:
            found = await attempted(connection, attempt_id)
            if found is None:
                raise self._unknown_attempt(attempt_id)
            profile = await self._providers.profile(connection, found.provider, found.profile_digest)
        outcome = told(entry, profile, self._providers.secrets(profile.name))
        await self._apply(attempt_id, found.operation_id, outcome, profile, ctx)
        self._spool.applied(entry.attempt_id)

    def _unknown_attempt(self, attempt_id: UUID) -> Unavailable:
        return Unavailable(
            f"The database doesn't know the attempt {attempt_id}, and the spool does.",
            meaning="The database was restored from before the POST, or the spool is another database's;"
            " until that is settled this worker claims nothing.",
            remedy="After a restore, `relay ops reconcile` brings the attempt back, and this worker goes"
            " on. Where it says that there is nothing to reconcile, a promotion may have lost the last"
            " commits: stop every dispatcher, since another could send the request again, and look at the"
            f" entry in {self._spool.folder} (`relay spool list`) and at the provider's own list of jobs.",
        )


@contextmanager
def _the_workers_own_fault() -> Iterator[None]:
    """Whatever is wrong with this process's spool or settings, nothing is wrong with the event that came
    upon it: it waits, and is never parked. Raises Unavailable in its place."""
    try:
        yield
    except (SpoolError, UsageError, SchemaError) as error:
        raise Unavailable(
            error.message, meaning=error.meaning or "Nothing was claimed.", remedy=error.remedy
        ) from error


def _asked(event: Event) -> tuple[UUID, int]:
    """Which operation the event asks to dispatch, and which entry into `prepared` it speaks of."""
    return UUID(str(event.payload["operation_id"])), int(event.payload["dispatch_no"])
