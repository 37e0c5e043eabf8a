"""Real deliverers in real trouble: killed in the middle of a file, a full disk, a folder that they may not
write to. Nothing half-written has a final name, the message says what to do, and it goes on after the mend.
"""

import asyncio
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from consumers.collect import Collect
from consumers.operations import providers
from consumers.providers.profile import Profile
from consumers.storage.local import INCOMING
from fix_files import Files, serving
from fix_postgres import Database
from fix_process import Process, RunProcess
from fix_scene import Scene
from fix_waiting import eventually

pytestmark = pytest.mark.anyio

CHILD: Final = Path(__file__).resolve().parents[1] / "handle_last_event.py"
PYTHONPATH: Final = os.pathsep.join(str(CHILD.parents[up]) for up in (0, 1))
"""Fixtures, and this very checkout's package before an installed one."""
KILLED: Final = -9
MIB: Final = 1024 * 1024


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path) as running:
        yield running


class Deliverer:
    """Deliverers over one delivery, each a process; `prefix` runs them in another world."""

    def __init__(self, scene: Scene, run_process: RunProcess, delivery: UUID) -> None:
        self.scene = scene
        self.delivery = delivery
        self._run = run_process

    def start(self, *prefix: str) -> Process:
        environment = self.scene.environment | {"PYTHONPATH": PYTHONPATH}
        return self._run(
            ["deliver", str(self.delivery)], environment, command=(*prefix, sys.executable, CHILD)
        )

    def deliver(self, *prefix: str) -> str:
        """To its end; the phase after it."""
        child = self.start(*prefix)
        assert child.wait() == 0, child.output()
        return self.scene.phase(self.delivery)

    def error(self) -> str:
        """What the last attempt says went wrong."""
        evidence = self.scene.one(
            "select evidence from relay.attempt where operation_id = %s order by started_at desc limit 1",
            self.delivery,
        )
        return str(evidence["error"])


async def delivery_of(scene: Scene, run_process: RunProcess) -> Deliverer:
    operation = await scene.accepted()
    await scene.handle(Collect(), scene.last(operation, "collection.requested"))
    return Deliverer(scene, run_process, scene.delivery_of(operation))


def from_server(scene: Scene, url: str, content: bytes) -> None:
    """The first output comes from `url`, which the profile of today allows."""
    origin = url.rpartition("/")[0]
    text = scene.profile.text.replace("allowed_origins: [self]", f"allowed_origins: [self, '{origin}']")
    providers.push(scene.connection, [Profile.parse(text, source="wider")])
    scene.connection.execute(
        "update relay.output set url = %s, expected_bytes = %s, expected_sha256 = %s where ordinal = 0",
        [url, len(content), hashlib.sha256(content).hexdigest()],
    )


def assert_all_stored(scene: Scene, folder: Path) -> None:
    rows: list[tuple[Any, ...]] = scene.all(
        "select stored_key, stored_bytes, stored_sha256 from relay.output"
    )
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {key for key, _, _ in rows}
    for key, size, sha256 in rows:
        content = (folder / key).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (size, sha256)


def finals(folder: Path) -> list[Path]:
    """What has a final name."""
    return [path for path in folder.rglob("*.bin") if INCOMING not in path.parts]


async def test_a_download_that_was_killed_goes_on_where_it_was(scene: Scene, run_process: RunProcess) -> None:
    deliverer = await delivery_of(scene, run_process)
    files = Files(os.urandom(5 * MIB), hold_after=3 * MIB + 1000)
    with serving(files) as server:
        from_server(scene, f"{server.url}/big.bin", files.content)
        child = deliverer.start()
        half = scene.outputs / INCOMING / f"{deliverer.delivery}-0"
        await asyncio.to_thread(
            eventually,
            lambda: half.exists() and half.stat().st_size >= 2 * MIB,
            "two of five MiB are there",
        )
        assert child.kill() == KILLED
        files.release.set()
        assert finals(scene.outputs) == []

        await scene.wake("1 hour")
        assert await asyncio.to_thread(deliverer.deliver) == "stored"
    first, second = files.ranges_asked()
    assert first is None
    assert second is not None
    assert int(second.removeprefix("bytes=").removesuffix("-")) >= 2 * MIB
    assert_all_stored(scene, scene.outputs)


async def test_whoever_slept_past_its_lease_replaces_nothing(scene: Scene, run_process: RunProcess) -> None:
    """The provider gives other bytes the second time, and what is recorded is what is there."""
    deliverer = await delivery_of(scene, run_process)
    first, second = os.urandom(2 * MIB), os.urandom(2 * MIB)
    files = Files(first, etag=None, hold_after=MIB, then=[(second, None)])
    with serving(files) as server:
        from_server(scene, f"{server.url}/big.bin", first)
        scene.connection.execute("update relay.output set expected_bytes = null, expected_sha256 = null")
        sleeper = deliverer.start()
        assert await asyncio.to_thread(files.held.wait, 60)
        files.hold_after = None
        await scene.wake("1 hour")
        assert await asyncio.to_thread(deliverer.deliver) == "stored"
        files.release.set()
        assert sleeper.wait() == 0
    assert "claim lost" in sleeper.output()
    stored = hashlib.sha256(second).hexdigest()
    assert scene.one("select stored_sha256 from relay.output where ordinal = 0") == stored
    assert_all_stored(scene, scene.outputs)


