"""A primary and its physical standby, set up as failover slots want it, with the network between them.

The standby streams through a proxy: what a test holds there never reaches it.
"""

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, LiteralString
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from fix_kafka import Kafka
from fix_postgres import SETTINGS, Database, clone, make_template
from fix_process import Process, RunProcess
from fix_proxy import TcpProxy
from fix_relay import EVENT_TYPE, RelayUnderTest
from fix_waiting import eventually
from relay.embedded_postgres import EmbeddedPostgres

STANDBY: Final = "standby_1"
"""The standby's physical slot, and its name in `synchronous_standby_names`."""


class Pair:
    """`primary` and `standby`, both running, the standby streaming through `proxy`.

    Everything that failover slots want is set from Postgres 17 on (Postgres 18, 47.2.3); synchronous
    replication isn't.
    """

    def __init__(self, primary: EmbeddedPostgres, standby: EmbeddedPostgres, proxy: TcpProxy) -> None:
        self.primary = primary
        self.standby = standby
        self.proxy = proxy

    def both(self, url: str) -> str:
        """`url` of one of them with both hosts, and the wrong one first; ours choose the one for writing."""
        hosts = [f"{server.host}:{server.port}" for server in (self.standby, self.primary)]
        for host in hosts:
            url = url.replace(f"@{host}/", f"@{','.join(hosts)}/")
        return url

    def ask(self, server: EmbeddedPostgres, query: LiteralString, *parameters: object) -> Any:
        with psycopg.connect(server.superuser_url, autocommit=True) as connection:
            row = connection.execute(query, parameters).fetchone()
        return row[0] if row is not None and len(row) == 1 else row

    def set(self, server: EmbeddedPostgres, setting: str, value: str) -> None:
        """`ALTER SYSTEM`, and wait until it holds."""
        statement = sql.SQL("alter system set {} = {}").format(sql.Identifier(setting), sql.Literal(value))
        with psycopg.connect(server.superuser_url, autocommit=True) as connection:
            connection.execute(statement)
            connection.execute("select pg_reload_conf()")
        query: LiteralString = "select current_setting(%s)"
        eventually(lambda: self.ask(server, query, setting) == value, f"{setting} is {value!r}")

    def synchronous(self) -> None:
        """Commits wait for the standby from here on."""
        self.set(self.primary, "synchronous_standby_names", STANDBY)

    def wait_streaming(self) -> None:
        query: LiteralString = """
            select count(*) = 1 from pg_stat_replication where application_name = %s and state = 'streaming'
        """
        eventually(lambda: self.ask(self.primary, query, STANDBY), "the standby streams")

    def wait_caught_up(self) -> None:
        """Until the standby has replayed all that the primary has written."""
        lsn = self.ask(self.primary, "select pg_current_wal_flush_lsn()::text")
        query: LiteralString = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
        eventually(lambda: self.ask(self.standby, query, lsn), f"the standby has replayed {lsn}")

    def wait_synced(self, slot: str, meanwhile: Callable[[], object]) -> None:
        """Until the standby's copy of the logical slot would outlive a promotion.

        The copy is kept once the primary's slot has moved past what the standby can decode, so that a relay
        must run and confirm; `meanwhile` gives it something.
        """
        query: LiteralString = """
            select synced and not temporary and invalidation_reason is null
            from pg_replication_slots where slot_name = %s
        """

        def there() -> bool:
            meanwhile()
            self.ask(self.primary, "select pg_log_standby_snapshot()")
            # Wakes the worker: left alone it sleeps longer and longer, up to 30 s.
            self.ask(self.standby, "select pg_reload_conf()")
            return bool(self.ask(self.standby, query, slot))

        eventually(there, f"{slot} is synced")

    def promote(self) -> None:
        """Make the standby a primary, and wait until it takes writes."""
        assert self.ask(self.standby, "select pg_promote(true, 60)")


def _can_sync(server: EmbeddedPostgres) -> bool:
    return int(server.version.split(".")[0]) >= 17


