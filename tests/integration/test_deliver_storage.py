"""The storage alone, on a real folder: when a file has its name, and that it is the one that was written."""

import os
from pathlib import Path

import pytest

from consumers.storage import INCOMING, Storage

pytestmark = pytest.mark.anyio


async def test_a_file_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of system calls: file, then (after the name is given) each folder up to the storage's own."""
    synced: list[tuple[str, bool]] = []
    final = tmp_path / "owner" / "operation" / "0-a.bin"
    monkeypatch.setattr(
        "consumers.storage._sync",
        lambda path: synced.append((path.relative_to(tmp_path).as_posix(), final.exists())),
    )
    storage = Storage.open(tmp_path.as_uri())
    async with storage.writing(f"{INCOMING}/t") as sink:
        await sink(b"whole")
        assert not final.exists()
    await storage.place(f"{INCOMING}/t", "owner/operation/0-a.bin")
    assert final.read_bytes() == b"whole"
    assert synced == [(f"{INCOMING}/t", False), ("owner/operation", True), ("owner", True), (".", True)]


async def test_a_file_of_many_pieces_arrives_whole_and_in_order(tmp_path: Path) -> None:
    storage = Storage.open(tmp_path.as_uri())
    content = os.urandom(5_000_001)
    async with storage.writing(f"{INCOMING}/t") as sink:
        for start in range(0, len(content), 70_001):
            await sink(content[start : start + 70_001])
    await storage.place(f"{INCOMING}/t", "owner/0-a.bin")
    assert (tmp_path / "owner" / "0-a.bin").read_bytes() == content
    assert not list((tmp_path / INCOMING).iterdir())
