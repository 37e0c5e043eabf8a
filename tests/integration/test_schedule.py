"""Schedule against a real database: whatever waits for time is woken by time, and nothing else is."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest

from consumers.collect import Collect
from consumers.deliver import Deliver
from consumers.dispatch import Dispatch
from consumers.schedule.process import Schedule
from consumers.schedule.round import Done
from fix_postgres import Database
from fix_process import RunProcess
from fix_proxy import TcpProxy
from fix_scene import OWNER, Scene
from fix_waiting import eventually

pytestmark = pytest.mark.anyio

GENERATION: Final = "generation.requested"
COLLECTION: Final = "collection.requested"
DELIVERY: Final = "delivery.requested"


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path) as running:
        yield running


async def wake(scene: Scene, after: str = "0") -> Done:
    """Time passes, and schedule looks."""
    scene.advance(after)
    return await Schedule(scene.settings()).once()


async def dispatch(scene: Scene, operation_id: UUID) -> str:
    await scene.handle(Dispatch(), scene.last(operation_id, GENERATION))
    return scene.phase(operation_id)


def claim(scene: Scene, operation_id: UUID, *, submitting: bool = False) -> UUID:
    """What a dispatcher has written when it is killed: a claim, or a submission too. Returns the token."""
    token = uuid4()
    with psycopg.connect(scene.database.url_as("relay_worker")) as worker:
        worker.execute(
            "select set_config('relay.actor', 'w', true), set_config('relay.cause', 'claim', true)"
        )
        worker.execute("select set_config('relay.reason', 'r', true)")
        worker.execute(
            "update relay.operation set phase = 'claimed', phase_reason = 'claim', claim_token = %s,"
            " claimed_by = 'w', lease_expires_at = relay.now() + '1 minute' where operation_id = %s",
            [token, operation_id],
        )
        worker.execute("select relay.reserve(%s, %s)", [operation_id, token])
        if submitting:
            worker.execute(
                "insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker,"
                " late_delivery_until) values (%s, %s, 'submit', 1, 'w', relay.now() + '10 minutes')",
                [token, operation_id],
            )
            worker.execute(
                "select set_config('relay.cause', 'submit', true), set_config('relay.attempt_id', %s, true)",
                [str(token)],
            )
            worker.execute(
                "update relay.operation set phase = 'submitting', phase_reason = 'sending',"
                " lease_expires_at = relay.now() + '1 minute' where operation_id = %s",
                [operation_id],
            )
    return token


# Leases -----------------------------------------------------------------------------------------------------


async def test_a_claim_whose_lease_ran_out_is_prepared_again_with_a_new_event(scene: Scene) -> None:
    operation_id = scene.prepare()
    claim(scene, operation_id)
    await wake(scene, "30 seconds")
    assert scene.phase(operation_id) == "claimed"
    await wake(scene, "1 minute")
    assert scene.phase(operation_id) == "prepared"
    assert scene.one("select reserved from relay.allowance") == 0
    first, second = scene.events(operation_id, GENERATION)
    assert (first.payload["dispatch_no"], second.payload["dispatch_no"]) == (1, 2)
    assert await dispatch(scene, operation_id) == "accepted"


async def test_a_submission_whose_lease_ran_out_is_uncertain_and_never_sent_again(scene: Scene) -> None:
    operation_id = scene.prepare()
    token = claim(scene, operation_id, submitting=True)
    await wake(scene, "2 minutes")
    assert scene.phase(operation_id) == "uncertain"
    assert scene.one("select outcome from relay.attempt where attempt_id = %s", token) == "unknown"
    assert scene.reviews(operation_id) == ["uncertain_submission"]
    assert scene.one("select reserved from relay.allowance") == 2
    for _ in range(3):
        await wake(scene, "10 days")
    assert scene.phase(operation_id) == "uncertain"
    assert len(scene.events(operation_id, GENERATION)) == 1
    assert await dispatch(scene, operation_id) == "uncertain"
    assert scene.simulator.truth()["posts"] == []


async def test_the_review_of_an_expired_submission_has_the_profiles_deadline(scene: Scene) -> None:
    operation_id = scene.prepare()
    claim(scene, operation_id, submitting=True)
    await wake(scene, "2 minutes")
    allowed = scene.one("select extract(epoch from deadline - opened_at) from relay.review")
    assert abs(float(allowed) - scene.profile.review_deadline_s("uncertain_submission")) < 1


async def test_a_delivery_whose_lease_ran_out_is_prepared_again(scene: Scene) -> None:
    operation_id = await scene.accepted()
    await scene.handle(Collect(), scene.last(operation_id, COLLECTION))
    delivery = scene.delivery_of(operation_id)
    async with scene.context() as ctx:
        consumer = Deliver()
        await consumer.open(ctx)
        assert await consumer._claim(scene.last(delivery, DELIVERY), ctx) is not None
    await wake(scene, "1 hour")
    assert scene.phase(delivery) == "prepared"
    assert scene.one("select outcome from relay.attempt where action = 'download'") == "unknown"
    await scene.handle(Deliver(), scene.last(delivery, DELIVERY))
    assert scene.phase(delivery) == "stored"


# Events -----------------------------------------------------------------------------------------------------


async def test_a_lost_event_is_written_again_with_the_same_dispatch(scene: Scene) -> None:
    operation_id = scene.prepare()
    await wake(scene, "2 minutes")
    first, second = scene.events(operation_id, GENERATION)
    assert first.event_id != second.event_id
    assert (first.version, first.payload) == (second.version, second.payload)
    assert scene.one("select count(*) from relay.journal") == 1
    assert await dispatch(scene, operation_id) == "accepted"


async def test_an_accepted_operation_is_asked_for_when_it_is_due_and_not_before(scene: Scene) -> None:
    operation_id = await scene.accepted()
    await wake(scene)
    assert len(scene.events(operation_id, COLLECTION)) == 1
    await wake(scene, "2 minutes")
    await wake(scene)
    assert len(scene.events(operation_id, COLLECTION)) == 2


async def test_what_may_not_be_claimed_yet_is_not_emitted_yet(scene: Scene) -> None:
    operation_id: UUID = scene.one(
        "select operation_id from relay.prepare_operation(kind => 'generation', owner_id => %s,"
        " operation_key => 'k', payload => '{}', provider => 'simulator', max_cost => 1,"
        " not_before => relay.now() + '1 hour')",
        OWNER,
    )
    await wake(scene, "30 minutes")
    assert scene.events(operation_id, GENERATION) == []
    await wake(scene, "31 minutes")
    assert len(scene.events(operation_id, GENERATION)) == 1


async def test_one_refused_event_stands_in_no_others_way(scene: Scene) -> None:
    bad, good = scene.prepare(), scene.prepare()
    scene.connection.execute(
        "create function public.refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'refused'; end $$"
    )
    scene.connection.execute(
        psycopg.sql.SQL(
            "create trigger refuse before insert on relay.outbox for each row"
            " when (new.operation_id = {}) execute function public.refuse()"
        ).format(psycopg.sql.Literal(bad))
    )
    done = await wake(scene, "2 minutes")
    assert (done.actions["event"], done.actions["failed"]) == (1, 1)
    assert len(scene.events(good, GENERATION)) == 2
    assert not done.healthy


async def test_a_backlog_larger_than_a_batch_is_worked_off_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.schedule.round.BATCH", 3)
    for _ in range(8):
        scene.prepare()
    done = await wake(scene, "2 minutes")
    assert done.actions["event"] == 8
    assert done.healthy


# Holds ------------------------------------------------------------------------------------------------------


async def test_what_is_held_for_its_allowance_leaves_in_order_when_it_fits(scene: Scene) -> None:
    scene.allow("0")
    waiting = [scene.prepare(max_cost=cost) for cost in ("3", "9", "3", "2")]
    for operation_id in waiting:
        assert await dispatch(scene, operation_id) == "held"
    await wake(scene, "2 minutes")
    assert [scene.phase(one) for one in waiting] == ["held"] * 4
    scene.allow("5")
    await wake(scene, "2 minutes")
    assert [scene.phase(one) for one in waiting] == ["prepared", "held", "held", "prepared"]
    # What is released and not yet claimed counts: nothing more is promised.
    await wake(scene, "2 minutes")
    assert [scene.phase(one) for one in waiting] == ["prepared", "held", "held", "prepared"]
    for operation_id in (waiting[0], waiting[3]):
        assert await dispatch(scene, operation_id) == "accepted"
    scene.allow("1000")
    await wake(scene, "2 minutes")
    for operation_id in waiting[1:3]:
        assert await dispatch(scene, operation_id) == "accepted"


async def test_what_has_no_allowance_is_looked_at_again_and_again(scene: Scene) -> None:
    operation_id = scene.prepare(owner="nobody")
    assert await dispatch(scene, operation_id) == "held"
    for _ in range(3):
        assert (await wake(scene, "2 minutes")).healthy
        assert scene.phase(operation_id) == "held"
        assert scene.operation(operation_id, "next_action_at > relay.now()")
    scene.allow("10", "nobody")
    await wake(scene, "2 minutes")
    assert await dispatch(scene, operation_id) == "accepted"


async def test_an_overrun_keeps_its_owner_held(scene: Scene) -> None:
    scene.allow("0")
    operation_id = scene.prepare()
    assert await dispatch(scene, operation_id) == "held"
    scene.allow("1000")
    scene.connection.execute("update relay.allowance set overrun = true")
    await wake(scene, "2 minutes")
    assert scene.phase(operation_id) == "held"
    scene.allow("1000")
    await wake(scene, "2 minutes")
    assert await dispatch(scene, operation_id) == "accepted"


async def test_what_is_held_for_a_pause_leaves_when_the_pause_is_over(scene: Scene) -> None:
    scene.connection.execute(
        "update relay.provider_account set paused_at = relay.now(), paused_reason = 'test'"
    )
    operation_id = scene.prepare()
    assert await dispatch(scene, operation_id) == "held"
    assert (await wake(scene, "2 minutes")).healthy
    assert scene.phase(operation_id) == "held"
    scene.connection.execute("update relay.provider_account set paused_at = null, paused_reason = null")
    await wake(scene, "2 minutes")
    assert scene.phase(operation_id) == "prepared"
    assert await dispatch(scene, operation_id) == "accepted"


async def test_a_hold_that_only_a_person_lifts_is_left_alone(scene: Scene) -> None:
    operation_id = scene.prepare()
    await scene.handle(
        Dispatch(), scene.last(operation_id, GENERATION), RELAY_PROVIDER_SIMULATOR_SECRET_FILE="/nowhere"
    )
    assert scene.operation(operation_id, "phase_reason") == "configuration"
    for _ in range(3):
        assert (await wake(scene, "10 days")).healthy
    assert scene.phase(operation_id) == "held"
    assert scene.reviews(operation_id) == ["hold"]


# Attempts and reviews ---------------------------------------------------------------------------------------


async def test_a_get_that_its_process_never_finished_is_closed_as_unknown(scene: Scene) -> None:
    operation_id = await scene.accepted()
    scene.connection.execute(
        "insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker)"
        " values (%s, %s, 'observe', 1, 'w')",
        [uuid4(), operation_id],
    )
    await wake(scene, "1 hour")
    assert scene.one("select outcome from relay.attempt where action = 'observe'") == "open"
    await wake(scene, "2 days")
    assert scene.one("select outcome from relay.attempt where action = 'observe'") == "unknown"
    assert scene.phase(operation_id) == "accepted"


async def test_a_submission_left_behind_by_a_late_id_is_closed_with_an_incident(scene: Scene) -> None:
    operation_id = scene.prepare()
    token = claim(scene, operation_id, submitting=True)
    earlier = uuid4()
    with scene.connection.transaction():
        # An earlier attempt's answer comes late, and takes the operation from the one in flight.
        scene.connection.execute("set local session_replication_role = replica")
        scene.connection.execute("alter table relay.attempt disable trigger b_guard")
        scene.connection.execute(
            "insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker, outcome,"
            " late_delivery_until) values (%s, %s, 'submit', 1, 'w', 'accepted', relay.now())",
            [earlier, operation_id],
        )
        scene.connection.execute("alter table relay.attempt enable always trigger b_guard")
        scene.connection.execute(
            "insert into relay.remote_job (provider_account, job_id, operation_id, attempt_id, role)"
            " values ('simulator/default', 'job-late', %s, %s, 'primary')",
            [operation_id, earlier],
        )
        scene.connection.execute(
            "select set_config('relay.actor', 'w', true), set_config('relay.cause', 'late_answer', true),"
            " set_config('relay.reason', 'r', true), set_config('relay.attempt_id', %s, true)",
            [str(earlier)],
        )
        scene.connection.execute(
            "update relay.operation set phase = 'accepted', phase_reason = 'late', job_id = 'job-late'"
            " where operation_id = %s",
            [operation_id],
        )
    await wake(scene, "2 minutes")
    assert scene.one("select outcome from relay.attempt where attempt_id = %s", token) == "open"
    await wake(scene, "10 minutes")
    assert scene.one("select outcome from relay.attempt where attempt_id = %s", token) == "unknown"
    assert scene.one("select boundary from relay.incident where attempt_id = %s", token) == "network"
    assert scene.one("select state from relay.reservation where attempt_id = %s", token) == "reserved"


async def test_a_review_past_its_deadline_becomes_more_urgent_and_changes_no_phase(scene: Scene) -> None:
    operation_id = scene.prepare()
    claim(scene, operation_id, submitting=True)
    await wake(scene, "2 minutes")
    severities = []
    for _ in range(7):
        await wake(scene)
        await wake(scene)  # once for each deadline, however often it looks
        severities.append(scene.one("select severity from relay.review"))
        scene.advance("1 hour 1 second")
    assert severities == [1, 2, 3, 4, 5, 5, 5]
    assert scene.one("select state from relay.review") == "open"
    assert scene.one("select revision from relay.review") == 1  # nobody's view of it is stale
    assert scene.phase(operation_id) == "uncertain"


# The process ------------------------------------------------------------------------------------------------


def once(scene: Scene, run_process: RunProcess) -> tuple[dict[str, Any], int]:
    """`relay schedule --once --json` as the worker: what it says, and its exit status."""
    environment = scene.environment | {"RELAY_LOG_LEVEL": "error"}
    process = run_process(["schedule", "--once", "--json"], environment)
    status = process.wait()
    said: dict[str, Any] = msgspec.json.decode(process.output().splitlines()[-1])
    return said, status


def test_schedule_once_says_what_it_did_and_ends(scene: Scene, run_process: RunProcess) -> None:
    operation_id = scene.prepare()
    scene.advance("2 minutes")
    said, status = once(scene, run_process)
    assert status == 0
    assert said == {"actions": {"event": 1}, "overdue": 0, "oldest_overdue_s": 0.0}
    assert len(scene.events(operation_id, GENERATION)) == 2


def test_what_stays_overdue_fails_schedules_health(scene: Scene, run_process: RunProcess) -> None:
    operation_id = scene.prepare()
    scene.advance("10 minutes")
    with scene.connection.transaction():
        # Somebody holds the row, as a hung worker would.
        scene.connection.execute(
            "select 1 from relay.operation where operation_id = %s for update", [operation_id]
        )
        said, status = once(scene, run_process)
    assert status == 1
    assert said["overdue"] == 1
    assert said["oldest_overdue_s"] > 60


async def test_two_schedules_at_once_do_everything_once(scene: Scene) -> None:
    leased = [scene.prepare() for _ in range(20)]
    for operation_id in leased:
        claim(scene, operation_id)
    waiting = [scene.prepare() for _ in range(40)]
    scene.advance("2 minutes")
    done = await asyncio.gather(*(Schedule(scene.settings()).once() for _ in range(4)))
    assert sum(one.actions["lease_expired"] for one in done) == len(leased)
    assert sum(one.actions["event"] for one in done) == len(waiting)
    assert sum(one.actions["failed"] for one in done) == 0
    for operation_id in waiting:
        assert len(scene.events(operation_id, GENERATION)) == 2
    for operation_id in leased:
        assert [event.payload["dispatch_no"] for event in scene.events(operation_id, GENERATION)] == [1, 2]


async def test_a_row_that_a_worker_has_is_left_to_it(scene: Scene) -> None:
    operation_id = scene.prepare()
    claim(scene, operation_id, submitting=True)
    scene.advance("2 minutes")
    with scene.connection.transaction():
        scene.connection.execute(
            "select 1 from relay.operation where operation_id = %s for update", [operation_id]
        )
        done = await Schedule(scene.settings()).once()
    assert done.actions["lease_expired"] == 0
    assert scene.phase(operation_id) == "submitting"


def test_schedule_outlives_its_database_connection_and_ends_on_sigterm(
    scene: Scene, run_process: RunProcess, tcp_proxy: Callable[[str, int], TcpProxy]
) -> None:
    server = scene.database.server
    proxy = tcp_proxy(server.host, server.port)
    through = psycopg.conninfo.make_conninfo(
        scene.environment["RELAY_DATABASE_URL"], host=proxy.host, port=str(proxy.port)
    )
    environment = scene.environment | {"RELAY_DATABASE_URL": through, "RELAY_SCHEDULE_EVERY_S": "0.05"}
    process = run_process(["schedule"], environment, wait_for="schedule started")
    proxy.cut()
    process.wait_for("the database is away")
    proxy.resume()
    process.wait_for("schedule started", times=2)
    operation_id = scene.prepare()
    scene.advance("2 minutes")
    eventually(lambda: len(scene.events(operation_id, GENERATION)) == 2, "the event is written again")
    assert process.stop() == 0
    assert "schedule stopped" in process.output()


def test_a_killed_schedule_is_made_good_by_the_next(scene: Scene, run_process: RunProcess) -> None:
    operation_id = scene.prepare()
    claim(scene, operation_id, submitting=True)
    other = scene.prepare()
    scene.advance("2 minutes")
    for point in ("schedule.leases_expired", "schedule.events_emitted"):
        environment = scene.environment | {
            "RELAY_FAILPOINTS": f"{point}=kill",
            "RELAY_ALLOW_FAILPOINTS": "1",
        }
        assert run_process(["schedule", "--once"], environment).wait() == -9
    said, status = once(scene, run_process)
    assert (said["overdue"], status) == (0, 0)
    assert scene.phase(operation_id) == "uncertain"
    assert len(scene.events(other, GENERATION)) == 2


def test_a_database_that_is_away_is_one_sentence_with_once(scene: Scene, run_process: RunProcess) -> None:
    environment = scene.environment | {"RELAY_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    process = run_process(["schedule", "--once"], environment)
    assert process.wait() == 1
    assert "The database is away" in process.output()
    assert "Traceback" not in process.output()
