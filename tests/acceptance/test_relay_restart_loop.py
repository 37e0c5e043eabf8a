"""Killed at random while writers commit, roll back and set savepoints: what was committed, and none other."""

import random
import secrets
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID, uuid4

import psycopg
import pytest

from fix_relay import EVENT_TYPE, Received, RelayUnderTest
from fix_versions import measured
from fix_waiting import eventually
from relay import failpoints

WRITERS: Final = 3
MOST_ROWS: Final = 5_000
KILLS: Final = 6
# A republish has boundaries of its own, which only a republish passes (test_relay_republish.py).
PLACES: Final = sorted(
    name for name in failpoints.NAMES if name.startswith("relay.") and "republish" not in name
)
# Small enough that the larger transactions come in parts, each a Kafka transaction of its own.
SMALL: Final = {"RELAY_QUEUE_BYTES": str(2 * 1024 * 1024), "RELAY_GROUP_BYTES": str(256 * 1024)}

_INSERT: Final = f"""
    insert into relay.outbox (event_type, schema_version, operation_id, version, payload)
    select '{EVENT_TYPE}', 1, %(key)s::uuid, %(version)s + g,
           jsonb_build_object('operation_id', %(key)s::uuid, 'job_id', 'job-1')
    from generate_series(1, %(rows)s) g
"""


@dataclass
class Writers:
    """Each has an operation of its own, so that its versions are its commit order.

    They don't run away from the relay: a burst of commits for each `wait_for`.
    """

    relay: RelayUnderTest
    seed: int
    commits: int = 0
    rolled_back: int = 0
    versions: dict[UUID, int] = field(default_factory=dict)
    """The last committed version of each operation; every one from 1 on was committed."""
    _wanted: int = 0
    _enough: threading.Event = field(default_factory=threading.Event)
    _turn: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._enough.set()
            self.wake(0)
            for thread in threads:
                thread.join()

    def wait_for(self, more: int) -> None:
        """Until so many more transactions are committed."""
        goal = self.commits + more
        self.wake(more)
        eventually(lambda: self.commits >= goal, f"{more} more transactions are committed")

    def wake(self, more: int) -> None:
        """Let them commit so many more."""
        with self._turn:
            self._wanted = max(self._wanted, self.commits + more)
            self._turn.notify_all()

    def _write(self, number: int) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        key, version = uuid4(), 0
        with self.relay.database.connect() as connection:
            while not self._enough.is_set():
                with self._turn:
                    self._turn.wait_for(lambda: self.commits < self._wanted or self._enough.is_set())
                # As many small as large ones: the logarithm is even.
                rows = int(MOST_ROWS ** rng.random())
                kept = rows
                with connection.transaction() as transaction:
                    if rng.random() < 0.2:  # a savepoint whose rows go again, in the middle of it
                        kept = rows // 2
                        self._insert(connection, key, version, kept)
                        with connection.transaction(force_rollback=True):
                            self._insert(connection, key, version + kept, rows - kept)
                    else:
                        self._insert(connection, key, version, rows)
                    if rng.random() < 0.15:
                        kept = 0
                        raise psycopg.Rollback(transaction)
                version += kept
                with self._turn:
                    self.commits += 1
                    self.rolled_back += rows - kept
                    self.versions[key] = version

    def _insert(
        self, connection: psycopg.Connection[tuple[object, ...]], key: UUID, version: int, rows: int
    ) -> None:
        connection.execute(_INSERT, {"key": key, "version": version, "rows": rows})


def kill_once(relay: RelayUnderTest, writers: Writers, rng: random.Random, settings: dict[str, str]) -> str:
    """Start a relay and kill it somewhere: at a boundary, while it starts, or wherever it happens to be."""
    choice = rng.random()
    if choice < 0.6:
        place = f"{rng.choice(PLACES)}=kill@{rng.randint(1, 6)}"
        process = relay.failing(place, **settings)

        def gone() -> bool:
            writers.wake(1)  # however many it takes: small transactions go in one group
            return not process.running

        eventually(gone, f"{place} was reached")
        assert process.wait() == -9, process.output()
        return place
    if choice < 0.7:
        process = relay.run(**settings)
        writers.wait_for(1)
        process.kill()
        return "while it starts"
    process = relay.start(**settings)
    writers.wait_for(rng.randint(5, 30))
    process.kill()
    return "at work"


def by_operation(records: list[Received]) -> dict[str, list[int]]:
    """The versions of each operation, in the order in which a consumer reads them."""
    found: dict[str, list[int]] = defaultdict(list)
    for record in records:
        found[(record.key or b"").decode()].append(int(record.headers["operation_version"]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_whenever_it_is_killed_each_committed_event_arrives_in_order(
    exactly_once: RelayUnderTest, delivery: str, pytestconfig: pytest.Config
) -> None:
    relay = exactly_once
    seed = secrets.randbelow(1_000_000)
    rng = random.Random(seed)
    settings = {**SMALL, "RELAY_DELIVERY": delivery}
    writers = Writers(relay, seed)
    with writers.at_work():
        writers.wait_for(WRITERS)
        places = [kill_once(relay, writers, rng, settings) for _ in range(KILLS)]
    process = relay.start(**settings)
    relay.wait_published(process)
    assert process.stop() == 0, process.output()

    records = relay.read()
    committed = {str(row[0]) for row in relay.owner.execute("select event_id from relay.outbox")}
    figures = (
        f"seed {seed}, killed {', '.join(places)}: {writers.commits} transactions, {len(committed)} events,"
        f" {writers.rolled_back} rolled back, {len(records)} records"
    )
    measured(pytestconfig, f"kills under writers, {delivery}", figures)
    if delivery == "exactly_once":
        assert len(records) == len(committed)
    seen: set[str] = set()
    first: list[Received] = []
    for record in records:
        if record.event_id not in seen:  # what a consumer that keeps ce_id does
            seen.add(record.event_id)
            first.append(record)
    assert seen == committed
    assert by_operation(first) == {
        str(key): list(range(1, last + 1)) for key, last in writers.versions.items() if last
    }


@pytest.mark.slow
def test_a_transaction_of_many_kafka_transactions_survives_a_kill_at_every_boundary(
    exactly_once: RelayUnderTest,
) -> None:
    relay = exactly_once
    relay.emit_many(100_000, transactions=1)
    begun = relay.confirmed()
    for number, place in enumerate(PLACES):
        process = relay.failing(f"{place}=kill@{3 + number}", **SMALL)
        assert process.wait() == -9, process.output()
    # Each kill fell inside the transaction: its end was never confirmed.
    assert relay.confirmed() == begun
    process = relay.start(**SMALL)
    relay.wait_published(process)
    records = relay.read()
    assert len(records) == 100_000
    assert [record.position for record in records if record.partition == 0] == sorted(
        record.position for record in records if record.partition == 0
    )
    relay.assert_clean()
