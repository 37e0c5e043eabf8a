"""So many a second, and a second's worth at once: what was not used longer ago is gone."""

import math
import time
from collections.abc import Callable
from typing import Final

UNLIMITED: Final = 1_000_000_000
"""More than is ever asked for at once."""


class Allowance:
    """`per_s` None: no limit."""

    def __init__(self, per_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._clock = clock
        self._at_s = clock()
        self._left = per_s or 0.0

    def left(self) -> int:
        """How many more are allowed now."""
        if self._per_s is None:
            return UNLIMITED
        now_s = self._clock()
        # A rate below one a second still comes to one in time.
        self._left = min(max(self._per_s, 1.0), self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        return math.floor(self._left)

    def spend(self, number: int) -> None:
        if self._per_s is not None:
            self._left -= number
