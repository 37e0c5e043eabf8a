"""The folder alone, a real one: when a file has its name, and what the next attempt finds of a cut one."""

import asyncio
import hashlib
import os
import threading
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import pytest

from consumers.providers.download import Kept
from consumers.storage import Storage, StorageError, Wanted, open_storage
from consumers.storage.local import INCOMING, LocalIncoming

pytestmark = pytest.mark.anyio

DELIVERY: Final = UUID(int=7)
KEY: Final = "owner/operation/0-a.bin"
VERSION: Final = Kept(resource="r", etag='"1"', last_modified=None, total=5_000_001, content_type=None)


def wanted() -> Wanted:
    return Wanted(delivery=DELIVERY, token=uuid4(), ordinal=0, key=KEY)


async def left_behind(storage: Storage, content: bytes, kept: Kept | None = VERSION) -> None:
    """What a download leaves that was cut after `content`."""
    async with storage.incoming(wanted()) as incoming:
        await incoming.restart(kept)
        await incoming.write(content)


async def found(storage: Storage) -> tuple[int, str, Kept | None]:
    async with storage.incoming(wanted()) as incoming:
        return incoming.size, incoming.sha256(), incoming.kept


NOTHING: Final = (0, hashlib.sha256().hexdigest(), None)


async def test_a_file_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of system calls: file, then (after the name is given) each folder up to the storage's own."""
    synced: list[tuple[str, bool]] = []
    final = tmp_path / KEY
    monkeypatch.setattr(
        "consumers.storage.local.sync",
        lambda path: synced.append((path.relative_to(tmp_path).as_posix(), final.exists())),
    )
    storage = open_storage(tmp_path.as_uri())
    async with storage.incoming(wanted()) as incoming:
        await incoming.restart(VERSION)
        await incoming.write(b"whole")
        assert not final.exists()
        await incoming.place()
    assert final.read_bytes() == b"whole"
    half = f"{INCOMING}/{DELIVERY}-0"
    assert synced == [(half, False), ("owner/operation", True), ("owner", True), (".", True)]
    assert not list((tmp_path / INCOMING).iterdir())


async def test_a_file_of_many_pieces_arrives_whole_and_in_order_over_several_attempts(tmp_path: Path) -> None:
    storage = open_storage(tmp_path.as_uri())
    content = os.urandom(5_000_001)
    await left_behind(storage, content[:3_000_000])
    assert not (tmp_path / KEY).exists()
    async with storage.incoming(wanted()) as incoming:
        assert (incoming.size, incoming.kept) == (3_000_000, VERSION)
        for start in range(incoming.size, len(content), 70_001):
            await incoming.write(content[start : start + 70_001])
        assert incoming.sha256() == hashlib.sha256(content).hexdigest()
        await incoming.place()
    assert (tmp_path / KEY).read_bytes() == content
    assert not list((tmp_path / INCOMING).iterdir())


async def test_bytes_whose_version_nobody_knows_are_not_kept(tmp_path: Path) -> None:
    storage = open_storage(tmp_path.as_uri())
    await left_behind(storage, b"half", kept=None)
    assert not list((tmp_path / INCOMING).iterdir())
    assert await found(storage) == NOTHING


@pytest.mark.parametrize("how", ["another start of the machine", "no word", "unreadable", "too long"])
async def test_nobody_goes_on_with_bytes_that_may_not_be_what_was_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    storage = open_storage(tmp_path.as_uri())
    await left_behind(storage, b"half")
    half = tmp_path / INCOMING / f"{DELIVERY}-0"
    version = half.with_name(half.name + ".version")
    match how:
        case "another start of the machine":
            monkeypatch.setattr("consumers.storage.local._boot", lambda: "another")
        case "no word":
            version.unlink()
        case "unreadable":
            version.write_text("{")
        case _:
            os.truncate(half, VERSION.total + 1 if VERSION.total else 0)
    assert await found(storage) == NOTHING
    assert not list((tmp_path / INCOMING).iterdir())


async def test_a_new_version_forgets_the_bytes_of_the_old_one(tmp_path: Path) -> None:
    storage = open_storage(tmp_path.as_uri())
    await left_behind(storage, b"old version")
    other = Kept(resource="r", etag='"2"', last_modified=None, total=None, content_type="image/png")
    await left_behind(storage, b"new", other)
    assert await found(storage) == (3, hashlib.sha256(b"new").hexdigest(), other)


async def test_two_processes_never_write_one_file(tmp_path: Path) -> None:
    """Whoever hangs with a lease that ran out still has its file open."""
    storage = open_storage(tmp_path.as_uri())
    async with storage.incoming(wanted()) as hanging:
        await hanging.restart(VERSION)
        await hanging.write(b"from who hangs")
        async with storage.incoming(wanted()) as second:
            assert (second.size, second.kept) == (0, None)
            await second.restart(VERSION)
            await second.write(b"second")
            await second.place()
        assert (tmp_path / KEY).read_bytes() == b"second"
    assert (await found(storage))[0] == len(b"from who hangs")


async def test_a_file_is_not_closed_under_a_thread_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline ends the waiting, not the thread: a closed handle's number may be another file's by then."""
    storage = open_storage(tmp_path.as_uri())
    writing, go_on = threading.Event(), threading.Event()
    flush, order = LocalIncoming._flush, list[str]()
    close = os.close

    def slowly(incoming: LocalIncoming) -> None:
        if not writing.is_set():
            writing.set()
            go_on.wait(60)
            flush(incoming)
            order.append("written")

    monkeypatch.setattr(LocalIncoming, "_flush", slowly)

    async def download() -> None:
        async with storage.incoming(wanted()) as incoming:
            await incoming.restart(VERSION)
            monkeypatch.setattr("consumers.storage.local.os.close", closed)
            await incoming.write(bytes(2_000_000))

    def closed(handle: int) -> None:
        order.append("closed")
        close(handle)

    task = asyncio.ensure_future(download())
    await asyncio.to_thread(writing.wait, 60)
    task.cancel()
    asyncio.get_running_loop().call_later(0.1, go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    monkeypatch.undo()
    assert order[:2] == ["written", "closed"]
    assert (await found(storage))[0] == 2_000_000


async def test_a_failure_says_what_where_and_what_to_do(tmp_path: Path) -> None:
    storage = open_storage(tmp_path.as_uri())
    (tmp_path / "owner").write_text("in the way of the folder")
    async with storage.incoming(wanted()) as incoming:
        await incoming.restart(VERSION)
        await incoming.write(b"whole")
        with pytest.raises(StorageError) as caught:
            await incoming.place()
    said = str(caught.value)
    assert KEY in said
    assert str(tmp_path) in said
    assert (await found(storage))[0] == len(b"whole")
