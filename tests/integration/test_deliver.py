"""Delivery against the real simulator and a real folder: whole files under their final names, or none."""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import psycopg
import pytest

from consumers.collect import Collect
from consumers.deliver import SWEEP_AFTER_S, Deliver, Work
from consumers.operations import deliveries
from consumers.operations.deliveries import ClaimLost
from consumers.providers.download import Downloaded
from consumers.providers.simulator_world import Fault
from consumers.runtime import Context
from consumers.storage.local import INCOMING
from fix_postgres import Database
from fix_scene import Scene
from relay import failpoints
from relay.errors import Unavailable

pytestmark = pytest.mark.anyio

DELIVERY: Final = "delivery.requested"


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path) as running:
        yield running


@pytest.fixture
def armed() -> Iterator[None]:
    """Failpoints that a test arms are off again after it."""
    yield
    failpoints.arm({})


async def succeeded(scene: Scene, *faults: Fault) -> tuple[UUID, UUID]:
    """An operation whose job succeeded, and its delivery."""
    operation_id = await scene.accepted(*faults)
    await scene.handle(Collect(), scene.last(operation_id, "collection.requested"))
    assert scene.phase(operation_id) == "succeeded"
    return operation_id, scene.delivery_of(operation_id)


async def deliver(scene: Scene, delivery: UUID, **changed: str) -> str:
    """Hand the delivery's newest event to a deliverer; returns the phase after it."""
    await scene.handle(Deliver(), scene.last(delivery, DELIVERY), **changed)
    return scene.phase(delivery)


def files(scene: Scene) -> dict[str, str]:
    """What is in the storage's folder: name without its number, and SHA-256."""
    return {
        path.name.partition("-")[2]: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in scene.outputs.rglob("*")
        if path.is_file()
    }


def served(scene: Scene) -> dict[str, str]:
    return {one["name"]: one["sha256"] for one in scene.simulator.truth()["jobs"][0]["outputs"]}


def downloads(scene: Scene) -> list[str]:
    """The names of the files that left the provider whole."""
    return sorted(one["name"] for one in scene.simulator.truth()["downloads"] if one["whole"])


async def test_a_delivery_stores_every_output_with_the_digest_of_what_was_served(scene: Scene) -> None:
    operation_id, delivery = await succeeded(scene)
    assert await deliver(scene, delivery) == "stored"
    assert files(scene) == served(scene)
    rows = scene.all(
        "select stored_key, stored_sha256, stored_bytes from relay.output where operation_id = %s",
        operation_id,
    )
    assert len(rows) == len(served(scene))
    for key, sha256, size in rows:
        assert key.startswith(f"studio_1/{operation_id}/")
        content = (scene.outputs / key).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (sha256, size)


async def test_a_repeated_event_downloads_nothing_again(scene: Scene) -> None:
    _, delivery = await succeeded(scene)
    for _ in range(2):
        assert await deliver(scene, delivery) == "stored"
    assert downloads(scene) == sorted(served(scene))


async def test_two_copies_at_once_download_once(scene: Scene) -> None:
    _, delivery = await succeeded(scene)
    event = scene.last(delivery, DELIVERY)
    await asyncio.gather(scene.handle(Deliver(), event), scene.handle(Deliver(), event))
    assert scene.phase(delivery) == "stored"
    assert downloads(scene) == sorted(served(scene))


async def test_an_event_of_an_earlier_dispatch_claims_nothing(scene: Scene) -> None:
    _, delivery = await succeeded(scene, Fault.OUTPUT_CUT)
    old = scene.last(delivery, DELIVERY)
    assert await deliver(scene, delivery) == "prepared"
    scene.advance("1 hour")
    await scene.handle(Deliver(), old)
    assert scene.phase(delivery) == "prepared"
    assert scene.one("select count(*) from relay.attempt where action = 'download'") == 1


