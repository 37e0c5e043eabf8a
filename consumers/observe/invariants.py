"""The seven invariants of the design (section 8), each a pure function over a snapshot of a quiet moment.

They share no code with what they judge, and believe no table where the topics, the provider's truth or the
files can say the same: a worker that lied to the database must not be able to hide it here.
"""

from typing import Final

from consumers.observe.effect_invariants import (
    files_are_whole,
    money_is_booked,
    no_job_is_forgotten,
    none_is_stuck,
    one_post,
)
from consumers.observe.snapshot import Snapshot
from consumers.observe.topic_invariants import every_row_is_in_kafka, order_per_operation
from consumers.observe.verdict import Verdict

INVARIANTS: Final = (
    every_row_is_in_kafka,
    order_per_operation,
    one_post,
    no_job_is_forgotten,
    money_is_booked,
    none_is_stuck,
    files_are_whole,
)


def check_all(snapshot: Snapshot) -> tuple[Verdict, ...]:
    """Invariants 1 to 7, in order."""
    return tuple(check(snapshot) for check in INVARIANTS)
