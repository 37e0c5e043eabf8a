"""`relay spool`: what dispatchers sent or were told and the database hasn't heard yet; replayed on any
host."""

import sys
from pathlib import Path
from typing import Any

import click
import psycopg

from consumers.commands.session import json_option, say_json, with_database
from consumers.operations.access import require_worker
from consumers.providers.spools import Kept, kept
from consumers.registered import Providers
from consumers.review.screen import moment
from consumers.spool_import import Imported, import_spool
from consumers.terminal import draw, table
from relay.cli import loaded
from relay.commands.who import who
from relay.settings import Settings

Connection = psycopg.AsyncConnection[Any]
_FOLDER = click.Path(path_type=Path)


@click.group("spool", short_help="What dispatchers sent, and the database hasn't heard yet.")
def command() -> None:
    """The dispatchers' spools: each holds what was about to be sent and what came back, until it is
    applied."""


@command.command("list", short_help="Entries that aren't applied.")
@click.argument("folder", type=_FOLDER, required=False)
@json_option
@click.pass_context
def list_(ctx: click.Context, *, folder: Path | None, as_json: bool) -> None:
    """Entries that aren't applied, in FOLDER or else in RELAY_SPOOL. Needs no database, and changes
    nothing."""
    chosen = folder or loaded(ctx).settings.spool
    found = list(kept(chosen))
    if as_json:
        say_json([_as_json(one) for one in found])
    elif not found:
        click.echo(f"Nothing waits in {chosen}: whatever was sent is applied.")
    else:
        rows = (
            (
                one.entry.attempt_id,
                one.entry.operation_id,
                _has(one),
                moment(one.written_at),
                "its process runs" if one.alive else "its process is gone",
            )
            for one in found
        )
        draw(table(("attempt", "operation", "has", "written", ""), rows))
        if any(not one.alive for one in found):
            click.echo(
                f"\nA dispatcher that starts with this volume applies them; on any host, `relay spool import"
                f" {chosen}` does."
            )


@command.command("import", short_help="Apply a spool, on any host.")
@click.argument("folder", type=_FOLDER)
@json_option
@click.pass_context
def import_(ctx: click.Context, *, folder: Path, as_json: bool) -> None:
    """Apply what processes that are gone left in FOLDER: their spool, one process's folder of it, or a copy.

    Each answer is applied by its attempt, as its process would have done; a request without an answer makes
    its attempt unknown. Nothing is sent. Twice is as good as once. What can't be applied stays, and is named;
    then the status is 1.
    """

    async def work(connection: Connection, settings: Settings) -> Imported:
        await require_worker(connection, inbox=False)
        return await import_spool(connection, Providers(settings), folder, actor=f"spool import by {who()}")

    done = with_database(ctx, work)
    if as_json:
        say_json(done)
    else:
        _show(done, folder)
    if done.kept:
        sys.exit(1)


def _show(done: Imported, folder: Path) -> None:
    for one in done.applied:
        job = f", job {one.job_id}" if one.job_id else ""
        click.echo(f"{one.attempt_id}: {one.verdict} ({one.reason}{job}), {one.result}; {one.operation_id}")
    for left in done.kept:
        click.echo(f"kept {left.path}: {left.why}")
    for path in done.in_use:
        click.echo(f"left alone {path}: its process, or another import, is at work on it")
    if not (done.applied or done.kept or done.in_use):
        click.echo(f"Nothing waits in {folder}.")
    else:
        click.echo(f"{len(done.applied)} applied, {len(done.kept)} kept, {len(done.in_use)} folders in use.")
    if any(one.verdict == "unknown" for one in done.applied):
        click.echo("`relay review list` shows what nobody knows the outcome of.")


def _has(one: Kept) -> str:
    if one.entry.damaged:
        return "a line that can't be read"
    return "an answer" if one.entry.answer is not None else "sent, and no answer"


def _as_json(one: Kept) -> dict[str, object]:
    return {
        "attempt_id": one.entry.attempt_id,
        "operation_id": one.entry.operation_id,
        "answered": one.entry.answer is not None,
        "damaged": one.entry.damaged,
        "process_runs": one.alive,
        "written_at": one.written_at,
        "path": str(one.entry.path),
    }
