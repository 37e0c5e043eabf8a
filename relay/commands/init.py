"""`relay init`: migrations, what other packages register, then publication, slot, identity. Repeatable."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

import click
import psycopg

from relay import migrations
from relay.cli import loaded
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
@click.pass_context
def command(ctx: click.Context, *, no_slot: bool) -> None:
    """Prepare the database: tables, roles, provider profiles, publication and slot.

    Needs a login that may create roles, schemas and a replication slot. Running it again changes nothing that
    stands; it applies new migrations and registers new profiles.
    """
    settings = loaded(ctx).settings
    url = settings.require_database()
    with in_words(_LOGIN, meaning="What was done before stands; nothing is half done."):
        with psycopg.connect(url, autocommit=True, application_name="outbox-relay init") as connection:
            for name in migrations.apply(connection):
                click.echo(f"applied {name}")
            for found in sorted(entry_points(group="relay.init"), key=lambda entry: entry.name):
                step: InitStep = found.load()
                for sentence in step(connection, settings):
                    click.echo(sentence)
        if not no_slot:
            identity = slot.initialise(settings)
            click.echo(
                f"relay {identity.relay_id}: slot {identity.slot_name}, publication {identity.publication},"
                f" epoch {identity.epoch}, {identity.state}"
            )
