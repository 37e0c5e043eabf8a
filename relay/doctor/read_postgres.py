"""Reads the facts of Postgres for `relay doctor`: questions only, each short, none that waits for a lock.

The connection carries no `options`, which a pooler would refuse: it must get far enough to be recognised.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from relay import identity, migrations
from relay.doctor.failover import FailoverFacts, StandbyFacts
from relay.doctor.replication import ReplicationFacts
from relay.doctor.server import OpenTransaction, ServerFacts
from relay.doctor.source import SourceFacts
from relay.outbox.mapping import OutboxMapping
from relay.settings import Settings
from relay.wal import publication as publications
from relay.wal import slot as slots
from relay.wal.stream import ReplicationStream

Connection = psycopg.Connection[Any]

CONNECT_TIMEOUT_S: Final = 5
STATEMENT_TIMEOUT_MS: Final = 5_000
_NEWEST_ROWS: Final = 10_000
"""Of the outbox, looked at for their types: a whole table may have billions."""

_ROLES: Final = ["relay_replicator", "relay_operator", "relay_reader", "relay_worker", "relay_app"]
_SETTINGS: Final = [
    "wal_level",
    "max_replication_slots",
    "max_wal_senders",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "synchronous_standby_names",
    "synchronized_standby_slots",
    "sync_replication_slots",
    "hot_standby_feedback",
    "primary_slot_name",
    "primary_conninfo",
]


@contextmanager
def connect(url: str) -> Iterator[Connection]:
    """A connection in autocommit that gives up soon. Raises psycopg.OperationalError."""
    given = conninfo_to_dict(url)
    wanted = make_conninfo(
        url,
        application_name="outbox-relay doctor",
        connect_timeout=given.get("connect_timeout") or CONNECT_TIMEOUT_S,
    )
    with psycopg.connect(wanted, autocommit=True) as connection:
        # Not on a pooler's session, which goes to somebody else afterwards.
        if _backend_pid(connection) == connection.info.backend_pid:
            connection.execute(f"set statement_timeout = {STATEMENT_TIMEOUT_MS}")
        yield connection


def read_server(connection: Connection, slot: str, clock: Callable[[], float] = time.time) -> ServerFacts:
    """Of the server that answers, standby or not. Raises psycopg.Error."""
    before = clock()
    row = _row(connection, "select extract(epoch from clock_timestamp())::float8 as now")
    after = clock()
    counted = _row(
        connection,
        """
        select (select count(*) from pg_replication_slots)::int as slots,
               (select count(*) from pg_stat_replication)::int as senders,
               pg_is_in_recovery() as in_recovery,
               exists (select from pg_replication_slots s where s.slot_name = %(slot)s) as slot_exists,
               exists (select from pg_replication_slots s where s.slot_name = %(slot)s and s.active)
                 as relay_connected
        """,
        {"slot": slot},
    )
    return ServerFacts(
        version=connection.info.server_version,
        settings=_settings(connection),
        overrides=_overrides(connection),
        transactions=_transactions(connection),
        skew_s=row["now"] - (before + after) / 2,
        look_s=after - before,
        session_pid=connection.info.backend_pid,
        backend_pid=_backend_pid(connection),
        **counted,
    )


def read_replication(connection: Connection, settings: Settings, mapping: OutboxMapping) -> ReplicationFacts:
    """Raises psycopg.Error."""
    row = _slot_row(connection, settings.slot)
    login = _row(
        connection,
        """
        select r.rolname as login, r.rolsuper as superuser,
               r.rolreplication or r.rolsuper
                 or coalesce(pg_has_role(r.oid, (select oid from pg_roles where rolname = 'rds_replication'),
                                         'member'), false) as may_replicate,
               array(select m.rolname::text from pg_roles m
                      where m.rolname = any(%(roles)s) and pg_has_role(r.oid, m.oid, 'usage')) as roles,
               (select has_table_privilege(m.oid, c.oid, 'select')
                         and has_schema_privilege(m.oid, n.oid, 'usage')
                  from pg_roles m, pg_class c join pg_namespace n on n.oid = c.relnamespace
                 where m.rolname = 'relay_replicator' and n.nspname = %(schema)s and c.relname = %(table)s)
                 as replicator_reads_outbox,
               (select setting::bigint from pg_settings where name = 'max_slot_wal_keep_size') as keep_mb,
               (select setting::bigint * case unit when 'min' then 60 else 1 end
                  from pg_settings where name = 'idle_replication_slot_timeout') as idle_s
        from pg_roles r where r.rolname = current_user
        """,
        {"roles": _ROLES, "schema": mapping.schema, "table": mapping.table},
    )
    recorded = slots.read_identity(connection, settings.slot)
    keep_mb = login.pop("keep_mb")
    return ReplicationFacts(
        name=settings.slot,
        database=slots.read_database(connection),
        slot=slots.read_slot(connection, settings.slot),
        row=row,
        inactive_s=None if row is None else row["inactive_s"],
        settings=_settings(connection),
        keep_bytes=None if keep_mb < 0 else keep_mb * 1024 * 1024,
        idle_timeout_s=float(login.pop("idle_s") or 0),
        ever_ran=recorded is not None and recorded.state != "new",
        roles=frozenset(login.pop("roles")),
        has_table=mapping.source == "table",
        outbox=mapping.qualified_name,
        **login,
    )


def read_source(connection: Connection, settings: Settings, mapping: OutboxMapping) -> SourceFacts:
    """Raises psycopg.Error: for a login that may not see the relay's tables, too."""
    pending, unknown = _migrations(connection)
    # An older database's columns can't be asked for: the migrations are the finding then.
    recorded = None if pending else slots.read_identity(connection, settings.slot)
    published = publications.read(connection, settings.publication, mapping)
    readable = mapping.source == "table" and published.outbox_exists and not published.missing_columns
    return SourceFacts(
        slot_name=settings.slot,
        publication=settings.publication,
        mapping=mapping,
        published=published,
        recorded=recorded,
        slot=slots.read_slot(connection, settings.slot),
        pending=pending,
        unknown=unknown,
        parked=0 if recorded is None else slots.count_parked(connection, recorded.relay_id),
        payload_limit_bytes=_payload_limit(connection, mapping),
        oldest_age_s=_oldest_age(connection, mapping) if readable else None,
        event_types=_event_types(connection, mapping) if readable else (),
    )


