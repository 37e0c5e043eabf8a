"""The slot, and the row that says what the source was: made once, after the publication, then only inspected.

The order matters: rows committed between slot and publication would be read by nobody. Nothing here drops or
moves a slot, since only a person can know whose it is.
"""

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, cast

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from relay.errors import REPAIR, LogLost, Unavailable, UsageError, as_sentence
from relay.outbox.mapping import OutboxMapping, of_settings
from relay.settings import Settings
from relay.wal import publication as publications
from relay.wal.lsn import parse_lsn

PLUGIN: Final = "pgoutput"
# Arbitrary but fixed: two `relay init` at once must not both make the identity.
ADVISORY_LOCK: Final = 0x6F757462_6F780002
FAILOVER_SINCE: Final = 17_00_00
"""The first `server_version` whose standbys can keep a copy of a logical slot (Postgres 17, 47.2.3)."""

# A new slot waits for every transaction that was open before it; past this the person is told which.
CREATE_SLOT_TIMEOUT_S: Final = 60.0

State = Literal["new", "running", "repairing"]


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The row of `relay.source_identity`: what the source was when the relay last knew it. LSNs are ints."""

    relay_id: uuid.UUID
    slot_name: str
    publication: str
    outbox_table: str
    epoch: int
    state: State
    system_identifier: str
    timeline: int
    consistent_point: int
    baseline_seq: int
    """The highest `seq` that was visible when the slot was made; 0 without `seq`."""
    verified_system_identifier: str | None
    verified_timeline: int | None
    verified_server_started_at: datetime | None
    verified_at: datetime | None
    repair_origin: Literal["repair", "backfill"] | None = None
    """What the repair that is under way, or was interrupted, was asked for."""
    source_accepted: bool = False
    """Whether a person has accepted this source for that repair, though Kafka knew another."""
    unreconciled_since: datetime | None = None
    """Since when dispatch is closed because a rewind was accepted; a person opens it."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What `pg_replication_slots` says of ours."""

    name: str
    plugin: str | None
    database: str | None
    temporary: bool
    active_pid: int | None
    confirmed_flush: int | None
    restart_lsn: int | None
    wal_status: str | None
    """reserved, extended, unreserved or lost."""
    safe_wal_bytes: int | None
    """Bytes of WAL that can still be written before the slot is lost; None without a limit."""
    two_phase: bool


def initialise(settings: Settings, *, slot_timeout_s: float = CREATE_SLOT_TIMEOUT_S) -> SourceIdentity:
    """Make publication, slot and identity where they are missing, and return the identity.

    Safe to run again after a crash at any instruction: what exists is checked and kept. The migrations must
    have been applied, and the login must own the outbox and have REPLICATION (or be a superuser). Raises
    UsageError, Unavailable, OutboxAltered or LogLost.
    """
    mapping = of_settings(settings)
    try:
        with psycopg.connect(settings.require_database(), autocommit=True) as connection:
            connection.execute("select pg_advisory_lock(%s)", [ADVISORY_LOCK])
            return _initialise(connection, settings, mapping, slot_timeout_s)
    except psycopg.OperationalError as error:
        raise Unavailable(
            f"The database can't be reached or ended the session: {as_sentence(error)}",
            remedy="Check RELAY_DATABASE_URL and the server, then run `relay init` again.",
        ) from error


def _initialise(
    connection: psycopg.Connection[Any], settings: Settings, mapping: OutboxMapping, slot_timeout_s: float
) -> SourceIdentity:
    known = read_identity(connection, settings.slot)
    if known is not None:
        require_made_for(known, settings.publication, mapping)
    publications.create(connection, settings.publication, mapping, new=known is None)
    slot = read_slot(connection, settings.slot)
    if known is not None:
        if slot is None:
            raise LogLost(
                f"The replication slot {settings.slot} is gone, and relay {known.relay_id} had it.",
                meaning="What was committed since it was dropped may not be in the WAL any more.",
                remedy=REPAIR,
            )
        return known
    if slot is None:
        slot = create_slot(connection, settings.slot, timeout_s=slot_timeout_s)
    require_usable(slot, _one(connection, "select current_database()")[0])
    return _insert_identity(connection, settings, mapping, slot)


