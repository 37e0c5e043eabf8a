"""The dispatcher's local record of what it is about to send and of what came back, for the time when the
database can't be told. It never decides anything, and an entry leaves only when its attempt is applied.

    FOLDER/                       0700
      <process>/                  0700, one per process
        lock                      flock: held as long as that process lives
        <attempt_id>.jsonl        0600, one per attempt: a line `sending`, then a line `answer`
        room                      0600, there for an instant: whether the disk would take an entry

A line is written whole and synced before anything that relies on it happens. A last line without its newline
was torn by a crash, so nothing relied on it: it counts as not written.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from relay.errors import RelayError

_LOCK: Final = "lock"
_ROOM: Final = "room"
_ROOM_BYTES: Final = 2 * 1024 * 1024
"""What an entry may take: an answer of 1 MiB in base64, and its head."""
_SUFFIX: Final = ".jsonl"
_PROCESS: Final = re.compile(r"[0-9]+-[0-9a-f]{16}")
"""A sub-folder's name; whatever else lies in the folder, a volume's own lost+found above all, isn't ours."""
_ATTEMPT: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


class SpoolError(RelayError):
    """The spool can't be written or read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolEntry:
    """One attempt that isn't applied. `sending` without `answer`: bytes may have left, nothing is known."""

    attempt_id: str
    operation_id: str
    sending: bool
    details: Mapping[str, Any]
    """What else `sending` was given."""
    answer: dict[str, Any] | None
    damaged: bool
    """A whole line that can't be read: treat the attempt as unknown."""
    path: Path


class Spool:
    """One process's spool. Its methods may be called from any thread; each returns when the disk has it."""

    def __init__(self, folder: Path, own: Path, lock: int) -> None:
        """Use `open`."""
        self._folder = folder
        self._own = own
        self._lock = lock
        self._adopting = threading.Lock()
        self._suspect = False
        """A write failed: a disk may take the room for an entry, and not the entry."""

    @classmethod
    def open(cls, folder: Path) -> "Spool":
        """Lock an own sub-folder of `folder`, which is made if need be, and adopt the entries of each
        unlocked one. Raises SpoolError when the folder can't be used."""
        try:
            folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            own, lock = _new_locked_folder(folder)
            _sync_folder(folder)
        except OSError as error:
            raise _refused("can't be used", folder, error, meaning="Nothing is sent without it.") from error
        spool = cls(folder, own, lock)
        spool.adopt()
        return spool

    @property
    def folder(self) -> Path:
        """This process's own sub-folder."""
        return self._own

    def adopt(self) -> int:
        """Take over the entries of every sub-folder whose process is gone; how many there were. Two adopters
        can't both have one. Raises SpoolError when one can't be read or moved."""
        adopted = 0
        with self._adopting:
            try:
                for other in sorted(self._folder.iterdir()):
                    if other != self._own and _PROCESS.fullmatch(other.name) and other.is_dir():
                        adopted += self._adopt(other)
            except OSError as error:
                raise _refused(
                    "can't be adopted",
                    self._folder,
                    error,
                    meaning="Answers of a process that died may be there, and are not applied yet.",
                ) from error
        return adopted

    def require_room(self) -> None:
        """Whether an entry can be written, asked before anything is claimed that would need one. Raises
        SpoolError when it can't: the folder is gone or may not be written, or the disk is full."""
        path = self._own / _ROOM
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
            try:
                os.posix_fallocate(file, 0, _ROOM_BYTES)
                if self._suspect:
                    _write_line(file, {"kind": _ROOM, "bytes": "-" * _ROOM_BYTES})
            finally:
                os.close(file)
                path.unlink()
        except OSError as error:
            self._suspect = True
            raise _refused("can't be written", self._own, error, meaning="Nothing is claimed.") from error
        self._suspect = False

    def sending(self, attempt_id: str, operation_id: str, **details: Any) -> None:
        """Record that the next thing to happen is the first byte. `details` must be JSON-able. Raises
        SpoolError when the disk doesn't have it: then nothing may be sent."""
        path = self._path(attempt_id)
        record = {
            "kind": "sending",
            "attempt_id": attempt_id,
            "operation_id": operation_id,
            "details": details,
        }
        meaning = "Nothing was sent."
        try:
            file = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE
            )
        except FileExistsError:
            raise SpoolError(
                f"The spool has an entry of attempt {attempt_id} already.",
                meaning="The attempt was about to be sent a second time; nothing was sent now.",
            ) from None
        except OSError as error:
            self._suspect = True
            raise _refused("can't be written", path, error, meaning=meaning) from error
        try:
            try:
                _write_line(file, record)
            finally:
                os.close(file)
            _sync_folder(self._own)
        except OSError as error:
            self._suspect = True
            path.unlink(missing_ok=True)
            raise _refused("can't be written", path, error, meaning=meaning) from error

    def answer(self, attempt_id: str, payload: Mapping[str, Any]) -> None:
        """Record what came back, raw bytes (base64) and ids. `payload` must be JSON-able. Raises SpoolError
        when the disk doesn't have it: the answer is then in this process's memory alone."""
        path = self._path(attempt_id)
        try:
            is_new = not path.exists()
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE)
            try:
                _end_torn_line(file)
                _write_line(file, {"kind": "answer", "attempt_id": attempt_id, "answer": dict(payload)})
            finally:
                os.close(file)
            if is_new:
                _sync_folder(self._own)
        except OSError as error:
            self._suspect = True
            raise _refused(
                "can't be written",
                path,
                error,
                meaning="The provider's answer is in this process's memory alone until the database has it.",
            ) from error

    def applied(self, attempt_id: str) -> None:
        """The database has it: forget it. An attempt without an entry is fine. Raises SpoolError when the
        entry can't be removed; it would be applied again at the next start, which changes nothing."""
        path = self._path(attempt_id)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _refused(
                "can't be emptied", path, error, meaning="The entry will be applied again, without effect."
            ) from error

    def pending(self) -> Iterator[SpoolEntry]:
        """Every entry that isn't applied, this process's own included, by time of its last write."""
        return entries(self._own)

    def close(self) -> None:
        """Unlock. Entries stay, for whoever opens the folder next; an empty sub-folder goes."""
        if self._lock < 0:
            return
        if not any(self._own.glob(f"*{_SUFFIX}")):
            remove_folder(self._own)
        os.close(self._lock)
        self._lock = -1

    def _path(self, attempt_id: str) -> Path:
        if not _ATTEMPT.fullmatch(attempt_id):
            raise SpoolError(f"The attempt id {attempt_id!r} can't be a file's name.")
        return self._own / f"{attempt_id}{_SUFFIX}"

    def _adopt(self, other: Path) -> int:
        lock = try_lock(other)
        if lock is None:
            return 0
        adopted = 0
        try:
            for path in sorted(other.glob(f"*{_SUFFIX}")):
                # A rename: at every instant one of the two folders has the entry.
                path.rename(self._own / path.name)
                adopted += 1
            if adopted:
                _sync_folder(self._own)
            remove_folder(other)
        finally:
            os.close(lock)
        return adopted


