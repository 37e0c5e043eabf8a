"""Checks of the Postgres server: what it must be set to, who is in the way, what holds it back. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from relay.doctor.finding import Finding, error, length, note, ok, unless_refused, unseen, warning
from relay.identity import refuse_standby_name

OLDEST_VERSION: Final = 15
NEWEST_VERSION: Final = 18

OLD_TRANSACTION_S: Final = 300.0
"""A transaction that is open for longer holds back WAL, vacuum and every new slot."""
CLOCK_SKEW_S: Final = 5.0
"""More than two machines with a time service differ by, or a slow look takes."""

_RELOAD: Final = "SELECT pg_reload_conf();"


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """Who holds a transaction that has written."""

    who: str
    """``pid 4711`` or a prepared transaction's name."""
    prepared: bool
    age_s: float | None
    """None where this login may not see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What an ordinary connection says of its server."""

    version: int
    settings: Mapping[str, str]
    """As `current_setting` shows them; one that this login may not see is missing."""
    overrides: Mapping[str, str]
    """Where ``synchronous_commit`` is set for a role or this database: whose, and to what."""
    slots: int
    senders: int
    transactions: tuple[OpenTransaction, ...]
    skew_s: float
    """The server's clock less ours."""
    look_s: float
    """How long the look at its clock took."""
    session_pid: int
    """What the connection was told at its start."""
    backend_pid: int
    """What the server itself says."""
    in_recovery: bool
    slot_exists: bool
    relay_connected: bool


def check(
    facts: ServerFacts, slot: str, *, old_transaction_s: float = OLD_TRANSACTION_S
) -> Iterator[Finding]:
    """Everything of this realm."""
    yield check_version(facts)
    yield check_primary(facts)
    yield check_pooler(facts)
    yield check_wal_level(facts)
    yield check_free_slots(facts)
    yield check_free_senders(facts)
    yield check_fsync(facts)
    yield check_full_page_writes(facts)
    yield check_synchronous_commit(facts)
    yield unless_refused(
        "postgres.synchronous_standby_names",
        "synchronous_standby_names doesn't take the relay for a standby",
        lambda: refuse_standby_name(facts.settings.get("synchronous_standby_names", ""), slot),
    )
    yield check_prepared(facts, old_transaction_s)
    yield check_transactions(facts, old_transaction_s)
    yield check_clock(facts)


def check_version(facts: ServerFacts) -> Finding:
    major = facts.version // 10_000
    if OLDEST_VERSION <= major <= NEWEST_VERSION:
        return ok("postgres.version", f"PostgreSQL {major}")
    span = f"this release is made for {OLDEST_VERSION} to {NEWEST_VERSION}"
    if major < OLDEST_VERSION:
        return error(
            "postgres.version",
            f"PostgreSQL {major}, and {span}.",
            "Publications and slots are looked at in ways that an older server doesn't have.",
            "Upgrade Postgres (pg_upgrade).",
        )
    return warning(
        "postgres.version",
        f"PostgreSQL {major}, and {span}.",
        "Nobody has seen how a newer server changes the stream.",
        "pip install --upgrade outbox-relay",
    )


def check_primary(facts: ServerFacts) -> Finding:
    if not facts.in_recovery:
        return ok("postgres.primary", "it is a primary")
    return error(
        "postgres.primary",
        "This server is a standby.",
        "The relay must write source_identity and confirm the slot, which only a primary takes.",
        "Name every host in RELAY_DATABASE_URL, with target_session_attrs=read-write or without any.",
    )


def check_pooler(facts: ServerFacts) -> Finding:
    """A pooler has many clients for one backend, so that it makes up the pid (and the key to cancel by)
    that each client is told (seen with PgBouncer 1.18). A proxy that only passes bytes on passes the true
    one."""
    if facts.session_pid == facts.backend_pid:
        return ok("postgres.pooler", "the connection is the server's own, no pooler between")
    return error(
        "postgres.pooler",
        f"A pooler is in the way: the connection was told pid {facts.session_pid}, and its server process is "
        f"{facts.backend_pid}.",
        "A replication connection can't be pooled, and between two statements the pooler may change the"
        " session.",
        "Set RELAY_DATABASE_URL to the server's own host and port; applications may go on using the pooler.",
    )


def check_wal_level(facts: ServerFacts) -> Finding:
    level = facts.settings.get("wal_level")
    if level == "logical":
        return ok("postgres.wal_level", "wal_level = logical")
    return error(
        "postgres.wal_level",
        f"wal_level = {level}.",
        "The WAL doesn't hold what logical decoding needs: there can be no slot, and no event reaches Kafka.",
        "ALTER SYSTEM SET wal_level = 'logical'; then restart Postgres (managed: rds.logical_replication,"
        " cloudsql.logical_decoding, or the service's own switch).",
    )


def check_free_slots(facts: ServerFacts) -> Finding:
    most = int(facts.settings.get("max_replication_slots", "0"))
    free = most - facts.slots
    said = f"{facts.slots} of max_replication_slots = {most} are taken"
    if free > 0:
        return ok("postgres.replication_slots", said)
    command = (
        "SELECT slot_name, active, wal_status FROM pg_replication_slots; drop one that nobody reads"
        " (SELECT pg_drop_replication_slot('…');), or ALTER SYSTEM SET"
        f" max_replication_slots = {most + 4}; and restart Postgres."
    )
    if facts.slot_exists:
        return warning(
            "postgres.replication_slots",
            f"{said}.",
            "The relay has its slot, but nobody else gets one: a standby or a backup that needs one fails.",
            command,
        )
    return error("postgres.replication_slots", f"{said}.", "The relay's slot can't be made.", command)