def can_fail_over(connection: psycopg.Connection[Any]) -> bool:
    """Whether a slot made here can have the option FAILOVER, as each of ours does.

    Without a standby it costs nothing. With `synchronized_standby_slots` the stream waits for those standbys.
    """
    return connection.info.server_version >= FAILOVER_SINCE


def create_slot(
    connection: psycopg.Connection[Any], name: str, *, timeout_s: float = CREATE_SLOT_TIMEOUT_S
) -> Slot:
    """Make the logical slot; its `confirmed_flush` is the consistent point.

    From Postgres 17 on it is a failover slot: a standby that synchronizes slots keeps a copy. It waits for
    every transaction that is open now. Raises Unavailable naming their pids after `timeout_s`, and UsageError
    when the server isn't set up for logical replication.
    """
    limit_ms = str(round(timeout_s * 1000))
    connection.execute(sql.SQL("set statement_timeout = {}").format(sql.Literal(limit_ms)))
    failover = sql.SQL(", true" if can_fail_over(connection) else "")
    create = sql.SQL("select pg_create_logical_replication_slot(%s, %s, false, false{})").format(failover)
    try:
        connection.execute(create, [name, PLUGIN])
    except psycopg.errors.QueryCanceled:
        raise Unavailable(
            f"The replication slot {name} could not be made in {timeout_s:g} s: it waits for every older "
            f"transaction, and these are open: {old_transactions(connection)}.",
            remedy="Let them end, or end them (`select pg_terminate_backend(PID);`, for a prepared one"
            " `ROLLBACK PREPARED` or `COMMIT PREPARED`); then run `relay init` again.",
        ) from None
    except psycopg.errors.DuplicateObject:
        pass  # made by somebody else in the meantime: checked by the caller like any other
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        raise UsageError(
            f"The server can't make a logical replication slot: {error.diag.message_primary}.",
            remedy="`ALTER SYSTEM SET wal_level = 'logical';`, see that max_replication_slots and"
            " max_wal_senders are above 0, restart Postgres, and run `relay init` again.",
        ) from None
    except psycopg.errors.ConfigurationLimitExceeded as error:
        raise UsageError(
            f"The server has no free replication slot: {error.diag.message_primary}.",
            remedy="Raise max_replication_slots (which needs a restart), or drop a slot that nobody reads"
            " (`select slot_name, active from pg_replication_slots;`); then run `relay init` again.",
        ) from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise UsageError(
            f"This login may not make a replication slot: {error.diag.message_primary}.",
            remedy="`ALTER ROLE … REPLICATION;` on the login itself (it isn't inherited from a group), then"
            " run `relay init` again.",
        ) from None
    finally:
        if not connection.broken:
            connection.execute("reset statement_timeout")
    slot = read_slot(connection, name)
    if slot is None:
        raise LogLost(f"The replication slot {name} vanished while it was being made.")
    return slot


def require_usable(slot: Slot, database: str) -> None:
    """Raises UsageError when the slot can't carry the outbox: another plugin or database, or two-phase."""
    if slot.plugin != PLUGIN or slot.database != database:
        raise UsageError(
            f"The replication slot {slot.name} is of {slot.plugin or 'physical replication'} in "
            f"{slot.database or 'no database'}, not of {PLUGIN} in {database}.",
            remedy="It is somebody else's: set RELAY_SLOT to another name.",
        )
    if slot.temporary or slot.two_phase:
        raise UsageError(
            f"The replication slot {slot.name} is temporary or decodes prepared transactions.",
            meaning="A temporary slot forgets; two-phase decoding would show rows before they are committed.",
            remedy="Set RELAY_SLOT to another name, and `relay init` makes the slot that is needed.",
        )


