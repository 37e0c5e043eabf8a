"""The relay's metrics for Prometheus: set once per group, never per event, and never from a row's value."""

import math
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from relay.health import Health
from relay.intake import Intake
from relay.lag import Events, Sample, seconds_until_lost

EVENTS = Counter("relay_events", "Events that Kafka has durably.")
BYTES = Counter("relay_bytes", "About what these events took on the wire, uncompressed.")
COMMITS = Counter("relay_kafka_commits", "Groups committed to Kafka.")
COMMIT_SECONDS = Histogram(
    "relay_kafka_commit_seconds",
    "How long a commit to Kafka took.",
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30),
)
PARKED = Counter("relay_parked_events", "Events that could not be sent, by reason.", ["reason"])
IGNORED = Counter("relay_ignored_messages", "Messages of the stream that change nothing, by kind.", ["kind"])
SKIPPED = Counter("relay_skipped_events", "Events that came again and were in Kafka already.")
START_OVERS = Counter("relay_start_overs", "Times that the relay began again from the checkpoint.")
STANDBY = Gauge("relay_standby", "1 while this relay waits for the slot, which another one has.")
ACTIVE = Gauge("relay_active", "1 while this relay has the slot, 0 while it is a standby or reconnects.")
HELD_BYTES = Gauge("relay_held_bytes", "About what is held of records that Kafka hasn't taken.")
STREAMED_LSN = Gauge("relay_streamed_lsn", "WAL position read, in bytes.")
CONFIRMED_LSN = Gauge("relay_confirmed_lsn", "WAL position confirmed to Postgres, in bytes.")
LAG_BYTES = Gauge("relay_lag_bytes", "WAL written and not confirmed, in bytes.")
LAG_EVENTS = Gauge(
    "relay_lag_events",
    "Committed events that Kafka doesn't have. Above 10,000 an upper bound (a sequence has gaps); NaN while "
    "unknown, or where the outbox has no seq.",
)
LAG_SECONDS = Gauge(
    "relay_lag_seconds",
    "Age of the oldest committed event that Kafka doesn't have; where the outbox has no seq, for how long "
    "something has been waiting without progress.",
)
RETAINED_BYTES = Gauge("relay_slot_retained_bytes", "WAL that Postgres keeps for the slot; NaN without one.")
SAFE_BYTES = Gauge(
    "relay_slot_safe_bytes", "WAL that may still be written before the slot is lost; +Inf without a limit."
)
WAL_RATE = Gauge("relay_wal_bytes_per_second", "WAL that Postgres wrote of late.")
UNTIL_LOST = Gauge(
    "relay_seconds_until_slot_lost",
    "Until the slot is lost if nothing is confirmed and WAL is written at this rate; +Inf without a limit.",
)
STALLED = Gauge(
    "relay_stalled_by_standby",
    "1 while a standby of synchronized_standby_slots is behind, so that Postgres sends the relay nothing.",
)
MEASURED = Gauge("relay_measured_timestamp_seconds", "When the slot was last looked at (Unix time).")
HEALTHY = Gauge("relay_healthy", "What /healthz says: 1 while it makes progress or has nothing to do.")
READY = Gauge("relay_ready", "What /readyz says: 1 while it publishes, or waits as a standby.")
HEARTBEAT = Gauge("relay_heartbeat_age_seconds", "Since the relay's own thread last came by.")
PROGRESS = Gauge("relay_last_progress_timestamp_seconds", "When Kafka last took something (Unix time).")

_UNKNOWN: Final = math.nan


def of_health(health: Health) -> None:
    """Let each scrape ask for it: a thread that hangs can't set a gauge."""
    HEALTHY.set_function(lambda: float(health.report().healthy))
    READY.set_function(lambda: float(health.report().ready))
    HEARTBEAT.set_function(lambda: health.report().heartbeat_age_s)


def committed(seconds: float, events: int, size_bytes: int) -> None:
    """A group is durable in Kafka."""
    COMMITS.inc()
    COMMIT_SECONDS.observe(seconds)
    PROGRESS.set_to_current_time()
    EVENTS.inc(events)
    BYTES.inc(size_bytes)


def confirmed(lsn: int, streamed_to: int) -> None:
    """Feedback was sent."""
    CONFIRMED_LSN.set(lsn)
    STREAMED_LSN.set(streamed_to)


def read(intake: Intake) -> None:
    """What the intake holds, and what it has counted since the last time."""
    HELD_BYTES.set(intake.held_bytes)
    ignored, intake.ignored = intake.ignored, type(intake.ignored)()
    for kind, count in ignored.items():
        IGNORED.labels(kind).inc(count)
    skipped, intake.skipped = intake.skipped, 0
    SKIPPED.inc(skipped)


def sampled(sample: Sample, bytes_per_s: float | None, events: Events | None, waiting_s: float) -> None:
    """A look at the slot and the outbox. `waiting_s` stands in where the outbox has no `seq`."""
    safe = None if sample.slot is None else sample.slot.safe_wal_bytes
    lost = sample.slot is None or sample.slot.wal_status == "lost"
    LAG_BYTES.set(_known(sample.lag_bytes))
    LAG_EVENTS.set(_known(None if events is None else events.waiting))
    LAG_SECONDS.set(waiting_s if events is None else events.oldest_age_s)
    RETAINED_BYTES.set(_known(sample.retained_bytes))
    SAFE_BYTES.set(0 if lost else math.inf if safe is None else safe)
    WAL_RATE.set(_known(bytes_per_s))
    UNTIL_LOST.set(_known(seconds_until_lost(sample, bytes_per_s)))
    STALLED.set(bool(sample.stalled_by))
    MEASURED.set_to_current_time()


def _known(value: float | None) -> float:
    return _UNKNOWN if value is None else value
