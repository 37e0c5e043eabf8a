"""Delivery to a bucket: an object appears when it is whole, and no part of an unfinished one stays."""

import asyncio
import hashlib
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from consumers.collect import Collect
from consumers.deliver import Deliver
from consumers.operations import providers
from consumers.providers import destination
from consumers.providers.destination import Rules
from consumers.providers.download import Kept, download
from consumers.providers.profile import Profile
from consumers.providers.simulator_world import Fault
from consumers.storage import Storage, StorageError, Wanted, open_storage, s3_uploads
from fix_files import Files, serving
from fix_postgres import Database
from fix_process import RunProcess
from fix_proxy import TcpProxy
from fix_s3 import ACCESS_KEY, BUCKET, S3, SECRET_KEY
from fix_scene import Scene
from fix_waiting import eventually
from relay import failpoints
from wire import Talk, WireServer, refused_port

pytestmark = pytest.mark.anyio

KEY: Final = f"owner/{UUID(int=3)}/0-a.bin"
PART: Final = 8 * 1024 * 1024
VERSION: Final = Kept(resource="r", etag='"1"', last_modified=None, total=None, content_type=None)
CHILD: Final = Path(__file__).resolve().parents[1] / "handle_last_event.py"
PYTHONPATH: Final = os.pathsep.join(str(CHILD.parents[up]) for up in (0, 1))
"""Fixtures, and this very checkout's package before an installed one."""
KILLED: Final = -9


@pytest.fixture
def bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


def opened(prefix: str = "team/outputs") -> Storage:
    return open_storage(f"s3://{BUCKET}/{prefix}")


def wanted(key: str = KEY) -> Wanted:
    return Wanted(delivery=UUID(int=7), token=uuid4(), ordinal=0, key=key)


async def stored(storage: Storage, content: bytes, *, before: bytes = b"") -> str:
    async with storage.incoming(wanted()) as incoming:
        if before:
            await incoming.restart(VERSION)
            await incoming.write(before)
        await incoming.restart(None)
        for start in range(0, len(content), 1_000_003):
            await incoming.write(content[start : start + 1_000_003])
        digest = incoming.sha256()
        await incoming.place()
    return digest


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 3 * PART + 5])
async def test_an_object_of_any_size_appears_whole_under_its_key(bucket: S3, size: int) -> None:
    content = os.urandom(size)
    assert await stored(opened(), content) == hashlib.sha256(content).hexdigest()
    assert bucket.keys() == [f"team/outputs/{KEY}"]
    assert bucket.read(f"team/outputs/{KEY}") == content
    assert bucket.unfinished() == []


async def test_nothing_has_the_name_and_no_part_stays_when_a_download_fails(bucket: S3) -> None:
    storage = opened()
    async with storage.incoming(wanted()) as incoming:
        await incoming.write(os.urandom(2 * PART))
        assert bucket.keys() == []
    assert (bucket.keys(), bucket.unfinished()) == ([], [])
    task = asyncio.ensure_future(_written_for_ever(storage))
    await asyncio.to_thread(eventually, lambda: bool(bucket.unfinished()), "an upload has begun")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (bucket.keys(), bucket.unfinished()) == ([], [])


async def _written_for_ever(storage: Storage) -> None:
    async with storage.incoming(wanted()) as incoming:
        while True:
            await incoming.write(os.urandom(1024 * 1024))


async def test_a_file_that_starts_anew_has_only_the_new_bytes(bucket: S3) -> None:
    content = os.urandom(PART + 17)
    await stored(opened(), content, before=os.urandom(2 * PART))
    assert bucket.read(f"team/outputs/{KEY}") == content
    assert bucket.unfinished() == []


