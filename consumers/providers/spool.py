"""The dispatcher's local record of what it is about to send and of what came back, for the time when the
database can't be told. It never decides anything, and an entry leaves only when its attempt is applied.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay.errors import RelayError


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
    """A complete line that can't be read: treat the attempt as unknown."""
    path: Path


class Spool:
    """One process's spool."""

    @classmethod
    def open(cls, folder: Path) -> "Spool":
        """Lock an own sub-folder of `folder` and adopt the entries of each unlocked one."""
        raise NotImplementedError

    def adopt(self) -> int:
        """Take over the entries of every unlocked sub-folder; how many."""
        raise NotImplementedError

    def sending(self, attempt_id: str, operation_id: str, **details: Any) -> None:
        """Record, durably, that the next thing to happen is the first byte."""
        raise NotImplementedError

    def answer(self, attempt_id: str, payload: Mapping[str, Any]) -> None:
        """Record, durably, what came back."""
        raise NotImplementedError

    def applied(self, attempt_id: str) -> None:
        """The database has it: forget it. Unknown attempts are fine."""
        raise NotImplementedError

    def pending(self) -> Iterator[SpoolEntry]:
        """Every entry that isn't applied, oldest first."""
        raise NotImplementedError

    def close(self) -> None:
        """Unlock. The entries stay, for whoever opens the folder next."""
        raise NotImplementedError
