"""A real PostgreSQL for each run, and a migrated database for each test. Nothing survives the run."""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from fix_versions import talked_to
from relay.embedded_postgres import EmbeddedPostgres

TEMPLATE = "migrated"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Postgres runs as another account when the tests are root's: only root can show how."""
    if os.geteuid() != 0:
        only_root = [item for item in items if item.get_closest_marker("as_root")]
        items[:] = [item for item in items if item not in only_root]
        config.hook.pytest_deselected(items=only_root)


# A crash of the machine is not among the crashes that the tests make: what a killed process has written stays
# in the page cache, so SIGKILL and immediate stops are as real as ever.
SETTINGS = {
    "fsync": "off",
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
    "max_prepared_transactions": "4",
}

_numbers = itertools.count(1)


OLDEST = "15"
"""The oldest major version that is supported; its programs come from the operating system."""


def bindir() -> Path | None:
    """Of the PostgreSQL that the tests run on: the wheel's, unless TEST_POSTGRES_BIN names another's."""
    named = os.environ.get("TEST_POSTGRES_BIN")
    return Path(named) if named else None


def _server(programs: Path | None = None) -> Iterator[EmbeddedPostgres]:
    # Not below pytest's own folder, which only root may enter: the server runs as somebody else then.
    folder = Path(tempfile.mkdtemp(prefix="relay-test-postgres-"))
    server = EmbeddedPostgres(folder, settings=SETTINGS, bindir=programs or bindir())
    try:
        server.start()
        yield server
    finally:
        server.stop("immediate")
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[EmbeddedPostgres]:
    """The server that all tests share. A test that stops it takes `own_postgres` instead."""
    for server in _server():
        origin = "embedded-postgres" if bindir() is None else str(server.bindir)
        talked_to(pytestconfig, "PostgreSQL", f"{server.version} ({origin})")
        yield server


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server of the test's own, empty, that it may stop, kill and start again."""
    yield from _server()


def oldest_bindir() -> Path:
    """Where the programs of the oldest supported PostgreSQL are: skips (fails under CI=true) without them."""
    found = Path(f"/usr/lib/postgresql/{OLDEST}/bin")
    if not (found / "postgres").exists():
        pytest.skip(f"this needs PostgreSQL {OLDEST} (README: Contributing): {found} has no postgres")
    return found


@pytest.fixture(scope="session")
def old_postgres(pytestconfig: pytest.Config) -> Iterator[EmbeddedPostgres]:
    """A server of the oldest supported version, shared by the tests that ask for it; none may stop it."""
    for server in _server(oldest_bindir()):
        talked_to(pytestconfig, f"PostgreSQL {OLDEST}", f"{server.version} ({server.bindir})")
        yield server


@dataclass(slots=True)
class Database:
    """One database of `server`, and logins for it."""

    server: EmbeddedPostgres
    name: str

    @property
    def url(self) -> str:
        """As its owner, the superuser."""
        return self.server.url(self.name)

    def connect(self, url: str | None = None, *, autocommit: bool = True) -> psycopg.Connection[Any]:
        """A connection as the owner, or by `url`. The caller closes it (`with`)."""
        return psycopg.connect(url or self.url, autocommit=autocommit)

    def url_as(self, role: str) -> str:
        """As a login that is a member of exactly the group role `role`, made when it is first asked for.

        `relay_replicator`'s has REPLICATION, which Postgres doesn't inherit from a group role.
        """
        login = f"login_{role}"
        attributes = "LOGIN REPLICATION" if role == "relay_replicator" else "LOGIN"
        with self.connect() as connection:
            known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [login]).fetchone()
            if known is None:
                # A password that is no secret: the server listens on this machine alone, for this run.
                connection.execute(
                    sql.SQL("CREATE ROLE {} {} PASSWORD {} IN ROLE {}").format(
                        sql.Identifier(login), sql.SQL(attributes), sql.Literal(login), sql.Identifier(role)
                    )
                )
        return self.server.url(self.name, user=login, password=login)

    def drop(self) -> None:
        """End its sessions, drop its replication slots, then the database: a slot would keep it."""
        with psycopg.connect(self.server.superuser_url, autocommit=True) as connection:
            # Waits until each has gone (10 s): an active slot can't be dropped.
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
                [self.name],
            )
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
                [self.name],
            )
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self.name))
            )


def make_template(server: EmbeddedPostgres, name: str = TEMPLATE) -> str:
    """A database with every migration applied, for `CREATE DATABASE … TEMPLATE`. Returns its name."""
    from relay.migrations import apply  # here, so that tests without a database don't need it

    with psycopg.connect(server.superuser_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        apply(connection)
    return name


def clone(server: EmbeddedPostgres, template: str | None, hint: str = "test") -> Database:
    """A new database from `template`, or an empty one."""
    database = Database(server, f"{hint}_{next(_numbers)}")
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
        sql.Identifier(database.name), sql.Identifier(template or "template0")
    )
    with psycopg.connect(server.superuser_url, autocommit=True) as connection:
        connection.execute(statement)
    return database


@pytest.fixture(scope="session")
def migrated_template(postgres: EmbeddedPostgres) -> str:
    """The name of the database that `database` clones."""
    return make_template(postgres)


@pytest.fixture
def database(postgres: EmbeddedPostgres, migrated_template: str) -> Iterator[Database]:
    """A fresh, migrated database; its slots and sessions are ended at teardown."""
    fresh = clone(postgres, migrated_template)
    yield fresh
    fresh.drop()


@pytest.fixture
def empty_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A fresh database without anything in it, for what `relay init` does and for other people's tables."""
    fresh = clone(postgres, None)
    yield fresh
    fresh.drop()


@pytest.fixture(scope="session")
def old_template(old_postgres: EmbeddedPostgres) -> str:
    """What `old_database` clones."""
    return make_template(old_postgres)


@pytest.fixture
def old_database(old_postgres: EmbeddedPostgres, old_template: str) -> Iterator[Database]:
    """A fresh, migrated database on the oldest supported version."""
    fresh = clone(old_postgres, old_template)
    yield fresh
    fresh.drop()