@dataclass(frozen=True, slots=True)
class ReplicationLook:
    """What a replication connection says, once opened; nothing of it changes the slot."""

    switches: Mapping[int, int]


def try_replication(url: str) -> ReplicationLook:
    """Open a replication connection and ask who the server is. Raises RelayError."""
    unheard: list[str] = []
    stream = ReplicationStream(url, "outbox-relay-doctor", unheard.append)
    try:
        return ReplicationLook(stream.switches(stream.identify().timeline))
    finally:
        stream.close()


def read_position_server(connection: Connection, switches: Mapping[int, int]) -> identity.Server:
    """What IDENTIFY_SYSTEM would say, in SQL, so that a login without REPLICATION can ask too."""
    row = _row(
        connection,
        """
        select (select system_identifier::text from pg_control_system()) as system_identifier,
               ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int as timeline
        """,
    )
    return identity.Server(**row, flush_lsn=slots.read_flush_lsn(connection), switches=switches)


def restarted_since_verified(connection: Connection, recorded: slots.SourceIdentity) -> bool:
    """Whether Postgres was started after the relay verified it."""
    row = _row(connection, "select pg_postmaster_start_time() as started_at")
    return bool(row["started_at"] != recorded.verified_server_started_at)


def read_failover(connection: Connection, url: str, slot: str) -> FailoverFacts:
    """The primary, by `connection`, and every other host of the URL. Raises psycopg.Error."""
    row = _slot_row(connection, slot)
    physical = connection.execute(
        "select slot_name::text, active from pg_replication_slots where slot_type = 'physical'"
    ).fetchall()
    senders = _row(
        connection,
        "select count(*)::int as n from pg_stat_replication where application_name not like 'outbox-relay%'",
    )
    hosts = _hosts(url)
    here = (connection.info.host, str(connection.info.port))
    others = [host for host in hosts if (host["host"], host["port"]) != here] if len(hosts) > 1 else []
    return FailoverFacts(
        version=connection.info.server_version,
        hosts=len(hosts),
        attrs=str(conninfo_to_dict(url).get("target_session_attrs") or ""),
        slot_name=slot,
        failover=bool(row and row.get("failover")),
        settings=_settings(connection),
        physical=dict(physical),
        senders=senders["n"],
        standbys=[_standby(url, host, slot) for host in others],
    )


def _hosts(url: str) -> list[dict[str, str]]:
    """The URL's hosts, each with its port (libpq: one port for all, or one for each)."""
    given = conninfo_to_dict(url)
    hosts = str(given.get("host") or given.get("hostaddr") or "").split(",")
    ports = str(given.get("port") or "5432").split(",")
    return [
        {"host": host, "port": (ports[at] if at < len(ports) else ports[0]) or "5432"}
        for at, host in enumerate(hosts)
    ]


def _standby(url: str, host: Mapping[str, str], slot: str) -> StandbyFacts:
    name = f"{host['host']}:{host['port']}"
    try:
        with connect(make_conninfo(url, target_session_attrs="any", **host)) as connection:
            if not slots.is_standby(connection):
                return StandbyFacts(host=name, error="it is a primary, too: two servers take writes")
            return StandbyFacts(host=name, settings=_settings(connection), copy=_slot_row(connection, slot))
    except psycopg.Error as error:
        return StandbyFacts(host=name, error=" ".join(str(error).split()))


def _backend_pid(connection: Connection) -> int:
    return int(_row(connection, "select pg_backend_pid() as pid")["pid"])


def _settings(connection: Connection) -> dict[str, str]:
    """Those that this login may see; the others are missing."""
    rows = connection.execute(
        "select name, setting from pg_settings where name = any(%s)", [_SETTINGS]
    ).fetchall()
    return dict(rows)


