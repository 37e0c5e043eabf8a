"""Every process's folder in a spool, as somebody sees it who isn't one of them: a person, an import, a
reconciliation. It locks only to know who is alive, and writes nothing.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from consumers.providers.spool import SpoolEntry, SpoolError, entries

_PROCESS: Final = re.compile(r"[0-9]+-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One entry, and where it is. `alive`: its process runs, and will see to it by itself."""

    entry: SpoolEntry
    folder: Path
    alive: bool
    written_at: datetime


def process_folders(folder: Path) -> list[Path]:
    """The processes' folders in `folder`, or `folder` itself where it is one. Raises SpoolError when it isn't
    there or can't be read."""
    try:
        if not folder.is_dir():
            raise SpoolError(
                f"There is no folder {folder}.",
                meaning="Nothing was read.",
                remedy="Name the folder that the dispatcher has as RELAY_SPOOL, or a copy of it.",
            )
        if _PROCESS.fullmatch(folder.name):
            return [folder]
        return sorted(one for one in folder.iterdir() if _PROCESS.fullmatch(one.name) and one.is_dir())
    except OSError as error:
        raise SpoolError(
            f"The spool {folder} can't be read: {error.strerror}.",
            meaning="Answers of a process that died may be there.",
            remedy="Run this as the user that the dispatcher runs as, or as root.",
        ) from error


def kept(folder: Path) -> Iterator[Kept]:
    """Every entry that isn't applied, of every process, the oldest of each first. Raises SpoolError."""
    for own in process_folders(folder):
        alive = is_locked(own)
        for entry in entries(own):
            yield Kept(entry=entry, folder=own, alive=alive, written_at=_written_at(entry.path))


def is_locked(folder: Path) -> bool:
    """Whether the process lives whose folder this is."""
    try:
        lock = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _written_at(path: Path) -> datetime:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except FileNotFoundError:
        return datetime.now(UTC)
