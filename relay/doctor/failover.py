"""Checks of failover slots: whether a promotion would leave the relay its slot (Postgres 17 and later). Pure.

Manual of Postgres 18, 47.2.3 (replication slot synchronization).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from relay.doctor.finding import Finding, error, note, ok, unseen, warning

FIRST_VERSION: Final = 17
_RELOAD: Final = "SELECT pg_reload_conf();"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyFacts:
    """What one standby says; `error` when it couldn't be asked."""

    host: str
    error: str | None = None
    settings: Mapping[str, str] | None = None
    """One that this login may not see is missing: `primary_conninfo` needs pg_read_all_settings."""
    copy: Mapping[str, Any] | None = None
    """Its row of our slot in `pg_replication_slots`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverFacts:
    """What the primary says, and each standby that the URL names."""

    version: int
    hosts: int
    """How many the URL names."""
    attrs: str
    """`target_session_attrs` of the URL."""
    slot_name: str
    failover: bool
    settings: Mapping[str, str]
    physical: Mapping[str, bool]
    """The primary's physical slots, and whether each is in use."""
    senders: int
    """Standbys that stream from the primary now, as far as can be seen."""
    standbys: Sequence[StandbyFacts] = ()


def check(facts: FailoverFacts) -> Iterator[Finding]:
    """Everything of this realm; one note where there is no standby to speak of."""
    if facts.version // 10_000 < FIRST_VERSION:
        yield note(
            "failover.version",
            f"PostgreSQL {facts.version // 10_000} has no failover slots",
            "A promotion takes the slot away: the relay stops, and a repair is the way on.",
        )
        return
    if facts.hosts < 2 and not facts.physical and not facts.senders:
        yield note("failover.standbys", "there is no standby that the relay could follow to")
        return
    yield check_hosts(facts)
    yield check_failover_slot(facts)
    yield check_synchronized_standby_slots(facts)
    for standby in facts.standbys:
        yield from check_standby(standby, facts)


def check_hosts(facts: FailoverFacts) -> Finding:
    if facts.hosts < 2:
        return warning(
            "failover.hosts",
            "The server has a standby, and RELAY_DATABASE_URL names one host.",
            "After a promotion the relay looks at the old host until somebody changes its settings.",
            "Name every host: postgresql://login@one:5432,two:5432/app",
        )
    if facts.attrs not in {"read-write", "primary"}:
        return error(
            "failover.hosts",
            f"RELAY_DATABASE_URL names {facts.hosts} hosts with target_session_attrs={facts.attrs or 'any'}.",
            "The relay takes the first that answers, which may be a standby, and waits there.",
            "Set target_session_attrs=read-write in RELAY_DATABASE_URL, or leave it out.",
        )
    return ok("failover.hosts", f"{facts.hosts} hosts, target_session_attrs={facts.attrs}")


def check_failover_slot(facts: FailoverFacts) -> Finding:
    if facts.failover:
        return ok("failover.slot", f"the slot {facts.slot_name} has failover = true")
    return warning(
        "failover.slot",
        f"The slot {facts.slot_name} has failover = false.",
        "No standby keeps a copy of it: a promotion takes it away, and the relay stops until a repair.",
        "Stop the relay; psql 'dbname=… replication=database' -c 'ALTER_REPLICATION_SLOT "
        f"{facts.slot_name} (FAILOVER true);'",
    )


def check_synchronized_standby_slots(facts: FailoverFacts) -> Finding:
    name = "failover.synchronized_standby_slots"
    named = [part.strip().strip('"') for part in facts.settings.get(name.partition(".")[2], "").split(",")]
    named = [part for part in named if part]
    known = next(iter(facts.physical), "SLOT")
    if not named:
        return warning(
            name,
            "synchronized_standby_slots is empty.",
            "The relay may publish what the standby doesn't have yet: after a promotion Kafka has events that"
            " the database lost, and the relay stops.",
            f"ALTER SYSTEM SET synchronized_standby_slots = '{known}'; {_RELOAD}",
        )
    missing = [part for part in named if part not in facts.physical]
    if missing:
        return error(
            name,
            f"synchronized_standby_slots names {', '.join(missing)}, and there is no such physical slot.",
            "The stream waits for it: no event is published.",
            f"SELECT pg_create_physical_replication_slot('{missing[0]}'); or take it out of the setting;"
            f" {_RELOAD}",
        )
    idle = [part for part in named if not facts.physical[part]]
    if idle:
        return error(
            name,
            f"synchronized_standby_slots names {', '.join(idle)}, which no standby uses now.",
            "The stream waits for that standby: no event is published until it is back.",
            f"Start the standby; if it is gone for good, take it out of the setting; {_RELOAD}",
        )
    return ok(name, f"the stream waits for {', '.join(named)}")


