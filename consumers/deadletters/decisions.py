"""What was decided about parked events, in `relay.dead_letter_decision`. Each decision is taken once; a
second one is told of the first.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from consumers.deadletters.letters import Letter

Connection = psycopg.AsyncConnection[Any]

_AT: Final = (
    'group_id = %(group)s and topic = %(topic)s and partition = %(partition)s and "offset" = %(offset)s'
)

_ALL: Final = """
    select topic, partition, "offset", state, times, who, why, decided_at from relay.dead_letter_decision
     where group_id = %(group)s
"""
_TAKE: Final = """
    insert into relay.dead_letter_decision (group_id, topic, partition, "offset", event_id, state, who, why)
    values (%(group)s, %(topic)s, %(partition)s, %(offset)s, %(event_id)s, %(state)s, %(who)s, %(why)s)
    on conflict do nothing
"""
_AGAIN: Final = f"""
    update relay.dead_letter_decision
       set state = 'requested', times = times + 1, who = %(who)s, why = coalesce(%(why)s, why),
           decided_at = relay.now(), login = session_user
     where {_AT} and state in ('replayed', 'discarded') returning times
"""
_REPLAYED: Final = (
    f"update relay.dead_letter_decision set state = 'replayed' where {_AT} and state = 'requested'"
)
# One person at a time decides about a group's events: the lock ends with the session.
_LOCK: Final = "select pg_try_advisory_lock(1684826482, hashtext(%(group)s))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """`requested`: whether Kafka has it is known by looking into the retry topic alone."""

    topic: str
    partition: int
    offset: int
    state: str
    times: int
    who: str
    why: str | None
    decided_at: datetime


async def decisions(connection: Connection, group: str) -> dict[tuple[str, int, int], Decided]:
    """By place."""
    async with connection.cursor(row_factory=class_row(Decided)) as cursor:
        await cursor.execute(_ALL, {"group": group})
        return {(one.topic, one.partition, one.offset): one async for one in cursor}


async def lock(connection: Connection, group: str) -> bool:
    row = await (await connection.execute(_LOCK, {"group": group})).fetchone()
    return bool(row and row[0])


async def take(
    connection: Connection, group: str, letter: Letter, state: str, *, who: str, why: str | None
) -> bool:
    """False: somebody has decided about it."""
    named = _named(group, letter) | {"event_id": letter.event_id, "state": state, "who": who, "why": why}
    return (await connection.execute(_TAKE, named)).rowcount == 1


async def take_again(
    connection: Connection, group: str, letter: Letter, *, who: str, why: str | None
) -> int | None:
    """A person wants it replayed although it was decided about: the how-manieth time. None: an earlier replay
    of it has not ended."""
    cursor = await connection.execute(_AGAIN, _named(group, letter) | {"who": who, "why": why})
    row = await cursor.fetchone()
    return None if row is None else int(row[0])


async def replayed(connection: Connection, group: str, letter: Letter) -> None:
    await connection.execute(_REPLAYED, _named(group, letter))


def _named(group: str, letter: Letter) -> dict[str, Any]:
    return {"group": group, "topic": letter.topic, "partition": letter.partition, "offset": letter.offset}
