"""How far the relay is behind and how long its slot will last, read from Postgres: cheap on any table.

It changes nothing. What it can't know it gives as None, never as 0.
"""

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from relay.outbox.mapping import OutboxMapping
from relay.wal import slot as slots
from relay.wal.lsn import parse_lsn

COUNTED_MOST: Final = 10_000
"""Up to so many waiting events are counted; above, the distance in `seq` is given: an upper bound, because a
sequence has gaps."""

_FAILOVER_SINCE: Final = 170_000  # Postgres 17: failover slots, synchronized_standby_slots


@dataclass(frozen=True, slots=True)
class Events:
    """What is committed in the outbox above `after_seq`, and so isn't in Kafka yet."""

    waiting: int
    exact: bool
    """Whether `waiting` was counted; else it is an upper bound."""
    oldest_age_s: float
    """Age of the oldest that waits, by its `occurred_at`; 0 when none waits."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the slot. LSNs are ints, sizes bytes."""

    taken_at: datetime
    insert_lsn: int
    slot: slots.Slot | None
    stalled_by: str
    """The standbys of `synchronized_standby_slots` that the walsender waits for, in words; or empty."""

    @property
    def lag_bytes(self) -> int | None:
        """WAL written and not confirmed."""
        if self.slot is None or self.slot.confirmed_flush is None:
            return None
        return max(0, self.insert_lsn - self.slot.confirmed_flush)

    @property
    def retained_bytes(self) -> int | None:
        """WAL that the server keeps for the slot."""
        if self.slot is None or self.slot.restart_lsn is None:
            return None
        return max(0, self.insert_lsn - self.slot.restart_lsn)


def read_sample(connection: psycopg.Connection[Any], slot_name: str) -> Sample:
    """Raises psycopg.Error."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            "select clock_timestamp() as at, pg_current_wal_insert_lsn()::text as lsn"
        ).fetchone()
    assert row is not None
    slot = slots.read_slot(connection, slot_name)
    stalled_by = "" if slot is None else _stalled_by(connection, slot)
    return Sample(row["at"], parse_lsn(row["lsn"]), slot, stalled_by)


def read_events(connection: psycopg.Connection[Any], mapping: OutboxMapping, after_seq: int) -> Events | None:
    """None where the outbox has no `seq`, or its rows don't stay. Raises psycopg.Error.

    It walks the index of `seq` from `after_seq`, at most `COUNTED_MOST` rows. A row that commits late under a
    lower `seq` is not seen: it is in the stream.
    """
    seq = mapping.columns.seq
    if seq is None or not mapping.rows_kept:
        return None
    names = {"table": sql.Identifier(mapping.schema, mapping.table), "seq": sql.Identifier(seq)}
    counted = sql.SQL(
        "select count(*), coalesce(max(s), 0) from (select {seq} as s from {table} where {seq} > %s"
        " order by {seq} limit %s) w"
    ).format(**names)
    row = connection.execute(counted, [after_seq, COUNTED_MOST + 1]).fetchone()
    waiting = int(row[0]) if row else 0
    exact = waiting <= COUNTED_MOST
    if not exact:
        waiting = max(waiting, slots.read_newest_seq(connection, mapping) - after_seq)
    oldest_age_s = 0.0
    if waiting and mapping.columns.occurred_at is not None:
        oldest = sql.SQL(
            "select extract(epoch from clock_timestamp() - {at})::float8 from {table}"
            " where {seq} > %s order by {seq} limit 1"
        ).format(at=sql.Identifier(mapping.columns.occurred_at), **names)
        found = connection.execute(oldest, [after_seq]).fetchone()
        if found is not None and found[0] is not None:
            oldest_age_s = max(0.0, float(found[0]))
    return Events(waiting, exact, oldest_age_s)


def wal_rate(earlier: Sample, later: Sample) -> float | None:
    """Bytes of WAL that the server writes in a second, as between two samples; None for one moment."""
    seconds = (later.taken_at - earlier.taken_at).total_seconds()
    if seconds <= 0:
        return None
    return max(0.0, (later.insert_lsn - earlier.insert_lsn) / seconds)


def seconds_until_lost(sample: Sample, bytes_per_s: float | None) -> float | None:
    """Until the slot is lost if nothing is confirmed and WAL is written at this rate.

    `math.inf` without a limit (`max_slot_wal_keep_size = -1`) or without writes, 0 when it is lost, None
    while the rate is unknown.
    """
    slot = sample.slot
    if slot is None or slot.wal_status == "lost":
        return 0.0
    if slot.safe_wal_bytes is None:
        return math.inf
    if bytes_per_s is None:
        return None
    return math.inf if bytes_per_s == 0 else max(0, slot.safe_wal_bytes) / bytes_per_s


def _stalled_by(connection: psycopg.Connection[Any], slot: slots.Slot) -> str:
    """A failover slot is sent nothing that these standbys haven't confirmed (Postgres 18, 19.6.2)."""
    if connection.info.server_version < _FAILOVER_SINCE:
        return ""
    row = connection.execute(
        """
        select string_agg(
                 format('%%I (%%s)', wanted.name, case
                   when s.slot_name is null then 'there is no such slot'
                   when s.wal_status = 'lost' then 'its WAL is lost'
                   when not s.active then 'no standby is connected to it'
                   else pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_flush_lsn(), s.restart_lsn))
                        || ' behind'
                 end), ', ' order by wanted.name)
          from pg_replication_slots ours,
               lateral (select trim(both ' "' from name) as name
                          from unnest(string_to_array(
                                 current_setting('synchronized_standby_slots', true), ',')) name) wanted
               left join pg_replication_slots s on s.slot_name = wanted.name
         where ours.slot_name = %s and ours.failover
           and ours.confirmed_flush_lsn < pg_current_wal_flush_lsn()
           and (s.slot_name is null or s.wal_status = 'lost' or s.restart_lsn is null
                or s.restart_lsn < pg_current_wal_flush_lsn())
        """,
        [slot.name],
    ).fetchone()
    named = row[0] if row else None
    return f"synchronized_standby_slots names {named}" if named else ""
