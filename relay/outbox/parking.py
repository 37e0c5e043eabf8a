"""The rows of `relay.parked_event`, as the relay writes and reads them. A row is committed before its record.

What the relay does about a request is written before Kafka's commit, with the place in the WAL; whether that
commit happened, only the checkpoint says: `settle` compares the two, whoever lives then.
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from relay.outbox import rows
from relay.outbox.bad_event import KEYS_MOST, Decided, ParkingLot, Position, Request, too_many
from relay.outbox.event import ParkedEvent
from relay.outbox.mapping import OutboxMapping
from relay.wal.lsn import format_lsn, parse_lsn

Connection = psycopg.Connection[Any]


def park(connection: Connection, relay_id: uuid.UUID, events: Iterable[ParkedEvent]) -> None:
    """Insert the events, or bring their rows up to date: the same event comes again after a crash.

    Another event with the same id, at another place, is parked anew. One transaction; raises psycopg.Error.
    """
    with connection.transaction(), connection.cursor() as cursor:
        for event in events:
            cursor.execute(
                """
                insert into relay.parked_event as p
                  (relay_id, event_id, event_type, schema_version, operation_key, commit_lsn, commit_index,
                   relay_epoch, reason_code, reason, topic, payload, payload_bytes, parts)
                values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
                on conflict (relay_id, event_id) do update
                  set commit_lsn = excluded.commit_lsn, commit_index = excluded.commit_index,
                      relay_epoch = excluded.relay_epoch, reason_code = excluded.reason_code,
                      reason = excluded.reason, topic = excluded.topic, payload = excluded.payload,
                      payload_bytes = excluded.payload_bytes, parts = excluded.parts,
                      state = case when (excluded.relay_epoch, excluded.commit_lsn, excluded.commit_index)
                                      = (p.relay_epoch, p.commit_lsn, p.commit_index)
                                   then p.state else 'parked' end
                """,
                [
                    relay_id,
                    event.event_id,
                    event.event_type,
                    event.schema_version,
                    event.operation_key,
                    format_lsn(event.commit_lsn),
                    event.index,
                    event.epoch,
                    event.reason_code,
                    event.reason,
                    event.topic,
                    event.payload,
                    event.payload_bytes,
                    Jsonb(dict(event.parts)),
                ],
            )


def at_start(
    connection: Connection, relay_id: uuid.UUID, *, epoch: int, checkpoint: Position, keys: bool
) -> ParkingLot:
    """What the relay must know of parked events before it decides about others.

    First what the checkpoint proves of republished events, whoever published them.

    `keys`: whether keys wait behind their parked events. Raises psycopg.Error, and BadEventHalt when so many
    wait that they can't be held.
    """
    settle(connection, relay_id, epoch=epoch, checkpoint=checkpoint)
    at = _at(relay_id, epoch, checkpoint)
    waiting = connection.execute(
        """
        select distinct operation_key from relay.parked_event
        where relay_id = %(relay_id)s and state = 'parked' and operation_key <> ''
          and (relay_epoch, commit_lsn, commit_index) <= (%(epoch)s, %(lsn)s::pg_lsn, %(index)s)
        limit %(limit)s
        """,
        {**at, "limit": KEYS_MOST + 1 if keys else 0},
    ).fetchall()
    if len(waiting) > KEYS_MOST:
        raise too_many()
    decided = connection.execute(
        """
        select commit_lsn::text, commit_index, reason_code, reason, topic, state = 'parked'
        from relay.parked_event
        where relay_id = %(relay_id)s and relay_epoch = %(epoch)s
          and (commit_lsn, commit_index) > (%(lsn)s::pg_lsn, %(index)s)
        """,
        at,
    ).fetchall()
    return ParkingLot(
        frozenset(key for (key,) in waiting),
        tuple(
            ((parse_lsn(lsn), index), Decided(code, reason, topic, waits))
            for lsn, index, code, reason, topic, waits in decided
        ),
    )


def settle(connection: Connection, relay_id: uuid.UUID, *, epoch: int, checkpoint: Position) -> int:
    """What was to be published up to the checkpoint is published: say so. Returns how many rows it moved.

    Raises psycopg.Error.
    """
    return connection.execute(
        """
        update relay.parked_event set state = 'republished', settled_at = relay.now()
        where relay_id = %(relay_id)s and state = 'parked' and published_epoch = %(epoch)s
          and (published_lsn, published_index) <= (%(lsn)s::pg_lsn, %(index)s)
        """,
        _at(relay_id, epoch, checkpoint),
    ).rowcount


class Outcome(StrEnum):
    """What a request comes to; all but TAKEN are counted, logged, and change nothing in Kafka."""

    TAKEN = "taken"
    UNKNOWN = "unknown"
    """No such event was parked by this relay."""
    DISCARDED = "discarded"
    REPEATED = "repeated"
    """Another message has published it, or is about to."""
    NOT_REQUESTED = "not_requested"
    """The row knows no such request: it was superseded, or the message is forged."""
    BEHIND = "behind"
    """An earlier event of its key still waits."""
    NO_PAYLOAD = "no_payload"
    """It was too large to be kept, and the outbox doesn't have it either."""


@dataclass(frozen=True, slots=True)
class TakenUp:
    """A request, and what the row says. `parts` and `payload` make the record when it is TAKEN."""

    outcome: Outcome
    key: str = ""
    key_waits: bool = False
    """Whether anything of the key is still parked after this request, if its record is made."""
    reason_code: str = ""
    topic: str | None = None
    parts: Mapping[str, str] | None = None
    payload: str | None = None


