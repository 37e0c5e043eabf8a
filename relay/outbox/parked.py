"""What a person sees of `relay.parked_event` and asks for there. It changes rows by two SQL functions alone.

They write the request and emit the message for the relay in one transaction; the relay publishes.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from relay.errors import RelayError

Connection = psycopg.Connection[Any]

_BATCH_ROWS: Final = 1_000

# In which order events of a key follow each other; what an event is doing now, in one word.
_ORDER: Final = "relay_epoch, commit_lsn, commit_index"
_NOW: Final = """
    case when p.state <> 'parked' then p.state
         when p.published_lsn is not null then 'publishing'
         when p.requested_at is not null and p.requested_epoch = s.epoch then 'requested'
         else 'parked' end
"""
_FROM: Final = "relay.parked_event p join relay.source_identity s using (relay_id)"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that wasn't made, and why."""

    event_id: uuid.UUID
    why: str


def listed(connection: Connection, relay_id: uuid.UUID, state: str | None) -> Iterator[dict[str, Any]]:
    """Parked events, oldest first, without their payloads; `state` None gives all. Raises psycopg.Error."""
    with connection.transaction(), connection.cursor(name="parked", row_factory=dict_row) as cursor:
        cursor.itersize = _BATCH_ROWS
        cursor.execute(
            f"""
            select p.event_id, {_NOW} as state, p.event_type, p.schema_version, p.operation_key,
                   p.reason_code, p.reason, p.payload_bytes, p.payload is not null as payload_kept,
                   p.parked_at, p.requested_at, p.requested_by, p.settled_at
            from {_FROM}
            where relay_id = %(relay_id)s and (%(state)s::text is null or p.state = %(state)s)
            order by {_ORDER}
            """.encode(),
            {"relay_id": relay_id, "state": state},
        )
        yield from cursor


def show(connection: Connection, relay_id: uuid.UUID, event_id: uuid.UUID) -> dict[str, Any]:
    """All that is known of one. Raises RelayError when it was never parked, and psycopg.Error."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            f"""
            select p.event_id, {_NOW} as state, p.event_type, p.schema_version, p.operation_key, p.topic,
                   p.reason_code, p.reason, p.commit_lsn::text || '/' || p.commit_index as position,
                   p.relay_epoch, p.parked_at, p.payload_bytes, p.payload, p.correction, p.parts,
                   p.requested_at, p.requested_by,
                   p.published_lsn::text || '/' || p.published_index as republished_at, p.settled_at,
                   p.history,
                   (select o.event_id from relay.parked_event o
                     where o.relay_id = p.relay_id and o.operation_key = p.operation_key
                       and o.state = 'parked' and p.operation_key <> '' and p.state = 'parked'
                       and (o.relay_epoch, o.commit_lsn, o.commit_index)
                           < (p.relay_epoch, p.commit_lsn, p.commit_index)
                     order by o.relay_epoch, o.commit_lsn, o.commit_index limit 1) as first_of_its_key
            from {_FROM} where relay_id = %(relay_id)s and p.event_id = %(event_id)s
            """.encode(),
            {"relay_id": relay_id, "event_id": event_id},
        ).fetchone()
    if row is None:
        raise RelayError(
            f"This relay has parked no event {event_id}.", remedy="`relay outbox parked list` shows them."
        )
    return row


def waiting(
    connection: Connection, relay_id: uuid.UUID, *, event_type: str | None = None, key: str | None = None
) -> list[uuid.UUID]:
    """Events that are parked and not asked for yet, in the order of their commits. Raises psycopg.Error."""
    rows = connection.execute(
        f"""
        select p.event_id from {_FROM}
        where relay_id = %(relay_id)s and {_NOW} = 'parked'
          and (%(type)s::text is null or p.event_type = %(type)s)
          and (%(key)s::text is null or p.operation_key = %(key)s)
        order by {_ORDER}
        """.encode(),
        {"relay_id": relay_id, "type": event_type, "key": key},
    )
    return [event_id for (event_id,) in rows]


def request(
    connection: Connection,
    relay_id: uuid.UUID,
    event_ids: Sequence[uuid.UUID],
    *,
    who: str,
    why: str | None,
    payload: str | None = None,
) -> list[Refusal]:
    """Ask for them, in this order, in one transaction. Returns those that can't be asked for now.

    Raises psycopg.Error, and nothing was asked for then.
    """
    refused = []
    with connection.transaction():
        for event_id in event_ids:
            try:
                with connection.transaction():
                    connection.execute(
                        "select relay.republish_parked(%s, %s, %s, %s, %s)",
                        [relay_id, event_id, who, why, payload],
                    )
            except psycopg.Error as error:
                if error.sqlstate not in {"OR004", "OR010"}:
                    raise
                refused.append(Refusal(event_id, error.diag.message_primary or str(error)))
    return refused


def discard(connection: Connection, relay_id: uuid.UUID, event_id: uuid.UUID, *, who: str, why: str) -> None:
    """Give it up. Raises psycopg.Error, with SQLSTATE OR004 or OR010 when there is nothing to discard."""
    connection.execute("select relay.discard_parked(%s, %s, %s, %s)", [relay_id, event_id, who, why])


def states(
    connection: Connection, relay_id: uuid.UUID, event_ids: Sequence[uuid.UUID]
) -> dict[uuid.UUID, tuple[str, str]]:
    """What each is doing now, and the reason why it is parked. Raises psycopg.Error."""
    rows = connection.execute(
        f"select p.event_id, {_NOW}, p.reason from {_FROM}"
        " where relay_id = %s and p.event_id = any(%s)".encode(),
        [relay_id, list(event_ids)],
    )
    return {event_id: (state, reason) for event_id, state, reason in rows}
