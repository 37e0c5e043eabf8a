"""Checks of the slot, what may take its WAL away, and who may read it. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from relay.doctor.finding import Finding, error, length, note, ok, size, unless_refused, warning
from relay.errors import REPAIR
from relay.wal.slot import Slot, require_usable

SMALLEST_KEEP_BYTES: Final = 1024**3
"""A busy server writes this much in minutes: less room than an ordinary restart of the relay needs."""
LEAST_ROOM: Final = 0.25
"""Of `max_slot_wal_keep_size`: below it there is no time to be paged in."""
IDLE_LEAST_S: Final = 3 * 86_400.0
"""A long weekend: an idle time-out below it can take the slot before anybody looks."""

_KEEP: Final = (
    "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf(); (about half of what the WAL's"
    " disk has free)"
)
_ROLES: Final = ("relay_replicator", "relay_operator", "relay_reader", "relay_worker", "relay_app")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationFacts:
    """What the server says of our slot and of this login."""

    name: str
    database: str
    slot: Slot | None
    row: Mapping[str, Any] | None
    """The whole of its row in `pg_replication_slots`, whose columns differ from version to version."""
    inactive_s: float | None
    """17 and later: since when nobody reads it."""
    settings: Mapping[str, str]
    keep_bytes: int | None
    """`max_slot_wal_keep_size`; None without a limit."""
    idle_timeout_s: float
    """`idle_replication_slot_timeout` (18); 0 is off."""
    ever_ran: bool
    """Whether a relay has published from this slot before."""
    login: str
    superuser: bool
    may_replicate: bool
    """REPLICATION on the login itself, or what a managed service has instead."""
    roles: frozenset[str]
    """Which of relay's roles the login has."""
    has_table: bool
    """False where events come as logical messages."""
    outbox: str
    """Quoted, for SQL."""
    replicator_reads_outbox: bool | None
    """Whether relay_replicator may select the outbox; None without role or outbox."""


def check(facts: ReplicationFacts) -> Iterator[Finding]:
    """Everything of this realm but the publication."""
    yield check_slot(facts)
    if facts.slot is not None:
        yield check_active(facts)
        yield check_wal_status(facts, facts.slot)
    yield check_keep_size(facts)
    yield check_idle_timeout(facts)
    yield check_login(facts)
    yield check_grants(facts)


def check_slot(facts: ReplicationFacts) -> Finding:
    slot = facts.slot
    if slot is None:
        if facts.ever_ran:
            return error(
                "replication.slot",
                f"The replication slot {facts.name} is gone.",
                "What was committed since may be gone from the WAL; the relay stops.",
                REPAIR,
            )
        return error(
            "replication.slot",
            f"There is no replication slot {facts.name}.",
            "Nothing that is committed now is kept for the relay.",
            "`relay init`",
        )
    return unless_refused(
        "replication.slot",
        f"the slot {facts.name} is there ({slot.plugin}, {slot.database})",
        lambda: require_usable(slot, facts.database),
    )


def check_active(facts: ReplicationFacts) -> Finding:
    assert facts.slot is not None
    if facts.slot.active_pid is not None:
        return ok("replication.active", f"a relay reads it (walsender {facts.slot.active_pid})")
    since = "" if facts.inactive_s is None else f" for {length(facts.inactive_s)}"
    if not facts.ever_ran:
        return note(
            "replication.active",
            f"no relay has read the slot yet{since}",
            "From its making on, Postgres keeps all WAL for it.",
            "`relay run`",
        )
    return warning(
        "replication.active",
        f"Nobody reads the slot {facts.name}{since}.",
        "Events wait, and Postgres keeps all WAL since; in the end its disk fills, or the slot is lost.",
        "`relay run`",
    )


def check_wal_status(facts: ReplicationFacts, slot: Slot) -> Finding:
    name = "replication.wal_status"
    reason = (facts.row or {}).get("invalidation_reason")
    if slot.wal_status == "lost" or reason:
        why = f" ({reason})" if reason else ""
        return error(
            name,
            f"The slot {slot.name} is lost: wal_status = {slot.wal_status}{why}.",
            "What was committed since its last confirmed position may be gone from the WAL; the relay stops.",
            REPAIR,
        )
    left = "" if slot.safe_wal_bytes is None else f", {size(slot.safe_wal_bytes)} until it is lost"
    if slot.wal_status == "unreserved":
        return error(
            name,
            f"wal_status = unreserved{left}.",
            "The slot is beyond max_slot_wal_keep_size: the next checkpoint may remove its WAL.",
            "ALTER SYSTEM SET max_slot_wal_keep_size = -1; SELECT pg_reload_conf(); (until the relay has come"
            " up), and `relay run`",
        )
    narrow = (
        slot.safe_wal_bytes is not None
        and facts.keep_bytes is not None
        and slot.safe_wal_bytes < facts.keep_bytes * LEAST_ROOM
    )
    if slot.wal_status == "extended" or narrow:
        return warning(
            name,
            f"wal_status = {slot.wal_status}{left}.",
            "The relay is far behind: Postgres keeps more WAL for it than max_wal_size.",
            "`relay status`; see that it runs and that Kafka takes what it sends.",
        )
    return ok(name, f"wal_status = {slot.wal_status}{left}")


