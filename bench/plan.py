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
LATENCY_REPETITIONS: Final = 3
QUICK_LATENCY_S: Final = 10.0
QUICK_LATENCY_REPETITIONS: Final = 1


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
    """What to measure, and how many turns every subject has at each."""

    drains: tuple[Drain, ...]
    latencies: tuple[Latency, ...]
    drain_repetitions: int
    latency_repetitions: int


FULL: Final = Plan(
    drains=(
        Drain("bytes"),
        Drain("native"),
        Drain("bytes", rows=LARGE_BACKLOG_ROWS),
        Drain("bytes", rows_per_transaction=1),
        Drain("bytes", payload_bytes=1_000),
    ),
    latencies=(Latency("bytes", 1_000), Latency("bytes", 5_000), Latency("native", 1_000)),
    drain_repetitions=REPETITIONS,
    latency_repetitions=LATENCY_REPETITIONS,
)

QUICK: Final = Plan(
    drains=(Drain("bytes"), Drain("native")),
    latencies=(Latency("bytes", 1_000, QUICK_LATENCY_S),),
    drain_repetitions=QUICK_REPETITIONS,
    latency_repetitions=QUICK_LATENCY_REPETITIONS,
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
        drain_repetitions=repetitions or chosen.drain_repetitions,
        latency_repetitions=repetitions or chosen.latency_repetitions,
    )


WANTED_OF_FLOOR: Final[Mapping[tuple[str, str], float]] = {
    ("bytes", "at_least_once"): 0.7,
    ("bytes", "exactly_once"): 0.5,
    ("native", "at_least_once"): 0.35,
    ("native", "exactly_once"): 0.35,
}
"""By shape and delivery: the share of the floor's rate that a drain is to reach on an idle machine."""

CHECK_WIDER: Final = 10
"""`--check` allows so many times less: it runs on busy machines, and is to find a path that broke."""


def too_slow(shape: str, delivery: str, ratio: float) -> str | None:
    """The sentence for a drain below its bound; None where it holds, or where there is no bound."""
    wanted = WANTED_OF_FLOOR.get((shape, delivery))
    if wanted is None or ratio >= wanted / CHECK_WIDER:
        return None
    return (
        f"{shape}, {delivery}: the drain has {ratio:.3f} of pg_recvlogical's rate in the same run; "
        f"it must have {wanted / CHECK_WIDER:.3f}."
    )
