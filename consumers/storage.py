"""Where delivered files are kept. A file has its final name only when all of its bytes are on disk; what was
left half-written stays under `.incoming/` and is swept.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from uuid import UUID

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore

from relay.errors import RelayError, UsageError

INCOMING: Final = ".incoming"
_BUFFER_BYTES: Final = 1024 * 1024
"""Held in memory for each download; the default of ten times as much adds up over many."""
_SEGMENT_CHARACTERS: Final = 120
"""Most of one name in a path: file systems take 255 bytes."""


class StorageError(RelayError):
    """A file could not be written, placed or listed. What was delivered before is untouched."""


Sink = Callable[[bytes], Awaitable[None]]


class Storage:
    """A folder, seen as an object store. Keys are paths with `/`, relative to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._store = LocalStore(folder, mkdir=True)
        except (BaseError, OSError) as error:
            raise UsageError(f"RELAY_OUTPUTS_URL is {folder}, which can't be used: {error}.") from None

    @classmethod
    def open(cls, url: str) -> "Storage":
        """The storage at `url`, ``file:///…``. Raises UsageError with one sentence."""
        if not url:
            raise UsageError(
                "RELAY_OUTPUTS_URL is not set: there is nowhere to deliver files to.",
                remedy="Set it to a folder, for example file:///var/lib/relay/outputs.",
            )
        parts = urlsplit(url)
        if parts.scheme == "s3":
            raise UsageError(
                "RELAY_OUTPUTS_URL is an s3:// URL, which this release can't deliver to.",
                remedy="Use file:///… for now.",
            )
        if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise UsageError(f"RELAY_OUTPUTS_URL is {url!r}; write file:/// and an absolute folder.")
        return cls(Path(unquote(parts.path)))

    @asynccontextmanager
    async def writing(self, temporary: str) -> AsyncIterator[Sink]:
        """Where to put the bytes of the temporary object `temporary`, which is whole when the block ends
        without an exception. Raises StorageError; what an exception left is for `discard`, or is swept."""
        with _failures(f"write {temporary}"):
            writer = obstore.open_writer_async(self._store, temporary, buffer_size=_BUFFER_BYTES)

        async def sink(chunk: bytes) -> None:
            with _failures(f"write {temporary}"):
                await writer.write(chunk)

        yield sink
        with _failures(f"write {temporary}"):
            await writer.close()

    async def place(self, temporary: str, key: str) -> None:
        """Give a whole temporary object its final name, and return when both are on disk: a machine that
        loses its power then has the file, and before that has no file of this name. Raises StorageError."""
        with _failures(f"place {key}"):
            await asyncio.to_thread(_sync, self._folder / temporary)
            await obstore.rename_async(self._store, temporary, key)
            # The name is in its folder, and a new folder's own name is in the one above it.
            for folder in (self._folder / key).parents:
                await asyncio.to_thread(_sync, folder)
                if folder == self._folder:
                    break

    async def discard(self, temporary: str) -> None:
        """Remove what a cut download left, if anything. Raises StorageError."""
        with _failures(f"discard {temporary}"):
            staging = self._folder.glob(f"{temporary}#*")
            await asyncio.to_thread(self._remove, [self._folder / temporary, *staging])

    async def leftovers(self, older_than_s: float) -> dict[UUID, list[Path]]:
        """Temporary files, by the claim that made them, that nobody has touched for `older_than_s`."""
        with _failures("list temporary files"):
            return await asyncio.to_thread(self._leftovers, older_than_s)

    async def sweep(self, leftovers: list[Path]) -> None:
        """Remove `leftovers`. Raises StorageError."""
        with _failures("remove temporary files"):
            await asyncio.to_thread(self._remove, leftovers)

    def _leftovers(self, older_than_s: float) -> dict[UUID, list[Path]]:
        # The store's own listing hides its staging files (`name#1`), which a killed process leaves.
        found: dict[UUID, list[Path]] = {}
        before = time.time() - older_than_s
        for path in sorted((self._folder / INCOMING).glob("*")):
            token = _token(path.name)
            if token is not None and path.stat().st_mtime < before:
                found.setdefault(token, []).append(path)
        return found

    @staticmethod
    def _remove(paths: list[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)


def temporary_key(token: UUID, ordinal: int) -> str:
    """Of what the claim `token` downloads as output `ordinal`."""
    return f"{INCOMING}/{token}-{ordinal}"


def output_key(owner_id: str, operation_id: UUID, ordinal: int, name: str) -> str:
    """``{owner}/{operation}/{ordinal}-{name}``: the same for every attempt, with harmless names. The
    operation's id keeps apart what making names harmless might bring together."""
    return f"{segment(owner_id) or 'owner'}/{operation_id}/{ordinal}-{segment(name) or 'output'}"


def segment(text: str) -> str:
    """`text` as one harmless path segment: letters, digits, ``. _ -``, no leading dot, bounded."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).lstrip(".")[:_SEGMENT_CHARACTERS]


@contextmanager
def _failures(doing: str) -> Iterator[None]:
    """Turns the store's and the system's errors into StorageError, which says what was being done."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise StorageError(
            f"The storage could not {doing}: {error}.",
            meaning="Nothing has its final name that isn't whole; the delivery is tried again.",
            remedy="Look at the free space and the permissions of RELAY_OUTPUTS_URL.",
        ) from error


def _token(name: str) -> UUID | None:
    try:
        return UUID(name[:36])
    except ValueError:
        return None


def _sync(path: Path) -> None:
    """fsync a file or a folder (POSIX.1-2017, fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