def check_free_senders(facts: ServerFacts) -> Finding:
    most = int(facts.settings.get("max_wal_senders", "0"))
    free = most - facts.senders
    said = f"{facts.senders} of max_wal_senders = {most} are taken"
    if free > 0:
        return ok("postgres.wal_senders", said)
    command = f"ALTER SYSTEM SET max_wal_senders = {most + 4}; then restart Postgres."
    if facts.relay_connected:
        return warning(
            "postgres.wal_senders",
            f"{said}.",
            "A second relay, which waits to take over, or a repair finds no walsender.",
            command,
        )
    return error("postgres.wal_senders", f"{said}.", "The relay can't connect.", command)


def check_fsync(facts: ServerFacts) -> Finding:
    if facts.settings.get("fsync") == "on":
        return ok("postgres.fsync", "fsync = on")
    return error(
        "postgres.fsync",
        "fsync = off.",
        "A crash of the machine loses commits that Postgres acknowledged, or the whole cluster; Kafka may"
        " have events that the database lost.",
        f"ALTER SYSTEM SET fsync = 'on'; {_RELOAD}",
    )


def check_full_page_writes(facts: ServerFacts) -> Finding:
    if facts.settings.get("full_page_writes") == "on":
        return ok("postgres.full_page_writes", "full_page_writes = on")
    return warning(
        "postgres.full_page_writes",
        "full_page_writes = off.",
        "A page that was half written in a crash can't be recovered, unless the file system writes whole"
        " pages.",
        f"ALTER SYSTEM SET full_page_writes = 'on'; {_RELOAD}",
    )


def check_synchronous_commit(facts: ServerFacts) -> Finding:
    name = "postgres.synchronous_commit"
    why = (
        "A commit that was acknowledged can vanish in a crash, with its operation and its event: the"
        " application believes in it, and nobody ever hears of it."
    )
    value = facts.settings.get("synchronous_commit", "on")
    if value == "off":
        return warning(
            name, "synchronous_commit = off.", why, f"ALTER SYSTEM SET synchronous_commit = 'on'; {_RELOAD}"
        )
    off = {whose: setting for whose, setting in facts.overrides.items() if setting == "off"}
    if off:
        return warning(
            name,
            f"synchronous_commit is off for {', '.join(off)}.",
            why,
            " ".join(f"ALTER {whose} RESET synchronous_commit;" for whose in off),
        )
    if facts.settings.get("synchronous_standby_names") and value == "local":
        return warning(
            name,
            "synchronous_commit = local, though there are synchronous standbys.",
            "Commits don't wait for them: a promotion can lose what Kafka has, and the relay stops.",
            f"ALTER SYSTEM SET synchronous_commit = 'on'; {_RELOAD}",
        )
    return ok(name, f"synchronous_commit = {value}")


def check_prepared(facts: ServerFacts, old_s: float) -> Finding:
    old = [t for t in facts.transactions if t.prepared and (t.age_s is None or t.age_s >= old_s)]
    if not old:
        return ok("postgres.prepared_transactions", f"no prepared transaction is older than {length(old_s)}")
    return warning(
        "postgres.prepared_transactions",
        f"Prepared transactions are old: {_named(old)}.",
        "Until they end, their WAL is kept, their events aren't sent, no new slot can be made, and vacuum"
        " removes nothing that is younger.",
        " or ".join(f"{verb} PREPARED '{old[0].who}';" for verb in ("COMMIT", "ROLLBACK")),
    )


def check_transactions(facts: ServerFacts, old_s: float) -> Finding:
    name = "postgres.transactions"
    running = [t for t in facts.transactions if not t.prepared]
    hidden = [t for t in running if t.age_s is None]
    old = [t for t in running if t.age_s is not None and t.age_s >= old_s]
    if old:
        return warning(
            name,
            f"Transactions that have written are open for long: {_named(old)}.",
            "A new slot (init, repair, backfill) waits for each of them, the WAL since their start is kept,"
            " and their events aren't sent before they commit.",
            f"SELECT pg_terminate_backend({old[0].who.removeprefix('pid ')});",
        )
    if hidden:
        return note(
            name,
            f"open since an unknown time: {_named(hidden)}",
            "This login may not see when another's transaction began.",
            "GRANT pg_read_all_stats TO this login;",
        )
    return ok(name, f"no transaction that has written is older than {length(old_s)}")


def check_clock(facts: ServerFacts) -> Finding:
    off = abs(facts.skew_s) - facts.look_s
    if off < CLOCK_SKEW_S:
        return ok("postgres.clock", f"its clock is ours, to {length(max(abs(facts.skew_s), 0.001))}")
    behind = "ahead of" if facts.skew_s > 0 else "behind"
    return warning(
        "postgres.clock",
        f"The server's clock is {timedelta(seconds=round(abs(facts.skew_s)))} {behind} this machine's.",
        "Records carry the commit's time: topics expire by it, leases and deadlines are measured by it, and"
        " Kafka refuses records of the far future.",
        "timedatectl status (on both machines; mend the one whose time service is off).",
    )


def check_reachable(reason: str) -> Finding:
    return error(
        "postgres.reachable",
        reason,
        "Nothing of the database could be looked at; the relay waits for it as long as it takes.",
        "Check RELAY_DATABASE_URL, the server and the network between.",
    )


def check_seen(check_name: str, reason: str) -> Finding:
    return unseen(check_name, reason, "Use a login of relay_replicator, relay_operator or relay_reader.")


def _named(transactions: list[OpenTransaction]) -> str:
    return ", ".join(
        t.who if t.age_s is None else f"{t.who} (for {length(t.age_s)})" for t in transactions[:5]
    ) + (f" and {len(transactions) - 5} more" if len(transactions) > 5 else "")
