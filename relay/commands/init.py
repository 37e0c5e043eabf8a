"""`relay init`: migrations, what other packages register, then publication, slot, identity. Repeatable."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

import click
import psycopg

from relay import migrations
from relay.cli import loaded
from relay.commands.outbox_repair import SLOT_TIMEOUT_S
from relay.errors import UsageError
from relay.outbox.mapping import of_settings
from relay.refused import in_words
from relay.settings import Settings
from relay.wal import slot

InitStep = Callable[[psycopg.Connection[Any], Settings], list[str]]


_LOGIN: Final = (
    "Use a login that may create roles, schemas and a replication slot: a superuser, or the database's owner"
    " with CREATEROLE and REPLICATION. Then run `relay init` again."
)


@click.command("init", short_help="Tables, roles, profiles, publication and slot.")
@click.option(
    "--no-slot", is_flag=True, help="Only the tables and the provider profiles; no publication, no slot."
)
@click.option("--backfill", is_flag=True, help="Also publish, once, the rows that are in the outbox already.")
@click.option(
    "--accept-upgrade", is_flag=True, help="This cluster took the recorded one's place, as after pg_upgrade."
)
@click.option(
    "--accept-rewind",
    is_flag=True,
    help="This database was restored, or lost commits that Kafka has. Dispatch stays closed until"
    " `relay ops reconcile` has opened it.",
)
@click.option(
    "--slot-timeout-s",
    type=click.FloatRange(min=0.1),
    default=SLOT_TIMEOUT_S,
    show_default=True,
    help="How long a new slot waits for transactions that are open now.",
)
@click.pass_context
def command(
    ctx: click.Context,
    *,
    no_slot: bool,
    backfill: bool,
    accept_upgrade: bool,
    accept_rewind: bool,
    slot_timeout_s: float,
) -> None:
    """Prepare the database: tables, roles, provider profiles, publication and slot.

    Needs a login that may create roles, schemas and a replication slot. Running it again changes nothing that
    stands; it applies new migrations and registers new profiles.

    --backfill needs Kafka, and so do the two that accept another source: they compare the outbox with Kafka,
    publish what Kafka lacks, make the slot anew and raise the epoch. Interrupted, run them again.
    """
    settings = loaded(ctx).settings
    url = settings.require_database()
    asked = {"--backfill": backfill, "--accept-upgrade": accept_upgrade, "--accept-rewind": accept_rewind}
    chosen = [name for name, given in {"--no-slot": no_slot, **asked}.items() if given]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} don't go together.", remedy="Choose one.")
    if any(asked.values()):
        from relay.outbox.repair import require_repairable

        settings.require_kafka()
        require_repairable(settings, of_settings(settings))  # before anything is made
    with in_words(_LOGIN, meaning="What was done before stands; nothing is half done."):
        with psycopg.connect(url, autocommit=True, application_name="outbox-relay init") as connection:
            for name in migrations.apply(connection):
                click.echo(f"applied {name}")
            for found in sorted(entry_points(group="relay.init"), key=lambda entry: entry.name):
                step: InitStep = found.load()
                for sentence in step(connection, settings):
                    click.echo(sentence)
        if not no_slot and not (accept_upgrade or accept_rewind):
            identity = _initialised(settings, slot_timeout_s, backfill=backfill)
            click.echo(
                f"relay {identity.relay_id}: slot {identity.slot_name}, publication {identity.publication},"
                f" epoch {identity.epoch}, {identity.state}"
            )
            lacks = of_settings(settings).lacks
            if lacks is not None:
                click.echo(lacks)
    if any(asked.values()):
        from relay.commands.outbox_repair import carry_out
        from relay.outbox.repair_rules import Accept, Asked

        accept: Accept | None = "upgrade" if accept_upgrade else "rewind" if accept_rewind else None
        carry_out(settings, Asked(backfill=backfill, accept=accept, slot_timeout_s=slot_timeout_s))


def _initialised(settings: Settings, slot_timeout_s: float, *, backfill: bool) -> slot.SourceIdentity:
    """A backfill that was interrupted may have left no slot: it makes its own."""
    if backfill:
        with psycopg.connect(settings.require_database(), autocommit=True) as connection:
            known = slot.read_identity(connection, settings.slot)
        if known is not None and known.state == "repairing":
            return known
    return slot.initialise(settings, slot_timeout_s=slot_timeout_s)
