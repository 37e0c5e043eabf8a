"""The inbox: which event came to which group, how often, and what became of it (`relay.event_delivery`).

It is written before the offset is committed. It decides nothing: whether an effect happened is said by the
tables of the effect, never by a delivery.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

import psycopg
import structlog

from consumers.runtime.consumer import Pool
from consumers.runtime.retry import UNAVAILABLE_CEILING_S
from relay.errors import RelayError

Outcome = Literal["handled", "parked", "retrying"]

# One statement of this many rows takes a few milliseconds; more would only make the first of them wait.
BATCH_ROWS: Final = 500

_UPSERT: Final = """
insert into relay.event_delivery as known
       (group_id, event_id, topic, partition, "offset", times_seen, last_outcome, detail)
select %(group)s, seen.*
  from unnest(%(event_ids)s::uuid[], %(topics)s::text[], %(partitions)s::integer[], %(offsets)s::bigint[],
              %(times)s::integer[], %(outcomes)s::text[], %(details)s::text[]) as seen
on conflict (group_id, event_id) do update
   set topic = excluded.topic, partition = excluded.partition, "offset" = excluded."offset",
       last_seen_at = relay.now(), times_seen = known.times_seen + excluded.times_seen,
       last_outcome = excluded.last_outcome, detail = excluded.detail
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One delivery's outcome. `times` is 0 when this delivery was counted before (as retrying)."""

    event_id: UUID
    topic: str
    partition: int
    offset: int
    outcome: Outcome
    detail: str | None
    times: int


class Inbox:
    """Collects entries and writes them in batches; whoever added one is told when it is committed."""

    def __init__(self, pool: Pool, group_id: str, log: structlog.typing.FilteringBoundLogger) -> None:
        self._pool = pool
        self._group_id = group_id
        self._log = log
        self._queue: asyncio.Queue[tuple[Entry, Callable[[], None] | None]] = asyncio.Queue()

    def add(self, entry: Entry, written: Callable[[], None] | None = None) -> None:
        """Write `entry` soon; `written` is called on the loop once it is committed."""
        self._queue.put_nowait((entry, written))

    async def run(self) -> None:
        """Write until cancelled, waiting for Postgres as long as it is away.

        Raises RelayError when the table can't be written for another reason.
        """
        while True:
            batch = [await self._queue.get()]
            while len(batch) < BATCH_ROWS and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._write([entry for entry, _ in batch])
            for _, written in batch:
                if written is not None:
                    written()

    async def _write(self, entries: list[Entry]) -> None:
        rows = _one_per_event(entries)
        parameters = {
            "group": self._group_id,
            "event_ids": [row.event_id for row in rows],
            "topics": [row.topic for row in rows],
            "partitions": [row.partition for row in rows],
            "offsets": [row.offset for row in rows],
            "times": [row.times for row in rows],
            "outcomes": [row.outcome for row in rows],
            "details": [row.detail for row in rows],
        }
        delay_s = 0.1
        while True:
            try:
                async with self._pool.connection() as connection:
                    await connection.execute(_UPSERT, parameters)
                return
            except psycopg.OperationalError as error:
                self._log.warning("inbox waits for postgres", entries=len(rows), error=str(error).strip())
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, UNAVAILABLE_CEILING_S)
            except psycopg.Error as error:
                raise RelayError(
                    f"The inbox relay.event_delivery can't be written: {str(error).strip()}.",
                    meaning="No offset is committed without it; what was handled will be delivered again.",
                    remedy="Run `relay init`, and grant relay_worker to this login.",
                ) from error


def _one_per_event(entries: Iterable[Entry]) -> list[Entry]:
    """The last word on each event, in the order of ids, so that two groups of rows can't deadlock."""
    latest: dict[UUID, Entry] = {}
    times: dict[UUID, int] = {}
    for entry in entries:
        latest[entry.event_id] = entry
        times[entry.event_id] = times.get(entry.event_id, 0) + entry.times
    return [
        Entry(
            entry.event_id,
            entry.topic,
            entry.partition,
            entry.offset,
            entry.outcome,
            None if entry.detail is None else entry.detail.replace("\0", "�"),
            times[event_id],
        )
        for event_id, entry in sorted(latest.items())
    ]