async def test_an_expired_url_is_refreshed_by_one_get_and_never_by_a_new_job(scene: Scene) -> None:
    operation_id, delivery = await succeeded(scene, Fault.OUTPUT_EXPIRED_ONCE)
    assert await deliver(scene, delivery) == "stored"
    truth = scene.simulator.truth()
    assert (len(truth["posts"]), len(truth["jobs"])) == (1, 1)
    assert truth["gets"][scene.operation(operation_id, "job_id")] == 2
    assert files(scene) == served(scene)


async def test_urls_that_expire_faster_than_all_files_are_fetched_are_refreshed_again(scene: Scene) -> None:
    """Each observation's URLs give one file. Only a URL that is new and gives nothing is expired for good."""
    operation_id, delivery = await succeeded(scene, Fault.OUTPUT_SHORT_LIVED)
    assert len(served(scene)) == 2
    assert await deliver(scene, delivery) == "stored"
    assert files(scene) == served(scene)
    truth = scene.simulator.truth()
    assert (len(truth["posts"]), truth["gets"][scene.operation(operation_id, "job_id")]) == (1, 3)


async def test_an_output_that_stays_expired_fails_the_delivery_and_asks_a_person(scene: Scene) -> None:
    operation_id, delivery = await succeeded(scene, Fault.OUTPUT_EXPIRED)
    assert await deliver(scene, delivery) == "failed"
    assert scene.reviews(delivery) == ["output_expired"]
    evidence = scene.one("select evidence from relay.review")
    assert evidence["parent_operation_id"] == str(operation_id)
    assert files(scene) == {}
    assert len(scene.simulator.truth()["posts"]) == 1


async def test_a_url_whose_job_can_not_be_asked_now_is_tried_again_later(scene: Scene) -> None:
    operation_id, delivery = await succeeded(scene, Fault.OUTPUT_EXPIRED)
    job = scene.simulator.world.jobs[scene.operation(operation_id, "job_id")]
    job.polls_needed = 100  # it says `running` again
    assert await deliver(scene, delivery) == "prepared"
    assert scene.reviews(operation_id) == ["contradiction"]
    assert scene.operation(delivery, "not_before > relay.now()")


async def test_a_cut_download_goes_on_later_and_stores_nothing_twice(scene: Scene) -> None:
    _, delivery = await succeeded(scene, Fault.OUTPUT_CUT)
    outputs = len(served(scene))
    for _ in range(outputs):
        assert await deliver(scene, delivery) == "prepared"
        assert not list((scene.outputs / INCOMING).glob("*"))
        await scene.wake("1 minute")
    assert await deliver(scene, delivery) == "stored"
    assert files(scene) == served(scene)
    assert downloads(scene) == sorted(served(scene))
    assert scene.all("select outcome from relay.attempt where action = 'download' order by started_at") == [
        *[("unknown",)] * outputs,
        ("accepted",),
    ]


async def test_downloads_that_fail_for_too_long_are_held_for_a_person(scene: Scene) -> None:
    _, delivery = await succeeded(scene)
    scene.simulator.stop()
    assert await deliver(scene, delivery) == "prepared"
    await scene.wake("2 hours")
    assert await deliver(scene, delivery) == "held"
    assert scene.operation(delivery, "phase_reason") == "unreachable"
    assert scene.reviews(delivery) == ["hold"]


async def test_a_file_that_is_not_the_announced_one_is_never_stored(scene: Scene) -> None:
    operation_id, delivery = await succeeded(scene)
    scene.connection.execute("update relay.output set expected_sha256 = %s", ["0" * 64])
    assert await deliver(scene, delivery) == "prepared"
    assert files(scene) == {}
    assert scene.one("select count(*) from relay.output where stored_key is not null") == 0
    assert scene.phase(operation_id) == "succeeded"


async def test_a_url_that_is_not_allowed_is_held_and_asked_for_nowhere(scene: Scene) -> None:
    _, delivery = await succeeded(scene)
    scene.connection.execute("update relay.output set url = 'http://127.0.0.1:9/private'")
    assert await deliver(scene, delivery) == "held"
    assert scene.operation(delivery, "phase_reason") == "output_forbidden"
    assert scene.reviews(delivery) == ["hold"]
    assert scene.simulator.truth()["downloads"] == []


