"""What `relay doctor` makes of each fact of Postgres; the readers are tested on real servers."""

from dataclasses import replace
from typing import Any, Final

import pytest

from relay.doctor import failover, replication, server
from relay.doctor.failover import FailoverFacts, StandbyFacts
from relay.doctor.finding import Finding, Severity, error, exit_status, length, note, ok, size, warning
from relay.doctor.replication import ReplicationFacts
from relay.doctor.server import OpenTransaction, ServerFacts
from relay.wal.slot import Slot

WELL: Final = {
    "wal_level": "logical",
    "max_replication_slots": "10",
    "max_wal_senders": "10",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "synchronous_standby_names": "",
}
SERVER: Final = ServerFacts(
    version=180006,
    settings=WELL,
    overrides={},
    slots=1,
    senders=1,
    transactions=(),
    skew_s=0.01,
    look_s=0.001,
    session_pid=4711,
    backend_pid=4711,
    in_recovery=False,
    slot_exists=True,
    relay_connected=True,
)
SLOT: Final = Slot(
    name="outbox_relay",
    plugin="pgoutput",
    database="app",
    temporary=False,
    active_pid=4711,
    confirmed_flush=100,
    restart_lsn=100,
    wal_status="reserved",
    safe_wal_bytes=None,
    two_phase=False,
)
REPLICATION: Final = ReplicationFacts(
    name="outbox_relay",
    database="app",
    slot=SLOT,
    row={},
    inactive_s=None,
    settings=WELL,
    keep_bytes=50 * 1024**3,
    idle_timeout_s=0,
    ever_ran=True,
    login="relay_run",
    superuser=False,
    may_replicate=True,
    roles=frozenset({"relay_replicator"}),
    has_table=True,
    outbox='"relay"."outbox"',
    replicator_reads_outbox=True,
)
STANDBY: Final = StandbyFacts(
    host="two:5432",
    settings={
        "sync_replication_slots": "on",
        "hot_standby_feedback": "on",
        "primary_slot_name": "standby_1",
        "primary_conninfo": "host=one dbname=postgres",
    },
    copy={"synced": True, "temporary": False, "invalidation_reason": None},
)
FAILOVER: Final = FailoverFacts(
    version=180006,
    hosts=2,
    attrs="read-write",
    slot_name="outbox_relay",
    failover=True,
    settings={"synchronized_standby_slots": "standby_1"},
    physical={"standby_1": True},
    senders=1,
    standbys=(STANDBY,),
)


def wrong(findings: Any) -> list[tuple[str, str]]:
    """Check and severity of what isn't well; each such finding says why, and each but a note what to run."""
    found: list[Finding] = [finding for finding in findings if finding.severity is not Severity.OK]
    for finding in found:
        if finding.severity is not Severity.NOTE:
            assert finding.why, finding
            assert finding.command, finding
    return [(finding.check, finding.severity.value) for finding in found]


def settings(**changed: str) -> dict[str, str]:
    return {**WELL, **changed}


def test_a_healthy_server_has_no_finding() -> None:
    assert wrong(server.check(SERVER, "outbox_relay")) == []
    assert wrong(replication.check(REPLICATION)) == []
    assert wrong(failover.check(FAILOVER)) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"version": 140012}, ("postgres.version", "error")),
        ({"version": 190000}, ("postgres.version", "warning")),
        ({"in_recovery": True}, ("postgres.primary", "error")),
        ({"session_pid": 815}, ("postgres.pooler", "error")),
        ({"settings": settings(wal_level="replica")}, ("postgres.wal_level", "error")),
        ({"slots": 10}, ("postgres.replication_slots", "warning")),
        ({"slots": 10, "slot_exists": False}, ("postgres.replication_slots", "error")),
        ({"senders": 10}, ("postgres.wal_senders", "warning")),
        ({"senders": 10, "relay_connected": False}, ("postgres.wal_senders", "error")),
        ({"settings": settings(fsync="off")}, ("postgres.fsync", "error")),
        ({"settings": settings(full_page_writes="off")}, ("postgres.full_page_writes", "warning")),
        ({"settings": settings(synchronous_commit="off")}, ("postgres.synchronous_commit", "warning")),
        ({"overrides": {"ROLE app": "off"}}, ("postgres.synchronous_commit", "warning")),
        (
            {"settings": settings(synchronous_commit="local", synchronous_standby_names="standby_1")},
            ("postgres.synchronous_commit", "warning"),
        ),
        (
            {"settings": settings(synchronous_standby_names="*")},
            ("postgres.synchronous_standby_names", "error"),
        ),
        (
            {"transactions": (OpenTransaction("gone", True, 301.0),)},
            ("postgres.prepared_transactions", "warning"),
        ),
        ({"transactions": (OpenTransaction("pid 7", False, 301.0),)}, ("postgres.transactions", "warning")),
        ({"transactions": (OpenTransaction("pid 7", False, None),)}, ("postgres.transactions", "note")),
        ({"skew_s": -60.0}, ("postgres.clock", "warning")),
    ],
)
def test_each_fault_of_the_server_is_one_finding(changed: dict[str, Any], expected: tuple[str, str]) -> None:
    assert wrong(server.check(replace(SERVER, **changed), "outbox_relay")) == [expected]


def test_a_look_that_took_long_is_no_skew() -> None:
    assert wrong([server.check_clock(replace(SERVER, skew_s=6.0, look_s=3.0))]) == []


