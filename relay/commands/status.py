"""`relay status`: where the relay is, read from Postgres and Kafka. It changes nothing."""

import json
from typing import Any

import click

from relay.cli import loaded
from relay.errors import Unavailable, UsageError
from relay.settings import Settings


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Identity, slot, lag in bytes, checkpoint and parked events."""
    shown = read(loaded(ctx).settings)
    if as_json:
        click.echo(json.dumps(shown, default=str))
        return
    for part, values in shown.items():
        click.echo(f"{part}:")
        if values is None:
            click.echo("  none")
            continue
        for name, value in values.items():
            click.echo(f"  {name.replace('_', ' ')}: {'-' if value is None else value}")


def read(settings: Settings) -> dict[str, dict[str, Any] | None]:
    """Everything that `relay status --json` prints. Raises UsageError or Unavailable."""
    import psycopg

    from relay.kafka import checkpoint as checkpoints
    from relay.wal import slot as slots
    from relay.wal.lsn import format_lsn

    try:
        with psycopg.connect(settings.require_database(), autocommit=True) as connection:
            identity = slots.read_identity(connection, settings.slot)
            if identity is None:
                raise UsageError(
                    f"No relay is known for the replication slot {settings.slot}.",
                    remedy="Run `relay init` once against this database.",
                )
            slot = slots.read_slot(connection, settings.slot)
            insert_lsn = slots.read_insert_lsn(connection)
            parked = slots.count_parked(connection, identity.relay_id)
    except psycopg.OperationalError as error:
        raise Unavailable(f"The database is away: {error}.") from error
    checkpoint = checkpoints.read(settings.require_kafka(), settings.topic_prefix, identity.relay_id)
    return {
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
        "checkpoint": None
        if checkpoint is None
        else {
            "topic": checkpoints.topic(settings.topic_prefix, identity.relay_id),
            "epoch": checkpoint.epoch,
            "commit_lsn": format_lsn(checkpoint.commit_lsn),
            "index": checkpoint.index,
            "event_id": checkpoint.event_id,
            "seq": checkpoint.seq,
            "confirmed_lsn": format_lsn(checkpoint.confirmed_lsn),
        },
        "parked": {"events": parked},
    }
