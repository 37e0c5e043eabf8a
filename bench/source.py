"""A database with one outbox: made, filled, put under a steady load, and dropped with its slots."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from bench.child import run
from bench.shape import Shape
from relay import migrations
from relay.embedded_postgres import EmbeddedPostgres
from relay.wal.lsn import parse_lsn

PUBLICATION: Final = "bench"
CLIENTS: Final = 8
"""Concurrent writers of the steady load: enough to reach 5,000 commits a second through group commit."""

_LOAD_EXTRA_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Source:
    """One database of `postgres`; the publication exists from the start, slots are the subjects' own."""

    postgres: EmbeddedPostgres
    name: str
    shape: Shape

    @classmethod
    def make(cls, postgres: EmbeddedPostgres, name: str, shape: Shape) -> "Source":
        """A new database with the relay's migrations, the shape's tables and the publication."""
        with psycopg.connect(postgres.superuser_url, autocommit=True) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        source = cls(postgres, name, shape)
        with source.connect() as connection:
            migrations.apply(connection)
            connection.execute(shape.sql)
            connection.execute(
                sql.SQL("create publication {} for table {} with (publish = 'insert')").format(
                    sql.Identifier(PUBLICATION), sql.Identifier(*shape.table.split("."))
                )
            )
        return source

    @property
    def url(self) -> str:
        return self.postgres.url(self.name)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True)

    def fill(self, rows: int, rows_per_transaction: int, payload_bytes: int) -> int:
        """Commit the backlog. Returns an LSN behind its last commit."""
        with self.connect() as connection:
            # Nobody waits for these commits one by one; what the WAL holds is the same.
            connection.execute("set synchronous_commit = off")
            connection.execute(
                "call public.bench_backlog(%s, %s, %s)", [rows, rows_per_transaction, payload_bytes]
            )
            lsn = self.insert_lsn(connection)
            # Autovacuum and a checkpoint would fall into some subject's run: they come before all of them.
            connection.execute(
                sql.SQL("vacuum (analyze) {}").format(sql.Identifier(*self.shape.table.split(".")))
            )
            connection.execute("checkpoint")
        return lsn

    def steady(self, rate_per_s: int, seconds: float, payload_bytes: int, folder: Path) -> None:
        """One row a transaction at `rate_per_s` (Poisson arrivals) for `seconds`; returns at its end."""
        script = folder / "steady.sql"
        script.write_text(self.shape.steady_insert + "\n", encoding="utf-8")
        log = folder / "pgbench.log"
        command = [str(self.postgres.bindir / "pgbench"), "--no-vacuum", "--protocol=prepared"]
        command += [f"--file={script}", f"--define=payload_bytes={payload_bytes}"]
        command += [f"--client={CLIENTS}", f"--rate={rate_per_s}", f"--time={round(seconds)}", self.url]
        run(command, {}, log, seconds + _LOAD_EXTRA_S)
        failed = re.search(r"number of failed transactions: (\d+)", log.read_text(encoding="utf-8"))
        if failed is None or failed[1] != "0":
            raise RuntimeError(f"pgbench had failed transactions:\n{log.read_text(encoding='utf-8')}")

    def add_one(self, payload_bytes: int) -> None:
        """One row, by the same way as the steady load's."""
        with self.connect() as connection:
            statement = self.shape.steady_insert.replace(":client_id", "0").replace(
                ":payload_bytes", str(payload_bytes)
            )
            connection.execute(statement)

    def committed_rows(self) -> int:
        with self.connect() as connection:
            query = sql.SQL("select count(*) from {}").format(sql.Identifier(*self.shape.table.split(".")))
            row = connection.execute(query).fetchone()
            return int(row[0]) if row else 0

    def make_slot(self, name: str) -> None:
        with self.connect() as connection:
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [name])

    def drop_slot(self, name: str) -> None:
        """Wait until nobody reads it, and drop it: a slot that stays holds the WAL back."""
        with self.connect() as connection:
            connection.execute(
                "select pg_terminate_backend(active_pid, 10000) from pg_replication_slots "
                "where slot_name = %s and active_pid is not null",
                [name],
            )
            connection.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s",
                [name],
            )

    def walsender(self, slot: str) -> int | None:
        """The pid of the server process that feeds whoever reads `slot`."""
        with self.connect() as connection:
            row = connection.execute(
                "select active_pid from pg_replication_slots where slot_name = %s", [slot]
            ).fetchone()
            return row[0] if row else None

    def insert_lsn(self, connection: psycopg.Connection[Any]) -> int:
        row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
        return parse_lsn(row[0]) if row else 0

    def drop(self) -> None:
        """The database and every slot in it."""
        with psycopg.connect(self.postgres.superuser_url, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = %s",
                [self.name],
            )
            connection.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s",
                [self.name],
            )
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(self.name))
            )


@contextmanager
def source(postgres: EmbeddedPostgres, name: str, shape: Shape) -> Iterator[Source]:
    """A `Source` that is gone afterwards."""
    made = Source.make(postgres, name, shape)
    try:
        yield made
    finally:
        made.drop()