def entries(folder: Path) -> Iterator[SpoolEntry]:
    """The entries in one sub-folder, by time of their last write; it need not be ours and isn't locked.
    Raises SpoolError when one can't be read."""
    try:
        found = [(path.stat().st_mtime_ns, path) for path in folder.glob(f"*{_SUFFIX}") if path.exists()]
    except OSError as error:
        raise _refused("can't be read", folder, error, meaning="It may hold answers.") from error
    for _, path in sorted(found):
        entry = read_entry(path)
        if entry is not None:
            yield entry


def read_entry(path: Path) -> SpoolEntry | None:
    """The entry in one file; None for one whose first line was torn, since nothing was sent then.
    Raises SpoolError when the file can't be read."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused("can't be read", path, error, meaning="It may hold an answer.") from error
    lines = content.split(b"\n")[:-1]
    records = [_record(line) for line in lines]
    kinds = [None if record is None else record.get("kind") for record in records]
    if not lines:
        return None
    sending = next((one for one in records if one is not None and one.get("kind") == "sending"), None)
    answers = [one["answer"] for one in records if one is not None and isinstance(one.get("answer"), dict)]
    return SpoolEntry(
        attempt_id=path.name.removesuffix(_SUFFIX),
        operation_id=str(sending["operation_id"]) if sending and "operation_id" in sending else "",
        sending=sending is not None or not answers,
        details=(sending or {}).get("details") or {},
        answer=answers[-1] if answers else None,
        damaged=any(kind not in {"sending", "answer"} for kind in kinds),
        path=path,
    )


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _write_line(file: int, record: Mapping[str, Any]) -> None:
    line = json.dumps(record, separators=(",", ":"), ensure_ascii=True).encode("ascii") + b"\n"
    while line:
        line = line[os.write(file, line) :]
    os.fsync(file)


def _end_torn_line(file: int) -> None:
    """Close a line that an earlier failure left open, so that the next one isn't read as its end."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.write(file, b"\n")


def _sync_folder(folder: Path) -> None:
    """A new name is on the disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _new_locked_folder(folder: Path) -> tuple[Path, int]:
    """A new sub-folder and its lock. A process that is adopting may take one in the instant before it is
    locked, and removes it since it is empty: then another one is made."""
    while True:
        own = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        own.mkdir(mode=_FOLDER_MODE)
        lock = try_lock(own)
        if lock is not None:
            return own, lock


def try_lock(folder: Path) -> int | None:
    """A descriptor that holds the lock of `folder`, or None when another process has it or removed it."""
    path = folder / _LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever adopts a folder removes it: what we locked may be a file without a name.
        held = os.path.samestat(os.fstat(lock), path.stat())
    except (BlockingIOError, FileNotFoundError):
        held = False
    if not held:
        os.close(lock)
        return None
    return lock


def remove_folder(folder: Path) -> None:
    """Remove an empty, locked sub-folder. One that has something else in it stays."""
    (folder / _ROOM).unlink(missing_ok=True)
    (folder / _LOCK).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise


def _refused(what: str, path: Path, error: OSError, *, meaning: str) -> SpoolError:
    return SpoolError(
        f"The spool {path} {what}: {error.strerror}.",
        meaning=meaning,
        remedy="See that the disk has room and that this user may write there (RELAY_SPOOL).",
    )
