"""Declared idempotency: an unknown submission is sent again with the same key and the same bytes inside the
window that the profile declares, not a microsecond after, and never where nothing is declared.
"""

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from consumers.operations import providers
from consumers.operations.audit import audit
from consumers.providers.profile import Profile
from consumers.providers.simulator_world import Fault, Plan
from fix_postgres import Database
from fix_scene import Scene

RETENTION_S = 600
REQUEST_S = 15  # the simulator's deadline and margin
CUT = Fault.CUT_BEFORE_ANSWER


def replaying(text: str, *changes: tuple[str, str]) -> Profile:
    """The simulator's profile, as if its provider had published that it keeps keys."""
    declared = f"idempotency: {{mode: replay, retention_s: {RETENTION_S}, between: {{min_s: 1, max_s: 5}}}}"
    for old, new in (
        ("idempotency: none", declared),
        (
            "    X-Client-Reference: ${operation_id}\n",
            "    X-Client-Reference: ${operation_id}\n    Idempotency-Key: ${idempotency_key}\n",
        ),
        *changes,
    ):
        assert old in text
        text = text.replace(old, new, 1)
    return Profile.parse(text, source="replaying")


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path, plan=Plan(polls=(1, 1))) as running:
        running.plain = running.profile  # type: ignore[attr-defined]
        running.profile = replaying(running.profile.text)
        providers.push(running.connection, [running.profile])
        yield running


def at(scene: Scene, moment: datetime) -> None:
    """The database's clock stands still at `moment`."""
    scene.connection.execute(
        "create or replace function relay.now() returns timestamptz language sql volatile parallel safe"
        f" as $$ select '{moment.isoformat()}'::timestamptz $$"
    )


def uncertain(scene: Scene, *faults: Fault) -> UUID:
    """An operation whose POST arrived, made a job, and was never answered."""
    operation = scene.prepare(*(faults or (CUT,)))
    assert asyncio.run(scene.dispatch(operation)) == "uncertain"
    return operation


def first_sent(scene: Scene, operation: UUID) -> datetime:
    sent: datetime = scene.one(
        "select min(first_sent_at) from relay.attempt where operation_id = %s and action = 'submit'",
        operation,
    )
    return sent


def posts(scene: Scene, operation: UUID) -> list[dict[str, Any]]:
    return [one for one in scene.simulator.truth()["posts"] if one["reference"] == str(operation)]


def sound(scene: Scene) -> None:
    """Nothing is wrong with the books, and nothing is stuck."""

    async def look() -> list[Any]:
        async with await psycopg.AsyncConnection.connect(scene.database.url, autocommit=True) as connection:
            return list(await audit(connection))

    assert asyncio.run(look()) == []


def test_a_lost_answer_is_found_with_the_same_key_and_the_same_bytes_and_paid_for_once(scene: Scene) -> None:
    operation = uncertain(scene)
    key, digest, sent = scene.one(
        "select idempotency_key, request_sha256, first_sent_at from relay.attempt where operation_id = %s",
        operation,
    )
    assert (key, digest is None, sent is None) == (str(operation), False, False)
    assert scene.reviews(operation) == ["uncertain_submission"]

    done = asyncio.run(scene.wake("2 seconds"))
    assert (done.actions["replayed"], scene.phase(operation)) == (1, "prepared")
    assert (
        scene.one(
            "select (from_phase, to_phase, cause)::text from relay.journal where operation_id = %s"
            " order by version desc limit 1",
            operation,
        )
        == "(uncertain,prepared,replay)"
    )
    assert asyncio.run(scene.dispatch(operation)) == "accepted"

    both = posts(scene, operation)
    (job,) = scene.simulator.truth()["jobs"]
    assert len(both) == 2
    assert both[0]["body_sha256"] == both[1]["body_sha256"]
    assert both[0]["job_id"] == both[1]["job_id"] == job["job_id"]
    assert (
        scene.all(
            "select outcome, idempotency_key = %s, request_sha256 = %s from relay.attempt"
            " where operation_id = %s and action = 'submit'",
            key,
            digest,
            operation,
        )
        == [("accepted", True, True)] * 2
    )
    # One key is one job: one reservation paid for both, and no question is left.
    assert scene.one("select count(*) from relay.reservation where operation_id = %s", operation) == 1
    assert scene.reviews(operation) == []
    from consumers.collect import Collect

    asyncio.run(scene.handle(Collect(), scene.last(operation, "collection.requested")))
    assert scene.phase(operation) == "succeeded"
    assert (
        scene.one(
            "select state || ' ' || trim_scale(settled_amount) from relay.reservation"
            " where operation_id = %s",
            operation,
        )
        == f"settled {job['charged'].rstrip('0')}"
    )
    sound(scene)


