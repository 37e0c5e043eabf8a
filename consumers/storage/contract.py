"""What a storage can do, whatever it is made of."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from consumers.providers.download import Target
from relay.errors import RelayError


class StorageError(RelayError):
    """A file could not be written, placed or listed. What was delivered before is untouched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The output `ordinal` of a delivery under the claim `token`, to be placed under `key`."""

    delivery: UUID
    token: UUID
    ordinal: int
    key: str


class Incoming(Target, Protocol):
    """One file while it is downloaded. Everything raises StorageError."""

    async def place(self) -> None:
        """Give the whole file its final name, and return when that will last: a machine that loses its power
        then has the file, and before that nothing has this name."""


class Storage(Protocol):
    kept_in: frozenset[str]
    """Phases of a delivery whose leftovers may still be of use."""
    knows_its_own: bool
    """Whether a leftover of nobody that the database knows is ours to remove."""

    def incoming(self, wanted: Wanted) -> AbstractAsyncContextManager[Incoming]:
        """Where to put the bytes of an output. At the end of the block what isn't placed is gone, or kept for
        the next attempt to go on with, and has no final name."""

    async def leftovers(self, older_than_s: float) -> Mapping[UUID, list[str]]:
        """What attempts that died left half-written and nobody has touched for `older_than_s`, by the
        delivery, or by the operation whose outputs it delivers. Raises StorageError."""

    async def sweep(self, leftovers: list[str]) -> None:
        """Remove `leftovers`. Raises StorageError."""
