"""`relay incident`: what crossed a boundary and was noticed, the evidence, and what was decided about it."""

import json
from typing import Any
from uuid import UUID

import click
import psycopg
from rich.console import RenderableType

from consumers.commands.session import Id, json_option, say_json, with_database
from consumers.operations import incidents
from consumers.operations.boundaries import CROSSED, Boundary
from consumers.operations.incidents import Happened
from consumers.review.screen import moment, pairs, titled
from consumers.terminal import CommandLine, draw, plain, table
from relay.commands.who import who
from relay.settings import Settings

Connection = psycopg.AsyncConnection[Any]


@click.group("incident", short_help="What crossed a boundary, and what was decided.")
def command() -> None:
    """Incidents: each names the boundary that it crossed, its evidence and the decision about it."""


@command.command("list")
@click.option("--all", "decided", is_flag=True, help="Those that have their decision too.")
@click.option("--boundary", type=click.Choice([str(one) for one in Boundary]), help="Only at this boundary.")
@click.option("--owner", help="Only this owner's.")
@click.option("--operation", type=Id(), help="Only of this operation.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
@json_option
@click.pass_context
def list_(
    ctx: click.Context,
    *,
    decided: bool,
    boundary: str | None,
    owner: str | None,
    operation: UUID | None,
    limit: int,
    as_json: bool,
) -> None:
    """Incidents without a decision, the newest first."""

    async def work(connection: Connection, _: Settings) -> list[Happened]:
        return await incidents.incidents(
            connection,
            decided=decided,
            boundary=None if boundary is None else Boundary(boundary),
            owner_id=owner,
            operation_id=operation,
            limit=limit,
        )

    found = with_database(ctx, work)
    if as_json:
        say_json(found)
    elif not found:
        click.echo("There is no incident." if decided else "No incident is without a decision.")
    else:
        rows = (
            (moment(one.opened_at), one.incident_id, one.boundary, one.owner_id, one.what, one.decision)
            for one in found
        )
        draw(table(("at", "incident", "boundary", "owner", "what", "decision"), rows))
        click.echo("\nrelay incident show INCIDENT shows the evidence.")


@command.command("show", short_help="One incident with its evidence and decision.")
@click.argument("incident", type=Id())
@json_option
@click.pass_context
def show(ctx: click.Context, *, incident: UUID, as_json: bool) -> None:
    """The boundary that INCIDENT crossed, the evidence, and what was decided about it."""

    async def work(connection: Connection, _: Settings) -> Happened:
        return await incidents.incident(connection, incident)

    seen = with_database(ctx, work)
    if as_json:
        say_json(seen)
    else:
        draw(*_screen(seen))


@command.command("close", short_help="Record what became of it.")
@click.argument("incident", type=Id())
@click.option("--decision", required=True, help="What was decided, and why; kept for good.")
@json_option
@click.pass_context
def close(ctx: click.Context, *, incident: UUID, decision: str, as_json: bool) -> None:
    """Record the decision about INCIDENT, once. A review that answers the same request does it by itself."""
    # The command that `show` prints has an ellipsis there.
    if not decision.strip(" …"):
        raise click.UsageError("--decision is empty: say what was decided and why, it is kept for good.")

    async def work(connection: Connection, _: Settings) -> Happened:
        return await incidents.close(connection, incident, decision=decision, actor=who())

    closed = with_database(ctx, work)
    if as_json:
        say_json(closed)
    else:
        click.echo(f"Incident {incident} is closed by {closed.decided_by}.")


def _screen(seen: Happened) -> list[RenderableType]:
    parts: list[RenderableType] = [
        pairs(
            [
                ("incident", f"{seen.incident_id}  {moment(seen.opened_at)}"),
                ("boundary", f"{seen.boundary}: {CROSSED[Boundary(seen.boundary)]}"),
                ("what", seen.what),
                ("operation", f"{seen.operation_id}  {seen.kind}, {seen.phase}"),
                ("owner", f"{seen.owner_id}  key {seen.operation_key}"),
                ("attempt", seen.attempt_id),
            ]
        )
    ]
    if seen.evidence:
        kept = json.dumps(seen.evidence, ensure_ascii=False, indent=2)
        parts.append(titled("Evidence", plain(kept)))
    if seen.decision is not None:
        by = f"{seen.decided_by}, {moment(seen.decided_at)}"
        review = f"\nreview {seen.decided_by_review}" if seen.decided_by_review else ""
        parts.append(titled("Decision", plain(f"{seen.decision}\n{by}{review}")))
        return parts
    parts.append(titled("Decision", plain("nobody has decided yet")))
    parts += [CommandLine(f"relay review show {review}") for review in seen.open_reviews or ()]
    parts.append(CommandLine(f"relay incident close {seen.incident_id} --decision '…'"))
    return parts
