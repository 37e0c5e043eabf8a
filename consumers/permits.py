"""Keeps what this process does with a provider's account within the limits that all processes share.

It never makes a worker wait for long: an operation whose turn hasn't come is left to schedule.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg

from consumers.operations import claims, limits
from consumers.operations.lifecycle import Phase
from consumers.operations.limits import Limit
from consumers.providers.profile import Profile
from consumers.registered import Providers
from consumers.runtime import Context
from relay.errors import SchemaError, Unavailable, UsageError


def of_submissions(profile: Profile, account: str) -> Limit:
    declared = profile.limits
    return Limit(
        provider=profile.name,
        account=account,
        action="submit",
        at_once=declared.submits_at_once,
        per_s=declared.submits_per_s,
    )


def of_polls(profile: Profile, account: str) -> Limit:
    declared = profile.limits
    return Limit(
        provider=profile.name,
        account=account,
        action="poll",
        at_once=declared.polls_at_once,
        per_s=declared.polls_per_s,
    )


@asynccontextmanager
async def to_submit(
    providers: Providers, operation_id: UUID, dispatch_no: int, ctx: Context, *, worker: str
) -> AsyncIterator[bool]:
    """Whether what an event asks to send may be claimed inside, within the limits of its account.

    A process without the provider's URL or credential must not claim what another process could send: held
    one by one, every operation that is approved meanwhile would need a person. Raises Unavailable then.
    """
    async with ctx.pool.connection() as connection:
        wanted = await claims.wanted(connection, operation_id, dispatch_no)
        profile = await _profile(providers, connection, wanted)
    if wanted is None or profile is None:
        yield True  # the claim says why not
        return
    try:
        providers.require_settings(profile)
    except UsageError as error:
        raise Unavailable(error.message, meaning="Nothing was claimed.", remedy=error.remedy) from error
    if wanted.waits:
        ctx.log.debug("not claimed", why="it waits for its account's limits")
        yield False
        return
    async with within(
        of_submissions(profile, wanted.account),
        ctx,
        operation_id=operation_id,
        phase=Phase.PREPARED,
        holder=worker,
        lease_s=ctx.settings.claim_lease_s + profile.submit.deadline_s + profile.margin_s,
        waited=wanted.waited,
    ) as permitted:
        yield permitted


async def _profile(
    providers: Providers, connection: psycopg.AsyncConnection[Any], wanted: claims.Wanted | None
) -> Profile | None:
    if wanted is None:
        return None
    try:
        return await providers.profile(connection, wanted.provider, wanted.profile_digest)
    except (UsageError, SchemaError):
        return None  # no setting of this process mends that: the operation will be held for it


@asynccontextmanager
async def within(
    limit: Limit, ctx: Context, *, operation_id: UUID, phase: str, holder: str, lease_s: float, waited: bool
) -> AsyncIterator[bool]:
    """Whether the action may be done inside. If not, the operation, in `phase`, was put into the line.

    `lease_s` is longer than the action can take: then the permit of a process that was killed comes back.
    `waited`: this is not the first time that the operation comes.
    """
    if not limit.limits:
        yield True
        return
    permit = uuid4()
    async with ctx.pool.connection() as connection, connection.transaction():
        verdict = await limits.take(connection, limit, permit, holder=holder, lease_s=lease_s, waited=waited)
        if not verdict.granted:
            await limits.defer(connection, operation_id, phase, verdict.wait_s)
    if not verdict.granted:
        ctx.log.info("a limit of the account", action=limit.action, again_in_s=round(verdict.wait_s, 2))
        yield False
        return
    try:
        if verdict.wait_s > 0:
            await asyncio.sleep(verdict.wait_s)
        yield True
    finally:
        await _give_back(permit, ctx)


async def _give_back(permit: UUID, ctx: Context) -> None:
    """A permit that can't be given back now ends by itself: that is no reason to do the work again."""
    try:
        async with ctx.pool.connection() as connection:
            await limits.give_back(connection, permit)
    except psycopg.Error as error:
        ctx.log.warning("a permit is left to its end", error=str(error).strip())