def make_standby(primary: EmbeddedPostgres, folder: Path, proxy: TcpProxy) -> EmbeddedPostgres:
    """A running standby of `primary`, made by `pg_basebackup`, with a physical slot of its own."""
    with psycopg.connect(primary.superuser_url, autocommit=True) as connection:
        connection.execute("select pg_create_physical_replication_slot(%s, true)", [STANDBY])
    connects = {
        "host": proxy.host,
        "port": str(proxy.port),
        "user": "postgres",
        "password": primary.password,
        "dbname": "postgres",  # slot synchronization asks it in SQL
        "application_name": STANDBY,
    }
    conninfo = psycopg.conninfo.make_conninfo("", **connects)
    standby = EmbeddedPostgres(
        folder,
        settings={
            **primary.settings,
            "primary_conninfo": conninfo,
            "primary_slot_name": STANDBY,
            "hot_standby_feedback": "on",
            **({"sync_replication_slots": "on"} if _can_sync(primary) else {}),
            "wal_receiver_status_interval": "1",
            "wal_retrieve_retry_interval": "200ms",
        },
        bindir=primary.bindir,
    )
    standby.call(
        "pg_basebackup",
        *("--pgdata", standby.data, "--dbname", conninfo, "--slot", STANDBY),
        *("--checkpoint", "fast", "--wal-method", "stream", "--no-sync", "--write-recovery-conf"),
    )
    shutil.copy(primary.folder / "password", folder / "password")
    standby.start()
    return standby


@contextmanager
def running_pair(bindir: Path | None = None) -> Iterator[Pair]:
    """Both servers and the proxy, until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="relay-test-pair-"))
    folder.chmod(0o755)
    with ExitStack() as ending:
        ending.callback(shutil.rmtree, folder)
        primary = EmbeddedPostgres(folder / "primary", settings=SETTINGS, bindir=bindir)
        ending.callback(primary.stop, "immediate")
        primary.start()
        proxy = TcpProxy((primary.host, primary.port))
        ending.callback(proxy.close)
        standby = make_standby(primary, folder / "standby", proxy)
        ending.callback(standby.stop, "immediate")
        made = Pair(primary, standby, proxy)
        made.wait_streaming()
        if _can_sync(primary):
            made.set(primary, "synchronized_standby_slots", STANDBY)
        yield made


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A pair of the test's own: `synchronized_standby_slots` is set, replication is asynchronous."""
    with running_pair() as made:
        yield made


class Applications:
    """They commit events whatever happens to Postgres, connecting again until they may."""

    def __init__(self, url: str, threads: int = 3) -> None:
        self.url = url
        self.acknowledged: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, daemon=True) for _ in range(threads)]

    def __enter__(self) -> "Applications":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= wanted, f"{count} more events are acknowledged")

    def _write(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as connection:
                    while not self._stop.is_set():
                        self.acknowledged += _commit_some(connection)
            except psycopg.OperationalError:
                self._stop.wait(0.05)  # nobody takes writes for a moment


def _commit_some(connection: psycopg.Connection[Any]) -> list[str]:
    ids = [uuid4() for _ in range(3)]
    with connection.transaction():
        for event_id in ids:
            connection.execute(
                """
                insert into relay.outbox
                  (event_id, event_type, schema_version, operation_id, version, payload)
                values (%s, %s, 1, %s, 1, %s)
                """,
                [event_id, EVENT_TYPE, uuid4(), Jsonb({"operation_id": str(event_id), "job_id": "job-1"})],
            )
    return [str(event_id) for event_id in ids]


class RelayOnPair(RelayUnderTest):
    """A relay that knows both hosts. `move` after a promotion: then the test looks at the standby as well."""

    def __init__(self, pair: Pair, kafka: Kafka, prefix: str, run_process: RunProcess) -> None:
        self.pair = pair
        database = clone(pair.primary, make_template(pair.primary))
        super().__init__(database, kafka, prefix, run_process)

    def environment(self, login: str | None = "relay_replicator", **extra: str) -> dict[str, str]:
        environment = super().environment(login, **extra)
        if "RELAY_DATABASE_URL" not in extra:
            environment["RELAY_DATABASE_URL"] = self.pair.both(environment["RELAY_DATABASE_URL"])
        return environment

    def start_synced(self) -> Process:
        """A relay that publishes, on a slot that would outlive a promotion."""
        process = self.start()
        self.pair.wait_synced(self.slot, lambda: self.emit(1))
        self.wait_published(process)
        return process

    def move(self) -> None:
        self.owner.close()
        self.database = Database(self.pair.standby, self.database.name)
        self.owner = self.database.connect()


@pytest.fixture
def relay_on_pair(
    pair: Pair, real_kafka: Kafka, topic_prefix: str, run_process: RunProcess
) -> Iterator[RelayOnPair]:
    """Publication, slot and identity exist on the primary; nothing runs."""
    under_test = RelayOnPair(pair, real_kafka, topic_prefix, run_process)
    try:
        under_test.initialise()
        yield under_test
    finally:
        under_test.owner.close()
