"""What follows a failed attempt to handle a record: again after a delay, or parked. Pure; it never waits
itself.

Backoff is exponential with full jitter (every delay is drawn from 0 to the ceiling), so that many consumers
that failed together don't come back together.
"""

import enum
from dataclasses import dataclass
from typing import Final


class Failure(enum.Enum):
    """Kinds of failure, from the exception that a handler raised."""

    TRANSIENT = "transient"
    """May pass by itself; worth trying until `retry_for_s` is over."""
    UNAVAILABLE = "unavailable"
    """Postgres or Kafka is away: it says nothing about this record, so it is tried for as long as that
    lasts."""
    PERMANENT = "permanent"
    """Will never work; parked at once."""


FIRST_CEILING_S: Final = 0.2
"""A lock or a connection that was just lost is often back after this."""
CEILING_S: Final = 30.0
"""Rare enough not to burden what is failing, often enough to be noticed when it works again."""
UNAVAILABLE_CEILING_S: Final = 5.0
"""Everything waits while infrastructure is away, so it is asked more often."""


@dataclass(frozen=True, slots=True)
class Again:
    """Try again after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Park:
    """Give the record up: `reason_code` is ``permanent`` or ``exhausted``."""

    reason_code: str


def decide(
    failure: Failure,
    *,
    attempt: int,
    failing_for_s: float,
    retry_for_s: float,
    draw: float,
    retry_after_s: float | None = None,
) -> Again | Park:
    """What to do after the `attempt`-th failure in a row (from 1).

    `failing_for_s` is the time since the first of them, `draw` a random number in [0, 1), `retry_after_s` the
    least delay that the handler asked for. The last attempt falls on the end of `retry_for_s`, not before it.
    """
    if failure is Failure.PERMANENT:
        return Park("permanent")
    ceiling_s = UNAVAILABLE_CEILING_S if failure is Failure.UNAVAILABLE else CEILING_S
    # 2**attempt overflows a float long after the ceiling is reached.
    delay_s = draw * min(ceiling_s, FIRST_CEILING_S * 2 ** min(attempt - 1, 30))
    if failure is Failure.TRANSIENT:
        left_s = retry_for_s - failing_for_s
        if left_s <= 0:
            return Park("exhausted")
        delay_s = min(delay_s, left_s)
    return Again(max(delay_s, retry_after_s or 0.0))