def check_keep_size(facts: ReplicationFacts) -> Finding:
    name = "replication.max_slot_wal_keep_size"
    if facts.keep_bytes is None:
        return warning(
            name,
            "max_slot_wal_keep_size = -1: there is no limit.",
            "While the relay or Kafka is away, WAL fills the disk, and then Postgres stops, with all who use"
            " it. With a limit the slot is lost instead, and a repair brings back what Kafka lacks.",
            _KEEP,
        )
    if facts.keep_bytes < SMALLEST_KEEP_BYTES:
        return warning(
            name,
            f"max_slot_wal_keep_size = {size(facts.keep_bytes)}.",
            "So much WAL is written while the relay restarts or Kafka is away for a moment: then the slot"
            " is lost, and a repair is needed.",
            _KEEP,
        )
    return ok(name, f"max_slot_wal_keep_size = {size(facts.keep_bytes)}")


def check_idle_timeout(facts: ReplicationFacts) -> Finding:
    name = "replication.idle_replication_slot_timeout"
    if facts.idle_timeout_s <= 0:
        return ok(name, "no idle time-out takes the slot")
    left = "" if facts.inactive_s is None else f"; {length(facts.idle_timeout_s - facts.inactive_s)} are left"
    said = f"idle_replication_slot_timeout = {length(facts.idle_timeout_s)}{left}"
    near = facts.inactive_s is not None and facts.inactive_s > facts.idle_timeout_s / 2
    if facts.idle_timeout_s >= IDLE_LEAST_S and not near:
        return note(name, said, "A relay that is away for longer loses its slot.", "`relay status`")
    return warning(
        name,
        f"{said}.",
        "When no relay reads the slot for so long, a checkpoint invalidates it and its WAL goes: a repair is"
        " needed.",
        "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
    )


def check_login(facts: ReplicationFacts) -> Finding:
    name = "replication.login"
    if facts.superuser:
        return note(
            name,
            f"{facts.login} is a superuser",
            "The relay needs far less; a superuser's password in its settings opens everything.",
            "CREATE ROLE relay_run LOGIN REPLICATION PASSWORD '…'; GRANT relay_replicator TO relay_run;",
        )
    if "relay_replicator" in facts.roles:
        if facts.may_replicate:
            return ok(name, f"{facts.login} has relay_replicator, and REPLICATION itself")
        return error(
            name,
            f"{facts.login} has relay_replicator, but not REPLICATION itself.",
            "It isn't inherited from a group role: `relay run` can't open its replication connection.",
            f'ALTER ROLE "{facts.login}" REPLICATION; (RDS: GRANT rds_replication TO "{facts.login}";)',
        )
    known = ", ".join(sorted(facts.roles)) or f"none of {', '.join(_ROLES)}"
    return note(
        name,
        f"{facts.login} has {known}: whether the relay's own login may replicate wasn't looked at",
        "REPLICATION belongs on the relay's login itself.",
        "`relay doctor` as the relay's own login",
    )


def check_grants(facts: ReplicationFacts) -> Finding:
    name = "replication.grants"
    if not facts.has_table:
        return ok(name, "logical messages need no right on a table")
    if facts.replicator_reads_outbox is None:
        return note(
            name,
            "there is no role relay_replicator, or no outbox, to look at",
            "`relay init` makes both.",
            "`relay init`",
        )
    if facts.replicator_reads_outbox:
        return ok(name, f"relay_replicator may read {facts.outbox}")
    schema = facts.outbox.partition('".')[0] + '"'
    return error(
        name,
        f"relay_replicator may not read {facts.outbox}.",
        "The relay compares the table with the stream; without that right it confirms nothing.",
        f"GRANT USAGE ON SCHEMA {schema} TO relay_replicator; GRANT SELECT ON {facts.outbox} TO"
        " relay_replicator;",
    )


def check_connection(refused: str | None) -> Finding:
    """`refused`: what was said when a replication connection was tried; None when it opened."""
    if refused is None:
        return ok("replication.connection", "a replication connection opens")
    return error(
        "replication.connection",
        f"A replication connection doesn't open: {refused}",
        "`relay run` needs one, straight to the server.",
        "See pg_hba.conf (this database, this login) and max_wal_senders; let no pooler be between.",
    )
