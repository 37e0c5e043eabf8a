"""`relay ops reconcile`: after a restore, what was submitted that the tables don't know; then dispatch
opens."""

from pathlib import Path
from typing import Any

import click
import psycopg

from consumers.commands.session import json_option, say_json, with_database
from consumers.reconcile.report import Asked, Report
from consumers.reconcile.run import Reconciliation
from consumers.terminal import draw, table
from relay.commands.who import who
from relay.settings import Settings

Connection = psycopg.AsyncConnection[Any]


@click.command("reconcile", short_help="After a restore: find lost submissions, then open dispatch.")
@click.option("--apply", "apply_", is_flag=True, help="Do what is shown without it, and open dispatch.")
@click.option(
    "--spool",
    "spools",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A dispatcher's spool, or a copy; once for each. Without it, RELAY_SPOOL.",
)
@click.option("--spool-lost", is_flag=True, help="A spool that isn't there is gone for good.")
@click.option(
    "--history-lost",
    is_flag=True,
    help="Kafka's history from before the restore is gone for good: each operation waits for a person.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    apply_: bool,
    spools: tuple[Path, ...],
    spool_lost: bool,
    history_lost: bool,
    as_json: bool,
) -> None:
    """Compare the operations with Kafka's history and the dispatchers' spools, after `relay init
    --accept-rewind`.

    Without --apply it changes nothing and shows what it would do. An operation of which any trace of a later
    submission is found becomes uncertain (or accepted, where the history has the job's id), with the evidence
    in its review; one without a trace goes on; one of which that can't be known stays held for a person.
    Operations that only Kafka knows are listed, with their jobs, and each gets an incident. Nothing is sent.
    Interrupted, run it again.
    """

    async def work(connection: Connection, settings: Settings) -> Report | None:
        asked = Asked(
            actor=who(),
            spools=spools or (settings.spool,),
            apply=apply_,
            history_lost=history_lost,
            spool_lost=spool_lost,
        )
        return await Reconciliation(
            connection, settings, asked, lambda line: click.echo(line, err=True)
        ).run()

    report = with_database(ctx, work)
    if as_json:
        say_json({"nothing_to_reconcile": True, "dispatch_open": True} if report is None else report)
    elif report is None:
        click.echo("Nothing to reconcile: no accepted rewind waits, and dispatch is open.")
    else:
        _show(report)


def _show(report: Report) -> None:
    click.echo(
        f"Dispatch is closed since {report.closed_since:%Y-%m-%d %H:%M:%S%z}. Read were"
        f" {report.transitions_read} transitions in Kafka and {report.spool_entries} entries in"
        f" {', '.join(report.spools_read) or 'no spool'}."
    )
    if not report.reaches_back:
        click.echo(
            "NOTHING in the history is from before the restore: it may be another Kafka or another prefix."
        )
    elif report.incomplete_partitions:
        numbers = ", ".join(map(str, report.incomplete_partitions))
        click.echo(
            f"Kafka has forgotten a part of the history after the restored state (partitions {numbers}):"
            " what it can't vouch for stays held."
        )
    for line in report.unreadable:
        click.echo(f"can't be read: {line}")
    if report.operations:
        rows = (
            (one.operation_id, one.owner_id, one.phase, one.verdict, ", ".join(one.job_ids), one.why)
            for one in report.operations
        )
        draw(table(("operation", "owner", "was", "becomes", "jobs", "why"), rows))
    if report.phantoms:
        click.echo("\nOnly in Kafka or a spool; approved after the restored state, and lost:")
        lost = (
            (one.operation_id, one.owner_id, one.kind, one.phase, ", ".join(one.job_ids))
            for one in report.phantoms
        )
        draw(table(("operation", "owner", "kind", "was", "jobs"), lost))
    for spooled in report.spooled:
        click.echo(f"{spooled.path}: {spooled.why}")
    words = {
        "release": "may go on",
        "uncertain": "submitted or possibly so",
        "hold": "stay held for a person",
    }
    said = ", ".join(f"{report.counts.get(verdict, 0)} {word}" for verdict, word in words.items())
    click.echo(f"\n{said}; {len(report.phantoms)} only in Kafka.")
    if not report.applied:
        click.echo("Nothing was changed. `relay ops reconcile --apply` does this, and opens dispatch.")
        return
    if report.dispatch_open:
        click.echo("Dispatch is open.")
    else:
        click.echo("Reconciled. Dispatch opens when `relay run` has verified the database: `relay status`.")
    click.echo(
        "`relay review list` shows what waits for a person, `relay incident list` what only Kafka knows."
    )
