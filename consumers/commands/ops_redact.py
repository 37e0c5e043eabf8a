"""`relay ops redact`: the one permitted change to what has ended. It deletes no file, and nothing that
proves what was done and paid.
"""

from typing import Any
from uuid import UUID

import click
import psycopg

from consumers.commands.session import Id, json_option, say_json, with_database
from consumers.operations import cancels
from relay.commands.who import who
from relay.settings import Settings

Connection = psycopg.AsyncConnection[Any]


@click.command("redact", short_help="Blank the payload and evidence of what has ended.")
@click.argument("operation", type=Id())
@click.option("--reason", required=True, help="Why; kept in the journal for good.")
@json_option
@click.pass_context
def command(ctx: click.Context, *, operation: UUID, reason: str, as_json: bool) -> None:
    """Blank the payload, the evidence and the output locations of OPERATION, which must have ended, without
    an open review or money that waits to be settled. Its identity, hashes, ids, money and journal stay. It
    can't be undone."""
    if not reason.strip(" …"):
        raise click.UsageError("--reason is empty: say why, it is kept in the journal for good.")

    async def work(connection: Connection, _: Settings) -> list[str]:
        return await cancels.redact(connection, operation, reason=reason, actor=who())

    files = with_database(ctx, work)
    if as_json:
        say_json({"operation_id": operation, "files": files})
        return
    click.echo(f"Operation {operation} is redacted.")
    if files:
        click.echo("Its files stay where they were delivered, and are yours to delete:")
        for file in files:
            click.echo(f"  {file}")
