"""Takes old rows out of the outbox, those that Kafka has: choose, read the WAL position, wait for it.

The database holds the rules (`schemas/postgres/0008_prune.sql`); here are only the order, the waiting, and
what Kafka alone can say: how far each relay's checkpoint confirms, and which event it names.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

import psycopg

from relay.errors import RelayError, Unavailable, UsageError, as_sentence
from relay.kafka import checkpoint as checkpoints
from relay.kafka import spans
from relay.kafka.checkpoint import Checkpoint
from relay.outbox.mapping import NATIVE_OUTBOX, OutboxMapping
from relay.settings import Settings
from relay.wal import slot as slots
from relay.wal.lsn import format_lsn, parse_lsn
from relay.wal.slot import Slot, SourceIdentity

BATCH_ROWS: Final = 10_000
ROUND_ROWS: Final = 1_000_000
"""Most rows that are chosen at once: each round waits for the slot, and an idle slot moves every 10 s."""
WAIT_S: Final = 60.0
"""How long the slot may take to pass what was chosen; an idle relay moves it every ten seconds."""

_LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Old:
    """How many rows are old enough, and how many of them stay."""

    rows: int
    parked: int
    unpublished: int
    """From before the slot of a relay that has never compared them with Kafka."""


class Confirmed(NamedTuple):
    """What all relays of the outbox have behind them, and the events that their checkpoints name."""

    lsn: int
    keep: list[UUID]


def count_old(connection: psycopg.Connection[Any], older_than: timedelta) -> Old:
    """What `prune` would find. Raises psycopg.Error."""
    row = connection.execute(
        "select count(*), count(*) filter (where parked),"
        " count(*) filter (where unpublished and not parked) from relay.old_rows(%s)",
        [older_than],
    ).fetchone()
    return Old(*row) if row else Old(0, 0, 0)


def prune(
    connection: psycopg.Connection[Any],
    settings: Settings,
    older_than: timedelta,
    *,
    batch_rows: int = BATCH_ROWS,
    round_rows: int = ROUND_ROWS,
    wait_s: float = WAIT_S,
    unpublished: bool = False,
) -> Iterator[int]:
    """Delete rows older than `older_than`, batch by batch; yields how many went with each.

    `connection` is in autocommit. `unpublished` takes rows from before the slot too, which Kafka never had.
    Raises RelayError for what the rules refuse, Unavailable when the slot doesn't move on or Kafka is away,
    and psycopg.Error. To stop at any point is safe.
    """
    while True:
        with refusals_in_words():
            row = connection.execute(
                "select chosen, coalesce(chosen_lsn, '0/0')::text"
                " from relay.prune_choose(%s, %s, %s, %s, %s)",
                [settings.slot, older_than, round_rows, batch_rows, unpublished],
            ).fetchone()
        chosen, lsn = (0, 0) if row is None else (int(row[0]), parse_lsn(row[1]))
        if not chosen:
            return
        confirmed = _wait_confirmed(connection, settings, lsn, wait_s)
        while (gone := _delete(connection, settings.slot, confirmed)) is not None:
            yield gone
        if chosen < round_rows:
            return


def require_native(mapping: OutboxMapping) -> None:
    """Raises UsageError for somebody's own table: whose rows they are, only its owner can know."""
    if mapping.name != NATIVE_OUTBOX:
        raise UsageError(
            f"`relay outbox prune` works on {NATIVE_OUTBOX}, and the outbox is {mapping.name}.",
            remedy="Delete from your own table yourself, what is older than the topics' retention and below"
            " the slot's confirmed_flush_lsn; never the newest published row.",
        )


