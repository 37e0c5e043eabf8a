"""A restored database forgets what it submitted: nothing is paid twice, and nothing that was paid is lost."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from psycopg.types.json import Jsonb

from fix_commands import Command
from fix_kafka import Kafka
from fix_postgres import Database, clone, make_template
from fix_process import RunProcess
from fix_restore import Restorable, wait_published
from fix_standby import Pair
from fix_system import OWNER, System
from relay import failpoints
from relay.kafka.partitioner import partition_of

pytestmark = pytest.mark.slow

KILLED_AT = [name for name in vars(failpoints).values() if str(name).startswith("reconcile.")]
"""In the order in which a reconciliation passes them."""


def approve(system: System, key: str, *faults: str, max_cost: str = "5", wait: bool = True) -> UUID:
    """An operation of its own specification. With `wait` it isn't dispatched before `go`."""
    payload: dict[str, Any] = {"prompt": key, "simulate": {"fault": list(faults)}}
    found: UUID = system.one(
        "select operation_id from relay.prepare_operation(kind => 'generation', owner_id => %s,"
        " operation_key => %s, payload => %s, provider => 'simulator', max_cost => %s, not_before => %s)",
        OWNER,
        key,
        Jsonb(payload),
        Decimal(max_cost),
        datetime.now(UTC) + timedelta(days=1) if wait else None,
    )
    return found


def go(system: System, *operations: UUID) -> None:
    """What schedule does when `not_before` has passed."""
    for operation_id in operations:
        system.owner.execute(
            "update relay.operation set not_before = null where operation_id = %s", [operation_id]
        )
        system.owner.execute("select relay.emit(%s)", [operation_id])


def test_what_was_submitted_after_the_backup_is_never_posted_again(
    restorable: Restorable, run_process: RunProcess
) -> None:
    system = restorable.system
    names = ("done", "unsure", "spooled", "tail", "cancelled", "waiting")
    ids = {
        name: approve(system, name, *(["cut_before_answer"] if name == "unsure" else [])) for name in names
    }
    ids["poor"] = approve(system, "poor", max_cost="5000")
    done, unsure, spooled, tail, cancelled, waiting, poor = ids.values()
    system.start("run")
    wait_published(system)
    system.stop("run")
    restorable.keep()

    # The life that will be lost.
    system.start("run", "dispatch")
    go(system, done, unsure, poor)
    phantom = approve(system, "phantom", wait=False)
    for one, phase in ((done, "accepted"), (phantom, "accepted"), (unsure, "uncertain"), (poor, "held")):
        system.wait_for_phase(one, phase)
    system.owner.execute("select relay.request_cancel(%s, 'not wanted any more')", [cancelled])
    system.stop("dispatch")
    go(system, spooled)
    system.start("dispatch", failpoints="dispatch.answer_spooled=kill")
    system.wait_for_kill("dispatch", "dispatch.answer_spooled")
    go(system, tail)
    wait_published(system)
    system.stop("run")
    # Of this one Kafka never hears: the relay is behind when the database is lost.
    system.start("dispatch", RELAY_SPOOL=str(system.folder / "another-host"))
    system.wait_for_phase(tail, "accepted")
    system.stop("dispatch")
    sent = (done, unsure, spooled, tail, phantom)
    truth = system.truth()
    assert [system.posts(one) for one in sent] == [1] * 5
    jobs = {one: [job["job_id"] for job in truth["jobs"] if job["reference"] == str(one)] for one in sent}

    restorable.put_back()
    assert system.one("select relay.dispatch_gate()") == "the server was started since the relay verified it"
    refused = restorable.reconcile()
    assert refused.status == 1, refused.out
    assert "`relay init --accept-rewind`" in refused.err
    restorable.accept()
    assert {restorable.operation(one) for one in ids.values()} == {("held", "restored")}
    assert "relay ops reconcile" in system.one("select relay.dispatch_gate()")

    # Without --apply nothing changes; without a spool nothing is decided.
    shown = restorable.reconcile("--json")
    assert shown.status == 0, shown.err
    verdicts = {UUID(one["operation_id"]): one["verdict"] for one in shown.json["operations"]}
    assert verdicts == {
        **dict.fromkeys((done, unsure, spooled, tail), "uncertain"),
        cancelled: "hold",
        **dict.fromkeys((waiting, poor), "release"),
    }
    (only_in_kafka,) = shown.json["phantoms"]
    assert (only_in_kafka["operation_id"], only_in_kafka["job_ids"]) == (str(phantom), jobs[phantom])
    assert {restorable.operation(one) for one in ids.values()} == {("held", "restored")}
    refused = restorable.reconcile("--apply", RELAY_SPOOL=str(system.folder / "nowhere"))
    assert (refused.status, "--spool-lost" in refused.err) == (1, True), refused.err
    refused = restorable.reconcile("--apply", RELAY_TOPIC_PREFIX="another")
    assert (refused.status, "RELAY_TOPIC_PREFIX" in refused.err) == (2, True), refused.err

    for name in KILLED_AT:
        killed = run_process(
            ["ops", "reconcile", "--apply"],
            restorable.operator() | {"RELAY_FAILPOINTS": f"{name}=kill", "RELAY_ALLOW_FAILPOINTS": "1"},
        )
        killed.wait_for(f"failpoint {name} kill")
        assert killed.wait() == -9, killed.output()
        closed = system.one("select relay.dispatch_gate()")
        assert ("relay ops reconcile" in closed) == (name != failpoints.RECONCILE_OPENED)
    assert restorable.operation(done) == ("accepted", "accepted_before_restore")
    assert {restorable.operation(one) for one in (unsure, spooled, tail)} == {("uncertain", "restored")}
    assert restorable.operation(cancelled) == ("held", "restored")
    assert {restorable.operation(one)[0] for one in (waiting, poor)} == {"prepared"}
    assert "not wanted any more" in restorable.review(cancelled)["restored"]["why"]
    assert [one["to"] for one in restorable.review(unsure)["restored"]["lost"]][-2:] == [
        "submitting",
        "uncertain",
    ]
    (told,) = restorable.command("incident", "list", "--json", env=restorable.operator()).json
    assert (told["operation_id"], told["phase"]) == (str(phantom), "only in Kafka")
    incident = "select count(*), min(boundary) from relay.incident where phantom_operation_id = %s"
    assert system.one(incident, phantom) == (1, "application_commit")

    # Everything goes on, and every event comes again.
    system.forget_offsets("dispatch")
    system.start()
    go(system, waiting, poor)
    for one, phase in ((done, "succeeded"), (spooled, "succeeded"), (waiting, "succeeded"), (poor, "held")):
        system.wait_for_phase(one, phase)
    assert {restorable.operation(one)[0] for one in (unsure, tail)} == {"uncertain"}
    assert [system.posts(one) for one in (*sent, waiting, cancelled, poor)] == [1, 1, 1, 1, 1, 1, 0, 0]
    stored = system.owner.execute("select operation_id, job_id from relay.remote_job").fetchall()
    assert {(one, job) for one in (done, spooled) for job in jobs[one]} <= set(stored)
    audited = restorable.command("ops", "audit", "--json", env=restorable.operator())
    assert audited.json["findings"] == []
    nothing = restorable.reconcile("--apply")
    assert (nothing.status, nothing.out.startswith("Nothing to reconcile")) == (0, True), nothing.err