def check_standby(standby: StandbyFacts, facts: FailoverFacts) -> Iterator[Finding]:
    """The settings that a standby needs to keep a copy of the slot, and the copy."""
    at = f" on {standby.host}"
    if standby.error is not None or standby.settings is None:
        yield warning(
            "failover.standby",
            f"The standby {standby.host} can't be asked: {standby.error}",
            "Whether it keeps a copy of the slot is unknown.",
            "Start it, or take it out of RELAY_DATABASE_URL.",
        )
        return
    for setting, wrong in (
        ("sync_replication_slots", "Nothing copies the slot to it."),
        ("hot_standby_feedback", "The primary may vacuum rows that the copy needs: it is invalidated."),
    ):
        if standby.settings.get(setting) == "on":
            yield ok(f"failover.{setting}", f"{setting} = on{at}")
        else:
            yield warning(
                f"failover.{setting}",
                f"{setting} = off{at}.",
                f"{wrong} A promotion of it stops the relay.",
                f"ALTER SYSTEM SET {setting} = 'on'; {_RELOAD} (on {standby.host})",
            )
    yield _primary_slot(standby, facts, at)
    yield _dbname(standby, at)
    yield _copy(standby, facts, at)


def _primary_slot(standby: StandbyFacts, facts: FailoverFacts, at: str) -> Finding:
    assert standby.settings is not None
    used = standby.settings.get("primary_slot_name", "")
    if used:
        return ok("failover.primary_slot_name", f"primary_slot_name = {used}{at}")
    known = next(iter(facts.physical), "standby_1")
    return warning(
        "failover.primary_slot_name",
        f"primary_slot_name is empty{at}.",
        "Slots aren't copied without it, and the primary doesn't keep the standby's WAL.",
        f"ALTER SYSTEM SET primary_slot_name = '{known}'; {_RELOAD} (on {standby.host}; on the primary:"
        f" SELECT pg_create_physical_replication_slot('{known}');)",
    )


def _dbname(standby: StandbyFacts, at: str) -> Finding:
    assert standby.settings is not None
    conninfo = standby.settings.get("primary_conninfo")
    if conninfo is None:
        return unseen(
            "failover.primary_conninfo",
            f"this login may not see primary_conninfo{at}",
            "GRANT pg_read_all_settings TO this login; (on the primary)",
        )
    if "dbname" in conninfo:
        return ok("failover.primary_conninfo", f"primary_conninfo names a database{at}")
    return warning(
        "failover.primary_conninfo",
        f"primary_conninfo has no dbname{at}.",
        "The copying of slots asks the primary in SQL, and needs a database to connect to.",
        f"ALTER SYSTEM SET primary_conninfo = '… dbname=postgres'; {_RELOAD} (on {standby.host})",
    )


def _copy(standby: StandbyFacts, facts: FailoverFacts, at: str) -> Finding:
    name, copy = "failover.copy", standby.copy
    if copy is None:
        return warning(
            name,
            f"There is no copy of the slot {facts.slot_name}{at}.",
            "A promotion of it takes the slot away, and the relay stops until a repair.",
            f"SELECT pg_sync_replication_slots(); (on {standby.host}) says what is missing.",
        )
    if copy.get("invalidation_reason"):
        return error(
            name,
            f"The copy of the slot {facts.slot_name}{at} is invalid: {copy['invalidation_reason']}.",
            "It can't be read after a promotion: the relay would stop until a repair.",
            f"SELECT pg_sync_replication_slots(); (on {standby.host}) says why; once that is mended, Postgres"
            " drops the copy and makes it anew.",
        )
    if not copy.get("synced"):
        return error(
            name,
            f"The slot {facts.slot_name}{at} is no copy of the primary's.",
            "Somebody made it by hand: its position is another, and it keeps the true copy away.",
            f"SELECT pg_drop_replication_slot('{facts.slot_name}'); (on {standby.host}): it is copied anew.",
        )
    if copy.get("temporary"):
        return warning(
            name,
            f"The copy of the slot {facts.slot_name}{at} is temporary still.",
            "It doesn't outlive a promotion until the primary's slot has moved on past what the standby has.",
            "`relay run`, and on the primary SELECT pg_log_standby_snapshot();",
        )
    return ok(name, f"the slot is copied{at}")