def test_a_young_transaction_is_nobodys_business() -> None:
    young = (OpenTransaction("pid 7", False, 1.0), OpenTransaction("gid", True, 1.0))
    assert wrong(server.check(replace(SERVER, transactions=young), "outbox_relay")) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"slot": None}, ("replication.slot", "error")),
        ({"slot": None, "ever_ran": False}, ("replication.slot", "error")),
        ({"slot": replace(SLOT, two_phase=True)}, ("replication.slot", "error")),
        ({"slot": replace(SLOT, active_pid=None), "inactive_s": 90.0}, ("replication.active", "warning")),
        ({"slot": replace(SLOT, active_pid=None), "ever_ran": False}, ("replication.active", "note")),
        ({"slot": replace(SLOT, wal_status="lost")}, ("replication.wal_status", "error")),
        ({"row": {"invalidation_reason": "idle_timeout"}}, ("replication.wal_status", "error")),
        (
            {"slot": replace(SLOT, wal_status="unreserved", safe_wal_bytes=-1)},
            ("replication.wal_status", "error"),
        ),
        ({"slot": replace(SLOT, wal_status="extended")}, ("replication.wal_status", "warning")),
        ({"slot": replace(SLOT, safe_wal_bytes=10 * 1024**3)}, ("replication.wal_status", "warning")),
        ({"keep_bytes": None}, ("replication.max_slot_wal_keep_size", "warning")),
        ({"keep_bytes": 64 * 1024**2}, ("replication.max_slot_wal_keep_size", "warning")),
        ({"idle_timeout_s": 3600.0}, ("replication.idle_replication_slot_timeout", "warning")),
        ({"idle_timeout_s": 7 * 86400.0}, ("replication.idle_replication_slot_timeout", "note")),
        ({"superuser": True}, ("replication.login", "note")),
        ({"may_replicate": False}, ("replication.login", "error")),
        ({"roles": frozenset({"relay_reader"})}, ("replication.login", "note")),
        ({"roles": frozenset()}, ("replication.login", "note")),
        ({"replicator_reads_outbox": False}, ("replication.grants", "error")),
        ({"replicator_reads_outbox": None}, ("replication.grants", "note")),
    ],
)
def test_each_fault_of_the_slot_is_one_finding(changed: dict[str, Any], expected: tuple[str, str]) -> None:
    assert wrong(replication.check(replace(REPLICATION, **changed))) == [expected]


def test_the_right_that_is_missing_is_granted_on_schema_and_table() -> None:
    found = replication.check_grants(replace(REPLICATION, replicator_reads_outbox=False))
    assert 'GRANT USAGE ON SCHEMA "relay" TO relay_replicator;' in found.command
    assert 'GRANT SELECT ON "relay"."outbox" TO relay_replicator;' in found.command


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"hosts": 1}, ("failover.hosts", "warning")),
        ({"attrs": ""}, ("failover.hosts", "error")),
        ({"failover": False}, ("failover.slot", "warning")),
        ({"settings": {}}, ("failover.synchronized_standby_slots", "warning")),
        ({"physical": {"other": True}}, ("failover.synchronized_standby_slots", "error")),
        ({"physical": {"standby_1": False}}, ("failover.synchronized_standby_slots", "error")),
        ({"version": 160003}, ("failover.version", "note")),
    ],
)
def test_each_fault_of_the_primary_of_a_pair_is_one_finding(
    changed: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert wrong(failover.check(replace(FAILOVER, **changed))) == [expected]


def without(name: str, value: str | None = None) -> dict[str, str]:
    assert STANDBY.settings is not None
    left = {known: set_to for known, set_to in STANDBY.settings.items() if known != name}
    return left if value is None else {**left, name: value}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"error": "connection refused"}, ("failover.standby", "warning")),
        (
            {"settings": without("sync_replication_slots", "off")},
            ("failover.sync_replication_slots", "warning"),
        ),
        ({"settings": without("hot_standby_feedback", "off")}, ("failover.hot_standby_feedback", "warning")),
        ({"settings": without("primary_slot_name", "")}, ("failover.primary_slot_name", "warning")),
        ({"settings": without("primary_conninfo", "host=one")}, ("failover.primary_conninfo", "warning")),
        ({"settings": without("primary_conninfo")}, ("failover.primary_conninfo", "note")),
        ({"copy": None}, ("failover.copy", "warning")),
        ({"copy": {"synced": False}}, ("failover.copy", "error")),
        ({"copy": {"synced": True, "temporary": True}}, ("failover.copy", "warning")),
        ({"copy": {"synced": True, "invalidation_reason": "wal_removed"}}, ("failover.copy", "error")),
    ],
)
def test_each_fault_of_a_standby_is_one_finding(changed: dict[str, Any], expected: tuple[str, str]) -> None:
    standby = replace(STANDBY, **changed)
    assert wrong(failover.check(replace(FAILOVER, standbys=(standby,)))) == [expected]


def test_a_server_without_a_standby_is_one_note() -> None:
    alone = replace(FAILOVER, hosts=1, physical={}, senders=0, standbys=())
    assert wrong(failover.check(alone)) == [("failover.standbys", "note")]


def test_only_errors_fail_unless_strict() -> None:
    well, said = ok("a.b", "x"), note("a.b", "x")
    can_break, broken = warning("a.b", "x", "y", "z"), error("a.b", "x", "y", "z")
    assert exit_status([well, said], strict=True) == 0
    assert exit_status([well, can_break], strict=False) == 0
    assert exit_status([well, can_break], strict=True) == 1
    assert exit_status([well, broken], strict=False) == 1


def test_lengths_and_sizes_read_like_a_persons() -> None:
    assert [length(s) for s in (0.5, 90.0, 7200.0, 30 * 86400.0)] == ["0.5 s", "90 s", "2 h", "30 d"]
    assert [size(b) for b in (12, 900_000, 50 * 1024**3)] == ["12 B", "879 kB", "50 GB"]
