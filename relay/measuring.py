"""Looks at the slot and the outbox every few seconds, whatever the relay does: in a thread and on a
connection of its own, so that it shows the lag also while Kafka is away. It never holds the relay up.
"""

import threading
from typing import Any, Final

import psycopg
import structlog

from relay import identity, lag, metrics
from relay.errors import as_sentence
from relay.health import Health
from relay.outbox.mapping import OutboxMapping
from relay.settings import Settings
from relay.wal.ordinary import bounded_conninfo

MEASURE_EVERY_S: Final = 5.0
"""Often enough for an alert, rare enough to cost nothing."""
SAY_AGAIN_EVERY: Final = 60
"""While it can't measure, the log says so at the first and at each so-many-th time."""

log = structlog.get_logger("relay")


class Measuring:
    """`start` once; it ends with the process."""

    def __init__(self, settings: Settings, mapping: OutboxMapping, health: Health) -> None:
        """Raises UsageError when no database is set."""
        self._slot = settings.slot
        self._mapping = mapping
        self._health = health
        name = f"{identity.application_name(settings.slot)}-measure"
        self._conninfo = bounded_conninfo(settings.require_database(), name)
        self._earlier: lag.Sample | None = None
        self._pause = threading.Event()  # never set: a pause in which no signal is lost
        self._failures = 0

    def start(self) -> None:
        threading.Thread(target=self._run, name="measuring", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                with psycopg.connect(self._conninfo, autocommit=True) as connection:
                    while True:
                        self._look(connection)
                        self._failures = 0
                        self._pause.wait(MEASURE_EVERY_S)
            except psycopg.Error as error:
                # What isn't known any more must not count against the relay.
                self._health.saw_table(waiting=False)
                if self._failures % SAY_AGAIN_EVERY == 0:
                    log.warning("the lag can't be measured", reason=as_sentence(error))
                self._failures += 1
            self._pause.wait(MEASURE_EVERY_S)

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        published_seq = self._health.published_seq
        sample = lag.read_sample(connection, self._slot)
        events = None if published_seq is None else lag.read_events(connection, self._mapping, published_seq)
        rate = None if self._earlier is None else lag.wal_rate(self._earlier, sample)
        self._earlier = sample
        self._health.saw_table(waiting=bool(events and events.waiting), stalled_by=sample.stalled_by)
        metrics.sampled(sample, rate, events, self._health.report().behind_s)
