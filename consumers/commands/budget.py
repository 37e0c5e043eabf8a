"""`relay budget`: what owners may spend, have booked and have spent; and limits, settlements and refunds by a
person, each with its reason. It asks no provider.
"""

import sys
from decimal import Decimal
from typing import Any
from uuid import UUID

import click
import psycopg

from consumers.commands.session import Amount, Id, json_option, say_json, with_database
from consumers.operations import money, settlements
from consumers.operations.money import Allowance, Held
from consumers.operations.reconciling import Difference, Kind, reconcile, why
from consumers.operations.settlements import Booked, Moved
from consumers.review.screen import amount, moment
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
@click.option("--open", "open_", is_flag=True, help="List what waits for a person to settle or refund it.")
@json_option
@click.pass_context
def show(ctx: click.Context, *, owner: str | None, unit: str | None, open_: bool, as_json: bool) -> None:
    """Limits, and what of them is reserved, disputed, settled and available; of OWNER, or of everybody."""

    async def work(connection: Connection, _: Settings) -> tuple[list[Allowance], list[Held], list[Booked]]:
        return (
            await money.allowances(connection, owner_id=owner, unit=unit),
            await money.held(connection, owner_id=owner),
            await settlements.waiting(connection, owner_id=owner, unit=unit),
        )

    allowances, held, waiting = with_database(ctx, work)
    if as_json:
        say_json({"allowances": allowances, "held": held, "waiting": waiting})
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
    if open_:
        _draw_waiting(waiting)
    elif waiting:
        click.echo(f"{len(waiting)} waiting to be settled or refunded: relay budget show --open")


def _draw_waiting(waiting: list[Booked]) -> None:
    if not waiting:
        click.echo("Nothing waits to be settled.")
        return
    rows = (
        (
            one.attempt_id,
            one.owner_id,
            f"{amount(one.amount)} {one.unit}",
            one.state,
            one.phase,
            why(one),
            moment(one.updated_at),
        )
        for one in waiting
    )
    draw(table(("attempt", "owner", "amount", "state", "operation is", "because", "since"), rows))
    click.echo("\nrelay budget settle ATTEMPT COST --reason … when its cost is known,")
    click.echo("relay budget refund ATTEMPT --reason … when nothing was charged.")


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
    _require_reason(reason)

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


@command.command(
    "settle",
    short_help="Book what an attempt cost.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("attempt", type=Id())
@click.argument("cost", type=Amount())
@click.option("--reason", required=True, help="Why; kept in the ledger for good.")
@json_option
@click.pass_context
def settle(ctx: click.Context, *, attempt: UUID, cost: Decimal, reason: str, as_json: bool) -> None:
    """Book COST for ATTEMPT (its id, or its operation's): what is disputed, what nothing else will settle, or
    what was settled wrongly. The difference goes back to the owner, or stops it as an overrun."""
    _require_reason(reason)

    async def work(connection: Connection, _: Settings) -> tuple[Moved, list[Allowance]]:
        moved = await settlements.settle(connection, attempt, cost, reason=reason, actor=who())
        return moved, await money.allowances(connection, owner_id=moved.owner_id, unit=moved.unit)

    _say_moved(*with_database(ctx, work), as_json=as_json)


@command.command(
    "refund",
    short_help="Book what a provider gave back.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("attempt", type=Id())
@click.argument("back", type=Amount(), required=False, metavar="[AMOUNT]")
@click.option("--reason", required=True, help="Why; kept in the ledger for good.")
@json_option
@click.pass_context
def refund(ctx: click.Context, *, attempt: UUID, back: Decimal | None, reason: str, as_json: bool) -> None:
    """The provider gave AMOUNT of ATTEMPT's cost back (its id, or its operation's); without it: all, or never
    charged for it at all."""
    _require_reason(reason)

    async def work(connection: Connection, _: Settings) -> tuple[Moved, list[Allowance]]:
        moved = await settlements.refund(connection, attempt, back, reason=reason, actor=who())
        return moved, await money.allowances(connection, owner_id=moved.owner_id, unit=moved.unit)

    _say_moved(*with_database(ctx, work), as_json=as_json)


@command.command("reconcile", short_help="Compare ledger, reservations and charges.")
@click.argument("owner", required=False)
@click.option("--unit", help="Only this unit.")
@json_option
@click.pass_context
def reconcile_(ctx: click.Context, *, owner: str | None, unit: str | None, as_json: bool) -> None:
    """Compare the ledger, the reservations and what providers charged, per operation; of OWNER, or of all. It
    changes nothing. Ends with 1 if anything differs; what only waits for a person is listed, and no
    difference."""

    async def work(connection: Connection, _: Settings) -> list[Difference]:
        return await reconcile(connection, owner_id=owner, unit=unit)

    found = with_database(ctx, work)
    if as_json:
        say_json({"differences": found})
    elif not found:
        click.echo("Ledger, reservations and charges agree.")
    else:
        rows = ((one.operation_id, one.kind, one.owner_id, one.what, one.run) for one in found)
        draw(table(("operation", "kind", "owner", "what", "run"), rows))
    if any(one.kind is not Kind.OPEN for one in found):
        sys.exit(1)


def _require_reason(reason: str) -> None:
    if not reason.strip(" …"):
        raise click.UsageError("--reason is empty: say why, it is kept in the ledger for good.")


def _say_moved(moved: Moved, allowances: list[Allowance], *, as_json: bool) -> None:
    if as_json:
        say_json(moved)
        return
    (left,) = allowances
    stopped = "; an OVERRUN stops its claims" if left.overrun else ""
    click.echo(
        f"Attempt {moved.attempt_id}: {amount(moved.before)} → {amount(moved.settled)} {moved.unit} settled;"
        f" {left.owner_id} has {amount(left.available)} available{stopped}."
    )
