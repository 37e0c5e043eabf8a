"""`relay status`: where the relay is, read from Postgres and Kafka. It changes nothing."""

import json
import math
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from relay.cli import loaded
from relay.errors import RelayError, UsageError
from relay.settings import Settings

if TYPE_CHECKING:
    import psycopg

    from relay.kafka.checkpoint import Written
    from relay.lag import Events, Sample
    from relay.outbox.mapping import OutboxMapping
    from relay.wal.slot import SourceIdentity

Shown = dict[str, dict[str, Any] | None]

SAMPLES_APART_S: Final = 1.0
"""Between the two looks that give the rate of WAL; reading Kafka takes most of it anyway."""
_LOGIN: Final = "Use a login that is a member of relay_operator, relay_reader or relay_replicator."


@click.command("status", short_help="Where the relay is: slot, lag, checkpoint, parked events.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """One sentence that says how it is; then identity, slot, lag, checkpoint and parked events.

    The lag is that of committed events which Kafka doesn't have: counted up to 10,000, above that an upper
    bound, because sequences have gaps. While Kafka is away it shows what Postgres says, and ends with
    status 1.
    """
    settings = loaded(ctx).settings
    shown, failed = look(settings)
    if as_json:
        click.echo(json.dumps(shown, default=str))
    else:
        _print(shown)
    if failed is not None:
        raise failed


def _print(shown: Shown) -> None:
    summary = shown.pop("summary") or {}
    click.echo(summary["sentence"])
    for part, values in shown.items():
        click.echo(f"{part}:")
        if values is None:
            click.echo("  none")
            continue
        for name, value in values.items():
            click.echo(f"  {name.replace('_', ' ')}: {'-' if value is None else value}")
    if shown["relay"] and shown["relay"]["dispatch_closed_since"]:
        click.echo("\nDispatch is closed since a rewind was accepted: `relay ops reconcile`.")
    if shown["parked"] and shown["parked"]["events"]:
        click.echo(
            "\nParked events wait for somebody: `relay outbox parked list`, then"
            " `relay outbox republish EVENT_ID`"
        )


def look(settings: Settings) -> tuple[Shown, RelayError | None]:
    """What is shown, and why Kafka couldn't be asked. Raises UsageError, Unavailable or RelayError."""
    import psycopg

    from relay import lag
    from relay.kafka import checkpoint as checkpoints
    from relay.outbox.mapping import of_settings
    from relay.refused import in_words
    from relay.wal import slot as slots

    mapping = of_settings(settings)
    failed: RelayError | None = None
    written: Written | None = None
    with ExitStack() as stack:
        stack.enter_context(in_words(_LOGIN))
        connection = stack.enter_context(psycopg.connect(settings.require_database(), autocommit=True))
        identity = slots.read_identity(connection, settings.slot)
        if identity is None:
            raise UsageError(
                f"No relay is known for the replication slot {settings.slot}.",
                remedy="Run `relay init` once against this database.",
            )
        earlier, began = lag.read_sample(connection, settings.slot), time.monotonic()
        try:
            written = checkpoints.read_written(
                settings.require_kafka(), settings.topic_prefix, identity.relay_id
            )
        except RelayError as error:
            failed = error
        time.sleep(max(0.0, began + SAMPLES_APART_S - time.monotonic()))
        sample = lag.read_sample(connection, settings.slot)
        events = None if failed else _events(connection, mapping, identity, written)
        parked = slots.count_parked(connection, identity.relay_id)
    rate = lag.wal_rate(earlier, sample)
    shown: Shown = {
        "summary": _summary(settings, identity, sample, rate, events, written, failed),
        "relay": _relay(identity),
        "slot": _slot(sample, rate),
        "lag": _lag(sample, events, written),
        "parked": {"events": parked},
        "checkpoint": {"error": failed.message} if failed else _checkpoint(settings, identity, written),
    }
    return shown, failed


def _events(
    connection: "psycopg.Connection[Any]",
    mapping: "OutboxMapping",
    identity: "SourceIdentity",
    written: "Written | None",
) -> "Events | None":
    """None where that can't be known, or this login may not read the outbox."""
    import psycopg

    from relay import lag

    after_seq = identity.baseline_seq if written is None else written.checkpoint.seq
    try:
        return lag.read_events(connection, mapping, after_seq)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
        return None


def _summary(
    settings: Settings,
    identity: "SourceIdentity",
    sample: "Sample",
    rate: float | None,
    events: "Events | None",
    written: "Written | None",
    failed: RelayError | None,
) -> dict[str, Any]:
    from relay import standing

    judged = standing.judge(
        standing.Seen(
            slot_name=settings.slot,
            repairing=identity.state == "repairing",
            sample=sample,
            wal_bytes_per_s=rate,
            events=events,
            kafka_error="" if failed is None else failed.message,
            has_checkpoint=written is not None,
            progress_age_s=_progress_age_s(written),
            patience_s=settings.unhealthy_after_s,
        )
    )
    return {"state": judged.state, "sentence": judged.sentence}


def _relay(identity: "SourceIdentity") -> dict[str, Any]:
    return {
        "relay_id": identity.relay_id,
        "state": identity.state,
        "epoch": identity.epoch,
        "system_identifier": identity.system_identifier,
        "timeline": identity.timeline,
        "verified_at": identity.verified_at,
        "dispatch_closed_since": identity.unreconciled_since,
        "server_started_at": identity.verified_server_started_at,
    }


def _slot(sample: "Sample", rate: float | None) -> dict[str, Any] | None:
    from relay.lag import seconds_until_lost
    from relay.wal.lsn import format_lsn

    slot = sample.slot
    if slot is None:
        return None
    left_s = seconds_until_lost(sample, rate)
    return {
        "name": slot.name,
        "active_pid": slot.active_pid,
        "wal_status": slot.wal_status,
        "confirmed_flush": None if slot.confirmed_flush is None else format_lsn(slot.confirmed_flush),
        "lag_bytes": sample.lag_bytes,
        "retained_bytes": sample.retained_bytes,
        "safe_wal_bytes": slot.safe_wal_bytes,
        "wal_bytes_per_second": None if rate is None else round(rate),
        # null: not at the present rate, or never (safe_wal_bytes is null then)
        "seconds_until_lost": None if left_s is None or math.isinf(left_s) else round(left_s, 1),
        "stalled_by": sample.stalled_by or None,
    }


def _lag(sample: "Sample", events: "Events | None", written: "Written | None") -> dict[str, Any]:
    age_s = _progress_age_s(written)
    return {
        "bytes": sample.lag_bytes,
        "events": None if events is None else events.waiting,
        "events_exact": None if events is None else events.exact,
        "seconds": None if events is None else round(events.oldest_age_s, 3),
        "last_progress_seconds_ago": None if age_s is None else round(age_s, 3),
    }


def _progress_age_s(written: "Written | None") -> float | None:
    return None if written is None else max(0.0, time.time() - written.written_ms / 1000)


def _checkpoint(
    settings: Settings, identity: "SourceIdentity", written: "Written | None"
) -> dict[str, Any] | None:
    from relay.kafka import checkpoint as checkpoints
    from relay.wal.lsn import format_lsn

    if written is None:
        return None
    checkpoint = written.checkpoint
    return {
        "topic": checkpoints.topic(settings.topic_prefix, identity.relay_id),
        "written_at": datetime.fromtimestamp(written.written_ms / 1000, UTC),
        "epoch": checkpoint.epoch,
        "commit_lsn": format_lsn(checkpoint.commit_lsn),
        "index": checkpoint.index,
        "event_id": checkpoint.event_id,
        "seq": checkpoint.seq,
        "confirmed_lsn": format_lsn(checkpoint.confirmed_lsn),
    }
