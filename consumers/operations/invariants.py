"""Reads every table that an invariant is about, in one snapshot, with SQL of its own: it shares no query with
the workers, and never writes.
"""

from typing import Any, Final, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from consumers.operations import tables
from consumers.operations.queries import Queries
from consumers.operations.tables import Tables

_SQL: Final = Queries("invariants")

Row = TypeVar("Row")


def read_tables(connection: psycopg.Connection[Any]) -> Tables:
    """All rows, of one instant. `connection` must be in autocommit, or without an open transaction.

    Raises psycopg's errors. The login needs to be a member of relay_reader.
    """
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        moment = connection.execute(_SQL["read_at"]).fetchone()
        if moment is None:
            raise RuntimeError("relay.now() returned no row")
        return Tables(
            read_at=moment[0],
            outbox=_rows(connection, "outbox", tables.OutboxRow),
            parked=frozenset(UUID(str(row[0])) for row in connection.execute(_SQL["parked"]).fetchall()),
            operations=_rows(connection, "operations", tables.OperationRow),
            attempts=_rows(connection, "attempts", tables.AttemptRow),
            remote_jobs=_rows(connection, "remote_jobs", tables.RemoteJobRow),
            journal=_rows(connection, "journal", tables.JournalRow),
            reviews=_rows(connection, "reviews", tables.ReviewRow),
            allowances=_rows(connection, "allowances", tables.AllowanceRow),
            reservations=_rows(connection, "reservations", tables.ReservationRow),
            outputs=_rows(connection, "outputs", tables.OutputRow),
        )


def _rows(connection: psycopg.Connection[Any], query: str, row: type[Row]) -> tuple[Row, ...]:
    with connection.cursor(row_factory=class_row(row)) as cursor:
        cursor.execute(_SQL[query])
        return tuple(cursor.fetchall())
