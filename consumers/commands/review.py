"""`relay review`: what waits for a person, everything that is known about it, and the decision.

It decides nothing by itself, and takes no decision at a sight that is no longer true.
"""

from dataclasses import fields
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import click
import psycopg

from consumers.commands.session import Amount, Id, json_option, say_json, with_database
from consumers.operations import reviews
from consumers.operations.decisions import Decision, leads_to, require_possible
from consumers.operations.effects import Resolved
from consumers.operations.records import Whole
from consumers.operations.resolutions import NAMES_A_JOB, Resolution
from consumers.operations.reviews import Sight, Waiting
from consumers.review.judgement import judge
from consumers.review.lookup import look_up, require_confirmed
from consumers.review.screen import amount, moment, review_screen
from consumers.terminal import draw, table
from relay import failpoints
from relay.commands.who import who
from relay.settings import Settings

THEN: Final = {
    word: resolution
    for resolution in Resolution
    for first, _, word in [str(resolution).partition(":")]
    if first == "not-accepted"
}
"""What `--then` may say."""
WORDS: Final = tuple(dict.fromkeys(str(resolution).partition(":")[0] for resolution in Resolution))

Connection = psycopg.AsyncConnection[Any]


@click.group("review", short_help="What waits for a person's decision.")
def command() -> None:
    """Reviews: what no evidence decided, and a person must."""


