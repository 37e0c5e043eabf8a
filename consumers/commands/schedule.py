"""`relay schedule`: whatever is due because time has passed."""

import asyncio
import sys

import click
import msgspec

from consumers.schedule.process import Schedule
from relay.cli import loaded
from relay.logs import configure


@click.command("schedule", short_help="Leases, polls, held operations and reviews that are due.")
@click.option("--once", is_flag=True, help="Do what is due now, say what it was, and end.")
@click.option("--json", "as_json", is_flag=True, help="With --once: what was done, as JSON.")
@click.pass_context
def command(ctx: click.Context, once: bool, as_json: bool) -> None:
    """Look every RELAY_SCHEDULE_EVERY_S seconds for what is due, until SIGTERM.

    Claims whose lease ran out, events to be written again, holds that pass by themselves, reviews past
    their deadline. It only writes rows, and several may run at once. With --once the exit status is 1 when
    something is overdue still.
    """
    if as_json and not once:
        raise click.UsageError("--json belongs to --once.")
    settings = loaded(ctx).settings
    configure(settings.log_format, settings.log_level)
    schedule = Schedule(settings)
    if not once:
        asyncio.run(schedule.run())
        return
    done = asyncio.run(schedule.once())
    said = {
        "actions": dict(sorted(done.actions.items())),
        "overdue": done.overdue,
        "oldest_overdue_s": round(done.oldest_overdue_s, 3),
    }
    if as_json:
        click.echo(msgspec.json.encode(said).decode())
    else:
        shown = ", ".join(f"{times} {action}" for action, times in sorted(done.actions.items()) if times)
        click.echo(f"{shown or 'nothing was due'}; {done.overdue} overdue")
    if not done.healthy or done.actions["failed"]:
        sys.exit(1)
