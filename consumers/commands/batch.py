"""`relay batch`: operations that were approved together: what keeps a batch open, and its own limits."""

from decimal import Decimal
from typing import Any
from uuid import UUID

import click
import psycopg

from consumers.commands.session import Amount, Id, json_option, say_json, with_database
from consumers.operations import batches
from consumers.operations.batches import Batch, WholeBatch
from consumers.review.screen import amount, moment, pairs, titled
from consumers.terminal import draw, table
from relay.commands.who import who
from relay.settings import Settings

Connection = psycopg.AsyncConnection[Any]


@click.group("batch", short_help="Operations approved together.")
def command() -> None:
    """Batches: sealed membership, limits of their own, and one completion."""


@command.command("list")
@click.option("--owner", help="Only this owner's.")
@click.option("--open", "only_open", is_flag=True, help="Only those that didn't complete.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@json_option
@click.pass_context
def list_(ctx: click.Context, *, owner: str | None, only_open: bool, limit: int, as_json: bool) -> None:
    """Batches, the newest first."""

    async def work(connection: Connection, _: Settings) -> list[Batch]:
        return await batches.batches(connection, owner_id=owner, only_open=only_open, limit=limit)

    found = with_database(ctx, work)
    if as_json:
        say_json({"batches": found})
    elif not found:
        click.echo("There is no batch.")
    else:
        rows = (
            (
                one.batch_id,
                one.owner_id,
                one.batch_key,
                one.state,
                f"{one.open_members} of {one.members}",
                one.in_flight,
                _booked(one),
                moment(one.completed_at or one.created_at),
            )
            for one in found
        )
        draw(table(("batch", "owner", "key", "state", "open", "in flight", "money", "at"), rows))


@command.command("show", short_help="What keeps a batch open, and its money.")
@click.argument("batch", type=Id())
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="At most so many open members."
)
@json_option
@click.pass_context
def show(ctx: click.Context, *, batch: UUID, limit: int, as_json: bool) -> None:
    """Members by phase, those that keep BATCH open, its limits and who changed them."""

    async def work(connection: Connection, _: Settings) -> WholeBatch:
        return await batches.whole(connection, batch, limit=limit)

    seen = with_database(ctx, work)
    if as_json:
        say_json(seen)
        return
    one = seen.batch
    phases = ", ".join(
        f"{row.operations} {row.phase}" + (f" ({row.held_for})" if row.held_for else "")
        for row in seen.phases
    )
    draw(
        pairs(
            [
                ("batch", f"{one.batch_id}  {one.state}"),
                ("owner", f"{one.owner_id}  key {one.batch_key}"),
                ("made", f"{moment(one.created_at)} by {one.created_by}"),
                ("sealed", moment(one.sealed_at) or "not yet: members may join, and it can't complete"),
                ("completed", moment(one.completed_at)),
                ("members", f"{one.members}, {one.open_members} open, {one.in_flight} in flight"),
                ("in flight", "" if one.max_in_flight is None else f"at most {one.max_in_flight}"),
                ("money", _booked(one)),
                ("phases", phases),
                ("deliveries", ", ".join(f"{count} {phase}" for phase, count in seen.deliveries.items())),
            ]
        )
    )
    if seen.open:
        rows = (
            (
                row.delivery or row.operation_id,
                row.operation_key,
                f"delivery {row.phase}" if row.delivery else row.phase,
                row.reason,
                f"relay review show {row.delivery or row.operation_id}" if row.open_reviews else "",
                moment(row.since),
            )
            for row in seen.open
        )
        draw(titled("Open", table(("operation", "key", "phase", "why", "needs a person", "since"), rows)))
    if seen.history:
        changes = (
            (row["at"], row["who"], row["max_cost"], row["max_in_flight"], row["reason"])
            for row in seen.history
        )
        draw(titled("Limits", table(("at", "by", "max cost", "in flight", "because"), changes)))


@command.command("limit", short_help="Change a batch's own limits.")
@click.argument("batch", type=Id())
@click.option("--max-cost", type=Amount(), help="What its members may cost together; without it: no limit.")
@click.option("--max-in-flight", type=click.IntRange(1), help="Jobs at once; without it: no limit.")
@click.option("--reason", required=True, help="Why; kept with the batch for good.")
@json_option
@click.pass_context
def limit_(
    ctx: click.Context,
    *,
    batch: UUID,
    max_cost: Decimal | None,
    max_in_flight: int | None,
    reason: str,
    as_json: bool,
) -> None:
    """Set both limits of BATCH; one that isn't given is lifted. What is booked or in flight stays, and what
    is held for them goes on within seconds."""
    if not reason.strip():
        raise click.UsageError("--reason is empty: say why, it is kept with the batch for good.")

    async def work(connection: Connection, _: Settings) -> Batch:
        return await batches.set_limits(
            connection, batch, max_cost=max_cost, max_in_flight=max_in_flight, reason=reason, actor=who()
        )

    changed = with_database(ctx, work)
    if as_json:
        say_json(changed)
    else:
        flying = "any number" if changed.max_in_flight is None else f"at most {changed.max_in_flight}"
        click.echo(
            f"Batch {changed.batch_id}: {_booked(changed)}; {flying} in flight, {changed.in_flight} are."
        )


def _booked(one: Batch) -> str:
    booked = one.reserved + one.disputed + one.settled
    return f"{amount(booked)}{'' if one.max_cost is None else f' of {amount(one.max_cost)}'} {one.unit}"
