"""Whose the slot is: the relay that waits for it, and the one that comes back and finds it in other hands.

A standby is given away by one thing only, a held slot; it must never touch Kafka, since `init_transactions`
would shut the active relay out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import psycopg
import structlog

from relay.errors import Fenced

LOOK_EVERY_S: Final = 0.5

FREE_LOOKS: Final = 2
"""A standby must see the slot free so often in a row: a relay that was merely cut off is back by then."""

T = TypeVar("T")

log = structlog.get_logger("relay")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has the slot, and in which life of the server: a walsender's pid says nothing in the next one."""

    pid: int | None
    server_started_at: datetime


def read_holder(connection: psycopg.Connection[Any], slot: str) -> Holder:
    """The walsender that has `slot`; its `pid` is None when nobody has, or when there is no such slot."""
    row = connection.execute(
        """
        select (select active_pid from pg_replication_slots where slot_name = %s), pg_postmaster_start_time()
        """,
        [slot],
    ).fetchone()
    if row is None:
        raise RuntimeError("a select without a from clause gave no row")
    return Holder(*row)


def is_former_self(was: Holder | None, now: Holder) -> bool:
    """Whether the server merely hasn't noticed yet that this relay's own connection is gone."""
    return was is not None and was == now


def require_not_taken(was: Holder | None, now: Holder, slot: str) -> None:
    """`was` is how this relay lost the slot, None when it never had it or gave it up itself.

    Raises Fenced when another relay took it meanwhile. After a restart of the server both had lost it, and
    whoever comes first has it: no harm, the other waits.
    """
    if was is None or now.pid is None or is_former_self(was, now):
        return
    if was.server_started_at == now.server_started_at:
        raise Fenced(
            f"Another relay has taken over the slot {slot} while this one was frozen or cut off.",
            meaning="That one publishes. Whatever this one still had to send was shut out of Kafka, and is "
            "published by the other.",
            remedy="Start it again: it waits as a standby. If this happens often, look at the machine's"
            " pauses and at its network.",
        )


def wait_until_free(
    slot: str,
    was: Holder | None,
    *,
    ask: Callable[[Callable[[psycopg.Connection[Any]], Holder]], Holder],
    sleep: Callable[[float], None],
    announce: Callable[[], None],
) -> None:
    """Return when nobody has the slot. `announce` is called when another relay has it. Raises Fenced."""
    looks = FREE_LOOKS if was is None else 1
    free = 0
    announced = False
    while True:
        now = ask(lambda connection: read_holder(connection, slot))
        require_not_taken(was, now, slot)
        if now.pid is None:
            free += 1
            if free >= looks:
                return
        else:
            free = 0
            if not announced and not is_former_self(was, now):
                announce()
                announced = True
        sleep(LOOK_EVERY_S)
