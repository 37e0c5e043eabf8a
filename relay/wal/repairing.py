"""The state `repairing` of `relay.source_identity`: set before anything is touched, cleared last of all.

While it is set, `relay run` and dispatch refuse. What the repair was asked for is kept with it, so that an
interrupted one is finished as it was begun, by whoever runs it again.
"""

import uuid
from typing import Any, Final, Literal

import psycopg

from relay.errors import Fenced
from relay.wal.lsn import format_lsn

Origin = Literal["repair", "backfill"]

_TAKEN_OVER: Final = "Another repair of relay {} has taken over."

# Arbitrary but fixed, with the relay's id beside it: one repair of a relay at a time.
_ADVISORY_LOCK: Final = 0x6F757462


def lock(connection: psycopg.Connection[Any], relay_id: uuid.UUID) -> bool:
    """Whether this session alone repairs the relay now. It lasts until the session ends."""
    row = connection.execute(
        "select pg_try_advisory_lock(%s, hashtext(%s))", [_ADVISORY_LOCK, str(relay_id)]
    ).fetchone()
    return bool(row and row[0])


def begin(
    connection: psycopg.Connection[Any],
    relay_id: uuid.UUID,
    *,
    epoch: int,
    system_identifier: str,
    timeline: int,
    origin: Origin,
    source_accepted: bool,
    rewound: bool,
) -> None:
    """Set the state. The source that was accepted, if it is another one, is the recorded one from here on.

    `rewound` closes dispatch's gate until the operations are reconciled, and the database holds all of them
    that could be submitted again. Operations write to `relay.outbox` alone; another outbox closes nothing.
    """
    connection.execute(
        """
        update relay.source_identity
        set state = 'repairing', epoch = %(epoch)s, system_identifier = %(system)s, timeline = %(timeline)s,
            repair_origin = %(origin)s, repair_began_at = clock_timestamp(),
            source_accepted = %(accepted)s,
            unreconciled_since = case when %(rewound)s and outbox_table = 'relay.outbox'
                                      then coalesce(unreconciled_since, clock_timestamp())
                                      else unreconciled_since end
        where relay_id = %(relay_id)s
        """,
        {
            "epoch": epoch,
            "system": system_identifier,
            "timeline": timeline,
            "origin": origin,
            "accepted": source_accepted,
            "rewound": rewound,
            "relay_id": relay_id,
        },
    )


def close_dispatch(connection: psycopg.Connection[Any], relay_id: uuid.UUID) -> None:
    """Until the operations are reconciled: Kafka has events that this database lost."""
    connection.execute(
        """
        update relay.source_identity set unreconciled_since = clock_timestamp()
        where relay_id = %s and outbox_table = 'relay.outbox' and unreconciled_since is null
        """,
        [relay_id],
    )


def raise_epoch(connection: psycopg.Connection[Any], relay_id: uuid.UUID, *, was: int, epoch: int) -> None:
    """Kafka has records of a later epoch than Postgres knew. Raises Fenced when the repair isn't ours."""
    _update(connection, relay_id, was, "set epoch = %(new)s", {"new": epoch})


def clear(
    connection: psycopg.Connection[Any],
    relay_id: uuid.UUID,
    *,
    epoch: int,
    consistent_point: int,
    baseline_seq: int,
) -> None:
    """The repair is over: `relay run` goes on from its checkpoint. Raises Fenced when it isn't ours."""
    _update(
        connection,
        relay_id,
        epoch,
        """set state = 'running', consistent_point = %(point)s, baseline_seq = %(seq)s,
               repair_origin = null, repair_began_at = null, source_accepted = false""",
        {"point": format_lsn(consistent_point), "seq": baseline_seq},
    )


def _update(
    connection: psycopg.Connection[Any],
    relay_id: uuid.UUID,
    epoch: int,
    change: str,
    parameters: dict[str, object],
) -> None:
    done = connection.execute(
        f"update relay.source_identity {change}"
        " where relay_id = %(relay_id)s and state = 'repairing' and epoch = %(epoch)s".encode(),
        {**parameters, "relay_id": relay_id, "epoch": epoch},
    )
    if done.rowcount != 1:
        raise Fenced(
            _TAKEN_OVER.format(relay_id),
            meaning="It begins from the start; this one has changed nothing since.",
            remedy="Let that one end. `relay status` shows how it went.",
        )
