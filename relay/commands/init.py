"""`relay init`: migrations, what other packages register, then publication, slot, identity. Repeatable."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

import click
import psycopg

from relay import migrations
from relay.cli import loaded
from relay.errors import Unavailable
from relay.settings import Settings
from relay.wal import slot

InitStep = Callable[[psycopg.Connection[Any], Settings], list[str]]


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        connection = psycopg.connect(url, autocommit=True, application_name="outbox-relay init")
    except psycopg.OperationalError as error:
        raise Unavailable(
            f"The database can't be reached: {str(error).strip()}.",
            remedy="Check RELAY_DATABASE_URL, and that the server is up.",
        ) from error
    with connection:
        yield connection


@click.command()
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
    with _connected(settings.require_database()) as connection:
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
