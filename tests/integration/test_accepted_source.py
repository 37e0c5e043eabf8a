"""Another cluster and a rewound database: the relay stops, and goes on only when that is accepted."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from fix_commands import Command
from fix_kafka import Kafka
from fix_postgres import SETTINGS, clone, make_template
from fix_process import RunProcess
from fix_relay import RelayUnderTest
from fix_repair import outbox_ids, require_exactly_once_in_order
from fix_waiting import eventually
from relay.embedded_postgres import EmbeddedPostgres

pytestmark = pytest.mark.slow  # each has servers of its own


def on(server: EmbeddedPostgres, kafka: Kafka, topic_prefix: str, run_process: RunProcess) -> RelayUnderTest:
    return RelayUnderTest(clone(server, make_template(server)), kafka, topic_prefix, run_process)


def ran(relay: RelayUnderTest, count: int) -> list[str]:
    process = relay.start()
    events = relay.emit(count)
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    relay.wait_slot_free()
    return events


def audited(relay: RelayUnderTest, command: Command) -> dict[str, int]:
    """What the audit found, by kind."""
    done = command("outbox", "audit", "--json", env=relay.environment())
    found: dict[str, int] = json.loads(done.out.splitlines()[-1])["summary"]["findings"]
    return found


def test_a_lost_slot_and_then_a_restored_volume_are_mended(
    own_postgres: EmbeddedPostgres,
    real_kafka: Kafka,
    topic_prefix: str,
    run_process: RunProcess,
    command: Command,
) -> None:
    server = own_postgres
    relay = on(server, real_kafka, topic_prefix, run_process)
    relay.initialise()
    ran(relay, 2)

    # The WAL that the slot needs is gone.
    relay.owner.execute("alter system set max_slot_wal_keep_size = '1MB'")
    relay.owner.execute("select pg_reload_conf()")
    relay.emit(2)

    def lost() -> bool:
        relay.owner.execute("select pg_switch_wal()")
        relay.owner.execute("checkpoint")
        query = "select wal_status = 'lost' from pg_replication_slots where slot_name = %s"
        return bool(relay.one(query, relay.slot))

    eventually(lost, "the slot is lost")
    stopped = relay.run()
    assert stopped.wait() == 14, stopped.output()
    assert "wal_status = lost" in stopped.output()
    assert "`relay outbox repair`" in stopped.output()
    relay.owner.execute("alter system reset max_slot_wal_keep_size")
    relay.owner.execute("select pg_reload_conf()")
    repaired = command("outbox", "repair", env=relay.environment())
    assert repaired.status == 0, repaired.err
    ran(relay, 1)
    require_exactly_once_in_order(relay)
    assert audited(relay, command) == {}

    # A snapshot of the volume is put back: same cluster, same timeline, and Kafka is ahead.
    relay.owner.close()
    server.stop()
    kept = Path(tempfile.mkdtemp(prefix="relay-test-volume-")) / "data"
    subprocess.run(["cp", "-a", server.data, kept], check=True)
    server.start()
    relay.owner = relay.database.connect()
    phantoms = ran(relay, 3)
    relay.owner.close()
    server.stop()
    shutil.rmtree(server.data)
    subprocess.run(["cp", "-a", kept, server.data], check=True)
    shutil.rmtree(kept.parent)
    server.start()
    relay.owner = relay.database.connect()
    for n in range(3):  # it has gone on: its WAL may be past what Kafka has
        relay.emit(n + 1)
        relay.write_elsewhere()
    stopped = relay.run()
    assert stopped.wait() == 13, stopped.output()
    assert "The database is behind Kafka" in stopped.output()
    assert "`relay init --accept-rewind`" in stopped.output()
    refused = command("outbox", "repair", env=relay.environment())
    assert refused.status == 13, refused.err
    refused = command("init", "--accept-upgrade", env=relay.environment(None))
    assert refused.status == 2, refused.err
    assert "There is no other cluster to accept" in refused.err

    killed = run_process(
        ["init", "--accept-rewind"],
        relay.environment(None, RELAY_FAILPOINTS="repair.records_committed=kill", RELAY_ALLOW_FAILPOINTS="1"),
    )
    assert killed.wait() == -9, killed.output()
    accepted = command("outbox", "repair", env=relay.environment())  # goes on with what was accepted
    assert accepted.status == 0, accepted.err
    named = [line.split()[3] for line in accepted.err.splitlines() if line.startswith("only in Kafka")]
    assert sorted(named) == sorted(phantoms)
    assert relay.one("select state, source_accepted from relay.source_identity") == ("running", False)
    assert "rewind was accepted" in relay.one("select relay.dispatch_gate()")
    went_on = ran(relay, 2)
    records = [record for record in relay.read() if record.event_id not in phantoms]
    assert {record.event_id for record in records} >= set(went_on)
    require_exactly_once_in_order(relay, lambda: records)
    assert audited(relay, command) == {"phantom": 3}
    refused = command("init", "--accept-rewind", env=relay.environment(None))
    assert refused.status == 2, refused.err
    assert "no rewind to accept" in refused.err
    # Whoever looks is told that dispatch is closed; the command that ended said how it is opened.
    assert command("status", "--json", env=relay.environment()).json["relay"]["dispatch_closed_since"]
    examined = command("doctor", "--json", env=relay.environment()).json
    (finding,) = [one for one in examined if one["check"] == "identity.reconciled"]
    assert "`relay ops reconcile`" in accepted.out
    assert (finding["severity"], "`relay ops reconcile`" in finding["command"]) == ("warning", True)
    reconciled = command("ops", "reconcile", "--apply", "--spool-lost", env=relay.environment(None))
    assert (reconciled.status, "Dispatch is open." in reconciled.out) == (0, True), reconciled.err
    assert relay.one("select relay.dispatch_gate()") is None
    relay.owner.close()


def test_an_upgraded_cluster_is_accepted_and_the_relay_goes_on(
    own_postgres: EmbeddedPostgres,
    real_kafka: Kafka,
    topic_prefix: str,
    run_process: RunProcess,
    command: Command,
    tmp_path: Path,
) -> None:
    """pg_upgrade makes a cluster with another system identifier."""
    old = own_postgres
    relay = on(old, real_kafka, topic_prefix, run_process)
    relay.initialise()
    before = ran(relay, 2)
    relay.emit(1)  # not drained; and pg_upgrade takes no slot with it that isn't
    relay.owner.execute("select pg_drop_replication_slot(%s)", [relay.slot])
    relay.owner.close()
    folder = Path(tempfile.mkdtemp(prefix="relay-test-upgraded-"))
    new = EmbeddedPostgres(folder, settings=SETTINGS)
    try:
        new.start()
        new.stop()
        old.stop()
        for server in (old, new):  # pg_upgrade knows no password
            rules = server.data / "pg_hba.conf"
            rules.write_text("local all all trust\n" + rules.read_text(encoding="utf-8"), encoding="utf-8")
        new.call(
            "pg_upgrade",
            *("--old-datadir", old.data, "--new-datadir", new.data),
            *("--old-bindir", new.bindir, "--new-bindir", new.bindir),
            *("--username", "postgres", "--socketdir", new.socket_folder, "--no-sync"),
            *("--old-options", "-c wal_level=logical", "--new-options", "-c wal_level=logical"),
        )
        new.password = old.password
        (new.folder / "password").write_text(old.password, encoding="ascii")
        new.start()
        relay.database.server = new
        relay.owner = relay.database.connect()
        stopped = relay.run()
        assert stopped.wait() == 11, stopped.output()
        assert "`relay init --accept-upgrade`" in stopped.output()
        refused = command("outbox", "repair", env=relay.environment())
        assert refused.status == 11, refused.err
        refused = command("init", "--accept-rewind", env=relay.environment(None))
        assert refused.status == 11, refused.err
        upgraded = command("init", "--accept-upgrade", env=relay.environment(None))
        assert upgraded.status == 0, upgraded.err
        ran(relay, 2)
        assert set(outbox_ids(relay)) > set(before)
        require_exactly_once_in_order(relay)
        assert audited(relay, command) == {}
        refused = command("init", "--accept-upgrade", env=relay.environment(None))
        assert refused.status == 2, refused.err
        relay.owner.close()
    finally:
        new.stop("immediate")
        shutil.rmtree(folder)
