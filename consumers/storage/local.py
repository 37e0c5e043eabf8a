"""A folder. What is half-written stays under `.incoming/`, where the next attempt goes on with it, and is
swept when nobody will.
"""

import asyncio
import errno
import fcntl
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Final, ParamSpec
from uuid import UUID

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore

from consumers.providers.download import Kept
from consumers.storage.contract import StorageError, Wanted
from consumers.storage.keys import as_uuid
from relay import failpoints
from relay.errors import UsageError

INCOMING: Final = ".incoming"
_VERSION: Final = ".version"
"""Ending of the file that says of which version the bytes beside it are."""
_BUFFER_BYTES: Final = 1024 * 1024
"""Held in memory for each download: a thread's turn for every 64 kB would cost more than the writing."""
_UUID_CHARACTERS: Final = 36
P = ParamSpec("P")
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class LocalStorage:
    """A folder, seen as an object store. Keys are paths with `/`, relative to it."""

    # A delivery that goes on later goes on with what is here.
    kept_in = frozenset({"prepared", "claimed", "held"})
    knows_its_own = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._store = LocalStore(folder, mkdir=True)
        except (BaseError, OSError) as error:
            raise UsageError(
                f"RELAY_OUTPUTS_URL is {folder}, which can't be used: {_said(error)}.",
                remedy=_remedy(error, folder),
            ) from None

    @asynccontextmanager
    async def incoming(self, wanted: Wanted) -> AsyncIterator["LocalIncoming"]:
        """See `Storage.incoming`. One process at a time goes on with a file: a lock says so, which a killed
        process loses. Where another still has it, this one begins a file of its own."""
        key, name = wanted.key, f"{wanted.delivery}-{wanted.ordinal}"
        with self.failures(f"begin {key}"):
            taking = asyncio.ensure_future(asyncio.to_thread(self._take, name, f"{name}-{wanted.token}"))
            try:
                handle, path = await asyncio.shield(taking)
            except asyncio.CancelledError:
                # Its thread goes on: what it takes after we have left would stay locked.
                taking.add_done_callback(_let_go)
                raise
            incoming = LocalIncoming(self, path, key, handle)
        try:
            with self.failures(f"go on with {key}"):
                await asyncio.to_thread(incoming.look)
            yield incoming
        except StorageError as error:
            # A full disk needs the room more than the next attempt needs these bytes.
            if _number(error.__cause__) in _FULL:
                incoming.forget()
            raise
        finally:
            # In a thread, since another may be writing still after a cancel, and to its end.
            await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(incoming.close)))

    async def rename(self, path: Path, key: str) -> None:
        """`path` becomes `key`, and its folders last (POSIX.1-2017, rename and fsync)."""
        await obstore.rename_async(self._store, path.relative_to(self._folder).as_posix(), key)
        # The name is in its folder, and a new folder's own name is in the one above it.
        for folder in (self._folder / key).parents:
            await asyncio.to_thread(sync, folder)
            if folder == self._folder:
                break

    async def leftovers(self, older_than_s: float) -> dict[UUID, list[str]]:
        with self.failures("list temporary files"):
            return await asyncio.to_thread(self._leftovers, older_than_s)

    async def sweep(self, leftovers: list[str]) -> None:
        with self.failures("remove temporary files"):
            await asyncio.to_thread(self._sweep, leftovers)

    @contextmanager
    def failures(self, doing: str) -> Iterator[None]:
        """Turns the store's and the system's errors into StorageError, which says what was being done."""
        try:
            yield
        except (BaseError, OSError) as error:
            raise StorageError(
                f"The storage {self._folder} could not {doing}: {_said(error)}.",
                meaning="Nothing has its final name that isn't whole; the delivery is tried again.",
                remedy=_remedy(error, self._folder),
            ) from error

    def _take(self, *names: str) -> tuple[int, Path]:
        folder = self._folder / INCOMING
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = folder / name
            while True:
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # Whoever had it may have placed or removed it between our two calls.
                    if _is(path, handle):
                        return handle, path
                except BlockingIOError:
                    os.close(handle)
                    break
                except BaseException:
                    os.close(handle)
                    raise
                os.close(handle)
        raise BlockingIOError(errno.EWOULDBLOCK, f"somebody else has {names[-1]}")

    def _leftovers(self, older_than_s: float) -> dict[UUID, list[str]]:
        found: dict[UUID, list[str]] = {}
        before = time.time() - older_than_s
        for path in sorted((self._folder / INCOMING).glob("*")):
            delivery = as_uuid(path.name[:_UUID_CHARACTERS])
            with suppress(FileNotFoundError):
                if delivery is not None and path.stat().st_mtime < before:
                    found.setdefault(delivery, []).append(path.name)
        return found

    def _sweep(self, names: list[str]) -> None:
        for name in names:
            path = self._folder / INCOMING / name
            with suppress(FileNotFoundError):
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                except BlockingIOError:
                    continue  # somebody is at work on it after all
                finally:
                    os.close(handle)


