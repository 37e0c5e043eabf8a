"""Collection against the real simulator and a real database: it asks, it records, and it never sends."""

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest

from consumers.collect import Collect
from consumers.operations import observations
from consumers.operations.lifecycle import Phase
from consumers.operations.polling import Contradiction, Finish, Noted, Verdict
from consumers.providers.observation import Observation, Output
from consumers.providers.simulator_world import Fault, Plan
from consumers.runtime import Permanent, Transient
from fix_postgres import Database
from fix_scene import Scene
from relay.contracts import AVRO

pytestmark = pytest.mark.anyio

COLLECTION: Final = "collection.requested"


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path) as running:
        yield running


@pytest.fixture
def slow_scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    """Jobs end at their third observation."""
    with Scene(database, tmp_path, plan=Plan(polls=(3, 3))) as running:
        yield running


async def collect(scene: Scene, operation_id: UUID, **changed: str) -> None:
    await scene.handle(Collect(), scene.last(operation_id, COLLECTION), **changed)


async def collect_later(scene: Scene, operation_id: UUID) -> None:
    """The next poll is due."""
    scene.advance("1 minute")
    await collect(scene, operation_id)


async def applied(scene: Scene, operation_id: UUID, *seen: Observation) -> list[Verdict]:
    """What follows when answers, all asked for now, arrive one after another."""
    async with scene.context() as ctx, ctx.pool.connection() as connection:
        await connection.set_autocommit(True)
        subject = await observations.load(connection, operation_id)
        assert subject is not None
        assert subject.job_id is not None
        asked = [await observations.begin(connection, subject, subject.job_id, "test") for _ in seen]
        return [
            await observations.apply_observation(
                connection,
                operation_id=operation_id,
                asked=one,
                observation=observation,
                status=200,
                profile=scene.profile,
                actor="test",
            )
            for one, observation in zip(asked, seen, strict=True)
        ]


def saw(state: str, cost: str | None = None, *, outputs: int = 1) -> Observation:
    files = tuple(Output(url=f"https://files.example/{n}", name=f"{n}.bin") for n in range(outputs))
    return Observation(
        state=state,  # type: ignore[arg-type]
        reason=state,
        outputs=files if state == "succeeded" else (),
        cost=None if cost is None else Decimal(cost),
        evidence={"status": 200},
    )


# What it may send -------------------------------------------------------------------------------------------


def test_a_collection_event_carries_the_operation_and_the_job_and_nothing_else() -> None:
    schema = msgspec.json.decode((AVRO / COLLECTION / "v1.avsc").read_bytes())
    assert [field["name"] for field in schema["fields"]] == ["operation_id", "job_id"]


async def test_two_copies_of_a_collection_event_cause_only_gets(slow_scene: Scene) -> None:
    scene = slow_scene
    operation_id = await scene.accepted()
    posts = len(scene.simulator.truth()["posts"])
    event = scene.last(operation_id, COLLECTION)
    await scene.handle(Collect(), event)
    scene.advance("1 minute")
    await scene.handle(Collect(), event)
    truth = scene.simulator.truth()
    assert len(truth["posts"]) == posts == 1
    assert truth["gets"][scene.operation(operation_id, "job_id")] == 2
    assert scene.phase(operation_id) == "accepted"


async def test_two_copies_at_once_make_one_delivery(scene: Scene) -> None:
    operation_id = await scene.accepted()
    event = scene.last(operation_id, COLLECTION)
    await asyncio.gather(scene.handle(Collect(), event), scene.handle(Collect(), event))
    assert scene.phase(operation_id) == "succeeded"
    delivery = scene.delivery_of(operation_id)
    assert len(scene.events(delivery, "delivery.requested")) == 1
    assert scene.reviews(operation_id) == []
    assert len(scene.simulator.truth()["posts"]) == 1


async def test_an_event_that_comes_again_within_the_least_pace_asks_nothing(slow_scene: Scene) -> None:
    scene = slow_scene
    operation_id = await scene.accepted()
    event = scene.last(operation_id, COLLECTION)
    async with scene.context() as ctx:
        consumer = Collect()
        await consumer.open(ctx)
        await consumer.handle(event, ctx)
        scene.connection.execute("update relay.operation set observed_at = relay.now() + '1 hour'")
        await consumer.handle(event, ctx)
    assert scene.simulator.truth()["gets"][scene.operation(operation_id, "job_id")] == 1


async def test_an_event_of_a_final_operation_asks_nothing(scene: Scene) -> None:
    operation_id = await scene.accepted()
    await collect(scene, operation_id)
    await collect_later(scene, operation_id)
    assert scene.simulator.truth()["gets"][scene.operation(operation_id, "job_id")] == 1


async def test_an_event_whose_operation_is_out_of_sight_is_tried_again_and_then_parked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation_id = await scene.accepted()
    event = scene.last(operation_id, COLLECTION)
    event = replace(event, payload={"operation_id": str(uuid4()), "job_id": "job-1"})
    async with scene.context() as ctx:
        consumer = Collect()
        await consumer.open(ctx)
        with pytest.raises(Transient):
            await consumer.handle(event, ctx)
        monkeypatch.setattr(consumer._unseen, "_within_s", 0.0)
        with pytest.raises(Permanent):
            await consumer.handle(event, ctx)