@command.command("list")
@click.option("--kind", help="Only reviews of this kind.")
@click.option("--owner", help="Only this owner's.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
@json_option
@click.pass_context
def list_(ctx: click.Context, *, kind: str | None, owner: str | None, limit: int, as_json: bool) -> None:
    """Open reviews, the most urgent first."""

    async def work(connection: Connection, _: Settings) -> list[Waiting]:
        return await reviews.waiting(connection, kind=kind, owner_id=owner, limit=limit)

    found = with_database(ctx, work)
    if as_json:
        say_json(found)
    elif not found:
        click.echo("Nothing waits for a decision.")
    else:
        rows = (
            (
                one.severity,
                one.review_id,
                one.kind,
                one.phase,
                one.owner_id,
                one.operation_key,
                one.reason,
                moment(one.deadline) + (" PAST" if one.overdue else ""),
            )
            for one in found
        )
        draw(table(("urgency", "review", "kind", "phase", "owner", "key", "why", "deadline"), rows))
        click.echo("\nrelay review show REVIEW shows the evidence and the commands that decide.")


@command.command("show", short_help="The evidence, and the commands that decide.")
@click.argument("review", type=Id())
@json_option
@click.pass_context
def show(ctx: click.Context, *, review: UUID, as_json: bool) -> None:
    """Everything that is known about REVIEW (its id, or its operation's), and the commands that decide it."""

    async def work(connection: Connection, _: Settings) -> Sight:
        return await reviews.sight(connection, review)

    sight = with_database(ctx, work)
    judgement = judge(sight.review, sight.whole)
    if as_json:
        known = {field.name: getattr(sight.whole, field.name) for field in fields(sight.whole)}
        say_json({"review": sight.review, "judgement": judgement, **known})
    else:
        draw(review_screen(sight.review, sight.whole, judgement))


@command.command("ask", short_help="Have the provider asked once more.")
@click.argument("review", type=Id())
@click.pass_context
def ask(ctx: click.Context, *, review: UUID) -> None:
    """Have `relay consume collect` ask the provider about REVIEW once more; it decides nothing."""

    async def work(connection: Connection, _: Settings) -> UUID:
        return await reviews.ask_again(connection, review)

    asked = with_database(ctx, work)
    click.echo(f"Asked. What comes is in: relay review show {asked}")


@command.command("resolve", short_help="Take a decision, with its reason.")
@click.argument("review", type=Id())
@click.argument("resolution", type=click.Choice(WORDS))
@click.option("--revision", type=int, required=True, help="The revision that `review show` showed you.")
@click.option("--reason", required=True, help="Why; kept in the journal for good.")
@click.option("--job-id", help="accepted, choose-primary: the provider's id of the job.")
@click.option("--then", "then", type=click.Choice(list(THEN)), help="not-accepted: what comes next.")
@click.option(
    "--unverified",
    metavar="REASON",
    help="accepted, choose-primary: although the provider didn't confirm it.",
)
@click.option(
    "--override", metavar="REASON", help="accepted, choose-primary: although another operation has the job."
)
@click.option("--spool-lost", is_flag=True, help="not-accepted: the sender's spool can't be read any more.")
@click.option("--cost", type=Amount(), help="settle: what the job cost, in the operation's unit.")
@click.option(
    "--for",
    "wait_s",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="wait: when it is urgent again; by default as long as it was given when it was opened.",
)
@json_option
@click.pass_context
def resolve(
    ctx: click.Context,
    *,
    review: UUID,
    resolution: str,
    revision: int,
    reason: str,
    job_id: str | None,
    then: str | None,
    unverified: str | None,
    override: str | None,
    spool_lost: bool,
    cost: Decimal | None,
    wait_s: float | None,
    as_json: bool,
) -> None:
    """Decide REVIEW. Review, phase and money change in one transaction, or nothing does.

    \b
    accepted        the provider has the job: --job-id; it is asked about it first
    choose-primary  which of the ids that were seen is its job: --job-id
    not-accepted    no job came of it: --then resubmit, reject or cancel; --then stay
                    where the operation has gone on without that request
    abandon         nobody will ever know, and it isn't tried again
    release         what it was held for is mended: it goes on
    reject          a held operation ends
    cancel          a held operation ends
    refetch         an expired output can be had again: it is fetched once more
    lost            the provider no longer has the job, or the output
    settle          what the job cost is known: --cost
    wait            undecided: it stays open, and is urgent again later: --for

    Which of them a review takes depends on its kind and on the phase: `relay review show REVIEW` prints them.
    """
    _require_together(resolution, ("accepted", "choose-primary"), "--job-id", job_id)
    _require_together(resolution, ("not-accepted",), "--then", then)
    _require_together(resolution, ("settle",), "--cost", cost)
    for option, given, of in (
        ("--unverified", unverified, ("accepted", "choose-primary")),
        ("--override", override, ("accepted", "choose-primary")),
        ("--spool-lost", spool_lost or None, ("not-accepted",)),
        ("--for", wait_s, ("wait",)),
    ):
        _require_belongs(resolution, of, option, given)
    # The commands that `show` prints have an ellipsis there.
    if not reason.strip(" …"):
        raise click.UsageError("--reason is empty: say why, it is kept in the journal for good.")
    chosen = THEN[then] if then is not None else Resolution(resolution)

    async def work(connection: Connection, settings: Settings) -> Resolved:
        evidence = None
        decision = Decision(
            review_id=review,
            revision=revision,
            resolution=chosen,
            reason=reason,
            actor=who(),
            job_id=job_id,
            override=override,
            spool_lost=spool_lost,
            cost=cost,
            wait_s=wait_s,
        )
        # What can't be decided is refused before the provider is asked for nothing.
        seen = (await reviews.sight(connection, review)).whole
        require_possible(seen, decision)
        if job_id is not None and chosen in NAMES_A_JOB and _is_news(seen, decision):
            lookup = await look_up(connection, settings, seen, job_id)
            evidence = {"looked_up": require_confirmed(lookup, unverified)}
            failpoints.hit(failpoints.REVIEW_JOB_LOOKED_UP)
        return await reviews.resolve(connection, decision, evidence=evidence)

    resolved = with_database(ctx, work)
    if as_json:
        say_json(resolved)
        return
    if resolved.look_again is not None:
        click.echo(
            f"Review {resolved.review_id} stays open, and is urgent again at {moment(resolved.look_again)}."
        )
        return
    moved = (
        f"{resolved.from_phase} → {resolved.to_phase}"
        if resolved.to_phase != resolved.from_phase
        else f"stays {resolved.to_phase}"
    )
    if resolved.resolution in NAMES_A_JOB and resolved.job_id is not None:
        moved += f", job {resolved.job_id}"
    disputed = f"; {amount(resolved.disputed)} disputed until its cost is known" if resolved.disputed else ""
    click.echo(f"Operation {resolved.operation_id}: {moved}{disputed}.")


def _is_news(seen: Whole, decision: Decision) -> bool:
    """Whether the decision gives the operation a job that it doesn't have: that one is asked for first."""
    return decision.job_id != seen.operation.job_id or leads_to(seen, decision) is not None


def _require_together(resolution: str, of: tuple[str, ...], option: str, given: object) -> None:
    if resolution in of and given is None:
        raise click.UsageError(f"{resolution} needs {option}.")
    _require_belongs(resolution, of, option, given)


def _require_belongs(resolution: str, of: tuple[str, ...], option: str, given: object) -> None:
    if resolution not in of and given is not None:
        raise click.UsageError(f"{option} belongs to {' and '.join(of)}.")