async def test_a_cut_download_goes_on_within_one_attempt(bucket: S3) -> None:
    files = Files(os.urandom(2 * PART + 5), cuts=[PART + 3, PART // 2])
    with serving(files) as server:
        rules = Rules(
            allowed=frozenset({destination.origin(server.url)}),
            limit_bytes=4 * PART,
            deadline_s=60.0,
            redirects=0,
            connect_s=10.0,
        )
        async with opened().incoming(wanted()) as incoming:
            await download(f"{server.url}/a.bin", target=incoming, rules=rules)
            await incoming.place()
    assert len(files.heads) == 3
    assert sum(files.sent) == len(files.content)
    assert bucket.read(f"team/outputs/{KEY}") == files.content


async def test_unfinished_uploads_of_nobody_alive_are_aborted_and_no_others(bucket: S3) -> None:
    storage = opened()
    mine, other = UUID(int=3), UUID(int=4)
    bucket.begin_upload(f"team/outputs/owner/{mine}/0-a b+c.bin")
    bucket.begin_upload(f"team/outputs/owner/{other}/0-a.bin")
    bucket.begin_upload("team/outputs/somebody-elses")
    bucket.begin_upload(f"elsewhere/{mine}/0-a.bin")
    left = await storage.leftovers(0.0)
    assert sorted(left) == [mine, other]
    await storage.sweep(left[mine])
    await storage.sweep(left[mine])  # gone already
    assert bucket.unfinished() == [
        f"elsewhere/{mine}/0-a.bin",
        "team/outputs/owner/00000000-0000-0000-0000-000000000004/0-a.bin",
        "team/outputs/somebody-elses",
    ]


async def test_a_long_list_of_uploads_is_read_to_its_end(bucket: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"team/outputs/owner/{UUID(int=number)}/0-a.bin" for number in range(1, 6)]
    for key in keys:
        bucket.begin_upload(key)
    monkeypatch.setattr(s3_uploads, "_PAGE", 2)
    assert len(await opened().leftovers(0.0)) == len(keys)


REFUSED: Final = f"<Error><Code>InvalidAccessKeyId</Code>{ACCESS_KEY} {SECRET_KEY}</Error>"


def _refuses(talk: Talk) -> None:
    talk.read_request()
    talk.answer(403, REFUSED.encode(), "Content-Type: application/xml")


@pytest.mark.parametrize("changed", ["refused", "no such bucket", "away"])
async def test_a_bucket_that_refuses_says_what_to_look_at_and_no_credential(
    bucket: S3, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """The refusal's text repeats what it was asked with."""
    name = "no-such-bucket" if changed == "no such bucket" else BUCKET
    with WireServer(_refuses) as refusing:
        if changed == "refused":
            monkeypatch.setenv("AWS_ENDPOINT_URL", refusing.url)
        elif changed == "away":
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{refused_port()}")
        storage = open_storage(f"s3://{name}/team")
        for act in (stored(storage, b"content"), storage.leftovers(0.0)):
            with pytest.raises(StorageError) as caught:
                await act
            assert caught.value.remedy is not None
            assert "AWS_" in caught.value.remedy
            for secret in (SECRET_KEY, ACCESS_KEY):
                assert secret not in f"{caught.value} {caught.value.remedy}"
    assert bucket.keys() == []


def test_requests_are_signed_as_the_vendors_own_client_signs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of these tests takes every signature; a real one doesn't."""
    moment = datetime(2026, 12, 1, 8, 0, 0, tzinfo=UTC)
    monkeypatch.setattr(auth, "get_current_datetime", lambda: moment)
    uploads = s3_uploads.Uploads(
        base=f"https://s3.example:9000/{BUCKET}",
        prefix="team/a b+c~/",
        region="eu-central-1",
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        session_token="a/session+token=",
    )
    for method, url, query in (
        ("GET", uploads.base, "max-uploads=2&prefix=team%2Fa%20b%2Bc~%2F&uploads="),
        ("DELETE", f"{uploads.base}/team/a%20b%2Bc~/1-%C3%A9", "uploadId=a%2Bb%3D"),
    ):
        theirs = AWSRequest(method=method, url=f"{url}?{query}")
        theirs.context["payload_signing_enabled"] = True
        credentials = Credentials(ACCESS_KEY, SECRET_KEY, "a/session+token=")
        auth.S3SigV4Auth(credentials, "s3", "eu-central-1").add_auth(theirs)
        ours = dict(uploads.signed(method, url, query, moment))
        assert ours["Authorization"] == theirs.headers["Authorization"]
        assert ours["x-amz-date"] == theirs.headers["X-Amz-Date"]


# Through deliver ------------------------------------------------------------------------------------------


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path) as running:
        yield running


async def succeeded(scene: Scene, *faults: Fault) -> tuple[UUID, UUID]:
    operation_id = await scene.accepted(*faults)
    await scene.handle(Collect(), scene.last(operation_id, "collection.requested"))
    return operation_id, scene.delivery_of(operation_id)


URL: Final = f"s3://{BUCKET}/delivered"


def handled(
    scene: Scene, run_process: RunProcess, delivery: UUID, bucket: S3, **more: str
) -> tuple[int, str]:
    """The newest event of the delivery, in a process of its own: its exit status and all it said."""
    environment = (
        scene.environment
        | bucket.environment
        | {"PYTHONPATH": PYTHONPATH, "RELAY_OUTPUTS_URL": URL, "RELAY_LOG_LEVEL": "debug"}
        | more
    )
    child = run_process(["deliver", str(delivery)], environment, command=(sys.executable, CHILD))
    return child.wait(), child.output()


async def test_a_killed_upload_leaves_nothing_and_what_was_stored_is_not_fetched_again(
    scene: Scene, bucket: S3, run_process: RunProcess
) -> None:
    """Three outputs; killed while the second one, of several parts, is on its way."""
    operation, delivery = await succeeded(scene)
    files = Files(os.urandom(3 * PART), hold_after=2 * PART + 1024)
    outputs = scene.all("select ordinal from relay.output order by ordinal")
    with serving(files) as server:
        _allow(scene, server.url)
        scene.connection.execute(
            "update relay.output set url = %s, expected_bytes = %s, expected_sha256 = %s where ordinal = 1",
            [f"{server.url}/big", len(files.content), hashlib.sha256(files.content).hexdigest()],
        )
        environment = (
            scene.environment | bucket.environment | {"PYTHONPATH": PYTHONPATH, "RELAY_OUTPUTS_URL": URL}
        )
        child = run_process(["deliver", str(delivery)], environment, command=(sys.executable, CHILD))
        assert await asyncio.to_thread(files.held.wait, 60)
        await asyncio.to_thread(eventually, lambda: bool(bucket.unfinished()), "an upload has begun")
        assert child.kill() == KILLED
        files.release.set()
        (only,) = bucket.keys()
        assert only.rpartition("/")[2].startswith("0-")
        first = scene.simulator.truth()["downloads"]

        await scene.wake("1 hour")
        status, said = handled(scene, run_process, delivery, bucket)
        assert (status, scene.phase(delivery)) == (0, "stored"), said
    assert bucket.unfinished() == []
    assert SECRET_KEY not in said
    assert ACCESS_KEY not in said
    rows = scene.all(
        "select stored_key, stored_bytes, stored_sha256 from relay.output where operation_id = %s", operation
    )
    assert len(rows) == len(outputs) == len(bucket.keys())
    for key, size, sha256 in rows:
        content = bucket.read(f"delivered/{key}")
        assert (len(content), hashlib.sha256(content).hexdigest()) == (size, sha256)
    names = [one["name"] for one in first]
    again = [one["name"] for one in scene.simulator.truth()["downloads"][len(first) :]]
    assert not set(names) & set(again)


def _allow(scene: Scene, origin: str) -> None:
    text = scene.profile.text.replace("allowed_origins: [self]", f"allowed_origins: [self, '{origin}']")
    providers.push(scene.connection, [Profile.parse(text, source="wider")])


async def test_a_bucket_that_is_away_is_survived_and_the_delivery_goes_on(
    scene: Scene, bucket: S3, tcp_proxy: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, delivery = await succeeded(scene)
    host, port = bucket.endpoint.removeprefix("http://").split(":")
    proxy: TcpProxy = tcp_proxy(host, int(port))  # type: ignore[operator]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    proxy.cut()
    await scene.handle(Deliver(), scene.last(delivery, "delivery.requested"), RELAY_OUTPUTS_URL=URL)
    assert scene.phase(delivery) == "prepared"
    evidence = scene.one("select evidence from relay.attempt where action = 'download'")
    assert "AWS_ENDPOINT_URL" in evidence["error"]
    proxy.resume()
    await scene.wake("1 minute")
    await scene.handle(Deliver(), scene.last(delivery, "delivery.requested"), RELAY_OUTPUTS_URL=URL)
    assert scene.phase(delivery) == "stored"
    assert len(bucket.keys()) == scene.one("select count(*) from relay.output")


async def test_a_restarted_deliverer_aborts_what_its_killed_predecessor_left(
    scene: Scene, bucket: S3
) -> None:
    done, delivery = await succeeded(scene)
    at_work, other = await succeeded(scene)
    await scene.handle(Deliver(), scene.last(delivery, "delivery.requested"), RELAY_OUTPUTS_URL=URL)
    failpoints.arm(
        {"RELAY_FAILPOINTS": f"{failpoints.DELIVER_CLAIMED}=raise@1", "RELAY_ALLOW_FAILPOINTS": "1"}
    )
    try:
        with pytest.raises(failpoints.FailpointReached):
            await scene.handle(Deliver(), scene.last(other, "delivery.requested"), RELAY_OUTPUTS_URL=URL)
    finally:
        failpoints.arm({})
    assert scene.phase(other) == "claimed"
    unknown = uuid4()  # another database's, perhaps
    for operation in (done, at_work, unknown):
        bucket.begin_upload(f"delivered/studio_1/{operation}/0-a.bin")
    assert await _left_after_a_start(scene, bucket) == {str(at_work), str(unknown)}
    await scene.wake("1 hour")
    assert await _left_after_a_start(scene, bucket) == {str(unknown)}


async def _left_after_a_start(scene: Scene, bucket: S3) -> set[str]:
    """The operations of which unfinished uploads are left when a deliverer has started."""
    async with scene.context(RELAY_OUTPUTS_URL=URL) as ctx:
        await Deliver().open(ctx)
    return {key.split("/")[2] for key in bucket.unfinished()}
