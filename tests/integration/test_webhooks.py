"""Webhooks over real sockets: a genuine one makes schedule look, and what a stranger sends does nothing."""

import asyncio
import hashlib
import hmac
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from consumers.collect import Collect
from consumers.operations import providers
from consumers.providers.profile import Profile
from consumers.providers.simulator_world import Plan
from consumers.webhooks import server
from consumers.webhooks.receiver import Receiver
from fix_postgres import Database
from fix_scene import Scene
from fix_waiting import eventually_async

pytestmark = pytest.mark.anyio

COLLECTION: Final = "collection.requested"
SECRET: Final = "webhook-s3cret"
SCHEME: Final = """
webhooks:
  job_id: $.job_id
  signature_header: X-Signature
  signature_prefix: "sha256="
  timestamp_header: X-Timestamp
  signed: ${timestamp}.${body}
poll: {min_s: 30, max_s: 60, factor: 1.5}
"""


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path, plan=Plan(polls=(100, 100))) as running:
        text = "\n".join(line for line in running.profile.text.splitlines() if not line.startswith("poll:"))
        running.profile = Profile.parse(text + SCHEME, source="with webhooks")
        providers.push(running.connection, [running.profile])
        yield running


@asynccontextmanager
async def receiving(scene: Scene, **changed: str) -> AsyncIterator[tuple[Receiver, int]]:
    """A receiver at a free port, which has read the profiles."""
    settings = {
        "RELAY_WEBHOOKS_PORT": "0",
        "RELAY_PROVIDER_SIMULATOR_WEBHOOK_SECRET": f"an-older-one {SECRET}",
    }
    receiver = Receiver(scene.settings(**(settings | changed)))
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(receiver.run(port.set_result))

    async def ready() -> bool:
        assert not running.done(), running.result()
        return port.done() and receiver.report().ready

    await eventually_async(ready, "the receiver has read the profiles")
    try:
        yield receiver, port.result()
    finally:
        receiver.stopping.set()
        await running


def signed(body: bytes, *, secret: str = SECRET, age_s: float = 0.0) -> dict[str, str]:
    timestamp = str(int(time.time() - age_s))
    digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"X-Timestamp": timestamp, "X-Signature": f"sha256={digest}"}