async def test_a_held_delivery_that_a_person_releases_is_delivered(scene: Scene) -> None:
    _, delivery = await succeeded(scene)
    urls = scene.all("select operation_id, ordinal, url from relay.output")
    scene.connection.execute("update relay.output set url = 'http://127.0.0.1:9/private'")
    assert await deliver(scene, delivery) == "held"
    for operation_id, ordinal, url in urls:
        scene.connection.execute(
            "update relay.output set url = %s where operation_id = %s and ordinal = %s",
            [url, operation_id, ordinal],
        )
    with scene.connection.transaction():
        review = scene.one(
            "update relay.review set state = 'resolved', resolution = 'release',"
            " resolution_reason = 'mended', resolved_by = 'a person'"
            " where operation_id = %s returning review_id",
            delivery,
        )
        scene.connection.execute(
            "select set_config('relay.actor', 'a person', true), set_config('relay.cause', 'review', true),"
            " set_config('relay.reason', 'mended', true), set_config('relay.review_id', %s, true)",
            [str(review)],
        )
        scene.connection.execute(
            "update relay.operation set phase = 'prepared', phase_reason = 'release' where operation_id = %s",
            [delivery],
        )
    assert await deliver(scene, delivery) == "stored"


async def test_an_operator_may_ask_again_for_a_failed_delivery(scene: Scene) -> None:
    operation_id, delivery = await succeeded(scene, Fault.OUTPUT_EXPIRED)
    assert await deliver(scene, delivery) == "failed"
    job = scene.simulator.world.jobs[scene.operation(operation_id, "job_id")]
    job.faults -= {Fault.OUTPUT_EXPIRED}
    with scene.connection.transaction():
        scene.connection.execute(
            "select set_config('relay.actor', 'a', true), set_config('relay.cause', 'operator', true),"
            " set_config('relay.reason', 'r', true)"
        )
        scene.connection.execute(
            "update relay.operation set phase = 'prepared', phase_reason = 'again' where operation_id = %s",
            [delivery],
        )
    assert await deliver(scene, delivery) == "stored"


async def test_a_cancel_while_downloading_ends_the_delivery(scene: Scene) -> None:
    _, delivery = await succeeded(scene)
    async with scene.context() as ctx:
        consumer = Deliver()
        await consumer.open(ctx)
        work = await consumer._claim(scene.last(delivery, DELIVERY), ctx)
        assert work is not None
        scene.connection.execute("select relay.request_cancel(%s, 'not wanted')", [delivery])
        assert scene.phase(delivery) == "claimed"
        await consumer._deliver(work, ctx)
    assert scene.phase(delivery) == "cancelled"


# Crashes, leases and half-written files ---------------------------------------------------------------------


