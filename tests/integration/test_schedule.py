"""Schedule against a real database: whatever waits for time is woken by time, and nothing else is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import psycopg
import pytest

from consumers.collect import Collect
from consumers.deliver import Deliver
from consumers.operations import claims, due
from consumers.operations.lifecycle import Hold, Phase
from fix_postgres import Database
from fix_scene import OWNER, Scene

pytestmark = pytest.mark.anyio

GENERATION: Final = "generation.requested"
COLLECTION: Final = "collection.requested"
DELIVERY: Final = "delivery.requested"


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path) as running:
        yield running


# Leases -----------------------------------------------------------------------------------------------------


async def test_a_claim_whose_lease_ran_out_is_prepared_again_with_a_new_event(scene: Scene) -> None:
    operation_id = scene.prepare()
    scene.claim(operation_id)
    await scene.wake("30 seconds")
    assert scene.phase(operation_id) == "claimed"
    await scene.wake("1 minute")
    assert scene.phase(operation_id) == "prepared"
    assert scene.one("select reserved from relay.allowance") == 0
    first, second = scene.events(operation_id, GENERATION)
    assert (first.payload["dispatch_no"], second.payload["dispatch_no"]) == (1, 2)
    assert await scene.dispatch(operation_id) == "accepted"


async def test_a_submission_whose_lease_ran_out_is_uncertain_and_never_sent_again(scene: Scene) -> None:
    operation_id = scene.prepare()
    token = scene.claim(operation_id, submitting=True)
    await scene.wake("2 minutes")
    assert scene.phase(operation_id) == "uncertain"
    assert scene.one("select outcome from relay.attempt where attempt_id = %s", token) == "unknown"
    assert scene.reviews(operation_id) == ["uncertain_submission"]
    assert scene.one("select reserved from relay.allowance") == 2
    for _ in range(3):
        await scene.wake("10 days")
    assert scene.phase(operation_id) == "uncertain"
    assert len(scene.events(operation_id, GENERATION)) == 1
    assert await scene.dispatch(operation_id) == "uncertain"
    assert scene.simulator.truth()["posts"] == []


async def test_the_review_of_an_expired_submission_has_the_profiles_deadline(scene: Scene) -> None:
    operation_id = scene.prepare()
    scene.claim(operation_id, submitting=True)
    await scene.wake("2 minutes")
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
    await scene.wake("1 hour")
    assert scene.phase(delivery) == "prepared"
    assert scene.one("select outcome from relay.attempt where action = 'download'") == "unknown"
    await scene.handle(Deliver(), scene.last(delivery, DELIVERY))
    assert scene.phase(delivery) == "stored"


# Events -----------------------------------------------------------------------------------------------------


async def test_a_lost_event_is_written_again_with_the_same_dispatch(scene: Scene) -> None:
    operation_id = scene.prepare()
    await scene.wake("2 minutes")
    first, second = scene.events(operation_id, GENERATION)
    assert first.event_id != second.event_id
    assert (first.version, first.payload) == (second.version, second.payload)
    assert scene.one("select count(*) from relay.journal") == 1
    assert await scene.dispatch(operation_id) == "accepted"


async def test_an_accepted_operation_is_asked_for_when_it_is_due_and_not_before(scene: Scene) -> None:
    operation_id = await scene.accepted()
    await scene.wake()
    assert len(scene.events(operation_id, COLLECTION)) == 1
    await scene.wake("2 minutes")
    await scene.wake()
    assert len(scene.events(operation_id, COLLECTION)) == 2


async def test_what_two_schedules_found_due_is_written_once(scene: Scene) -> None:
    operation_id = scene.prepare()
    scene.advance("2 minutes")
    async with scene.context() as ctx, ctx.pool.connection() as connection:
        found = await due.due(connection, Phase.PREPARED, 10)
        assert found == [operation_id]
        assert await due.emit_due(connection, found) == 1
        assert await due.emit_due(connection, found) == 0
    assert len(scene.events(operation_id, GENERATION)) == 2


async def test_what_may_not_be_claimed_yet_is_not_emitted_yet(scene: Scene) -> None:
    operation_id: UUID = scene.one(
        "select operation_id from relay.prepare_operation(kind => 'generation', owner_id => %s,"
        " operation_key => 'k', payload => '{}', provider => 'simulator', max_cost => 1,"
        " not_before => relay.now() + '1 hour')",
        OWNER,
    )
    await scene.wake("30 minutes")
    assert scene.events(operation_id, GENERATION) == []
    await scene.wake("31 minutes")
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
    done = await scene.wake("2 minutes")
    assert (done.actions["event"], done.actions["failed"]) == (1, 1)
    assert len(scene.events(good, GENERATION)) == 2
    assert not done.healthy


async def test_a_backlog_larger_than_a_batch_is_worked_off_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.schedule.round.BATCH", 3)
    for _ in range(8):
        scene.prepare()
    done = await scene.wake("2 minutes")
    assert done.actions["event"] == 8
    assert done.healthy


# Holds ------------------------------------------------------------------------------------------------------


async def test_what_is_held_for_its_allowance_leaves_in_order_when_it_fits(scene: Scene) -> None:
    scene.allow("0")
    waiting = [scene.prepare(max_cost=cost) for cost in ("3", "9", "3", "2")]
    for operation_id in waiting:
        assert await scene.dispatch(operation_id) == "held"
    await scene.wake("2 minutes")
    assert [scene.phase(one) for one in waiting] == ["held"] * 4
    scene.allow("5")
    await scene.wake("2 minutes")
    assert [scene.phase(one) for one in waiting] == ["prepared", "held", "held", "prepared"]
    # What is released and not yet claimed counts: nothing more is promised.
    await scene.wake("2 minutes")
    assert [scene.phase(one) for one in waiting] == ["prepared", "held", "held", "prepared"]
    for operation_id in (waiting[0], waiting[3]):
        assert await scene.dispatch(operation_id) == "accepted"
    scene.allow("1000")
    await scene.wake("2 minutes")
    for operation_id in waiting[1:3]:
        assert await scene.dispatch(operation_id) == "accepted"


async def test_what_has_no_allowance_is_looked_at_again_and_again(scene: Scene) -> None:
    operation_id = scene.prepare(owner="nobody")
    assert await scene.dispatch(operation_id) == "held"
    for _ in range(3):
        assert (await scene.wake("2 minutes")).healthy
        assert scene.phase(operation_id) == "held"
        assert scene.operation(operation_id, "next_action_at > relay.now()")
    scene.allow("10", "nobody")
    await scene.wake("2 minutes")
    assert await scene.dispatch(operation_id) == "accepted"


async def test_an_overrun_keeps_its_owner_held(scene: Scene) -> None:
    scene.allow("0")
    operation_id = scene.prepare()
    assert await scene.dispatch(operation_id) == "held"
    scene.allow("1000")
    scene.connection.execute("update relay.allowance set overrun = true")
    await scene.wake("2 minutes")
    assert scene.phase(operation_id) == "held"
    scene.allow("1000")
    await scene.wake("2 minutes")
    assert await scene.dispatch(operation_id) == "accepted"


async def test_what_is_held_for_a_pause_leaves_when_the_pause_is_over(scene: Scene) -> None:
    scene.connection.execute(
        "update relay.provider_account set paused_at = relay.now(), paused_reason = 'test'"
    )
    operation_id = scene.prepare()
    assert await scene.dispatch(operation_id) == "held"
    assert (await scene.wake("2 minutes")).healthy
    assert scene.phase(operation_id) == "held"
    scene.connection.execute("update relay.provider_account set paused_at = null, paused_reason = null")
    await scene.wake("2 minutes")
    assert scene.phase(operation_id) == "prepared"
    assert await scene.dispatch(operation_id) == "accepted"


async def test_a_hold_that_only_a_person_lifts_is_left_alone(scene: Scene) -> None:
    operation_id = scene.prepare()
    async with scene.context() as ctx, ctx.pool.connection() as connection:
        claimed = await claims.claim(
            connection, operation_id=operation_id, dispatch_no=1, token=uuid4(), worker="test", lease_s=60
        )
        assert isinstance(claimed, claims.Claim)
        await claims.hold(connection, claimed, Hold.CONFIGURATION, "test", "a setting is wrong")
    assert scene.operation(operation_id, "phase_reason") == "configuration"
    for _ in range(3):
        assert (await scene.wake("10 days")).healthy
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
    await scene.wake("1 hour")
    assert scene.one("select outcome from relay.attempt where action = 'observe'") == "open"
    await scene.wake("2 days")
    assert scene.one("select outcome from relay.attempt where action = 'observe'") == "unknown"
    assert scene.phase(operation_id) == "accepted"


async def test_a_submission_left_behind_by_a_late_id_is_closed_with_an_incident(scene: Scene) -> None:
    operation_id = scene.prepare()
    token = scene.claim(operation_id, submitting=True)
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
    await scene.wake("2 minutes")
    assert scene.one("select outcome from relay.attempt where attempt_id = %s", token) == "open"
    await scene.wake("10 minutes")
    assert scene.one("select outcome from relay.attempt where attempt_id = %s", token) == "unknown"
    assert scene.one("select boundary from relay.incident where attempt_id = %s", token) == "network"
    assert scene.one("select state from relay.reservation where attempt_id = %s", token) == "reserved"


async def test_a_review_past_its_deadline_becomes_more_urgent_and_changes_no_phase(scene: Scene) -> None:
    operation_id = scene.prepare()
    scene.claim(operation_id, submitting=True)
    await scene.wake("2 minutes")
    severities = []
    for _ in range(7):
        await scene.wake()
        await scene.wake()  # once for each deadline, however often it looks
        severities.append(scene.one("select severity from relay.review"))
        scene.advance("1 hour 1 second")
    assert severities == [1, 2, 3, 4, 5, 5, 5]
    assert scene.one("select state from relay.review") == "open"
    assert scene.one("select revision from relay.review") == 1  # nobody's view of it is stale
    assert scene.phase(operation_id) == "uncertain"
