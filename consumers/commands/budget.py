"""`relay budget`: what owners may spend, have booked and have spent. It moves no money: it sets limits."""

from decimal import Decimal
from typing import Any

import click
import psycopg

from consumers.commands.session import Amount, json_option, say_json, with_database
from consumers.operations import money
from consumers.operations.money import Allowance, Held
from consumers.review.screen import amount
from consumers.terminal import draw, table
from relay.commands.who import who
from relay.settings import Settings

Connection = psycopg.AsyncConnection[Any]


@click.group("budget", short_help="What owners may spend, and have booked.")
def command() -> None:
    """Allowances. An owner without one may spend nothing."""


@command.command("show", short_help="Limits, and what is booked of them.")
@click.argument("owner", required=False)
@click.option("--unit", help="Only this unit.")
@json_option
@click.pass_context
def show(ctx: click.Context, *, owner: str | None, unit: str | None, as_json: bool) -> None:
    """Limits, and what of them is reserved, disputed, settled and available; of OWNER, or of everybody."""

    async def work(connection: Connection, _: Settings) -> tuple[list[Allowance], list[Held]]:
        return (
            await money.allowances(connection, owner_id=owner, unit=unit),
            await money.held(connection, owner_id=owner),
        )

    allowances, held = with_database(ctx, work)
    if as_json:
        say_json({"allowances": allowances, "held": held})
        return
    if not allowances:
        click.echo(f"{owner or 'Nobody'} has no allowance{'' if owner else ' here'}: nothing may be spent.")
    else:
        rows = (
            (
                one.owner_id,
                one.unit,
                amount(one.limit_amount),
                amount(one.reserved),
                amount(one.disputed),
                amount(one.settled),
                amount(one.available),
                "OVERRUN: claims stopped" if one.overrun else "",
            )
            for one in allowances
        )
        draw(table(("owner", "unit", "limit", "reserved", "disputed", "settled", "available", ""), rows))
    for one in held:
        click.echo(f"{one.owner_id}: {one.operations} held for want of {amount(one.amount)} {one.unit}")


# So that a limit below zero is told what is wrong with it, instead of being taken for an option.
@command.command(
    "set", short_help="Limit what an owner may spend.", context_settings={"ignore_unknown_options": True}
)
@click.argument("owner")
@click.argument("unit")
@click.argument("limit", type=Amount())
@click.option("--reason", required=True, help="Why; kept in the ledger for good.")
@json_option
@click.pass_context
def set_(ctx: click.Context, *, owner: str, unit: str, limit: Decimal, reason: str, as_json: bool) -> None:
    """Allow OWNER to spend up to LIMIT of UNIT, all that is booked already included. Clears an overrun."""
    if not reason.strip():
        raise click.UsageError("--reason is empty.")

    async def work(connection: Connection, _: Settings) -> Allowance:
        return await money.set_limit(connection, owner, unit, limit, reason=reason, actor=who())

    made = with_database(ctx, work)
    if as_json:
        say_json(made)
    else:
        click.echo(
            f"{made.owner_id} may spend {amount(made.limit_amount)} {made.unit};"
            f" {amount(made.available)} of it are available."
        )
