"""What Prometheus sees of schedule. Health is progress: watch what is overdue, not the process."""

from typing import Final

from prometheus_client import Counter, Gauge

ACTIONS: Final = Counter(
    "relay_schedule_actions",
    "What was done: lease_expired, replayed, unreplayed, event, released, attempt_closed, review_escalated,"
    " evidence_asked, or failed where the database refused it.",
    ["action"],
)
OVERDUE: Final = Gauge(
    "relay_schedule_overdue_operations", "Operations due for longer than a minute that nobody has looked at."
)
OLDEST_OVERDUE: Final = Gauge(
    "relay_schedule_oldest_overdue_seconds", "How long the oldest of them has been due."
)
HEALTHY: Final = Gauge("relay_schedule_healthy", "1 while nothing is overdue and the database is there.")
LAST_ROUND: Final = Gauge(
    "relay_schedule_last_round_timestamp_seconds", "When a round last ended (Unix time)."
)