class LocalIncoming:
    """A file under `.incoming/`, locked by this process. See `Incoming`."""

    def __init__(self, storage: LocalStorage, path: Path, key: str, handle: int) -> None:
        self._storage = storage
        self._path = path
        self._version = path.with_name(path.name + _VERSION)
        self._key = key
        self._handle = handle
        # A thread goes on after whoever waited for it was cancelled: no two may use the handle at once, and
        # none after it is closed, when its number may be another file's.
        self._at_the_file = threading.Lock()
        self._closed = False
        self._buffer = bytearray()
        self._hash = hashlib.sha256()
        self._size = 0
        self._kept: Kept | None = None

    @property
    def size(self) -> int:
        return self._size

    @property
    def kept(self) -> Kept | None:
        return self._kept

    def sha256(self) -> str:
        return self._hash.hexdigest()

    def look(self) -> None:
        """Take what an earlier attempt left, if it says of which version it is. Raises OSError."""
        with self._at_the_file:
            self._look()

    def _look(self) -> None:
        kept = _read_version(self._version)
        size = os.fstat(self._handle).st_size
        if kept is None or size == 0 or size > (size if kept.total is None else kept.total):
            self._begin(None)
            return
        with os.fdopen(os.dup(self._handle), "rb") as file:
            while block := file.read(_BUFFER_BYTES):
                self._hash.update(block)
                self._size += len(block)
        self._kept = kept

    async def restart(self, kept: Kept | None) -> None:
        with self._storage.failures(f"begin {self._key}"):
            await asyncio.to_thread(self._alone, self._begin, kept)

    async def write(self, chunk: bytes) -> None:
        failpoints.hit(failpoints.DELIVER_RECEIVING)
        self._buffer += chunk
        self._hash.update(chunk)
        self._size += len(chunk)
        if len(self._buffer) >= _BUFFER_BYTES:
            with self._storage.failures(f"write {self._key}"):
                await asyncio.to_thread(self._alone, self._flush)

    async def place(self) -> None:
        with self._storage.failures(f"place {self._key}"):
            await asyncio.to_thread(self._alone, self._flush)
            await asyncio.to_thread(sync, self._path)
            await self._storage.rename(self._path, self._key)
            self._version.unlink(missing_ok=True)

    def forget(self) -> None:
        self._buffer.clear()
        self._kept = None

    def close(self) -> None:
        """Keep what the next attempt can go on with, and nothing else. Raises nothing: what it can't remove
        is swept."""
        with self._at_the_file:
            self._closed = True
            try:
                with suppress(OSError):
                    if self._kept is not None:
                        self._flush()
                    elif _is(self._path, self._handle):
                        self._version.unlink(missing_ok=True)
                        self._path.unlink(missing_ok=True)
            finally:
                os.close(self._handle)

    def _alone(self, act: Callable[P, None], *args: P.args, **named: P.kwargs) -> None:
        with self._at_the_file:
            if not self._closed:
                act(*args, **named)

    def _begin(self, kept: Kept | None) -> None:
        # In this order: at no instant do bytes of one version stand beside the word of another.
        self._kept = None
        self._version.unlink(missing_ok=True)
        self._buffer.clear()
        os.ftruncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        self._hash = hashlib.sha256()
        self._size = 0
        if kept is not None:
            written = self._version.with_name(self._version.name + ".new")
            written.write_text(json.dumps({"boot": _boot(), "kept": asdict(kept)}), encoding="utf-8")
            written.replace(self._version)
            self._kept = kept

    def _flush(self) -> None:
        os.lseek(self._handle, 0, os.SEEK_END)
        rest = memoryview(bytes(self._buffer))
        self._buffer.clear()
        while rest:
            rest = rest[os.write(self._handle, rest) :]


def _let_go(taking: "asyncio.Future[tuple[int, Path]]") -> None:
    if not taking.cancelled() and taking.exception() is None:
        os.close(taking.result()[0])


@cache
def _boot() -> str:
    """Which start of which machine this is. What was written before a loss of power may have its length and
    not its bytes, so nobody goes on with that."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"process {os.getpid()}"


def _read_version(path: Path) -> Kept | None:
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        return Kept(**written["kept"]) if written["boot"] == _boot() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is(path: Path, handle: int) -> bool:
    """Whether `handle` is still what has the name `path`."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(handle)
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)


def _number(error: BaseException | None) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def _said(error: Exception) -> str:
    number = _number(error)
    return str(error).partition("\n")[0].rstrip(".") if number is None else os.strerror(number)


def _remedy(error: Exception, folder: Path) -> str:
    number = _number(error)
    if number in _FULL:
        return f"Make room in the file system of {folder}; the delivery then goes on by itself."
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"Let user {os.getuid()} (group {os.getgid()}) write to {folder} and what is in it."
    if number == errno.EFBIG:
        return "Raise the limit of a file's size for this process (ulimit -f, LimitFSIZE)."
    return f"Look at RELAY_OUTPUTS_URL: {folder}."


def sync(path: Path) -> None:
    """fsync a file or a folder (POSIX.1-2017, fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
