"""The spool: what is recorded survives, what is torn counts as not written, and two never own one entry."""

import errno
import json
import multiprocessing
import os
import signal
import stat
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from consumers.providers.spool import Spool, SpoolEntry, SpoolError, entries

LONG_S = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def spool(folder: Path) -> Iterator[Spool]:
    opened = Spool.open(folder)
    yield opened
    opened.close()


def pending(spool: Spool) -> dict[str, SpoolEntry]:
    return {entry.attempt_id: entry for entry in spool.pending()}


def test_an_entry_lives_from_sending_to_applied(spool: Spool) -> None:
    spool.sending("a-1", "op-1", claim="c", provider="genace")
    (entry,) = spool.pending()
    assert (entry.attempt_id, entry.operation_id, entry.sending, entry.answer) == ("a-1", "op-1", True, None)
    assert entry.details == {"claim": "c", "provider": "genace"}
    assert not entry.damaged
    spool.answer("a-1", {"body": "AAEC", "ids": ["job-1"]})
    (entry,) = spool.pending()
    assert entry.answer == {"body": "AAEC", "ids": ["job-1"]}
    assert entry.operation_id == "op-1"
    spool.applied("a-1")
    assert list(spool.pending()) == []


def test_a_second_sending_of_one_attempt_is_refused(spool: Spool) -> None:
    spool.sending("a-1", "op-1")
    with pytest.raises(SpoolError, match="already"):
        spool.sending("a-1", "op-1")


def test_the_last_answer_counts(spool: Spool) -> None:
    spool.sending("a-1", "op-1")
    spool.answer("a-1", {"n": 1})
    spool.answer("a-1", {"n": 2})
    assert pending(spool)["a-1"].answer == {"n": 2}


def test_applied_of_an_attempt_without_an_entry_is_fine(spool: Spool) -> None:
    spool.applied("never-seen")


def test_only_this_user_can_read_it(spool: Spool, folder: Path) -> None:
    spool.sending("a-1", "op-1")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(spool.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in spool.folder.iterdir()} == {0o600}


@pytest.mark.parametrize("attempt_id", ["", "../a", "a/b", "a\n", "a" * 65])
def test_an_attempt_id_never_becomes_another_path(spool: Spool, attempt_id: str) -> None:
    with pytest.raises(SpoolError):
        spool.sending(attempt_id, "op-1")


@pytest.mark.parametrize("kept", range(0, 60, 7))
def test_a_torn_sending_counts_as_not_written(spool: Spool, kept: int) -> None:
    spool.sending("a-1", "op-1")
    path = spool.folder / "a-1.jsonl"
    content = path.read_bytes()
    assert kept < len(content)
    path.write_bytes(content[:kept])
    assert list(spool.pending()) == []


def test_a_torn_answer_leaves_the_attempt_unknown(spool: Spool) -> None:
    spool.sending("a-1", "op-1")
    spool.answer("a-1", {"body": "x" * 1000})
    path = spool.folder / "a-1.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    (entry,) = spool.pending()
    assert (entry.sending, entry.answer, entry.damaged) == (True, None, False)
    spool.answer("a-1", {"body": "again"})
    (entry,) = spool.pending()
    assert (entry.operation_id, entry.answer) == ("op-1", {"body": "again"})


@pytest.mark.parametrize("line", [b"not json\n", b"[]\n", b'{"kind": "other"}\n', b"\x00\xff\n"])
def test_a_damaged_line_makes_the_attempt_unknown_and_never_forgotten(spool: Spool, line: bytes) -> None:
    (spool.folder / "a-1.jsonl").write_bytes(line)
    (entry,) = spool.pending()
    assert (entry.attempt_id, entry.sending, entry.answer, entry.damaged) == ("a-1", True, None, True)


def test_entries_of_a_closed_spool_are_adopted_and_its_folder_goes(folder: Path) -> None:
    first = Spool.open(folder)
    first.sending("a-1", "op-1")
    first.sending("a-2", "op-2")
    first.answer("a-2", {"ids": ["job-2"]})
    first.close()
    second = Spool.open(folder)
    found = pending(second)
    assert set(found) == {"a-1", "a-2"}
    assert found["a-2"].answer == {"ids": ["job-2"]}
    assert [path for path in folder.iterdir() if path.is_dir()] == [second.folder]
    second.close()


