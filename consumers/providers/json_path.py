"""The small part of JSONPath that profiles use: `$.name`, `$.list[0]`, `$.list[*]`. Pure.

Where an object repeats a key, every value is found: a provider that says two ids has not said one.
"""

import re
from functools import lru_cache
from typing import Final

_PATH: Final = re.compile(r"\$(?:\.[A-Za-z_][A-Za-z0-9_-]*|\[(?:\d{1,6}|\*)\])*")
_STEP: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\[(\d{1,6}|\*)\]")

Step = str | int | None
"""A key, an index, or None for every element."""


class Object(dict[str, object]):
    """A JSON object that remembers each value of a repeated key; as a dict it holds the last."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


@lru_cache(maxsize=512)
def steps(path: str) -> tuple[Step, ...]:
    """The steps of `path`. Raises ValueError for what is not a path."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"{path!r} is not a path like $.job_id or $.outputs[*].url")
    found: list[Step] = []
    for key, index in _STEP.findall(path):
        found.append(key or (None if index == "*" else int(index)))
    return tuple(found)


def find(path: str, document: object) -> list[object]:
    """Every value at `path`, in the document's order; none when there is no such place."""
    here = [document]
    for step in steps(path):
        here = [value for container in here for value in _children(container, step)]
    return here


def _children(container: object, step: Step) -> list[object]:
    if isinstance(step, str):
        if isinstance(container, Object):
            return [value for key, value in container.pairs if key == step]
        return []
    if not isinstance(container, list):
        return []
    if step is None:
        return list(container)
    return container[step : step + 1]