def require_confirmed(
    recorded: SourceIdentity, slot: Slot | None, checkpoint: Checkpoint | None
) -> Checkpoint:
    """The checkpoint, if it vouches for what the slot has let go.

    `slot` was read before `checkpoint`: the relay writes them the other way round. Raises RelayError.
    """
    flush = 0 if slot is None or slot.confirmed_flush is None else slot.confirmed_flush
    if checkpoint is None or checkpoint.epoch != recorded.epoch or checkpoint.confirmed_lsn < flush:
        known = "none" if checkpoint is None else format_lsn(checkpoint.confirmed_lsn)
        raise RelayError(
            f"The slot {recorded.slot_name} stands at {format_lsn(flush)} in epoch {recorded.epoch}, and the"
            f" checkpoint in Kafka that should allow it is {known}"
            + (f" of epoch {checkpoint.epoch}." if checkpoint else "."),
            meaning="Kafka may lack events up to there, and the rows may be the only copy: none is deleted.",
            remedy="If this is the wrong Kafka or prefix, correct RELAY_KAFKA_BOOTSTRAP or"
            " RELAY_TOPIC_PREFIX. Else `relay outbox repair`, then prune.",
        )
    return checkpoint


@contextmanager
def refusals_in_words() -> Iterator[None]:
    """Raises RelayError for what the schema's own rules refuse, with the detail and the hint they give."""
    try:
        yield
    except psycopg.Error as error:
        if not (error.sqlstate or "").startswith("OR"):
            raise
        said = as_sentence(error.diag.message_primary)
        raise RelayError(
            said[:1].upper() + said[1:],
            meaning=error.diag.message_detail or "",
            remedy=error.diag.message_hint or "",
        ) from error


def _wait_confirmed(
    connection: psycopg.Connection[Any], settings: Settings, lsn: int, wait_s: float
) -> Confirmed:
    """Wait until every relay of the outbox has confirmed `lsn`.

    The events to keep are read after that: a later checkpoint's event was committed after the chosen rows.
    """
    _confirmed(connection, settings)  # first, since to wait for a slot that is wrong is vain
    until = time.monotonic() + wait_s
    while (behind := _slots(connection)[0]).confirmed_flush is None or behind.confirmed_flush < lsn:
        if time.monotonic() > until:
            raise Unavailable(
                f"The slot {behind.name} stands at {format_lsn(behind.confirmed_flush or 0)} and didn't come"
                f" to {format_lsn(lsn)} in {wait_s:.0f} s.",
                meaning="Whether Kafka has the oldest rows isn't proven, so none was deleted.",
                remedy="See that the relay runs and keeps up (`relay status`), then prune again.",
            )
        time.sleep(_LOOK_EVERY_S)
    return _confirmed(connection, settings)


def _slots(connection: psycopg.Connection[Any]) -> list[Slot]:
    """Those of all relays of the outbox, the one that is furthest behind first."""
    found = [
        slots.read_slot(connection, row[0])
        for row in connection.execute(
            "select slot_name from relay.source_identity where outbox_table = %s", [NATIVE_OUTBOX]
        ).fetchall()
    ]
    there = [slot for slot in found if slot is not None]
    if not there or len(there) < len(found):
        raise Unavailable(
            "A relay's replication slot was dropped while rows were being pruned.",
            meaning="The rows may be the only copy of events that Kafka doesn't have.",
            remedy="`relay outbox repair`, then prune again.",
        )
    return sorted(there, key=lambda slot: slot.confirmed_flush or 0)


def _confirmed(connection: psycopg.Connection[Any], settings: Settings) -> Confirmed:
    """What the checkpoints of all relays of the outbox vouch for."""
    kafka = settings.require_kafka()
    found: list[Checkpoint] = []
    for slot in _slots(connection):
        recorded = slots.read_identity(connection, slot.name)
        if recorded is not None:
            checkpoint = checkpoints.read(
                kafka, settings.topic_prefix, recorded.relay_id, timeout_s=spans.PATIENT_TIMEOUT_S
            )
            found.append(require_confirmed(recorded, slot, checkpoint))
    keep = [UUID(checkpoint.event_id) for checkpoint in found if checkpoint.event_id is not None]
    return Confirmed(min((checkpoint.confirmed_lsn for checkpoint in found), default=0), keep)


def _delete(connection: psycopg.Connection[Any], slot: str, confirmed: Confirmed) -> int | None:
    """How many rows of a chosen batch went; None when no batch is left."""
    with refusals_in_words():
        row = connection.execute(
            "select relay.prune(%s, %s::pg_lsn, %s::uuid[])",
            [slot, format_lsn(confirmed.lsn), confirmed.keep],
        ).fetchone()
    return None if row is None or row[0] is None else int(row[0])