def test_entries_of_a_living_process_are_left_alone(folder: Path) -> None:
    first = Spool.open(folder)
    first.sending("a-1", "op-1")
    second = Spool.open(folder)
    assert list(second.pending()) == []
    assert set(pending(first)) == {"a-1"}
    first.close()
    assert second.adopt() == 1
    assert set(pending(second)) == {"a-1"}
    second.close()


def test_an_empty_spool_leaves_no_folder_behind(folder: Path) -> None:
    Spool.open(folder).close()
    assert list(folder.iterdir()) == []


def test_what_else_lies_in_the_folder_is_left_alone(folder: Path) -> None:
    """A volume's root has folders of the file system's own, which may be nobody's to read."""
    (folder / "lost+found").mkdir(parents=True)
    Spool.open(folder).close()
    assert [path.name for path in folder.rglob("*")] == ["lost+found"]


def _send_and_wait(folder: Path, ready: Connection) -> None:
    spool = Spool.open(folder)
    spool.sending("a-killed", "op-1")
    ready.send("sending")
    signal.pause()


def test_a_killed_process_leaves_its_entry_to_the_next_one(folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_send_and_wait, args=(folder, there))
    process.start()
    try:
        assert here.poll(LONG_S)
        living = Spool.open(folder)
        assert list(living.pending()) == []
    finally:
        process.kill()
        process.join(LONG_S)
    assert living.adopt() == 1
    assert set(pending(living)) == {"a-killed"}
    living.close()


def _adopt(folder: Path, start: Connection, results: Connection) -> None:
    start.recv()
    spool = Spool.open(folder)
    results.send(sorted(entry.attempt_id for entry in spool.pending()))
    results.recv()
    spool.close()


def test_of_many_that_start_at_once_each_entry_has_one_owner(folder: Path) -> None:
    left: list[str] = []
    for number in range(4):
        dead = Spool.open(folder)
        for one in range(5):
            left.append(f"a-{number}-{one}")
            dead.sending(left[-1], "op")
        # Only the lock goes: as after a crash, when all four folders are still there.
        os.close(dead._lock)
        dead._lock = -1
    context = multiprocessing.get_context("spawn")
    starts, results, processes = [], [], []
    for _ in range(3):
        start_here, start_there = context.Pipe()
        result_here, result_there = context.Pipe()
        process = context.Process(target=_adopt, args=(folder, start_there, result_there))
        process.start()
        starts.append(start_here)
        results.append(result_here)
        processes.append(process)
    try:
        for start in starts:
            start.send("go")
        owned: list[str] = []
        for result in results:
            assert result.poll(LONG_S)
            owned += result.recv()
        last = Spool.open(folder)
        owned += pending(last)
        last.close()
        for result in results:
            result.send("done")
    finally:
        for process in processes:
            process.join(LONG_S)
            process.kill()
    assert sorted(owned) == sorted(left)


def test_another_spools_entries_can_be_read_without_owning_them(spool: Spool) -> None:
    spool.sending("a-1", "op-1")
    assert [entry.attempt_id for entry in entries(spool.folder)] == ["a-1"]


def test_a_full_disk_is_said_and_leaves_no_entry(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(SpoolError, match=r"No space left on device\. Nothing was sent\. .*RELAY_SPOOL"):
            spool.sending("a-1", "op-1")
    assert list(spool.pending()) == []
    spool.sending("a-1", "op-1")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(SpoolError, match="memory alone"):
            spool.answer("a-1", {"ids": ["job-1"]})
    assert pending(spool)["a-1"].sending


def test_a_disk_that_failed_once_has_to_write_before_it_is_believed_again(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may promise the room and not take the bytes."""

    def broken(_file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        spool.require_room()
        with pytest.raises(SpoolError, match="Nothing was sent"):
            spool.sending("a-1", "op-1")
        for _ in range(2):
            with pytest.raises(SpoolError, match="Nothing is claimed"):
                spool.require_room()
    spool.require_room()
    assert sorted(path.name for path in spool.folder.iterdir()) == ["lock"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="Nothing is sent without it"):
        Spool.open(tmp_path / "file" / "spool")


def test_a_record_is_one_line_of_ascii_whatever_is_in_it(spool: Spool) -> None:
    spool.sending("a-1", "op-1", note="ü\n\u2028")
    content = (spool.folder / "a-1.jsonl").read_bytes()
    assert content.count(b"\n") == 1
    assert content.isascii()
    assert json.loads(content)["details"] == {"note": "ü\n\u2028"}
