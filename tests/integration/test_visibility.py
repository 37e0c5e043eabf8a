"""An event can come before its commit is visible. Then it is not done: it waits, and is parked in the end."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from consumers.collect import Collect
from consumers.deliver import Deliver
from consumers.runtime import Transient
from fix_consumer import Topic, headers_of, read_all
from fix_dispatch import Dispatching
from fix_kafka import Kafka
from fix_postgres import clone, make_template
from fix_process import RunProcess
from fix_system import System
from fix_waiting import eventually
from relay.embedded_postgres import EmbeddedPostgres


@pytest.fixture
def on_own_server(
    own_postgres: EmbeddedPostgres, kafka: Kafka, topic_prefix: str, tmp_path: Path, run_process: RunProcess
) -> Iterator[System]:
    """Relay and dispatcher on a server whose synchronous standby a test may take away."""
    system = System(
        clone(own_postgres, make_template(own_postgres)), kafka, topic_prefix, tmp_path, run_process
    )
    with system.owner:
        system.init()
        yield system
        _require_standby(system, "")


def _require_standby(system: System, name: str) -> None:
    """Whom commits wait for. With one that isn't there they wait, and are shipped all the same."""
    system.owner.execute(f"alter system set synchronous_standby_names = '{name}'".encode())
    system.owner.execute("select pg_reload_conf()")
    system.wait_until(
        lambda: system.one("select current_setting('synchronous_standby_names')") == name, "it is reloaded"
    )


def _operations(system: System) -> int:
    return int(system.one("select count(*) from relay.operation"))


@pytest.mark.slow
def test_an_event_whose_commit_is_not_visible_is_not_done_and_is_dispatched_once_when_it_is(
    on_own_server: System,
) -> None:
    system = on_own_server
    system.start("run", "dispatch")
    system.processes["run"].wait_for('"event": "active"')
    system.processes["dispatch"].wait_for("partitions assigned")
    topic = Topic(system.kafka, system.prefix, "generation.requested", 4)
    group = f"{system.prefix}.dispatch"
    _require_standby(system, "absent")
    with ThreadPoolExecutor(1) as pool, system.database.connect() as application:
        approving = pool.submit(system.approve, application)
        try:
            said = system.processes["dispatch"].wait_for("There is no operation .*will try again", times=2)
            assert '"attempt": ' in said
            assert _operations(system) == 0
            assert not approving.done()
            assert system.truth()["posts"] == []
            ends = topic.ends()
            assert sum(topic.committed(group).values()) < sum(ends.values())
        finally:
            _require_standby(system, "")
        operation_id: UUID = approving.result()
    # Nobody schedules here: it is that very event that is tried again.
    system.wait_for_phase(operation_id, "accepted")
    assert system.posts(operation_id) == 1
    # Only a partition that had a record has a committed position.
    eventually(
        lambda: sum(topic.committed(group).values()) == sum(topic.ends().values()), "the event is done"
    )


@pytest.mark.slow
def test_an_event_whose_commit_stays_invisible_is_parked_and_nothing_is_sent(on_own_server: System) -> None:
    system = on_own_server
    system.start("run", "dispatch", RELAY_RETRY_FOR_S="1")
    system.processes["run"].wait_for('"event": "active"')
    system.processes["dispatch"].wait_for("partitions assigned")
    _require_standby(system, "absent")
    with ThreadPoolExecutor(1) as pool, system.database.connect() as application:
        approving = pool.submit(system.approve, application)
        try:
            parked = f"{system.prefix}.generation.requested.{system.prefix}.dispatch.dlq"
            (record,) = read_all(system.kafka, parked, 1)
            assert _operations(system) == 0
        finally:
            _require_standby(system, "")
        operation_id: UUID = approving.result()
    assert record.key() == str(operation_id).encode()
    headers = headers_of(record)
    assert headers["dlq_reason_code"] == "exhausted"
    assert "There is no operation" in headers["dlq_reason"]
    system.wait_until(
        lambda: system.one("select count(*) from relay.event_delivery where last_outcome = 'parked'") == 1,
        "the inbox says that it was parked",
    )
    assert system.one("select count(*) from relay.event_delivery where last_outcome = 'handled'") == 0
    assert system.phase(operation_id) == "prepared"
    assert system.posts(operation_id) == 0
    # Nor is the operation forgotten: it is still prepared, and is asked for again when that lasts.
    system.start("schedule", RELAY_REEMIT_AFTER_S="1")
    system.wait_for_phase(operation_id, "accepted")
    assert system.posts(operation_id) == 1


@pytest.mark.anyio
async def test_a_row_from_before_the_events_commit_does_not_make_the_event_done(
    dispatching: Dispatching,
) -> None:
    """The row is there, and still as it was: an event of its next version must wait for that version."""
    scene = dispatching
    operation_id = scene.prepared()
    await scene.begun(operation_id)
    (version,) = scene.row(operation_id, "version")
    to_come = replace(
        scene.last(operation_id, "generation.requested"),
        version=version + 1,
        payload={"operation_id": str(operation_id), "dispatch_no": 2, "job_id": "job-1"},
    )
    dispatcher = await scene.dispatcher()
    ctx = scene.own_context()
    with pytest.raises(Transient, match=rf"at version {version}, and not \(yet\) at the event's"):
        await dispatcher.handle(to_come, ctx)
    await dispatcher.close()
    with pytest.raises(Transient, match=re.escape(str(operation_id))):
        await scene.handle(Collect(), to_come)


@pytest.mark.anyio
async def test_a_delivery_from_before_the_events_commit_does_not_make_the_event_done(
    dispatching: Dispatching,
) -> None:
    scene = dispatching
    operation_id = await scene.accepted()
    for _ in range(3):
        await scene.wake("1 minute")
        await scene.handle(Collect(), scene.last(operation_id, "collection.requested"))
    delivery = scene.delivery_of(operation_id)
    event = scene.last(delivery, "delivery.requested")
    assert event.version is not None
    to_come = replace(event, version=event.version + 1, payload={**event.payload, "dispatch_no": 2})
    with pytest.raises(Transient, match=r"not \(yet\) at the event's"):
        await scene.handle(Deliver(), to_come)
    assert scene.phase(delivery) == "prepared"
