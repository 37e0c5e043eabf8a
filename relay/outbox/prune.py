"""Takes old rows out of the outbox, those that Kafka has: choose, read the WAL position, wait for it.

The database holds the rules (`schemas/postgres/0008_prune.sql`); here are only the order and the waiting.
"""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg

from relay.errors import Unavailable, UsageError
from relay.kafka import checkpoint as checkpoints
from relay.kafka import spans
from relay.outbox.mapping import OutboxMapping
from relay.settings import Settings
from relay.wal import slot as slots
from relay.wal.lsn import format_lsn, parse_lsn
from relay.wal.slot import SourceIdentity

NATIVE_OUTBOX: Final = "relay.outbox"
BATCH_ROWS: Final = 10_000
ROUND_ROWS: Final = 1_000_000
"""Most rows that are chosen at once: each round waits for the slot, and an idle slot moves every 10 s."""
WAIT_S: Final = 60.0
"""How long the slot may take to pass what was chosen; an idle relay moves it every ten seconds."""

_LOOK_EVERY_S: Final = 0.2


def count_old(connection: psycopg.Connection[Any], older_than: timedelta) -> int:
    """How many rows are older than that."""
    row = connection.execute(
        "select count(*) from relay.outbox where occurred_at < relay.now() - %s::interval", [older_than]
    ).fetchone()
    return int(row[0]) if row else 0


def prune(
    connection: psycopg.Connection[Any],
    settings: Settings,
    older_than: timedelta,
    *,
    batch_rows: int = BATCH_ROWS,
    wait_s: float = WAIT_S,
) -> Iterator[int]:
    """Delete rows older than `older_than`, batch by batch; yields how many went with each.

    `connection` is in autocommit. Raises psycopg.Error (OR010 without a healthy slot), UsageError before
    `relay init`, and Unavailable when the slot doesn't move on or Kafka is away.
    """
    recorded = slots.read_identity(connection, settings.slot)
    if recorded is None:
        raise UsageError(
            f"No relay is known for the replication slot {settings.slot}.",
            remedy="Run `relay init` once against this database.",
        )
    while True:
        chosen, lsn = _choose(connection, settings.slot, older_than, batch_rows)
        if not chosen:
            return
        _wait_confirmed(connection, settings.slot, lsn, wait_s)
        # Read after the slot has passed the chosen rows: a later checkpoint's event was committed after them.
        keep = _last_event(settings, recorded)
        while (gone := _delete(connection, settings.slot, keep)) is not None:
            yield gone
        if chosen < ROUND_ROWS:
            return


def require_native(mapping: OutboxMapping) -> None:
    """Raises UsageError for somebody's own table: whose rows they are, only its owner can know."""
    if mapping.name != NATIVE_OUTBOX:
        raise UsageError(
            f"`relay outbox prune` works on {NATIVE_OUTBOX}, and the outbox is {mapping.name}.",
            remedy="Delete from your own table yourself, what is older than the topics' retention and below"
            " the slot's confirmed_flush_lsn; never the newest published row.",
        )


def _choose(
    connection: psycopg.Connection[Any], slot: str, older_than: timedelta, batch_rows: int
) -> tuple[int, int]:
    """How many rows are chosen, and the position below which they were committed."""
    row = connection.execute(
        "select chosen, coalesce(chosen_lsn, '0/0')::text from relay.prune_choose(%s, %s, %s, %s)",
        [slot, older_than, ROUND_ROWS, batch_rows],
    ).fetchone()
    return (0, 0) if row is None else (int(row[0]), parse_lsn(row[1]))


def _wait_confirmed(connection: psycopg.Connection[Any], name: str, lsn: int, wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while True:
        slot = slots.read_slot(connection, name)
        confirmed = 0 if slot is None or slot.confirmed_flush is None else slot.confirmed_flush
        if confirmed >= lsn:
            return
        if slot is None or time.monotonic() > until:
            raise Unavailable(
                f"The slot {name} stands at {format_lsn(confirmed)} and didn't come to {format_lsn(lsn)} in"
                f" {wait_s:.0f} s.",
                meaning="Whether Kafka has the oldest rows isn't proven, so none was deleted.",
                remedy="See that the relay runs and keeps up (`relay status`), then prune again.",
            )
        time.sleep(_LOOK_EVERY_S)


def _last_event(settings: Settings, recorded: SourceIdentity) -> UUID | None:
    """The checkpoint's event: where rows are kept, the relay looks for it at each start."""
    found = checkpoints.read(
        settings.require_kafka(),
        settings.topic_prefix,
        recorded.relay_id,
        timeout_s=spans.PATIENT_TIMEOUT_S,
    )
    return None if found is None or found.event_id is None else UUID(found.event_id)


def _delete(connection: psycopg.Connection[Any], slot: str, keep: UUID | None) -> int | None:
    """How many rows of a chosen batch went; None when no batch is left."""
    row = connection.execute("select relay.prune(%s, %s)", [slot, keep]).fetchone()
    return None if row is None or row[0] is None else int(row[0])
