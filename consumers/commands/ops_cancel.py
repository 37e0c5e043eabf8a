"""`relay ops cancel`: before anything was sent it ends the operation; after acceptance it asks the provider,
once, where the operation's profile has a way. It never says that a job was cancelled: an observation does.
"""

import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import click
import psycopg

from consumers.commands.session import Id, json_option, say_json, with_database
from consumers.operations import cancels, listing
from consumers.operations.cancels import Asking
from consumers.operations.decisions import Refused
from consumers.operations.lifecycle import Phase
from consumers.operations.records import Operation
from consumers.providers.cancelling import CancelAnswer, classify_cancel
from consumers.providers.profile import Profile
from consumers.providers.request import render_cancel
from consumers.registered import Providers
from relay.commands.who import who
from relay.settings import Settings

Connection = psycopg.AsyncConnection[Any]

BEFORE_ACCEPTANCE = frozenset({Phase.PREPARED, Phase.HELD, Phase.CLAIMED, Phase.SUBMITTING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """`phase` is the operation's after it. `attempt_id` and `answer` are of the request to the provider, if
    any."""

    operation_id: UUID
    phase: str
    sentence: str
    attempt_id: UUID | None = None
    answer: str | None = None


@click.command("cancel", short_help="Cancel an operation, or ask its provider to.")
@click.argument("operation", type=Id())
@click.option("--reason", required=True, help="Why; kept in the journal for good.")
@click.option("--force", is_flag=True, help="Although it destroys what the job has made.")
@click.option("--again", is_flag=True, help="Although the provider was asked before.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, *, operation: UUID, reason: str, force: bool, again: bool, as_json: bool
) -> None:
    """Cancel OPERATION. What was not sent yet ends at once, and a dispatcher that has it sends nothing. A
    job that runs is cancelled by its provider alone, where its profile says how; the operation ends when an
    observation confirms it."""
    if not reason.strip(" …"):
        raise click.UsageError("--reason is empty: say why, it is kept in the journal for good.")

    async def work(connection: Connection, settings: Settings) -> Cancelled:
        seen = (await listing.whole(connection, operation)).operation
        phase = seen.phase
        if phase in BEFORE_ACCEPTANCE:
            phase = await cancels.request(connection, operation, reason=reason, actor=who())
        if phase != Phase.ACCEPTED:
            return _unless_refused(operation, phase, seen.phase)
        # It may have been accepted while we asked.
        seen = (await listing.whole(connection, operation)).operation
        return await _at_the_provider(connection, settings, seen, reason=reason, force=force, again=again)

    done = with_database(ctx, work)
    if as_json:
        say_json(done)
    else:
        click.echo(done.sentence)


def _unless_refused(operation: UUID, phase: str, before: str) -> Cancelled:
    if phase == Phase.CANCELLED and before in BEFORE_ACCEPTANCE:
        sentence = f"Operation {operation} is cancelled."
        return Cancelled(operation_id=operation, phase=phase, sentence=sentence)
    if phase == Phase.CLAIMED:
        sentence = (
            f"Operation {operation} is claimed: the worker that has it will do nothing for it any more."
        )
        return Cancelled(operation_id=operation, phase=phase, sentence=sentence)
    if phase == Phase.SUBMITTING:
        raise Refused(
            f"The request of operation {operation} is on its way to the provider, and nothing calls it back.",
            meaning="That it is not wanted is noted: it is not sent another time.",
            remedy=f"Once it is accepted, run this again: `relay ops show {operation}`.",
        )
    if phase == Phase.UNCERTAIN:
        raise Refused(
            f"Whether the provider has a job of operation {operation} is not known: there is nothing to"
            " cancel yet.",
            meaning="Nothing was changed.",
            remedy=f"Its review decides: `relay review show {operation}`.",
        )
    raise Refused(f"Operation {operation} has ended: it is {phase}.", meaning="Nothing was changed.")


async def _at_the_provider(
    connection: Connection, settings: Settings, seen: Operation, *, reason: str, force: bool, again: bool
) -> Cancelled:
    if seen.provider is None or seen.profile_digest is None or seen.job_id is None:
        raise Refused(
            f"Operation {seen.operation_id} has no job at a provider.", meaning="Nothing was changed."
        )
    providers = Providers(settings)
    profile = await providers.profile(connection, seen.provider, seen.profile_digest)
    _require_way(profile, seen, force=force)
    await _require_running(providers, profile, seen)
    provider = providers.provider(profile)
    request = render_cancel(profile, provider.base_url, seen.job_id, provider.secret)
    asking = Asking(
        operation_id=seen.operation_id,
        attempt_id=uuid4(),
        job_id=seen.job_id,
        request_sha256=request.sha256,
        actor=who(),
        reason=reason,
        again=again,
    )

    async def before_first_byte() -> None:
        await cancels.begin(connection, asking)

    deadline = time.monotonic() + (profile.cancel.deadline_s if profile.cancel else 0.0)
    answer = await provider.client.submit(request, before_first_byte=before_first_byte, deadline=deadline)
    if isinstance(answer.hook_error, psycopg.Error):
        raise answer.hook_error
    came = classify_cancel(answer)
    if answer.hook_returned:
        await cancels.finish(connection, asking.attempt_id, came)
    return _said(seen, asking, came, answer.error)


def _require_way(profile: Profile, seen: Operation, *, force: bool) -> None:
    if profile.cancel is None:
        raise Refused(
            f"The profile of {profile.name} has no cancel: the job {seen.job_id} goes on.",
            meaning="Nothing was changed.",
            remedy="Cancel it where the provider lets you; an observation then says so.",
        )
    if profile.cancel.destroys and not force:
        raise Refused(
            f"To cancel the job {seen.job_id} destroys what it has made at {profile.name}.",
            meaning="Nothing was changed.",
            remedy="If that is meant, say --force.",
        )


async def _require_running(providers: Providers, profile: Profile, seen: Operation) -> None:
    """One GET: what has ended, or isn't known there, isn't cancelled; nor is anything behind the provider's
    back."""
    _, observation = await providers.observe(profile, str(seen.job_id))
    if observation.state == "running":
        return
    if observation.state in ("succeeded", "failed", "cancelled"):
        raise Refused(
            f"The job {seen.job_id} is {observation.state} already, says {profile.name}.",
            meaning="Nothing was sent. The next observation ends the operation.",
        )
    raise Refused(
        f"{profile.name} does not say that the job {seen.job_id} runs: {observation.state}"
        f" ({observation.reason}).",
        meaning="Nothing was sent.",
        remedy=f"`relay ops show {seen.operation_id}` tells what it said before.",
    )


def _said(seen: Operation, asking: Asking, came: CancelAnswer, error: str | None) -> Cancelled:
    job = f"the job {asking.job_id}"
    if came.outcome == "accepted":
        sentence = (
            f"{seen.provider} was asked to cancel {job} and took it ({came.reason}). Operation"
            f" {seen.operation_id} is cancelled once an observation says so."
        )
        return Cancelled(
            operation_id=seen.operation_id,
            phase=seen.phase,
            sentence=sentence,
            attempt_id=asking.attempt_id,
            answer=came.reason,
        )
    if came.outcome == "refused":
        raise Refused(
            f"{seen.provider} refuses to cancel {job} ({came.reason}).",
            meaning="It goes on, and is observed as before.",
            remedy=f"`relay ops show {seen.operation_id} --json` has the provider's answer.",
        )
    if came.outcome == "unsent":
        raise Refused(
            f"{seen.provider} could not be asked to cancel {job}: {error}.", meaning="Nothing was sent."
        )
    raise Refused(
        f"Whether {seen.provider} heard that {job} is to be cancelled is not known ({came.reason}).",
        meaning="It was asked once, and is not asked again by itself. The next observation tells.",
        remedy=f"`relay ops show {seen.operation_id}`; if it still runs then, run this with --again.",
    )
