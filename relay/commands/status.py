"""`relay status`: where the relay is, read from Postgres and Kafka. It changes nothing."""

import json
from typing import Any, Final
from uuid import UUID

import click

from relay.cli import loaded
from relay.errors import RelayError, UsageError
from relay.settings import Settings

Shown = dict[str, dict[str, Any] | None]

_LOGIN: Final = "Use a login that is a member of relay_operator, relay_reader or relay_replicator."


@click.command("status", short_help="Where the relay is: slot, lag, checkpoint, parked events.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Identity, slot, lag in bytes, checkpoint and parked events.

    While Kafka is away it shows what Postgres says, and ends with status 1.
    """
    settings = loaded(ctx).settings
    relay_id, shown = read_source(settings)
    failed: RelayError | None = None
    try:
        shown["checkpoint"] = read_checkpoint(settings, relay_id)
    except RelayError as error:
        failed = error
        shown["checkpoint"] = {"error": error.message}
    if as_json:
        click.echo(json.dumps(shown, default=str))
    else:
        _print(shown)
    if failed is not None:
        raise failed


def _print(shown: Shown) -> None:
    for part, values in shown.items():
        click.echo(f"{part}:")
        if values is None:
            click.echo("  none")
            continue
        for name, value in values.items():
            click.echo(f"  {name.replace('_', ' ')}: {'-' if value is None else value}")
    if shown["parked"] and shown["parked"]["events"]:
        click.echo(
            "\nParked events are in relay.parked_event: `select event_id, event_type, reason from"
            " relay.parked_event where state = 'parked';`"
        )


def read_source(settings: Settings) -> tuple[UUID, Shown]:
    """The relay's id and what Postgres says of it. Raises UsageError, Unavailable or RelayError."""
    import psycopg

    from relay.refused import in_words
    from relay.wal import slot as slots
    from relay.wal.lsn import format_lsn

    with in_words(_LOGIN), psycopg.connect(settings.require_database(), autocommit=True) as connection:
        identity = slots.read_identity(connection, settings.slot)
        if identity is None:
            raise UsageError(
                f"No relay is known for the replication slot {settings.slot}.",
                remedy="Run `relay init` once against this database.",
            )
        slot = slots.read_slot(connection, settings.slot)
        insert_lsn = slots.read_insert_lsn(connection)
        parked = slots.count_parked(connection, identity.relay_id)
    shown: Shown = {
        "relay": {
            "relay_id": identity.relay_id,
            "state": identity.state,
            "epoch": identity.epoch,
            "system_identifier": identity.system_identifier,
            "timeline": identity.timeline,
            "verified_at": identity.verified_at,
            "server_started_at": identity.verified_server_started_at,
        },
        "slot": None
        if slot is None
        else {
            "name": slot.name,
            "active_pid": slot.active_pid,
            "wal_status": slot.wal_status,
            "confirmed_flush": None if slot.confirmed_flush is None else format_lsn(slot.confirmed_flush),
            "lag_bytes": None if slot.confirmed_flush is None else insert_lsn - slot.confirmed_flush,
            "safe_wal_bytes": slot.safe_wal_bytes,
        },
        "parked": {"events": parked},
    }
    return identity.relay_id, shown


def read_checkpoint(settings: Settings, relay_id: UUID) -> dict[str, Any] | None:
    """What Kafka says: the relay's checkpoint. Raises UsageError, Unavailable or CheckpointUnreadable."""
    from relay.kafka import checkpoint as checkpoints
    from relay.wal.lsn import format_lsn

    checkpoint = checkpoints.read(settings.require_kafka(), settings.topic_prefix, relay_id)
    if checkpoint is None:
        return None
    return {
        "topic": checkpoints.topic(settings.topic_prefix, relay_id),
        "epoch": checkpoint.epoch,
        "commit_lsn": format_lsn(checkpoint.commit_lsn),
        "index": checkpoint.index,
        "event_id": checkpoint.event_id,
        "seq": checkpoint.seq,
        "confirmed_lsn": format_lsn(checkpoint.confirmed_lsn),
    }
