"""What Prometheus sees of a consumer. Health is progress: watch the oldest unfinished record, not the
process."""

from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

_RECORDS: Final = Counter(
    "relay_consumer_records", "Records by what became of them: handled or parked.", ["consumer", "outcome"]
)
_FAILURES: Final = Counter(
    "relay_consumer_failures",
    "Attempts that failed: transient, unavailable or permanent.",
    ["consumer", "kind"],
)
_SECONDS: Final = Histogram(
    "relay_consumer_handle_seconds", "Duration of one call of a handler.", ["consumer"]
)
_CALLS: Final = Gauge("relay_consumer_handlers", "Handlers at work.", ["consumer"])
_OUTSTANDING: Final = Gauge(
    "relay_consumer_outstanding_records",
    "Records received whose offset can't be committed yet.",
    ["consumer"],
)
_PAUSED: Final = Gauge("relay_consumer_paused_partitions", "Partitions paused by backpressure.", ["consumer"])
_PARTITIONS: Final = Gauge("relay_consumer_partitions", "Partitions assigned.", ["consumer"])
_COMMITS: Final = Counter(
    "relay_consumer_offset_commits",
    "Commits of offsets, by result: committed or failed.",
    ["consumer", "result"],
)
_OLDEST: Final = Gauge(
    "relay_consumer_oldest_unfinished_seconds",
    "Time since the oldest unfinished record was received; 0 when there is none.",
    ["consumer"],
)


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of one consumer."""

    name: str

    def ended(self, outcome: str) -> None:
        _RECORDS.labels(self.name, outcome).inc()

    def failed(self, kind: str) -> None:
        _FAILURES.labels(self.name, kind).inc()

    def call_started(self) -> None:
        _CALLS.labels(self.name).inc()

    def call_ended(self, duration_s: float) -> None:
        _CALLS.labels(self.name).dec()
        _SECONDS.labels(self.name).observe(duration_s)

    def committed(self, result: str) -> None:
        _COMMITS.labels(self.name, result).inc()

    def holding(self, *, partitions: int, outstanding: int, paused: int, oldest_s: float) -> None:
        _PARTITIONS.labels(self.name).set(partitions)
        _OUTSTANDING.labels(self.name).set(outstanding)
        _PAUSED.labels(self.name).set(paused)
        _OLDEST.labels(self.name).set(oldest_s)