# What it records --------------------------------------------------------------------------------------------


async def test_a_success_records_outputs_cost_and_one_delivery_in_one_transaction(scene: Scene) -> None:
    operation_id = await scene.accepted()
    await collect(scene, operation_id)
    job = scene.simulator.truth()["jobs"][0]
    outputs = scene.all(
        "select name, expected_sha256, expected_bytes from relay.output where operation_id = %s"
        " order by ordinal",
        operation_id,
    )
    assert outputs == [(one["name"], one["sha256"], one["size"]) for one in job["outputs"]]
    state, cost = scene.one("select state, cost from relay.remote_job")
    assert (state, cost) == ("succeeded", Decimal(job["charged"]))
    assert scene.operation(operation_id, "accounting") == "settled"
    assert scene.one("select reserved, settled from relay.allowance") == (0, Decimal(job["charged"]))
    delivery = scene.delivery_of(operation_id)
    assert len(scene.events(delivery, "delivery.requested")) == 1
    # xmin is the transaction that wrote the row.
    writers = scene.all(
        "select xmin::text from relay.output where operation_id = %(parent)s"
        " union select xmin::text from relay.journal where operation_id = %(parent)s"
        "   and cause = 'observation'"
        " union select xmin::text from relay.journal where operation_id = %(delivery)s",
        parent=operation_id,
        delivery=delivery,
    )
    assert len(writers) == 1


async def test_a_running_job_is_asked_again_at_a_growing_pace(slow_scene: Scene) -> None:
    scene = slow_scene
    operation_id = await scene.accepted()
    waits = []
    for _ in range(2):
        await collect_later(scene, operation_id)
        waits.append(scene.operation(operation_id, "extract(epoch from next_action_at - observed_at)"))
    first, second = (float(wait) for wait in waits)
    assert scene.profile.poll.min_s <= first < second
    await collect_later(scene, operation_id)
    assert scene.phase(operation_id) == "succeeded"
    outcomes = scene.all("select outcome, http_status from relay.attempt where action = 'observe'")
    assert outcomes == [("accepted", 200)] * 3


async def test_a_failed_job_is_settled_with_its_cost(scene: Scene) -> None:
    operation_id = await scene.accepted(Fault.JOB_FAILED)
    await collect(scene, operation_id)
    assert scene.phase(operation_id) == "failed"
    charged = Decimal(scene.simulator.truth()["jobs"][0]["charged"])
    assert scene.one("select reserved, settled from relay.allowance") == (0, charged)
    assert scene.one("select count(*) from relay.operation where kind = 'delivery'") == 0


async def test_a_failed_job_without_a_cost_keeps_its_reservation(scene: Scene) -> None:
    operation_id = await scene.accepted(max_cost="2")
    assert await applied(scene, operation_id, saw("failed")) == [Finish(Phase.FAILED, None)]
    assert scene.phase(operation_id) == "failed"
    assert scene.operation(operation_id, "accounting") == "unsettled"
    assert scene.one("select reserved, settled from relay.allowance") == (2, 0)


async def test_a_success_without_outputs_stays_accepted_and_is_asked_again(scene: Scene) -> None:
    operation_id = await scene.accepted()
    await applied(scene, operation_id, saw("succeeded", outputs=0))
    assert scene.phase(operation_id) == "accepted"
    assert scene.operation(operation_id, "next_action_at > relay.now()")


async def test_an_unknown_word_never_ends_an_operation(scene: Scene) -> None:
    operation_id = await scene.accepted()
    await applied(scene, operation_id, saw("unrecognised"))
    assert scene.phase(operation_id) == "accepted"
    assert scene.one("select outcome from relay.attempt where action = 'observe'") == "unknown"
    assert scene.one("select state from relay.remote_job") is None


async def test_a_provider_that_is_away_is_asked_again_later_and_its_event_is_done(scene: Scene) -> None:
    operation_id = await scene.accepted()
    scene.simulator.stop()
    await collect(scene, operation_id)
    assert scene.phase(operation_id) == "accepted"
    assert scene.operation(operation_id, "next_action_at > relay.now()")
    assert scene.one("select outcome from relay.attempt where action = 'observe'") == "unknown"


async def test_a_missing_credential_is_kept_as_what_was_seen_and_asks_nothing(scene: Scene) -> None:
    operation_id = await scene.accepted()
    await collect(scene, operation_id, RELAY_PROVIDER_SIMULATOR_SECRET_FILE="/nowhere/secret")
    outcome, evidence = scene.one("select outcome, evidence from relay.attempt where action = 'observe'")
    assert outcome == "unknown"
    assert "RELAY_PROVIDER_SIMULATOR_SECRET_FILE" in evidence["error"]
    assert scene.simulator.truth()["gets"] == {}
    assert scene.phase(operation_id) == "accepted"