def test_the_window_ends_at_the_microsecond_for_the_schedule_and_again_before_the_first_byte(
    scene: Scene,
) -> None:
    for_schedule, for_hook = uncertain(scene), uncertain(scene)
    last = {
        one: first_sent(scene, one) + timedelta(seconds=RETENTION_S - REQUEST_S)
        for one in (for_schedule, for_hook)
    }
    a_microsecond = timedelta(microseconds=1)

    # Too late: it stays uncertain, with its review, and nobody looks again.
    at(scene, last[for_schedule])
    done = asyncio.run(scene.wake())
    assert scene.phase(for_schedule) == "uncertain"
    assert scene.operation(for_schedule, "next_action_at") is None
    assert scene.reviews(for_schedule) == ["uncertain_submission"]

    # The other one was sent a moment later, and its window is open for that moment.
    assert (done.actions["replayed"], scene.phase(for_hook)) == (1, "prepared")
    at(scene, last[for_hook] - a_microsecond)

    # Claimed in time, and too late when the first byte would have left: none does.
    from consumers.dispatch import Dispatch

    class Slow(Dispatch):
        async def _send(self, connection: Any, claimed: Any, provider: Any, request: Any) -> Any:
            at(scene, last[for_hook])
            return await super()._send(connection, claimed, provider, request)

    asyncio.run(scene.handle(Slow(), scene.last(for_hook, "generation.requested")))
    assert len(posts(scene, for_hook)) == 1
    assert scene.phase(for_hook) == "prepared"
    attempts = scene.all(
        "select outcome from relay.attempt where operation_id = %s and action = 'submit' order by started_at",
        for_hook,
    )
    assert attempts == [("unknown",), ("unsent",)]

    # And so it isn't forgotten as prepared: it is uncertain again, and a person is asked.
    at(scene, last[for_hook] + timedelta(minutes=2))
    done = asyncio.run(scene.wake())
    assert (done.actions["unreplayed"], scene.phase(for_hook)) == (1, "uncertain")
    assert scene.reviews(for_hook) == ["uncertain_submission"]
    sound(scene)


def test_the_last_microsecond_of_the_window_is_still_sent(scene: Scene) -> None:
    operation = uncertain(scene)
    at(scene, first_sent(scene, operation) + timedelta(seconds=RETENTION_S - REQUEST_S, microseconds=-1))
    asyncio.run(scene.wake())
    assert asyncio.run(scene.dispatch(operation)) == "accepted"
    assert len(posts(scene, operation)) == 2


def test_nothing_is_replayed_where_nothing_is_declared_whatever_was_sent_and_answered(scene: Scene) -> None:
    plain: Profile = scene.plain  # type: ignore[attr-defined]
    providers.push(scene.connection, [plain])
    operation = scene.prepare(CUT)
    assert asyncio.run(scene.dispatch(operation)) == "uncertain"
    # As if the request had had a key, and the server had said that it keeps them.
    scene.connection.execute("alter table relay.attempt disable trigger b_guard")
    scene.connection.execute(
        'update relay.attempt set idempotency_key = %s, evidence = \'{"headers": {"idempotent-replayed":'
        ' "true", "idempotency-key": "kept"}}\' where operation_id = %s',
        [str(operation), operation],
    )
    scene.connection.execute("alter table relay.attempt enable always trigger b_guard")
    asyncio.run(scene.wake("10 seconds"))
    assert (scene.phase(operation), len(posts(scene, operation))) == ("uncertain", 1)
    with pytest.raises(psycopg.Error, match="its profile declares no replay"):
        by_hand(scene, operation)


def by_hand(scene: Scene, operation: UUID) -> None:
    """A worker that would replay all the same."""
    with psycopg.connect(scene.database.url_as("relay_worker")) as worker:
        worker.execute(
            "select set_config('relay.actor', 'w', true), set_config('relay.cause', 'replay', true),"
            " set_config('relay.reason', 'r', true)"
        )
        worker.execute(
            "update relay.operation set phase = 'prepared', phase_reason = 'replay' where operation_id = %s",
            [operation],
        )


@pytest.mark.parametrize("status", [409, 422])
def test_a_conflict_on_a_key_that_was_sent_before_proves_nothing(scene: Scene, status: int) -> None:
    rule = f"reject:\n  - status: {status}\n    after: final\n    charged: false\n"
    if status == 422:
        rule = "reject:\n  - status: 409\n    after: final\n    charged: false\n"
    scene.profile = replaying(scene.plain.text, ("reject:\n", rule))  # type: ignore[attr-defined]
    providers.push(scene.connection, [scene.profile])
    operation = uncertain(scene)
    asyncio.run(scene.wake("2 seconds"))
    # The provider knows the key with another body, and says so: of the job that there is it says nothing.
    (key,) = scene.simulator.world.keys
    scene.simulator.world.keys[key] = ("another", scene.simulator.world.keys[key][1])
    if status == 422:
        scene.simulator.world.conflict = 422
    assert asyncio.run(scene.dispatch(operation)) == "uncertain"
    outcomes = scene.all(
        "select outcome, http_status from relay.attempt where operation_id = %s and action = 'submit'"
        " order by started_at",
        operation,
    )
    assert outcomes == [("unknown", None), ("unknown", status)]
    assert scene.reviews(operation) == ["uncertain_submission"]
    assert scene.one("select count(*) from relay.reservation where operation_id = %s", operation) == 1
    sound(scene)