async def test_a_claim_is_given_back_when_the_process_is_told_to_stop(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, delivery = await succeeded(scene)
    async with scene.context() as ctx:
        consumer = Deliver()
        await consumer.open(ctx)
        entered = asyncio.Event()

        async def wait_for_ever(*_: object) -> None:
            entered.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(consumer, "_fetch_missing", wait_for_ever)
        task = asyncio.create_task(consumer.handle(scene.last(delivery, DELIVERY), ctx))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert scene.phase(delivery) == "prepared"
    assert len(scene.events(delivery, DELIVERY)) == 2


async def test_a_handler_that_is_tried_again_goes_on_with_its_own_claim(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, delivery = await succeeded(scene)
    event = scene.last(delivery, DELIVERY)
    async with scene.context() as ctx:
        consumer = Deliver()
        await consumer.open(ctx)
        whole = consumer._fetch_missing

        async def and_then_the_database_is_away(work: Work, ctx: Context) -> None:
            await whole(work, ctx)
            monkeypatch.undo()
            raise psycopg.OperationalError("the connection is lost")

        monkeypatch.setattr(consumer, "_fetch_missing", and_then_the_database_is_away)
        with pytest.raises(psycopg.OperationalError):
            await consumer.handle(event, ctx)
        assert scene.phase(delivery) == "claimed"
        await consumer.handle(event, ctx)
    assert scene.phase(delivery) == "stored"
    assert downloads(scene) == sorted(served(scene))
    assert scene.one("select count(*) from relay.attempt where action = 'download'") == 1


@pytest.mark.parametrize("point", [failpoints.DELIVER_DOWNLOADED, failpoints.DELIVER_PLACED])
@pytest.mark.usefixtures("armed")
async def test_a_crash_at_any_point_is_made_good_after_the_lease(scene: Scene, point: str) -> None:
    _, delivery = await succeeded(scene)
    failpoints.arm({"RELAY_FAILPOINTS": f"{point}=raise@1", "RELAY_ALLOW_FAILPOINTS": "1"})
    with pytest.raises(failpoints.FailpointReached):
        await deliver(scene, delivery)
    failpoints.arm({})
    assert scene.phase(delivery) == "claimed"
    assert scene.one("select count(*) from relay.output where stored_key is not null") == 0
    assert await deliver(scene, delivery) == "claimed"  # the lease protects whoever may still be at work
    await scene.wake("10 minutes")
    assert scene.phase(delivery) == "prepared"
    assert await deliver(scene, delivery) == "stored"
    assert files(scene) == served(scene)


async def test_whoever_lost_the_lease_records_nothing(scene: Scene) -> None:
    _, delivery = await succeeded(scene)
    async with scene.context() as ctx:
        consumer = Deliver()
        await consumer.open(ctx)
        work = await consumer._claim(scene.last(delivery, DELIVERY), ctx)
        assert work is not None
        await scene.wake("10 minutes")
        assert await deliver(scene, delivery) == "stored"
        recorded = scene.all("select stored_at from relay.output order by ordinal")
        async with ctx.pool.connection() as connection:
            parts = await deliveries.parts(connection, work.held.delivery)
            late = Downloaded(sha256="0" * 64, size=1, content_type=None, final_url="")
            with pytest.raises(ClaimLost):
                await deliveries.record_part(connection, work.held, parts[0], key="k", downloaded=late)
            with pytest.raises(ClaimLost):
                await deliveries.require(connection, work.held)
            with pytest.raises(ClaimLost):
                await deliveries.stored(connection, work.held)
    assert scene.all("select stored_at from relay.output order by ordinal") == recorded


async def test_what_nobody_will_go_on_with_is_swept_and_the_rest_is_not(scene: Scene) -> None:
    _, unfinished = await succeeded(scene)
    _, done = await succeeded(scene)
    assert await deliver(scene, done) == "stored"
    folder = scene.outputs / INCOMING
    folder.mkdir(parents=True, exist_ok=True)
    unknown, stored, of_use, young, locked = (
        folder / f"{uuid4()}-0",
        folder / f"{done}-0",
        folder / f"{unfinished}-0",
        folder / f"{uuid4()}-1",
        folder / f"{uuid4()}-2",
    )
    for path in (unknown, stored, of_use, young, locked):
        path.write_bytes(b"half")
    for path in (unknown, stored, of_use, locked):
        long_ago = path.stat().st_mtime - SWEEP_AFTER_S - 1
        os.utime(path, (long_ago, long_ago))
    async with scene.context() as ctx:
        with locked.open("rb") as at_work:
            fcntl.flock(at_work, fcntl.LOCK_EX)
            await Deliver().open(ctx)
    assert {path.name for path in folder.iterdir()} == {of_use.name, young.name, locked.name}


async def test_a_process_without_the_credential_claims_nothing(scene: Scene) -> None:
    _, delivery = await succeeded(scene)
    with pytest.raises(Unavailable, match="SECRET_FILE"):
        await deliver(scene, delivery, RELAY_PROVIDER_SIMULATOR_SECRET_FILE="/nowhere/secret")
    assert scene.phase(delivery) == "prepared"


async def test_a_full_disk_stores_nothing_and_is_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, delivery = await succeeded(scene)

    def full(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("consumers.storage.local.sync", full)
    assert await deliver(scene, delivery) == "prepared"
    assert files(scene) == {}
    monkeypatch.undo()
    await scene.wake("1 minute")
    assert await deliver(scene, delivery) == "stored"
