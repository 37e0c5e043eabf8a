"""`relay doctor` on real servers: each thing is broken for real, seen, and mended by the command it gives."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, LiteralString

import psycopg
import pytest
from psycopg import pq, sql

from fix_doctor import Examine, own_server
from fix_kafka import Kafka
from fix_postgres import TEMPLATE, clone, make_template
from fix_process import RunProcess
from fix_proxy import TcpProxy
from fix_relay import RelayUnderTest
from fix_waiting import eventually
from relay.embedded_postgres import EmbeddedPostgres

# Not by command line, which ALTER SYSTEM couldn't change: what the tests break is as the manual's defaults.
OWN: Final = {"max_prepared_transactions": "2", "max_wal_size": "32MB", "min_wal_size": "32MB"}
NOW: Final = ("--old-transaction-s", "0")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A server of this file's own, that it may set as it likes."""
    with own_server(OWN) as server:
        make_template(server)
        yield server


@pytest.fixture
def ill(
    server: EmbeddedPostgres, kafka: Kafka, topic_prefix: str, run_process: RunProcess
) -> Iterator[RelayUnderTest]:
    """A relay on that server, initialised and never run; settings are put back at the end."""
    database = clone(server, TEMPLATE, "doctor")
    under_test = RelayUnderTest(database, kafka, topic_prefix, run_process)
    try:
        under_test.initialise()
        yield under_test
    finally:
        under_test.owner.execute("alter system reset all")
        under_test.owner.execute("select pg_reload_conf()")
        for (gid,) in under_test.owner.execute("select gid from pg_prepared_xacts").fetchall():
            under_test.owner.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
        under_test.owner.close()
        database.drop()


def run_sql(connection: psycopg.Connection[Any], command: str) -> None:
    """What a person would paste from a finding: its statements, without the words in brackets behind."""
    for statement in command.split(";"):
        text = re.sub(r"^ *\(.*$", "", statement.strip().removeprefix("or ").strip(), flags=re.DOTALL)
        if text:
            connection.execute(text.encode())


def set_to(relay: RelayUnderTest, setting: str, value: str) -> None:
    relay.owner.execute(
        sql.SQL("alter system set {} = {}").format(sql.Identifier(setting), sql.Literal(value))
    )
    reload(relay)


def reload(relay: RelayUnderTest) -> None:
    """Reload, and wait until a new session has it."""
    before = relay.one("select pg_conf_load_time()")
    relay.owner.execute("select pg_reload_conf()")

    def loaded() -> bool:
        with relay.database.connect() as connection:
            row = connection.execute("select pg_conf_load_time() > %s", [before]).fetchone()
        return row is not None and bool(row[0])

    eventually(loaded, "the settings are loaded")


def test_a_server_setting_that_loses_events_is_found_and_its_command_mends_it(
    ill: RelayUnderTest, examine: Examine
) -> None:
    env = ill.environment()
    broken = {
        "fsync": ("off", "postgres.fsync", "error"),
        "full_page_writes": ("off", "postgres.full_page_writes", "warning"),
        "synchronous_commit": ("off", "postgres.synchronous_commit", "warning"),
        "max_slot_wal_keep_size": ("64MB", "replication.max_slot_wal_keep_size", "warning"),
        "synchronous_standby_names": ("*", "postgres.synchronous_standby_names", "error"),
    }
    if ill.owner.info.server_version >= 180000:
        broken["idle_replication_slot_timeout"] = (
            "1h",
            "replication.idle_replication_slot_timeout",
            "warning",
        )
    for setting, (value, _, _) in broken.items():
        set_to(ill, setting, value)
    found = examine(env)
    assert found.status == 1
    seen = {check: found.wrong(check) for _, check, _ in broken.values()}
    assert {check: severity for check, (severity, _) in seen.items()} == {
        check: severity for _, check, severity in broken.values()
    }
    ill.owner.execute("alter system reset synchronous_standby_names")  # its command names no standby
    for check, (_, command) in seen.items():
        if check != "postgres.synchronous_standby_names":
            run_sql(ill.owner, command)
    reload(ill)
    mended = examine(env)
    assert {check: mended.severity(check) for check in seen} == dict.fromkeys(seen, "ok")
    assert mended.status == 0