def take_up(
    connection: Connection,
    request: Request,
    mapping: OutboxMapping,
    *,
    epoch: int,
    position: Position,
    in_order: bool,
) -> TakenUp:
    """Decide about a request and, if it is TAKEN, write down where it is published. One transaction.

    `in_order`: an event waits for the earlier ones of its key. Raises psycopg.Error.
    """
    at = _at(request.relay_id, epoch, position) | {"event_id": request.event_id}
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            """
            select event_type, schema_version, operation_key, state, request_no, requested_at, reason_code,
                   topic, coalesce(correction, payload) as payload, parts,
                   coalesce(published_epoch = %(epoch)s
                            and (published_lsn, published_index) < (%(lsn)s::pg_lsn, %(index)s), false)
                     as in_flight
            from relay.parked_event where relay_id = %(relay_id)s and event_id = %(event_id)s for update
            """,
            at,
        ).fetchone()
        if row is None:
            return TakenUp(Outcome.UNKNOWN)
        key = row["operation_key"]
        others = cursor.execute(_OTHERS, at | {"key": key}).fetchall()
        earlier = any(other["earlier"] for other in others)
        outcome = _outcome(row, request, behind=in_order and key != "" and earlier)
        payload = row["payload"]
        if outcome is Outcome.TAKEN and payload is None:
            payload = _from_outbox(connection, mapping, row["parts"], request)
            outcome = Outcome.TAKEN if payload is not None else Outcome.NO_PAYLOAD
        if outcome is Outcome.TAKEN:
            cursor.execute(
                """
                update relay.parked_event
                set published_epoch = %(epoch)s, published_lsn = %(lsn)s::pg_lsn, published_index = %(index)s
                where relay_id = %(relay_id)s and event_id = %(event_id)s
                """,
                at,
            )
        elif outcome in {Outcome.BEHIND, Outcome.NO_PAYLOAD}:
            _clear(cursor, at, outcome.value, _WHY[outcome])
    return TakenUp(
        outcome=outcome,
        key=key,
        key_waits=bool(others) or (row["state"] == "parked" and outcome is not Outcome.TAKEN),
        reason_code=row["reason_code"],
        topic=row["topic"],
        parts=row["parts"] or _old_parts(row, request.event_id),
        payload=payload,
    )


def reject(connection: Connection, request: Request, code: str, reason: str, topic: str | None) -> None:
    """The event is still bad: it waits again, with the new reason. Raises psycopg.Error."""
    ids = {"relay_id": request.relay_id, "event_id": request.event_id}
    with connection.transaction(), connection.cursor() as cursor:
        _clear(cursor, ids, code, reason)
        cursor.execute(
            "update relay.parked_event set topic = %(topic)s"
            " where relay_id = %(relay_id)s and event_id = %(event_id)s",
            ids | {"topic": topic},
        )


_WHY = {
    Outcome.BEHIND: "an earlier event of its key is still parked, and this one waits behind it",
    Outcome.NO_PAYLOAD: "its payload was too large to be kept, and the outbox has it no more: it needs a"
    " correction",
}

# Everything of the key that waits, but the event itself: what is on its way below this place waits no more,
# and what stands above it in the WAL is nothing that this place knows of.
_OTHERS = """
    select (o.relay_epoch, o.commit_lsn, o.commit_index)
           < (e.relay_epoch, e.commit_lsn, e.commit_index) as earlier
    from relay.parked_event e
    join relay.parked_event o on o.relay_id = e.relay_id and o.operation_key = %(key)s and o.state = 'parked'
     and o.event_id <> e.event_id
    where e.relay_id = %(relay_id)s and e.event_id = %(event_id)s
      and (o.relay_epoch, o.commit_lsn, o.commit_index) < (%(epoch)s, %(lsn)s::pg_lsn, %(index)s)
      and not coalesce(o.published_epoch = %(epoch)s
                       and (o.published_lsn, o.published_index) < (%(lsn)s::pg_lsn, %(index)s), false)
"""


def _outcome(row: Mapping[str, Any], request: Request, *, behind: bool) -> Outcome:
    if row["state"] == "discarded":
        return Outcome.DISCARDED
    if row["state"] == "republished" or row["in_flight"]:
        return Outcome.REPEATED
    if row["requested_at"] is None or row["request_no"] != request.request:
        return Outcome.NOT_REQUESTED
    return Outcome.BEHIND if behind else Outcome.TAKEN


def _clear(cursor: psycopg.Cursor[Any], ids: Mapping[str, Any], code: str, reason: str) -> None:
    cursor.execute(
        """
        update relay.parked_event
        set reason_code = %(code)s, reason = %(reason)s, requested_at = null,
            published_epoch = null, published_lsn = null, published_index = null
        where relay_id = %(relay_id)s and event_id = %(event_id)s
        """,
        {**ids, "code": code, "reason": reason},
    )


def _from_outbox(
    connection: Connection, mapping: OutboxMapping, parts: Mapping[str, str], request: Request
) -> str | None:
    """The payload where it still is; None where rows don't stay, or this one doesn't."""
    if not mapping.rows_kept:
        return None
    event_id = parts.get("event_id", str(request.event_id))
    at = list(mapping.columns.mapped()).index("payload")
    found = [row[at] for row in rows.read_rows(connection, mapping, [event_id])]
    return found[0].decode() if found and found[0] is not None else None


def _old_parts(row: Mapping[str, Any], event_id: uuid.UUID) -> dict[str, str]:
    """Of a row that was parked before there were parts."""
    parts = {"event_id": str(event_id), "event_type": row["event_type"], "operation_id": row["operation_key"]}
    version = row["schema_version"]
    return parts if version is None else parts | {"schema_version": str(version)}


def _at(relay_id: uuid.UUID, epoch: int, position: Position) -> dict[str, Any]:
    return {"relay_id": relay_id, "epoch": epoch, "lsn": format_lsn(position[0]), "index": position[1]}
