"""`relay outbox repair`: compare the outbox with Kafka, bring back what is missing, make the slot anew."""

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Final

import click

from relay.cli import loaded
from relay.settings import Settings

if TYPE_CHECKING:
    from relay.outbox.repair_rules import Asked

SLOT_TIMEOUT_S: Final = 60.0


@click.command("repair", short_help="Bring back what Kafka lacks of the outbox; make the slot anew.")
@click.option("--include-expired", is_flag=True, help="Also rows older than what their topic still has.")
@click.option("--dry-run", is_flag=True, help="Compare and say what would be done; change nothing.")
@click.option("--yes", is_flag=True, help="Ask nothing. Without a terminal nothing is asked anyway.")
@click.option(
    "--slot-timeout-s",
    type=click.FloatRange(min=0.1),
    default=SLOT_TIMEOUT_S,
    show_default=True,
    help="How long the new slot waits for transactions that are open now.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    include_expired: bool,
    dry_run: bool,
    yes: bool,
    slot_timeout_s: float,
    as_json: bool,
) -> None:
    """After a stop of `relay run`: publish what is missing, in order per key, and make it able to go on.

    Stop the relay and its standbys first (--dry-run needs no stop), and run it as the relay's own login. It
    ends with the statuses that `relay run --help` lists. Applications may go on writing. What this command
    was doing when it was interrupted does no harm: run it again, and it begins from the start.
    """
    settings = loaded(ctx).settings

    from relay.outbox.repair_rules import Asked

    asked = Asked(include_expired=include_expired, slot_timeout_s=slot_timeout_s)
    if not dry_run and not yes and sys.stdin.isatty():
        click.confirm(
            "The slot is dropped and made anew, and what is missing is published. Go on?",
            abort=True,
            err=True,
        )
    carry_out(settings, asked, dry_run=dry_run, as_json=as_json)


def carry_out(settings: Settings, asked: "Asked", *, dry_run: bool = False, as_json: bool = False) -> None:
    """Repair as `asked` and print what was done. Raises as `relay.outbox.repair.Repair` does."""
    from relay import logs
    from relay.avro.catalog import Catalog
    from relay.outbox.mapping import of_settings
    from relay.outbox.repair import Done, Repair

    logs.configure(settings.log_format, settings.log_level)
    settings.require_database()
    settings.require_kafka()
    mapping = of_settings(settings)
    repair = Repair(
        settings, mapping, Catalog.load(settings.schemas), asked, lambda line: click.echo(line, err=True)
    )
    done: Done = repair.look() if dry_run else repair.run()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(done)))
        return
    would = "would be " if dry_run else ""
    click.echo(f"{done.present} rows are in Kafka; {done.missing} were missing, {done.parked} are parked.")
    brought = done.missing + (done.expired if asked.include_expired else 0) if dry_run else done.published
    click.echo(f"{brought} {would}published as {done.origin}, epoch {done.epoch}.")
    if done.newly_parked:
        click.echo(f"{done.newly_parked} could not be sent and are in relay.parked_event.")
    if done.expired and not asked.include_expired:
        click.echo(
            f"{done.expired} are older than what their topic still has: consumers had their time with them,"
            " so they are left alone; `relay outbox repair --include-expired` publishes them."
        )
    if done.phantoms:
        click.echo(
            f"{done.phantoms} events are only in Kafka (named above): consumers may have acted on them."
        )
    if done.unreconciled or (dry_run and asked.accept == "rewind"):
        click.echo(
            "Dispatch stays closed: an operation that looks prepared here may have been submitted before the"
            " rewind. Start `relay run`, then `relay ops reconcile` shows what was submitted and lost, and"
            " opens it."
        )
    if not dry_run:
        click.echo("Start `relay run`: it goes on from here.")