def test_no_limit_to_the_wal_kept_is_a_warning_that_only_strict_fails_by(
    ill: RelayUnderTest, examine: Examine
) -> None:
    found = examine(ill.environment())
    assert found.wrong("replication.max_slot_wal_keep_size")[0] == "warning"
    assert found.status == 0
    assert examine(ill.environment(), "--strict").status == 1


def test_a_role_that_commits_without_durability_is_named(ill: RelayUnderTest, examine: Examine) -> None:
    ill.owner.execute("drop role if exists hasty")
    ill.owner.execute("create role hasty")
    ill.owner.execute("alter role hasty set synchronous_commit = off")
    severity, command = examine(ill.environment()).wrong("postgres.synchronous_commit", "ROLE hasty")
    assert severity == "warning"
    run_sql(ill.owner, command)
    assert examine(ill.environment()).severity("postgres.synchronous_commit") == "ok"
    ill.owner.execute("drop role hasty")


def test_an_old_transaction_and_a_prepared_one_are_named_with_the_command_that_ends_them(
    ill: RelayUnderTest, examine: Examine
) -> None:
    env = ill.environment(None)
    ill.owner.execute("create table written (n int)")
    held = ill.database.connect(autocommit=False)
    held.execute("insert into written values (1)")
    pid = held.info.backend_pid
    with ill.database.connect() as forgotten:
        forgotten.execute("begin")
        forgotten.execute("create table half_done (n int)")
        forgotten.execute("prepare transaction 'forgotten'")
    assert examine(env).severity("postgres.transactions") == "ok"  # they are young
    found = examine(env, *NOW)
    of_session = found.wrong("postgres.transactions", f"pid {pid}")
    of_prepared = found.wrong("postgres.prepared_transactions", "forgotten")
    assert of_session == ("warning", f"SELECT pg_terminate_backend({pid});")
    assert of_prepared == ("warning", "COMMIT PREPARED 'forgotten'; or ROLLBACK PREPARED 'forgotten';")
    # A login that may not see since when still says who.
    hidden = examine(ill.environment("relay_reader"), *NOW).of("postgres.transactions", f"pid {pid}")
    assert (hidden["severity"], hidden["command"]) == ("note", "GRANT pg_read_all_stats TO this login;")
    run_sql(ill.owner, of_session[1])
    run_sql(ill.owner, of_prepared[1].partition(" or ")[0])
    held.close()
    mended = examine(env, *NOW)
    assert mended.severity("postgres.transactions") == "ok"
    assert mended.severity("postgres.prepared_transactions") == "ok"


def test_a_slot_is_watched_from_far_behind_to_lost(ill: RelayUnderTest, examine: Examine) -> None:
    env = ill.environment()
    assert examine(env).severity("replication.wal_status") == "ok"
    for n in range(6):
        ill.owner.execute("select pg_logical_emit_message(false, 'nobody', %s)", [str(n)])
        ill.owner.execute("select pg_switch_wal()")
    assert examine(env).wrong("replication.wal_status", "extended")[0] == "warning"
    set_to(ill, "max_slot_wal_keep_size", "1MB")
    found = examine(env)
    assert found.wrong("replication.wal_status", "unreserved")[0] == "error"
    assert found.wrong("replication.max_slot_wal_keep_size")[0] == "warning"
    ill.owner.execute("checkpoint")
    severity, command = examine(env).wrong("replication.wal_status", "lost")
    assert severity == "error"
    assert "relay outbox repair" in command
    ill.owner.execute("select pg_drop_replication_slot(%s)", [ill.slot])
    severity, command = examine(env).wrong("replication.slot")
    assert (severity, command) == ("error", "`relay init`")  # it never ran: nothing is lost yet
    ill.owner.execute("update relay.source_identity set state = 'running'")
    assert "relay outbox repair" in examine(env).wrong("replication.slot", "gone")[1]