async def sent(port: int, raw: bytes) -> tuple[int | None, bytes]:
    """The status and all the bytes that come back for `raw`; None when there is no answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        await writer.drain()
        answer = await reader.read()
    except ConnectionError:
        return None, b""
    finally:
        writer.close()
    return (int(answer.split()[1]) if answer else None), answer


async def post(
    port: int, body: bytes, headers: dict[str, str], path: str = "/webhooks/simulator"
) -> tuple[int | None, bytes]:
    lines = [f"POST {path} HTTP/1.1", "Host: relay", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {text}" for name, text in headers.items()]
    return await sent(port, "\r\n".join([*lines, "", ""]).encode() + body)


def about(job_id: str, **more: object) -> bytes:
    return json.dumps({"job_id": job_id, **more}).encode()


async def observed(scene: Scene) -> tuple[str, object]:
    """An accepted operation that was asked for once and is due in half a minute or more; its job."""
    operation_id = await scene.accepted()
    await scene.handle(Collect(), scene.last(operation_id, COLLECTION))
    return str(scene.operation(operation_id, "job_id")), operation_id


def state(scene: Scene) -> list[tuple[object, ...]]:
    """All that a webhook might have touched."""
    return scene.all(
        "select operation_id, phase, version, next_action_at, nudged_at, unanswered, updated_at"
        " from relay.operation order by 1"
    )


async def test_a_genuine_webhook_makes_its_job_be_asked_for_and_is_believed_in_nothing(scene: Scene) -> None:
    job_id, operation_id = await observed(scene)
    version = scene.operation(operation_id, "version")  # type: ignore[arg-type]
    scene.advance("20 seconds")
    body = about(job_id, status="succeeded", cost="99", outputs=[{"url": "https://evil.example/x"}])
    async with receiving(scene) as (receiver, port):
        status, answer = await post(port, body, signed(body))
        assert status == 202
        assert answer.endswith(b"\r\n\r\n")  # it has no body
        assert receiver.report().ready
    # Within poll.min_s of the last look, and no sooner: half a minute after it.
    due_in = scene.one("select extract(epoch from next_action_at - observed_at)::float8 from relay.operation")
    assert due_in == 30.0
    assert scene.phase(operation_id) == "accepted"  # type: ignore[arg-type]
    assert scene.operation(operation_id, "version") == version  # type: ignore[arg-type]
    assert scene.one("select count(*) from relay.output") == 0
    await scene.wake("11 seconds")
    await scene.handle(Collect(), scene.last(operation_id, COLLECTION))  # type: ignore[arg-type]
    assert scene.simulator.truth()["gets"][job_id] == 2
    assert scene.phase(operation_id) == "accepted"  # type: ignore[arg-type]


async def test_what_is_forged_stale_broken_or_about_nobodys_job_moves_nothing(scene: Scene) -> None:
    job_id, _ = await observed(scene)
    scene.advance("1 minute")
    before = state(scene)
    body, good = about(job_id), signed(about(job_id))
    async with receiving(scene) as (_, port):
        for headers in (
            {},
            signed(body, secret="somebody else's"),
            signed(about("another")),
            {**good, "X-Timestamp": str(int(time.time()) + 1)},
            {**good, "X-Signature": good["X-Signature"][:-2] + "00"},
            {**good, "X-Signature": "sha256=zz"},
            {**good, "X-Signature": "," * 9000},
            {"X-Signature": good["X-Signature"]},
            signed(body, age_s=301),
            signed(body, age_s=-301),
        ):
            assert (await post(port, body, headers))[0] == 401, headers
        # Genuine, and about no job of ours: the answer is the one that a known job gets.
        unknown = await post(port, about("job_of_somebody"), signed(about("job_of_somebody")))
        for odd in (b"", b"{", b"[]", about(""), about("x" * 5000), b'{"job_id": {"a": 1}}', b"\xff\xfe"):
            assert await post(port, odd, signed(odd)) == unknown
        assert unknown[0] == 202
        for path in (
            "/webhooks/simulator/other",
            "/webhooks/nobody",
            "/webhooks/genace",
            "/",
            "/webhooks/a/b/c",
        ):
            assert (await post(port, body, good, path))[0] == 404
        assert state(scene) == before
        assert await post(port, body, good) == unknown
    assert state(scene) != before


async def test_a_secret_that_is_rotated_holds_beside_the_new_one(scene: Scene, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("old\n")
    nothing = {"RELAY_PROVIDER_SIMULATOR_WEBHOOK_SECRET": ""}
    bodies = [about(f"job-{number}") for number in range(3)]
    file = {"RELAY_PROVIDER_SIMULATOR_WEBHOOK_SECRET_FILE": str(secrets)}
    async with receiving(scene, **nothing, **file) as (receiver, port):

        async def statuses() -> list[int | None]:
            return [(await post(port, body, signed(body, secret=one)))[0]
                    for body, one in zip(bodies, ("old", "new", "other"), strict=True)]  # fmt: skip

        assert await statuses() == [202, 401, 401]
        secrets.write_text("old\nnew\n")
        await receiver.refresh()
        assert await statuses() == [202, 202, 401]
        secrets.write_text("new\n")
        await receiver.refresh()
        receiver._seen.clear()
        assert await statuses() == [401, 202, 401]
        secrets.unlink()
        await receiver.refresh()  # those of before hold while the file is replaced
        assert await statuses() == [401, 202, 401]
    async with receiving(scene, **nothing) as (_, port):
        assert (await post(port, bodies[0], signed(bodies[0])))[0] == 503


async def test_oversized_slow_and_broken_requests_are_cut_off_and_others_served(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 2.0)
    monkeypatch.setattr(server, "CONNECTIONS", 20)
    job_id, _ = await observed(scene)
    before = state(scene)
    big = b'{"job_id": "' + job_id.encode() + b'", "x": "' + b"x" * server.BODY_BYTES + b'"}'
    chunk = b"%x\r\n" % len(big) + big + b"\r\n0\r\n\r\n"
    start = b"POST /webhooks/simulator HTTP/1.1\r\nHost: relay\r\n"
    async with receiving(scene) as (_, port):
        assert (await post(port, big, signed(big)))[0] in (413, None)
        assert (await sent(port, start + b"Transfer-Encoding: chunked\r\n\r\n" + chunk))[0] in (413, None)
        assert (await sent(port, start + b"Content-Length: -1\r\n\r\n"))[0] in (400, 413)
        assert (await sent(port, start + b"X: " + b"y" * 2 * server.HEAD_BYTES + b"\r\n\r\n"))[0] in (
            431,
            400,
            None,
        )
        assert (await sent(port, b"\x16\x03\x01 not http\r\n\r\n"))[0] == 400
        assert (await sent(port, b"GET /webhooks/simulator HTTP/1.1\r\nHost: relay\r\n\r\n"))[0] == 405
        # As many as it serves at once, each slow for ever: the next is closed, and after their time all are.
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(server.CONNECTIONS)]
        for _, writer in slow:
            writer.write(start + b"Content-Length: 10\r\n\r\n1")
        body = about(job_id)

        async def served() -> bool:
            return (await post(port, body, signed(body)))[0] == 202

        assert [await reader.read() for reader, _ in slow] == [b""] * server.CONNECTIONS
        for _, writer in slow:
            writer.close()
        assert state(scene) == before
        await eventually_async(served, "others are served once the slow ones are cut off")
    assert state(scene) != before


async def test_a_thousand_webhooks_about_one_job_lead_to_one_get(scene: Scene) -> None:
    job_id, operation_id = await observed(scene)
    scene.advance("31 seconds")
    statements = Counter[str]()
    async with receiving(scene) as (receiver, port):
        nudge = receiver._nudge_alone

        async def counted(name: tuple[tuple[str, str], str]) -> int:
            statements["nudges"] += 1
            return await nudge(name)

        receiver._nudge_alone = counted  # type: ignore[method-assign]
        statuses = Counter[int | None]()
        for some in range(20):
            bodies = [about(job_id, progress=some * 50 + number) for number in range(50)]
            answers = await asyncio.gather(*(post(port, body, signed(body)) for body in bodies))
            statuses.update(status for status, _ in answers)
            await scene.wake()  # schedule looks between them
        # And the very first again, as a copy: the database isn't asked.
        before = statements["nudges"]
        copy = about(job_id, progress=0)
        headers = signed(copy)
        assert [(await post(port, copy, headers))[0] for _ in range(5)] == [202] * 5
        assert statements["nudges"] - before <= 1
    assert statuses == {202: 1000}
    assert statements["nudges"] < 1000
    # One event is on its way, and every one that a collector could get makes one GET together.
    events = scene.events(operation_id, COLLECTION)  # type: ignore[arg-type]
    assert len(events) == 2  # with the one that the acceptance wrote
    async with scene.context() as ctx:
        consumer = Collect()
        await consumer.open(ctx)
        for event in events:
            await consumer.handle(event, ctx)
    assert scene.simulator.truth()["gets"][job_id] == 2  # the first was before the flood


async def test_while_the_database_is_away_the_provider_is_told_to_come_again(scene: Scene) -> None:
    job_id, _ = await observed(scene)
    body = about(job_id)
    async with receiving(scene) as (receiver, port):
        await receiver._pool.close()
        assert (await post(port, body, signed(body)))[0] == 503
        assert (await post(port, body, signed(body, secret="other")))[0] == 401  # judged without it
