"""What a repair must know of parked events: which Kafka has after all, and what was decided about the others.

What was parked stays parked until somebody asks for it: a repair never sends what an operator sees as parked.
"""

import uuid
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from relay.kafka.contents import Contents
from relay.outbox.event import BadEvent

_BATCH: Final = 1_000

# The id as its record has it; the table's own is derived where the outbox's is no uuid.
_ID: Final = "coalesce(parts ->> 'event_id', event_id::text)"


def settle(
    connection: psycopg.Connection[Any], relay_id: uuid.UUID, contents: Contents, dead_letters: str
) -> int:
    """Events that were republished by a relay that died before it could say so. Returns how many.

    The relay itself tells by its checkpoint, and that is of an epoch that ends now. Raises psycopg.Error.
    """
    settled = 0
    with connection.cursor() as cursor:
        last: uuid.UUID | None = None
        while True:
            rows = cursor.execute(
                f"select event_id, {_ID} from relay.parked_event"
                " where relay_id = %s and state = 'parked' and (%s::uuid is null or event_id > %s::uuid)"
                " order by event_id limit %s".encode(),
                [relay_id, last, last, _BATCH],
            ).fetchall()
            if not rows:
                return settled
            last = rows[-1][0]
            there = contents.has([name for _, name in rows], except_topic=dead_letters)
            cursor.execute(
                "update relay.parked_event set state = 'republished', settled_at = relay.now()"
                " where relay_id = %s and event_id = any(%s) and state = 'parked'",
                [relay_id, [event_id for event_id, name in rows if name in there]],
            )
            settled += cursor.rowcount


def decided(
    connection: psycopg.Connection[Any], relay_id: uuid.UUID, event_ids: Sequence[str]
) -> dict[str, BadEvent]:
    """Why those of `event_ids` are parked that still wait for an operator. Raises psycopg.Error."""
    rows = connection.execute(
        f"select {_ID}, reason_code, reason, topic from relay.parked_event"
        f" where relay_id = %s and state = 'parked' and {_ID} = any(%s)".encode(),
        [relay_id, list(event_ids)],
    ).fetchall()
    return {name: BadEvent(code, reason, topic) for name, code, reason, topic in rows}