class OnPair(System):
    """Its processes know both hosts, and write to the one that takes writes."""

    def __init__(self, pair: Pair, kafka: Kafka, prefix: str, folder: Path, run_process: RunProcess) -> None:
        self.pair = pair
        super().__init__(clone(pair.primary, make_template(pair.primary)), kafka, prefix, folder, run_process)

    def environment(self, login: str | None = None) -> dict[str, str]:
        found = super().environment(login)
        return found | {"RELAY_DATABASE_URL": self.pair.both(found["RELAY_DATABASE_URL"])}

    def move(self) -> None:
        """The test looks at the standby from here on."""
        self.owner.close()
        self.database = Database(self.pair.standby, self.database.name)
        self.owner = self.database.connect()


def partition(operation_id: UUID) -> int:
    return partition_of(str(operation_id).encode(), 4)


def test_a_promotion_that_lost_a_submission_pays_for_it_once_and_what_kafka_forgot_is_held(
    pair: Pair,
    real_kafka: Kafka,
    topic_prefix: str,
    tmp_path: Path,
    run_process: RunProcess,
    command: Command,
) -> None:
    system = OnPair(pair, real_kafka, topic_prefix, tmp_path, run_process)
    restorable = Restorable(system, pair.primary, command)
    try:
        pair.set(pair.primary, "synchronized_standby_slots", "")
        system.init()
        posted = approve(system, "posted")
        waiting = [approve(system, f"waiting {number}") for number in range(6)]
        system.start("run")
        wait_published(system)
        pair.wait_caught_up()
        pair.proxy.close()

        # What follows never reaches the standby; Kafka has all of it.
        system.start("dispatch")
        go(system, posted)
        system.wait_for_phase(posted, "accepted")
        wait_published(system)
        system.stop("dispatch", "run")
        forgotten = next(partition(one) for one in waiting if partition(one) != partition(posted))
        topic = TopicPartition(f"{topic_prefix}.operation.transitioned", forgotten, OFFSET_END)
        admin = AdminClient({"bootstrap.servers": real_kafka.bootstrap})
        admin.delete_records([topic])[topic].result(60)
        pair.primary.stop("immediate")
        pair.promote()
        system.move()

        assert system.phase(posted) == "prepared"
        assert system.one("select relay.dispatch_gate()") is not None
        restorable.accept()
        applied = restorable.reconcile("--apply")
        assert applied.status == 0, applied.err
        assert f"partitions {forgotten}" in applied.out
        assert restorable.operation(posted) == ("accepted", "accepted_before_restore")
        for one in waiting:
            kept = ("held", "restored") if partition(one) == forgotten else ("prepared", "reconciled")
            assert restorable.operation(one) == kept
            if kept[0] == "held":
                assert "no longer has all" in restorable.review(one)["restored"]["why"]

        system.forget_offsets("dispatch")
        system.start()
        system.wait_for_phase(posted, "succeeded")
        assert system.posts(posted) == 1
        assert system.one("select relay.dispatch_gate()") is None
    finally:
        for process in system.processes.values():
            process.kill()
        system.owner.close()
        restorable.close()
