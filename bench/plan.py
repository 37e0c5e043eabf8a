"""What is measured, how much of it and how often; and the bounds of `--check`. Pure: it runs nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

REPETITIONS: Final = 5
QUICK_REPETITIONS: Final = 2

BACKLOG_ROWS: Final = 300_000
"""Long enough that start-up is a tenth of the drain, short enough for two cores and a minute."""

LARGE_BACKLOG_ROWS: Final = 1_000_000
PAYLOAD_BYTES: Final = 200
ROWS_PER_TRANSACTION: Final = 100

LATENCY_S: Final = 30.0
QUICK_LATENCY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Drain:
    """A backlog that is committed before anything is started."""

    shape: str
    rows: int = BACKLOG_ROWS
    rows_per_transaction: int = ROWS_PER_TRANSACTION
    payload_bytes: int = PAYLOAD_BYTES

    @property
    def title(self) -> str:
        transaction = "row" if self.rows_per_transaction == 1 else "rows"
        return (
            f"{self.shape}: {self.rows:,} rows of {self.payload_bytes:,} B, "
            f"{self.rows_per_transaction:,} {transaction} a transaction"
        )


@dataclass(frozen=True, slots=True)
class Latency:
    """A steady load, one row a transaction, of Poisson arrivals."""

    shape: str
    rate_per_s: int
    seconds: float = LATENCY_S
    payload_bytes: int = PAYLOAD_BYTES

    @property
    def title(self) -> str:
        load = f"{self.rate_per_s:,} events/s of {self.payload_bytes:,} B"
        return f"{self.shape}: {load} for {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class Plan:
    """All drains and latencies, each `repetitions` times with every subject in turn."""

    drains: tuple[Drain, ...]
    latencies: tuple[Latency, ...]
    repetitions: int


FULL: Final = Plan(
    drains=(
        Drain("bytes"),
        Drain("native"),
        Drain("bytes", rows=LARGE_BACKLOG_ROWS),
        Drain("bytes", rows_per_transaction=1),
        Drain("bytes", payload_bytes=1_000),
    ),
    latencies=(Latency("bytes", 1_000), Latency("bytes", 5_000), Latency("native", 1_000)),
    repetitions=REPETITIONS,
)

QUICK: Final = Plan(
    drains=(Drain("bytes"), Drain("native")),
    latencies=(Latency("bytes", 1_000, QUICK_LATENCY_S),),
    repetitions=QUICK_REPETITIONS,
)


def plan(
    *,
    quick: bool,
    part: str = "all",
    rows: int | None = None,
    repetitions: int | None = None,
    seconds: float | None = None,
) -> Plan:
    """The chosen plan with what the command line says in its place; `part` is all, drain or latency."""
    chosen = QUICK if quick else FULL
    drains, latencies = chosen.drains, chosen.latencies
    if rows is not None:
        # Those that differ in their rows alone become one.
        drains = tuple(dict.fromkeys(replace(drain, rows=rows) for drain in drains))
    if seconds is not None:
        latencies = tuple(replace(latency, seconds=seconds) for latency in latencies)
    return Plan(
        drains=() if part == "latency" else drains,
        latencies=() if part == "drain" else latencies,
        repetitions=repetitions or chosen.repetitions,
    )


LEAST_OF_FLOOR: Final[Mapping[tuple[str, str], float]] = {
    ("bytes", "at_least_once"): 0.15,
    ("bytes", "exactly_once"): 0.10,
    ("native", "at_least_once"): 0.08,
    ("native", "exactly_once"): 0.08,
}
"""By shape and delivery: the least ratio of a drain to the floor's in the same run. A shared machine's noise
stays above it; a loop that commits per row, or polls where it should wait, falls below."""


def too_slow(shape: str, delivery: str, ratio: float) -> str | None:
    """The sentence for a drain below its bound; None where it holds, or where there is no bound."""
    bound = LEAST_OF_FLOOR.get((shape, delivery))
    if bound is None or ratio >= bound:
        return None
    return (
        f"{shape}, {delivery}: the drain has {ratio:.2f} of pg_recvlogical's rate in the same run; "
        f"it must have {bound:.2f}."
    )
