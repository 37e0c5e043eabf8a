"""Pruning under test: what goes and what is left, beside a relay that has ended or one that keeps moving."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import psycopg

from fix_relay import RelayUnderTest
from relay.outbox.prune import prune
from relay.settings import load

NOW = timedelta(0)
CHOSEN: Final = "select coalesce(max(batch_id), 0) from relay.prune_batch"


def pruned(relay: RelayUnderTest, older_than: timedelta = NOW, **how: Any) -> int:
    settings = load(environ=relay.environment(None)).settings
    with psycopg.connect(relay.database.url_as("relay_operator"), autocommit=True) as connection:
        return sum(prune(connection, settings, older_than, **{"batch_rows": 4, **how}))


@contextmanager
def moving(relay: RelayUnderTest) -> Iterator[list[str]]:
    """A relay is at work, and what is chosen to go is passed at once: an event comes after it.

    An idle slot moves every ten seconds. The list has the events that were sent for that.
    """
    sent: list[str] = []
    done = threading.Event()
    last = relay.one(CHOSEN)

    def nudge() -> None:
        with relay.database.connect() as connection:
            seen = last
            while not done.wait(0.05):
                row = connection.execute(CHOSEN).fetchone()
                if row is not None and row[0] > seen:
                    seen = row[0]
                    sent.extend(relay.emit(connection=connection))

    with ThreadPoolExecutor(1) as pool:
        nudging = pool.submit(nudge)
        try:
            yield sent
        finally:
            done.set()
            nudging.result()


def ids(relay: RelayUnderTest) -> set[str]:
    return {str(row[0]) for row in relay.owner.execute("select event_id from relay.outbox")}


@contextmanager
def stopped(relay: RelayUnderTest, events: int) -> Iterator[list[str]]:
    """A relay that has published so many events and ended."""
    process = relay.start()
    sent = [event for _ in range(events) for event in relay.emit()]
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    relay.wait_slot_free()
    yield sent