def require_made_for(recorded: SourceIdentity, publication: str, mapping: OutboxMapping) -> None:
    """Raises UsageError when the settings name another outbox or publication than the relay was made for."""
    if (recorded.publication, recorded.outbox_table) != (publication, mapping.name):
        raise UsageError(
            f"Relay {recorded.relay_id} was made for {recorded.outbox_table} and publication "
            f"{recorded.publication}, and the settings name {mapping.name} and {publication}.",
            remedy="Set RELAY_OUTBOX_TABLE and RELAY_PUBLICATION back; for another outbox set RELAY_SLOT and"
            " RELAY_PUBLICATION to names of its own and run `relay init`.",
        )


def read_identity(connection: psycopg.Connection[Any], slot_name: str) -> SourceIdentity | None:
    """The row of the relay that has this slot; None where `relay init` never ran."""
    try:
        row = _row(
            connection,
            """
            select relay_id, slot_name, publication, outbox_table, epoch, state, system_identifier, timeline,
                   consistent_point::text, baseline_seq, verified_system_identifier, verified_timeline,
                   verified_server_started_at, verified_at, repair_origin, source_accepted,
                   unreconciled_since
            from relay.source_identity where slot_name = %s
            """,
            [slot_name],
        )
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    if row is None:
        return None
    return SourceIdentity(**{**row, "consistent_point": parse_lsn(row["consistent_point"])})


def read_slot(connection: psycopg.Connection[Any], name: str) -> Slot | None:
    row = _row(
        connection,
        """
        select slot_name, plugin, database, temporary, active_pid, confirmed_flush_lsn::text,
               restart_lsn::text, wal_status, safe_wal_size, two_phase
        from pg_replication_slots where slot_name = %s
        """,
        [name],
    )
    if row is None:
        return None
    return Slot(
        name=row["slot_name"],
        plugin=row["plugin"],
        database=row["database"],
        temporary=row["temporary"],
        active_pid=row["active_pid"],
        confirmed_flush=_lsn(row["confirmed_flush_lsn"]),
        restart_lsn=_lsn(row["restart_lsn"]),
        wal_status=row["wal_status"],
        safe_wal_bytes=row["safe_wal_size"],
        two_phase=row["two_phase"],
    )


def read_flush_lsn(connection: psycopg.Connection[Any]) -> int:
    return parse_lsn(_one(connection, "select pg_current_wal_flush_lsn()::text")[0])


def read_system_identifier(connection: psycopg.Connection[Any]) -> str:
    """Made by initdb: another cluster has another one, and so has what pg_upgrade made."""
    return str(_one(connection, "select system_identifier from pg_control_system()")[0])


def is_standby(connection: psycopg.Connection[Any]) -> bool:
    return bool(_one(connection, "select pg_is_in_recovery()")[0])


def read_database(connection: psycopg.Connection[Any]) -> str:
    return str(_one(connection, "select current_database()")[0])


def read_standby_names(connection: psycopg.Connection[Any]) -> str:
    return str(_one(connection, "select current_setting('synchronous_standby_names')")[0])


def read_newest_seq(connection: psycopg.Connection[Any], mapping: OutboxMapping) -> int:
    """The highest `seq` that is visible; 0 in an empty table, or in one without `seq`."""
    if mapping.columns.seq is None:
        return 0
    query = sql.SQL("select coalesce(max({}), 0) from {}").format(
        sql.Identifier(mapping.columns.seq), sql.Identifier(mapping.schema, mapping.table)
    )
    row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0


def read_insert_lsn(connection: psycopg.Connection[Any]) -> int:
    """Where the next WAL record goes: whatever is visible was committed below it."""
    return parse_lsn(_one(connection, "select pg_current_wal_insert_lsn()::text")[0])