def test_a_server_without_logical_wal_without_room_and_without_a_relay_says_so(
    kafka: Kafka, examine: Examine
) -> None:
    settings = {"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1"}
    with own_server(settings) as server:
        with psycopg.connect(server.superuser_url, autocommit=True) as connection:
            connection.execute("select pg_create_physical_replication_slot('somebody')")
        taken = pq.PGconn.connect(f"{server.superuser_url}?replication=true".encode())
        assert taken.status == pq.ConnStatus.OK
        found = examine(
            {"RELAY_DATABASE_URL": server.superuser_url, "RELAY_KAFKA_BOOTSTRAP": kafka.bootstrap}
        )
        taken.finish()
    for check in ("postgres.wal_level", "postgres.replication_slots", "postgres.wal_senders"):
        assert found.wrong(check)[0] == "error"
    assert found.wrong("replication.connection", "max_wal_senders")[0] == "error"
    for check in ("replication.slot", "outbox.migrations", "outbox.publication", "identity.state"):
        assert found.wrong(check) == ("error", "`relay init`")


def test_clocks_that_differ_are_found(
    relay: RelayUnderTest, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This machine's clock is the one that is off: Postgres has the true one.
    import time

    from relay.doctor import examine as doctor

    true = time.time

    class Shifted(doctor.Doctor):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs, clock=lambda: true() + 90)

    monkeypatch.setattr(doctor, "Doctor", Shifted)
    assert examine(relay.environment()).wrong("postgres.clock", "0:01:30 behind")[0] == "warning"


# Rights -----------------------------------------------------------------------------------------------------


def test_replication_that_only_a_group_has_is_found(relay: RelayUnderTest, examine: Examine) -> None:
    relay.owner.execute("drop role if exists heir")
    relay.owner.execute("create role heir login password 'heir' in role relay_replicator")
    url = relay.database.server.url(relay.database.name, user="heir", password="heir")
    env = relay.environment(RELAY_DATABASE_URL=url)
    severity, command = examine(env).wrong("replication.login", "not REPLICATION itself")
    assert severity == "error"
    run_sql(relay.owner, command.partition(" (RDS")[0])
    mended = examine(env)
    assert mended.severity("replication.login") == "ok"
    assert mended.severity("replication.connection") == "ok"
    relay.owner.execute("drop role heir")


def test_a_login_without_rights_gets_findings_and_no_traceback(
    relay: RelayUnderTest, examine: Examine
) -> None:
    relay.owner.execute("drop role if exists nobody_at_all")
    relay.owner.execute("create role nobody_at_all login password 'x'")
    url = relay.database.server.url(relay.database.name, user="nobody_at_all", password="x")
    found = examine(relay.environment(RELAY_DATABASE_URL=url))
    refused = found.of("outbox.facts", "permission denied")
    assert (refused["severity"], "relay_reader" in refused["command"]) == ("note", True)
    assert found.severity("postgres.wal_level") == "ok"
    relay.owner.execute("drop role nobody_at_all")


def test_an_outbox_that_the_relay_may_not_read_is_found(relay: RelayUnderTest, examine: Examine) -> None:
    assert examine(relay.environment("relay_reader")).severity("replication.grants") == "ok"
    relay.owner.execute("revoke select on relay.outbox from relay_replicator")
    severity, command = examine(relay.environment("relay_reader")).wrong("replication.grants")
    assert severity == "error"
    run_sql(relay.owner, command)
    assert examine(relay.environment("relay_reader")).severity("replication.grants") == "ok"


# The outbox and the relay's identity ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "check", "said"),
    [
        (
            "alter publication outbox_relay set table relay.outbox where (schema_version > 1)",
            "outbox.publication",
            "row filter",
        ),
        ("drop publication outbox_relay", "outbox.publication", "is gone"),
        ("update relay.source_identity set state = 'repairing'", "identity.state", "repair"),
        ("update relay.source_identity set publication = 'other'", "identity.state", "was made for"),
        (
            "insert into relay.schema_migration (name, checksum) values ('9999_tomorrow.sql', '')",
            "outbox.migrations",
            "9999_tomorrow.sql",
        ),
        (
            "delete from relay.schema_migration where name like '0008%'",
            "outbox.migrations",
            "lacks 0008_prune.sql",
        ),
    ],
)
def test_what_was_altered_in_the_database_is_found(
    relay: RelayUnderTest, examine: Examine, statement: LiteralString, check: str, said: str
) -> None:
    env = relay.environment(None)
    assert examine(env).severity(check) in {"ok", "note"}
    relay.owner.execute(statement)
    assert examine(env).wrong(check, said)[0] == "error"


