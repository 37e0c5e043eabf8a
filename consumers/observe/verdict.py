"""What an invariant's check comes to, and how its items are put together. Pure."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One invariant's result. `checked` counts what was looked at: a verdict on nothing says nothing."""

    number: int
    says: str
    checked: int
    offending: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.offending


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """`items` by `key`, in their order."""
    groups: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups
