"""`relay outbox parked`: the events that could not be sent: which, why, and what was done about them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import click

from relay.cli import loaded
from relay.commands.who import who
from relay.errors import UsageError
from relay.settings import Settings

if TYPE_CHECKING:
    import psycopg

_READ: Final = "Use a login that is a member of relay_operator, relay_reader or relay_replicator."
_WRITE: Final = "See `relay outbox parked show EVENT_ID`; to change it takes a member of relay_operator."
_STATES: Final = ("parked", "republished", "discarded", "all")


@contextmanager
def connected(
    settings: Settings, remedy: str, command: str
) -> "Iterator[tuple[psycopg.Connection[Any], UUID]]":
    """A connection in autocommit and the relay's id. Raises UsageError, Unavailable or RelayError."""
    import psycopg

    from relay.refused import in_words
    from relay.wal.slot import read_identity

    url = settings.require_database()
    with (
        in_words(remedy, meaning="Nothing was changed."),
        psycopg.connect(url, autocommit=True, application_name=f"outbox-relay {command}") as connection,
    ):
        recorded = read_identity(connection, settings.slot)
        if recorded is None:
            raise UsageError(
                f"No relay is known for the replication slot {settings.slot}.",
                remedy="Run `relay init` once against this database.",
            )
        yield connection, recorded.relay_id


@click.group("parked", short_help="Events that could not be sent.")
def command() -> None:
    """Events that could not be sent: which, why, and what was done about them."""


@command.command("list", short_help="The parked events, oldest first.")
@click.option("--state", type=click.Choice(_STATES), default="parked", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.pass_context
def list_(ctx: click.Context, *, state: str, as_json: bool) -> None:
    """The parked events, oldest first."""
    from relay.outbox import parked

    count = 0
    with connected(loaded(ctx).settings, _READ, "parked list") as (connection, relay_id):
        for row in parked.listed(connection, relay_id, None if state == "all" else state):
            count += 1
            if as_json:
                click.echo(json.dumps(row, default=str))
                continue
            version = "" if row["schema_version"] is None else f" v{row['schema_version']}"
            click.echo(f"{row['event_id']}  {row['state']}  {row['parked_at']:%Y-%m-%d %H:%M:%S%z}")
            click.echo(
                f"    {row['event_type'] or '(no type)'}{version}, key {row['operation_key'] or '(none)'}"
            )
            click.echo(f"    {row['reason_code']}: {row['reason']}")
    if not as_json:
        click.echo(f"{count} events" + ("" if count else f" ({state})"))


@command.command("show", short_help="All that is known of one.")
@click.argument("event_id", type=click.UUID)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def show(ctx: click.Context, *, event_id: UUID, as_json: bool) -> None:
    """All that is known of one: its payload, why it is parked, who asked for what, and what to run next."""
    from relay.outbox import parked

    with connected(loaded(ctx).settings, _READ, "parked show") as (connection, relay_id):
        row = parked.show(connection, relay_id, event_id)
    if as_json:
        click.echo(json.dumps(row, default=str))
        return
    for name, value in row.items():
        if name not in {"history", "parts"} and value is not None:
            click.echo(f"{name.replace('_', ' ')}: {value}")
    for entry in row["history"]:
        why = f": {entry['why']}" if entry.get("why") else ""
        corrected = " with a correction" if entry.get("payload") is not None else ""
        click.echo(f"  {entry['at']} {entry['action']}{corrected} by {entry['who']} ({entry['login']}){why}")
    click.echo(f"\n{_next(row)}")


def _next(row: dict[str, Any]) -> str:
    event_id = row["event_id"]
    if row["state"] in {"requested", "publishing"}:
        return "The relay publishes it when it comes to the request; `relay status` shows whether it runs."
    if row["state"] != "parked":
        return "Nothing is left to do about it."
    if row["first_of_its_key"] is not None:
        return (
            f"{row['first_of_its_key']} stands before it. When that one is mended:"
            f" `relay outbox republish --behind {row['operation_key']}`"
        )
    without = row["payload"] is None and row["correction"] is None
    lost = (
        " Its payload was not kept: it is taken from the outbox, or from --payload FILE." if without else ""
    )
    return (
        f"When the cause is mended: `relay outbox republish {event_id}`; with another payload: add"
        f" `--payload FILE --why '…'`; to give it up: `relay outbox parked discard {event_id} --why '…'`."
        f"{lost}"
    )


@command.command("discard", short_help="Give a parked event up.")
@click.argument("event_id", type=click.UUID)
@click.option("--why", required=True, help="Kept with who and when.")
@click.pass_context
def discard(ctx: click.Context, *, event_id: UUID, why: str) -> None:
    """Give a parked event up: it is never published. Its row, payload and dead letter stay."""
    from relay.outbox import parked

    with connected(loaded(ctx).settings, _WRITE, "parked discard") as (connection, relay_id):
        parked.discard(connection, relay_id, event_id, who=who(), why=why)
    click.echo(f"{event_id} is discarded. Events behind it: `relay outbox parked list`")
