"""`relay outbox prune`: old rows out of the outbox, those that Kafka has."""

import re
from datetime import timedelta
from typing import Any, Final

import click

from relay.cli import loaded
from relay.outbox.mapping import of_settings
from relay.refused import in_words

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGE: Final = re.compile(r"(\d{1,6})([smhd])")
_LOGIN: Final = "Use a login that is a member of relay_operator."


class Age(click.ParamType[timedelta]):
    """A length of time: a number and s, m, h or d."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = _AGE.fullmatch(str(value))
        if found is None:
            self.fail(
                f"{value!r} is no length of time: write a number and s, m, h or d, as in 30d.", param, ctx
            )
        return timedelta(**{_UNITS[found[2]]: int(found[1])})


@click.command("prune", short_help="Take old rows out of the outbox.")
@click.option("--older-than", type=Age(), required=True, help="Rows older than this go: 30d, 12h.")
@click.option(
    "--batch", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="Rows a transaction."
)
@click.option("--dry-run", is_flag=True, help="Only say how many rows would go.")
@click.option(
    "--include-unpublished",
    "unpublished",
    is_flag=True,
    help="Also rows from before the slot that no backfill has compared: Kafka may never have had them.",
)
@click.pass_context
def command(
    ctx: click.Context, *, older_than: timedelta, batch: int, dry_run: bool, unpublished: bool
) -> None:
    """Delete outbox rows older than an age, once the slot and the checkpoint of every relay have passed them.

    Never a parked event's row, never the one that the checkpoint names, never without a healthy slot. Nothing
    of an operation is touched. Keep rows at least as long as you may want to repair from them, and let the
    topics keep records longer than the outbox keeps rows. To interrupt it and run it again is safe.
    """
    import psycopg

    from relay.outbox import prune

    settings = loaded(ctx).settings
    prune.require_native(of_settings(settings))
    url = settings.require_database()
    total = 0
    with in_words(_LOGIN), psycopg.connect(url, autocommit=True, application_name="outbox-relay prune") as it:
        if dry_run:
            old = prune.count_old(it, older_than)
            goes = old.rows - old.parked - (0 if unpublished else old.unpublished)
            click.echo(f"{goes} rows would go; the row that the checkpoint names stays in any case")
        else:
            for gone in prune.prune(it, settings, older_than, batch_rows=batch, unpublished=unpublished):
                total += gone
                click.echo(f"{total} rows pruned")
            if not total:
                click.echo("no row was pruned")
            old = prune.count_old(it, older_than)
    if old.parked:
        click.echo(f"{old.parked} rows stay: their events are parked, and the row is the only copy")
    if old.unpublished and not unpublished:
        click.echo(
            f"{old.unpublished} rows stay: they are from before the slot, and Kafka may never have had them"
            " (`relay init --backfill` publishes them; --include-unpublished lets them go)"
        )