# Doubt ------------------------------------------------------------------------------------------------------


async def test_a_job_that_the_provider_no_longer_knows_is_reviewed_once_and_never_failed(
    scene: Scene,
) -> None:
    operation_id = await scene.accepted()
    scene.simulator.world.jobs.clear()
    await collect(scene, operation_id)
    assert scene.reviews(operation_id) == []  # within its grace a job may not be visible yet
    for _ in range(2):
        await collect_later(scene, operation_id)
        assert scene.reviews(operation_id) == ["job_unknown"]
    assert scene.phase(operation_id) == "accepted"
    wait_s = scene.operation(operation_id, "extract(epoch from next_action_at - observed_at)")
    assert float(wait_s) >= 10 * scene.profile.poll.max_s
    evidence = scene.one("select evidence from relay.review")
    assert evidence["why"] == "not_found"
    assert evidence["observed"]["status"] == 404


async def test_a_job_that_runs_for_too_long_is_reviewed_and_may_still_succeed(slow_scene: Scene) -> None:
    scene = slow_scene
    operation_id = await scene.accepted()
    scene.advance("2 hours")
    await collect(scene, operation_id)
    assert (scene.phase(operation_id), scene.reviews(operation_id)) == ("accepted", ["job_unknown"])
    assert scene.one("select evidence->>'why' from relay.review") == "give_up"
    await collect_later(scene, operation_id)
    await collect_later(scene, operation_id)
    assert scene.phase(operation_id) == "succeeded"
    assert scene.reviews(operation_id) == []  # the question is answered


@pytest.mark.parametrize(
    ("late", "reviewed"),
    [
        (saw("failed", "0.5"), True),
        (saw("succeeded", "0.75"), True),
        (saw("succeeded", "0.5"), False),
        (saw("running"), False),
        (saw("not_found"), False),
    ],
    ids=["other state", "other cost", "the same", "overtaken", "nothing known"],
)
async def test_a_contradiction_of_a_final_state_is_stored_and_reviewed_and_not_applied(
    scene: Scene, late: Observation, reviewed: bool
) -> None:
    operation_id = await scene.accepted()
    first, second = await applied(scene, operation_id, saw("succeeded", "0.5"), late)
    assert isinstance(first, Finish)
    assert isinstance(second, Contradiction if reviewed else Noted)
    assert scene.phase(operation_id) == "succeeded"
    assert scene.reviews(operation_id) == (["contradiction"] if reviewed else [])
    assert scene.one("select state, cost from relay.remote_job") == ("succeeded", Decimal("0.5"))
    assert scene.one("select settled from relay.allowance") == Decimal("0.5")
    assert scene.one("select count(*) from relay.attempt where action = 'observe' and outcome = 'open'") == 0


async def test_a_cost_above_the_reservation_is_booked_and_stops_the_owner(scene: Scene) -> None:
    operation_id = await scene.accepted(max_cost="2")
    await applied(scene, operation_id, saw("succeeded", "3"))
    assert scene.phase(operation_id) == "succeeded"
    assert scene.one("select settled, overrun from relay.allowance") == (3, True)


async def test_costs_that_each_have_room_are_booked_together_too(scene: Scene) -> None:
    """A sum that its column can't hold would keep the last of them out of the database for ever."""
    first, second = [await scene.accepted(max_cost="2") for _ in range(2)]
    for operation_id in (first, second):
        await applied(scene, operation_id, saw("succeeded", "60000000000000"))
        assert scene.phase(operation_id) == "succeeded"
    assert scene.one("select settled, overrun from relay.allowance") == (120_000_000_000_000, True)


@pytest.mark.parametrize("cost", ["100000000000000", "1e25"])
async def test_a_cost_that_no_column_can_hold_leaves_the_reservation(scene: Scene, cost: str) -> None:
    operation_id = await scene.accepted(max_cost="2")
    await applied(scene, operation_id, saw("succeeded", cost))
    assert scene.phase(operation_id) == "succeeded"
    assert scene.operation(operation_id, "accounting") == "unsettled"
    assert scene.one("select reserved from relay.allowance") == 2


async def test_an_answer_full_of_control_characters_is_recorded(scene: Scene) -> None:
    operation_id = await scene.accepted()
    body = Observation(state="running", reason="running", evidence={"status": 200, "body": "\x01" * 16_384})
    await applied(scene, operation_id, body)
    evidence = scene.one("select evidence from relay.attempt where action = 'observe'")
    assert set(evidence) == {"status", "body_base64"}
    assert base64.b64decode(evidence["body_base64"]) == b"\x01" * 16_384


async def test_a_database_that_is_away_is_the_runtimes_to_wait_for(scene: Scene) -> None:
    operation_id = await scene.accepted()
    event = scene.last(operation_id, COLLECTION)
    async with scene.context() as ctx:
        consumer = Collect()
        await consumer.open(ctx)
        await ctx.pool.close()
        with pytest.raises(psycopg.OperationalError):
            await consumer.handle(event, ctx)