def has_event(connection: psycopg.Connection[Any], mapping: OutboxMapping, event_id: str) -> bool:
    query = sql.SQL("select exists (select from {} where {} = %s)").format(
        sql.Identifier(mapping.schema, mapping.table), sql.Identifier(mapping.columns.event_id)
    )
    row = connection.execute(query, [event_id]).fetchone()
    return bool(row and row[0])


def count_parked(connection: psycopg.Connection[Any], relay_id: uuid.UUID) -> int:
    """Events that could not be sent and that nobody has dealt with yet."""
    query = "select count(*) from relay.parked_event where relay_id = %s and state = 'parked'"
    row = connection.execute(query, [relay_id]).fetchone()
    return int(row[0]) if row else 0


def write_verified(
    connection: psycopg.Connection[Any], relay_id: uuid.UUID, *, system_identifier: str, timeline: int
) -> None:
    """Say that the source is what Kafka's checkpoint says it was; dispatch works only while this is true.

    The relay that was `new` is `running` from here on.
    """
    connection.execute(
        """
        update relay.source_identity
        set state = 'running', system_identifier = %(system)s, timeline = %(timeline)s,
            verified_system_identifier = %(system)s, verified_timeline = %(timeline)s,
            verified_server_started_at = pg_postmaster_start_time(), verified_at = clock_timestamp()
        where relay_id = %(relay_id)s and state <> 'repairing'
        """,
        {"system": system_identifier, "timeline": timeline, "relay_id": relay_id},
    )


def _insert_identity(
    connection: psycopg.Connection[Any], settings: Settings, mapping: OutboxMapping, slot: Slot
) -> SourceIdentity:
    connection.execute(  # fails where the migrations are missing: `relay init` applies them first
        """
        insert into relay.source_identity
          (relay_id, slot_name, publication, outbox_table, epoch, state, system_identifier, timeline,
           consistent_point, baseline_seq)
        select %(relay_id)s, c.slot_name, %(publication)s, %(table)s, 1, 'new', s.system_identifier::text,
               ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int,
               c.confirmed_flush_lsn, %(baseline_seq)s
        from pg_control_system() s, pg_replication_slots c where c.slot_name = %(slot)s
        on conflict (slot_name) do nothing
        """,
        {
            "relay_id": uuid.uuid4(),
            "slot": slot.name,
            "publication": settings.publication,
            "table": mapping.name,
            # After the slot: every row that it doesn't stream is visible by now.
            "baseline_seq": read_newest_seq(connection, mapping) if mapping.rows_kept else 0,
        },
    )
    made = read_identity(connection, slot.name)
    if made is None:
        raise LogLost(f"The replication slot {slot.name} vanished while its identity was being written.")
    return made


def old_transactions(connection: psycopg.Connection[Any]) -> str:
    """Who holds a transaction that has written: what a new slot waits for. Any login sees all of them."""
    row = _one(
        connection,
        """
        select coalesce(string_agg(who, ', ' order by since), 'none')
        from (select coalesce('pid ' || l.pid,
                              'the prepared transaction ' || quote_literal(min(p.gid))) as who,
                     coalesce(min(a.xact_start), min(p.prepared)) as since
              from pg_locks l
              left join pg_stat_activity a on a.pid = l.pid
              left join pg_prepared_xacts p on p.transaction = l.transactionid
              where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted
                and l.pid is distinct from pg_backend_pid()
              group by l.pid, p.gid) holders
        """,
    )
    return str(row[0])


def _row(
    connection: psycopg.Connection[Any], query: str, parameters: list[Any] | dict[str, Any]
) -> dict[str, Any] | None:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), parameters).fetchone()


def _one(connection: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    return cast(tuple[Any, ...], connection.execute(query.encode()).fetchone())


def _lsn(text: str | None) -> int | None:
    return None if text is None else parse_lsn(text)
