"""`relay doctor` on a primary and its standby: what a promotion would need, broken piece by piece."""

from typing import LiteralString

import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fix_doctor import Examine
from fix_standby import STANDBY, RelayOnPair
from fix_waiting import eventually

pytestmark = pytest.mark.slow


def replication_command(url: str, command: str) -> None:
    connection = pq.PGconn.connect(f"{url}?replication=database".encode())
    result = connection.exec_(command.encode())
    assert result.status == pq.ExecStatus.COMMAND_OK, result.error_message
    connection.finish()


def test_a_pair_that_a_promotion_would_break_is_found_before_it(
    relay_on_pair: RelayOnPair, examine: Examine
) -> None:
    relay, pair, env = relay_on_pair, relay_on_pair.pair, relay_on_pair.environment(None)
    at = f"{pair.standby.host}:{pair.standby.port}"
    process = relay.start_synced()
    well = examine(env)
    for check in (
        "hosts",
        "slot",
        "synchronized_standby_slots",
        "sync_replication_slots",
        "hot_standby_feedback",
        "primary_slot_name",
        "primary_conninfo",
        "copy",
    ):
        assert well.severity(f"failover.{check}") == "ok", check
    # A login that may not see primary_conninfo says so, and what it needs.
    seen_less = examine(relay.environment()).of("failover.primary_conninfo", at)
    assert (seen_less["severity"], "pg_read_all_settings" in seen_less["command"]) == ("note", True)
    assert process.stop() == 0

    # The URL: one host, then whichever answers first.
    primary_alone = relay.database.url_as("relay_replicator")
    assert examine({**env, "RELAY_DATABASE_URL": primary_alone}).wrong("failover.hosts")[0] == "warning"
    any_host = env["RELAY_DATABASE_URL"] + "?target_session_attrs=any"
    # The standby stands first, and takes reads: that is where it goes.
    assert examine({**env, "RELAY_DATABASE_URL": any_host}).wrong("postgres.primary")[0] == "error"

    # The primary's half.
    pair.set(pair.primary, "synchronized_standby_slots", "")
    severity, command = examine(env).wrong("failover.synchronized_standby_slots", "empty")
    assert (severity, f"= '{STANDBY}'" in command) == ("warning", True)
    pair.set(pair.primary, "synchronized_standby_slots", "nobody")
    assert examine(env).wrong("failover.synchronized_standby_slots", "no such")[0] == "error"
    pair.set(pair.primary, "synchronized_standby_slots", STANDBY)
    relay.wait_slot_free()
    replication_command(relay.database.url, f"ALTER_REPLICATION_SLOT {relay.slot} (FAILOVER false)")
    assert examine(env).wrong("failover.slot", "failover = false")[0] == "warning"

    def dropped() -> bool:
        # Wakes the worker: left alone it sleeps longer and longer, up to 30 s.
        pair.ask(pair.standby, "select pg_reload_conf()")
        query: LiteralString = "select count(*) = 0 from pg_replication_slots where slot_name = %s"
        return bool(pair.ask(pair.standby, query, relay.slot))

    eventually(dropped, "the standby drops its copy of what is no failover slot any more")

    # The standby's half: all that it needs is taken away. It dropped the copy with the primary's FAILOVER.
    pair.standby.stop()
    found = examine(env)
    assert found.wrong("failover.standby", at)[0] == "warning"
    assert found.wrong("failover.synchronized_standby_slots", "no standby uses")[0] == "error"
    settings = dict(pair.standby.settings)
    connects = {k: v for k, v in conninfo_to_dict(settings["primary_conninfo"]).items() if k != "dbname"}
    pair.standby.settings = {
        **settings,
        "primary_conninfo": make_conninfo("", **connects),
        "primary_slot_name": "",
        "hot_standby_feedback": "off",
        "sync_replication_slots": "off",
    }
    pair.standby.start()
    found = examine(env)
    for check in (
        "sync_replication_slots",
        "hot_standby_feedback",
        "primary_slot_name",
        "primary_conninfo",
        "copy",
    ):
        assert found.wrong(f"failover.{check}", at)[0] == "warning", check
