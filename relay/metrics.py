"""The relay's metrics for Prometheus: set once per group, never per event, and never from a row's value."""

from prometheus_client import Counter, Gauge, Histogram

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
ACTIVE = Gauge("relay_active", "1 while this relay has the slot, 0 while it is a standby or reconnects.")
HELD_BYTES = Gauge("relay_held_bytes", "About what is held of records that Kafka hasn't taken.")
STREAMED_LSN = Gauge("relay_streamed_lsn", "WAL position read, in bytes.")
CONFIRMED_LSN = Gauge("relay_confirmed_lsn", "WAL position confirmed to Postgres, in bytes.")
LAG_BYTES = Gauge("relay_lag_bytes", "WAL read and not confirmed, in bytes.")
PROGRESS = Gauge("relay_last_progress_timestamp_seconds", "When something was last confirmed (Unix time).")
