"""`relay providers`: accounts, and their pauses. Three equal failures in a row pause one by themselves."""

from typing import Any

import click
import psycopg

from consumers.commands.session import json_option, say_json, with_database
from consumers.operations import accounts
from consumers.operations.accounts import Account
from consumers.terminal import draw, table
from relay.commands.who import who
from relay.errors import RelayError
from relay.settings import Settings

Connection = psycopg.AsyncConnection[Any]

account_option = click.option(
    "--account", default="default", show_default=True, help="Which of its accounts."
)


@click.group("providers", short_help="Provider accounts: see, pause and resume them.")
def command() -> None:
    """Provider accounts. While one is paused nothing new is sent; what was sent goes on."""


@command.command("list", short_help="Accounts, and which of them are paused.")
@json_option
@click.pass_context
def list_(ctx: click.Context, *, as_json: bool) -> None:
    """Accounts, whether they are paused, and how many operations wait for that to end."""

    async def work(connection: Connection, _: Settings) -> list[Account]:
        return await accounts.accounts(connection)

    found = with_database(ctx, work)
    if as_json:
        say_json(found)
        return
    rows = (
        (
            one.provider,
            one.account,
            one.current_digest[:12],
            f"since {one.paused_at:%Y-%m-%d %H:%M:%S}: {one.paused_reason}" if one.paused_at else "",
            str(one.waiting or ""),
            f"{one.failures_in_a_row} × {one.failure_reason}" if one.failures_in_a_row else "",
        )
        for one in found
    )
    draw(table(("provider", "account", "profile", "paused", "waiting", "last failures"), rows))
    for one in found:
        if one.paused_at:
            click.echo(
                f"Resume it with: relay providers resume {one.provider}"
                + (f" --account {one.account}" if one.account != "default" else "")
            )


@command.command("pause")
@click.argument("provider")
@account_option
@click.option("--reason", required=True, help="Why; shown to everybody who asks.")
@click.pass_context
def pause(ctx: click.Context, *, provider: str, account: str, reason: str) -> None:
    """Send nothing new through PROVIDER's account until it is resumed."""
    if not reason.strip():
        raise click.UsageError("--reason is empty.")

    async def work(connection: Connection, _: Settings) -> bool:
        return await accounts.pause(connection, provider, account, reason=f"{reason} ({who()})")

    _require(with_database(ctx, work), provider, account)
    click.echo(f"{provider}/{account} is paused; what was sent already goes on.")


@command.command("resume")
@click.argument("provider")
@account_option
@click.pass_context
def resume(ctx: click.Context, *, provider: str, account: str) -> None:
    """Let PROVIDER's account send again. `relay schedule` releases what waits for it, oldest first."""

    async def work(connection: Connection, _: Settings) -> bool:
        return await accounts.resume(connection, provider, account)

    _require(with_database(ctx, work), provider, account)
    click.echo(f"{provider}/{account} may send again.")


def _require(found: bool, provider: str, account: str) -> None:
    if not found:
        raise RelayError(
            f"There is no account {account} of a provider {provider}.",
            remedy="`relay providers list` shows those that `relay init` registered.",
        )
