"""How a test waits for something that no process announces: look, and look again, up to a generous limit.

This is the one place where tests pause; a test itself never sleeps for a time and then hopes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE_S = 120.0
"""How long a loaded machine may take for what takes a second; it costs nothing where a test passes."""

_BETWEEN_LOOKS_S = 0.02

Seen = TypeVar("Seen")


def eventually(look: Callable[[], Seen], what: str, timeout_s: float = PATIENCE_S) -> Seen:
    """Look until what is seen is true, and return it; AssertionError with `what` and the last sight."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s; last seen: {seen!r}"
        time.sleep(_BETWEEN_LOOKS_S)
    return seen


async def eventually_async(
    look: Callable[[], Awaitable[Seen]], what: str, timeout_s: float = PATIENCE_S
) -> Seen:
    """`eventually` for coroutines."""
    deadline = time.monotonic() + timeout_s
    while not (seen := await look()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s; last seen: {seen!r}"
        await asyncio.sleep(_BETWEEN_LOOKS_S)
    return seen