def test_what_can_not_be_replayed_now_is_uncertain_again_and_never_held_cancelled_or_rejected(
    scene: Scene,
) -> None:
    rule = "reject:\n  - status: 401\n    after: final\n    charged: false\n"
    scene.profile = replaying(scene.plain.text, ("reject:\n", rule))  # type: ignore[attr-defined]
    providers.push(scene.connection, [scene.profile])
    paused, cancelled, refused = uncertain(scene), uncertain(scene), uncertain(scene)
    asyncio.run(scene.wake("2 seconds"))
    assert {scene.phase(one) for one in (paused, cancelled, refused)} == {"prepared"}

    # Refused for a reason of its own: that request made no job, and of the first one it says nothing.
    scene.simulator._secret = "rotated"
    assert asyncio.run(scene.dispatch(refused)) == "uncertain"
    assert (
        scene.one(
            "select array_agg(outcome order by started_at) from relay.attempt where operation_id = %s",
            refused,
        )
    ) == ["unknown", "refused"]
    scene.simulator._secret = "s3cret"

    scene.connection.execute("select relay.request_cancel(%s, 'changed our mind')", [cancelled])
    assert asyncio.run(scene.dispatch(cancelled)) == "uncertain"
    assert scene.operation(cancelled, "next_action_at") is None

    scene.connection.execute("update relay.provider_account set paused_at = now(), paused_reason = 'test'")
    assert asyncio.run(scene.dispatch(paused)) == "uncertain"
    asyncio.run(scene.wake("10 seconds"))
    assert scene.phase(paused) == "uncertain"
    assert scene.operation(paused, "next_action_at") is not None
    scene.connection.execute("update relay.provider_account set paused_at = null")
    asyncio.run(scene.wake("20 seconds"))
    assert asyncio.run(scene.dispatch(paused)) == "accepted"
    sound(scene)


def test_an_answer_that_comes_late_meets_its_own_replay_as_the_same_job(scene: Scene) -> None:
    from consumers.operations.answers import Applied, apply_submission
    from consumers.providers.outcome import Submission

    operation = uncertain(scene)
    asyncio.run(scene.wake("2 seconds"))
    (job,) = scene.simulator.truth()["jobs"]
    attempt = scene.one(
        "select attempt_id from relay.attempt where operation_id = %s and action = 'submit'", operation
    )
    late = Submission(verdict="accepted", reason="accepted", job_id=job["job_id"], evidence={"status": 201})

    async def told() -> Applied:
        async with await psycopg.AsyncConnection.connect(
            scene.database.url_as("relay_worker"), autocommit=True
        ) as connection:
            return await apply_submission(
                connection,
                attempt_id=attempt,
                operation_id=operation,
                outcome=late,
                profile=scene.profile,
                actor="late",
            )

    assert asyncio.run(told()) == Applied.MOVED
    assert (scene.phase(operation), scene.reviews(operation)) == ("accepted", [])
    # The replay's event is still there: it has nothing left to do.
    assert asyncio.run(scene.dispatch(operation)) == "accepted"
    assert len(posts(scene, operation)) == 1
    sound(scene)


def test_a_first_request_that_is_refused_late_keeps_its_money_for_the_replay_in_flight(scene: Scene) -> None:
    operation = uncertain(scene)
    first: UUID = scene.one("select attempt_id from relay.attempt where operation_id = %s", operation)
    asyncio.run(scene.wake("2 seconds"))
    second = uuid4()
    scene.connection.execute("alter table relay.attempt disable trigger user")
    scene.connection.execute(
        "insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker, idempotency_key,"
        " request_sha256, first_sent_at, late_delivery_until)"
        " select %s, operation_id, action, dispatch_no + 1, worker, idempotency_key, request_sha256,"
        " relay.now(), relay.now() + '1 hour' from relay.attempt where attempt_id = %s",
        [second, first],
    )
    scene.connection.execute("alter table relay.attempt enable always trigger c_money")

    def end(attempt: UUID, outcome: str) -> str:
        scene.connection.execute(
            "update relay.attempt set outcome = %s, charged = %s where attempt_id = %s",
            [outcome, False if outcome == "refused" else None, attempt],
        )
        return str(scene.one("select state from relay.reservation where attempt_id = %s", first))

    assert end(first, "refused") == "reserved"
    assert end(second, "unknown") == "reserved"
    assert end(second, "refused") == "released"
