"""Applies `schemas/postgres/NNNN_name.sql` in order, each in a transaction, and records its checksum.

It never edits or re-runs what was applied: a file whose bytes changed since is an error.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from relay.contracts import POSTGRES
from relay.errors import SchemaError, Unavailable

# Arbitrary but fixed: two `relay init` at once must apply one after the other.
ADVISORY_LOCK: Final = 0x6F757462_6F780001
_FILE_NAME: Final = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_BOOKKEEPING: Final = """
    create schema if not exists relay;
    create table if not exists relay.schema_migration (
      name text primary key,
      checksum text not null,
      applied_at timestamptz not null default clock_timestamp()
    );
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: `name` with its number, `checksum` the hexadecimal SHA-256 of its bytes."""

    name: str
    text: str
    checksum: str


def shipped(folder: Path = POSTGRES) -> list[Migration]:
    """The migrations of `folder` in order. Raises SchemaError for a misnamed file or a number used twice."""
    migrations: list[Migration] = []
    for path in sorted(folder.glob("*.sql")):
        if not _FILE_NAME.fullmatch(path.name):
            raise SchemaError(f"The migration {path} is not named NNNN_name.sql.")
        if migrations and migrations[-1].name[:4] == path.name[:4]:
            raise SchemaError(f"The migrations {migrations[-1].name} and {path.name} have the same number.")
        text = path.read_text(encoding="utf-8")
        migrations.append(Migration(path.name, text, hashlib.sha256(text.encode()).hexdigest()))
    if not migrations:
        raise SchemaError(f"There are no migrations in {folder}.", remedy="Install outbox-relay again.")
    return migrations


def apply(connection: psycopg.Connection[Any], folder: Path = POSTGRES) -> list[str]:
    """Bring the database up to date and return the names applied now, in order.

    `connection` must be in autocommit and able to create roles and schemas. Raises SchemaError when an
    applied file changed, when the database has a migration that this release doesn't know, or when its
    encoding can't hold every id.
    """
    if not connection.autocommit:
        raise SchemaError("Migrations need a connection in autocommit: each is a transaction of its own.")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SchemaError(
            f"The database's encoding is {encoding}, and UTF8 is needed: a provider's job id may have any"
            " character.",
            meaning="Nothing was changed.",
            remedy="Create the database with ENCODING 'UTF8'.",
        )
    migrations = shipped(folder)
    connection.execute("select pg_advisory_lock(%s)", [ADVISORY_LOCK])
    try:
        connection.execute(_BOOKKEEPING)
        rows = connection.execute("select name, checksum from relay.schema_migration").fetchall()
        applied = dict(rows)
        _compare(migrations, applied)
        done: list[str] = []
        for migration in migrations:
            if migration.name in applied:
                continue
            _apply_one(connection, migration)
            done.append(migration.name)
        return done
    finally:
        if not connection.broken:
            connection.execute("select pg_advisory_unlock(%s)", [ADVISORY_LOCK])


def pending(connection: psycopg.Connection[Any], folder: Path = POSTGRES) -> list[str]:
    """Names that `apply` would apply. Raises SchemaError as `apply` does."""
    migrations = shipped(folder)
    found = connection.execute("select to_regclass('relay.schema_migration')").fetchone()
    if found is None or found[0] is None:
        return [migration.name for migration in migrations]
    applied = dict(connection.execute("select name, checksum from relay.schema_migration").fetchall())
    _compare(migrations, applied)
    return [migration.name for migration in migrations if migration.name not in applied]


def _compare(migrations: list[Migration], applied: dict[str, str]) -> None:
    known = {migration.name: migration.checksum for migration in migrations}
    for name, checksum in sorted(applied.items()):
        if name not in known:
            raise SchemaError(
                f"The database has the migration {name}, which this release doesn't know.",
                remedy="It was made by a newer release: upgrade outbox-relay on this host.",
            )
        if known[name] != checksum:
            raise SchemaError(
                f"The migration {name} changed after it was applied to this database.",
                remedy="Restore the released file; a change is a new migration.",
            )


def _apply_one(connection: psycopg.Connection[Any], migration: Migration) -> None:
    statement = sql.SQL(migration.text)
    try:
        with connection.transaction():
            connection.execute(statement)
            connection.execute(
                "insert into relay.schema_migration (name, checksum) values (%s, %s)",
                [migration.name, migration.checksum],
            )
    except psycopg.OperationalError as error:
        raise Unavailable(
            f"The database went away during the migration {migration.name}: {error}."
        ) from error
    except psycopg.Error as error:
        raise SchemaError(
            f"The migration {migration.name} failed: {error.diag.message_primary or error}.",
            meaning="It was rolled back whole; the migrations before it stand.",
            remedy="Mend the cause and run `relay init` again.",
        ) from error