# A full disk ----------------------------------------------------------------------------------------------


class SmallDisk:
    """A tmpfs of `size` over `folder`, in a mount namespace of its own: a real full disk, nobody else's."""

    def __init__(self, run_process: RunProcess, folder: Path, size: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
        mount = f"mount -t tmpfs -o size={size} tmpfs '{folder}' && echo mounted && exec sleep 600"
        command = ("unshare", *self._user, "--mount", "sh", "-c", mount)
        self._holder = run_process([], command=command, wait_for="mounted")
        self.folder = Path(f"/proc/{self._holder.pid}/root{folder}")

    @property
    def prefix(self) -> Sequence[str]:
        """Runs a command that sees it."""
        joined = ["--user", "--preserve-credentials"] if self._user else []
        return ("nsenter", "--target", str(self._holder.pid), *joined, "--mount")


@pytest.mark.namespaces
async def test_a_full_disk_is_survived_and_the_delivery_goes_on_when_there_is_room(
    scene: Scene, run_process: RunProcess
) -> None:
    deliverer = await delivery_of(scene, run_process)
    disk = SmallDisk(run_process, scene.outputs, "6m")
    files = Files(os.urandom(4 * MIB))
    ballast = disk.folder / "ballast"
    ballast.write_bytes(bytes(3 * MIB))
    with serving(files) as server:
        from_server(scene, f"{server.url}/big.bin", files.content)
        assert await asyncio.to_thread(deliverer.deliver, *disk.prefix) == "prepared"
        assert "No space left on device" in deliverer.error()
        assert "Make room" in deliverer.error()
        assert finals(disk.folder) == []
        assert list((disk.folder / INCOMING).iterdir()) == []  # a full disk needs the room
        ballast.unlink()
        await scene.wake("10 minutes")
        assert await asyncio.to_thread(deliverer.deliver, *disk.prefix) == "stored"
        assert_all_stored(scene, disk.folder)


async def test_a_limit_of_a_files_size_is_survived(scene: Scene, run_process: RunProcess) -> None:
    deliverer = await delivery_of(scene, run_process)
    files = Files(os.urandom(3 * MIB))
    with serving(files) as server:
        from_server(scene, f"{server.url}/big.bin", files.content)
        prefix = ("prlimit", f"--fsize={2 * MIB}")
        assert await asyncio.to_thread(deliverer.deliver, *prefix) == "prepared"
        assert "File too large" in deliverer.error()
        assert "LimitFSIZE" in deliverer.error()
        assert finals(scene.outputs) == []
        await scene.wake("10 minutes")
        assert await asyncio.to_thread(deliverer.deliver) == "stored"
    assert files.ranges_asked() == [None, f"bytes={2 * MIB}-"]
    assert_all_stored(scene, scene.outputs)


# A folder that may not be written to ----------------------------------------------------------------------


def unprivileged() -> Sequence[str]:
    """Runs a command as nobody, who may read what root may (the interpreter may be root's) and write nothing
    of it. A test that isn't root is unprivileged already."""
    if os.getuid() != 0:
        return ()
    read = "dac_read_search"
    return (
        "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps=-all,+{read}",
        f"--ambient-caps=+{read}", f"--bounding-set=-all,+{read}",
    )  # fmt: skip


@pytest.mark.parametrize("where", ["the folder", "the owner's folder"])
async def test_a_folder_that_may_not_be_written_to_is_survived(
    scene: Scene, run_process: RunProcess, where: str
) -> None:
    deliverer = await delivery_of(scene, run_process)
    for above in (scene.folder, *scene.folder.parents):
        if above.stat().st_uid == os.getuid() and above != Path("/tmp"):
            above.chmod(above.stat().st_mode | 0o055)
    scene.outputs.mkdir()
    closed = scene.outputs
    if where != "the folder":
        scene.outputs.chmod(0o777)
        closed = scene.outputs / "studio_1"
        closed.mkdir()
    closed.chmod(0o555)
    assert await asyncio.to_thread(deliverer.deliver, *unprivileged()) == "prepared"
    assert "Permission denied" in deliverer.error()
    user = 65534 if os.getuid() == 0 else os.getuid()
    assert f"Let user {user}" in deliverer.error()
    assert finals(scene.outputs) == []
    closed.chmod(0o777)
    await scene.wake("10 minutes")
    assert await asyncio.to_thread(deliverer.deliver, *unprivileged()) == "stored"
    assert_all_stored(scene, scene.outputs)
