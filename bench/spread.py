"""Least, median and most of repetitions, and percentiles of one run. Pure arithmetic."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    least: float
    median: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Raises ValueError without a value."""
        if not values:
            raise ValueError("nothing was measured")
        return cls(min(values), statistics.median(values), max(values))


def percentile(ascending: Sequence[float], fraction: float) -> float:
    """The nearest rank: the least value that `fraction` of all don't exceed; never an invented one.

    Raises ValueError without a value.
    """
    if not ascending:
        raise ValueError("nothing was measured")
    rank = math.ceil(fraction * len(ascending))
    return ascending[max(rank, 1) - 1]