def test_slot_and_checkpoint_are_compared_as_a_start_would(
    exactly_once: RelayUnderTest, examine: Examine
) -> None:
    relay, env = exactly_once, exactly_once.environment()
    new = examine(env)
    assert new.severity("identity.checkpoint") == "note"
    assert new.severity("identity.state") == "note"
    assert new.severity("replication.active") == "note"
    process = relay.start()
    relay.emit(3)
    relay.wait_published(process)
    running = examine(env)
    for check in ("identity.checkpoint", "identity.state", "identity.verified", "replication.active"):
        assert running.severity(check) == "ok"
    assert process.stop() == 0
    relay.wait_slot_free()
    assert examine(env).wrong("replication.active", "Nobody reads") == ("warning", "`relay run`")
    relay.write_elsewhere()
    relay.owner.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", [relay.slot])
    severity, command = examine(env).wrong("identity.checkpoint", "above the")
    assert severity == "error"
    assert "relay outbox repair" in command


def test_a_server_that_restarted_unseen_and_a_parked_event_are_found(
    ill: RelayUnderTest, examine: Examine
) -> None:
    process = ill.start()
    ill.emit(event_type="nobody.knows")
    ill.wait_published(process)
    assert process.stop() == 0
    found = examine(ill.environment())
    assert found.wrong("outbox.parked")[0] == "warning"
    assert found.wrong("schemas.known", "nobody.knows")[0] == "warning"
    ill.owner.close()
    ill.database.server.stop()
    ill.database.server.start()
    ill.owner = ill.database.connect()
    assert examine(ill.environment()).wrong("identity.verified", "was started since") == (
        "warning",
        "`relay run`",
    )


# Away -------------------------------------------------------------------------------------------------------


def test_a_server_that_is_away_is_a_finding_and_the_other_is_looked_at(
    relay: RelayUnderTest, tcp_proxy: Callable[[str, int], TcpProxy], examine: Examine
) -> None:
    server = relay.database.server
    to_postgres = tcp_proxy(server.host, server.port)
    url = relay.database.url_as("relay_replicator").replace(f":{server.port}/", f":{to_postgres.port}/")
    to_postgres.blackhole("both")
    away = examine(relay.environment(RELAY_DATABASE_URL=url))
    assert away.wrong("postgres.reachable")[0] == "error"
    assert away.severity("kafka.reachable") == "ok"
    assert away.severity("schemas.compatible") == "ok"
    to_kafka = tcp_proxy("127.0.0.1", int(relay.kafka.bootstrap.rpartition(":")[2]))
    to_kafka.blackhole("both")
    away = examine(relay.environment(RELAY_KAFKA_BOOTSTRAP=f"127.0.0.1:{to_kafka.port}"))
    assert away.wrong("kafka.reachable")[0] == "error"
    assert away.of("identity.checkpoint")["severity"] == "note"
    assert away.severity("postgres.wal_level") == "ok"
    assert away.status == 1


def test_logical_messages_as_the_source_are_looked_at_without_a_table(
    ill: RelayUnderTest, examine: Examine
) -> None:
    more = {"RELAY_OUTBOX_SOURCE": "message", "RELAY_SLOT": f"m_{ill.slot}", "RELAY_PUBLICATION": "messages"}
    before = examine(ill.environment(None, **more))
    assert before.wrong("outbox.publication", "no publication") == ("error", "`relay init`")
    ill.initialise(**more)
    found = examine(ill.environment(**more))
    for check in ("outbox.publication", "replication.slot", "replication.grants", "outbox.migrations"):
        assert found.severity(check) == "ok", check
    assert found.of("outbox.rows", "logical messages")["severity"] == "note"
    ill.owner.execute("drop publication messages")
    assert examine(ill.environment(**more)).wrong("outbox.publication", "is gone")[0] == "error"