def _overrides(connection: Connection) -> dict[str, str]:
    rows = connection.execute(
        """
        select case when s.setrole = 0 then 'DATABASE ' || quote_ident(d.datname)
                    else 'ROLE ' || quote_ident(r.rolname)
                         || coalesce(' IN DATABASE ' || quote_ident(d.datname), '') end,
               split_part(c, '=', 2)
        from pg_db_role_setting s
        cross join unnest(s.setconfig) c
        left join pg_database d on d.oid = s.setdatabase
        left join pg_roles r on r.oid = s.setrole
        where c like 'synchronous_commit=%' and (s.setdatabase = 0 or d.datname = current_database())
        order by 1
        """
    ).fetchall()
    return dict(rows)


def _transactions(connection: Connection) -> tuple[OpenTransaction, ...]:
    """Who holds a transaction id; `xact_start` is null for a login that may not see it."""
    rows = connection.execute(
        """
        select 'pid ' || l.pid, false, extract(epoch from clock_timestamp() - a.xact_start)::float8
          from pg_locks l join pg_stat_activity a on a.pid = l.pid
         where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted
           and l.pid <> pg_backend_pid()
        union
        select p.gid, true, extract(epoch from clock_timestamp() - p.prepared)::float8
          from pg_prepared_xacts p where p.database = current_database()
        order by 3 desc nulls last
        """
    ).fetchall()
    return tuple(OpenTransaction(*row) for row in rows)


def _slot_row(connection: Connection, name: str) -> dict[str, Any] | None:
    """As the version has it: `failover`, `synced` and `invalidation_reason` came with 17."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            """
            select to_jsonb(s) as slot,
                   extract(epoch from clock_timestamp()
                           - (to_jsonb(s) ->> 'inactive_since')::timestamptz)::float8 as inactive_s
            from pg_replication_slots s where slot_name = %s
            """,
            [name],
        ).fetchone()
    return None if row is None else {**row["slot"], "inactive_s": row["inactive_s"]}


def _migrations(connection: Connection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    shipped = [migration.name for migration in migrations.shipped()]
    try:
        rows = connection.execute("select name from relay.schema_migration").fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return tuple(shipped), ()
    except psycopg.errors.InsufficientPrivilege:
        return (), ()  # the bookkeeping is the owner's alone
    applied = {row[0] for row in rows}
    return tuple(name for name in shipped if name not in applied), tuple(sorted(applied - set(shipped)))


def _payload_limit(connection: Connection, mapping: OutboxMapping) -> int | None:
    """The least bound of a CHECK of the form `octet_length(payload::text) <= N`."""
    row = _row(
        connection,
        """
        select min(m[1]::bigint) as bytes
        from pg_constraint c
        join pg_class t on t.oid = c.conrelid join pg_namespace n on n.oid = t.relnamespace,
        lateral regexp_match(pg_get_constraintdef(c.oid),
                             'octet_length\\(\\(?"?' || %(column)s || '"?\\)?(?:::text)?\\) <= (\\d+)') m
        where c.contype = 'c' and n.nspname = %(schema)s and t.relname = %(table)s
        """,
        {"column": mapping.columns.payload, "schema": mapping.schema, "table": mapping.table},
    )
    return None if row["bytes"] is None else int(row["bytes"])


def _oldest_age(connection: Connection, mapping: OutboxMapping) -> float | None:
    at, order = mapping.columns.occurred_at, mapping.columns.seq
    if at is None or order is None:
        return None
    query = sql.SQL(
        "select extract(epoch from clock_timestamp() - {at}::timestamptz)::float8 from {table}"
        " order by {order} limit 1"
    ).format(at=sql.Identifier(at), order=sql.Identifier(order), table=_table(mapping))
    row = connection.execute(query).fetchone()
    return None if row is None or row[0] is None else float(row[0])


def _event_types(connection: Connection, mapping: OutboxMapping) -> tuple[tuple[str, int | None], ...]:
    """Of the newest rows; nothing where payloads travel unchanged, without a schema."""
    if mapping.payload == "unchanged":
        return ()
    columns = mapping.columns
    version = sql.SQL("null") if columns.schema_version is None else sql.Identifier(columns.schema_version)
    newest = (
        sql.SQL("")
        if columns.seq is None
        else sql.SQL("order by {} desc").format(sql.Identifier(columns.seq))
    )
    query = sql.SQL(
        "select distinct k::text, v::text"
        " from (select {kind} k, {version} v from {table} {newest} limit {n}) s"
    ).format(
        kind=sql.Identifier(columns.event_type),
        version=version,
        table=_table(mapping),
        newest=newest,
        n=sql.Literal(_NEWEST_ROWS),
    )
    rows = connection.execute(query).fetchall()
    return tuple(
        (kind, int(text) if text is not None and text.isdigit() else None)
        for kind, text in rows
        if kind is not None
    )


def _table(mapping: OutboxMapping) -> sql.Identifier:
    return sql.Identifier(mapping.schema, mapping.table)


def _row(
    connection: Connection, query: LiteralString, parameters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(query, parameters).fetchone()
    assert row is not None  # each of these questions has exactly one answer
    return row
