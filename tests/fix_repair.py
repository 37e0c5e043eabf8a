"""What tests of repair and backfill share: the command, writers at work, what a consumer sees in the end."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID, uuid4

import psycopg

from fix_process import Process, RunProcess
from fix_relay import Received, RelayUnderTest


def repair(relay: RelayUnderTest, run_process: RunProcess, *args: str, **extra: str) -> Process:
    """`relay outbox repair`, by the relay's own login, to its end or to its death."""
    process = run_process(["outbox", "repair", *args], relay.environment(**extra))
    process.wait()
    return process


def repaired(relay: RelayUnderTest, run_process: RunProcess, *args: str) -> str:
    """A repair that has to succeed. Returns what it said."""
    process = repair(relay, run_process, *args)
    assert process.wait() == 0, process.output()
    return process.output()


def audited(relay: RelayUnderTest, run_process: RunProcess) -> str:
    """`relay outbox audit`, which has to find every event where it should be. Returns what it said."""
    process = run_process(["outbox", "audit"], relay.environment())
    assert process.wait() == 0, process.output()
    return process.output()


class Writers:
    """Applications at work: each thread commits transactions of its own keys until it is told to stop."""

    def __init__(self, relay: RelayUnderTest, threads: int) -> None:
        self._relay = relay
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(threads)]
        self.failures: list[BaseException] = []
        self.committed = 0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self.failures == []

    def _write(self, number: int) -> None:
        keys = [uuid4() for _ in range(4)]
        versions = dict.fromkeys(keys, 0)
        try:
            with psycopg.connect(self._relay.database.url, autocommit=True) as connection:
                turn = 0
                while not self._stop.is_set():
                    turn += 1
                    self._transaction(connection, keys, versions, roll_back=turn % 5 == 0)
                    self._stop.wait(0.002)
        except BaseException as failure:  # noqa: BLE001 raised again where the test stops the writers
            self.failures.append(failure)

    def _transaction(
        self,
        connection: psycopg.Connection[object],
        keys: Sequence[UUID],
        versions: dict[UUID, int],
        *,
        roll_back: bool,
    ) -> None:
        with connection.transaction() as transaction:
            for key in keys[:2]:
                version = versions[key] + 1
                self._relay.emit(operation_id=key, version=version, connection=connection)
                if not roll_back:
                    versions[key] = version
            if roll_back:
                raise psycopg.Rollback(transaction)
        self.committed += 1


@contextmanager
def writers(relay: RelayUnderTest, threads: int = 2) -> Iterator[Writers]:
    """Writers at work while the block runs."""
    at_work = Writers(relay, threads)
    at_work.start()
    try:
        yield at_work
    finally:
        at_work.stop()


def outbox_ids(relay: RelayUnderTest) -> list[str]:
    """The ids of all committed rows, by `seq`."""
    rows = relay.owner.execute("select event_id::text from relay.outbox order by seq").fetchall()
    return [row[0] for row in rows]


def require_exactly_once_in_order(
    relay: RelayUnderTest, read: Callable[[], list[Received]] | None = None
) -> list[Received]:
    """Each committed row once for a read_committed reader, in order of `version` for each key, and of
    (epoch, lsn, index). Returns the records."""
    records = (read or relay.read)()
    assert sorted(record.event_id for record in records) == sorted(outbox_ids(relay))
    of_key: dict[bytes | None, list[Received]] = {}
    for record in records:
        of_key.setdefault(record.key, []).append(record)
    for lane in of_key.values():
        versions = [int(record.headers["operation_version"]) for record in lane]
        assert versions == sorted(versions)
        positions = [record.position for record in lane]
        assert positions == sorted(positions)
        assert len(set(positions)) == len(positions)
    return records
