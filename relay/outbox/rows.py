"""Rows of the outbox by SQL, in the very form in which the stream hands them over: text bytes, by mapping.

So that a repaired event becomes the same record as one from the WAL. Memory is bounded.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from relay.outbox.mapping import OutboxMapping
from relay.wal.pgoutput import Column, Relation, Row

_HELD_BYTES: Final = 4 * 1024 * 1024
"""About how many bytes of rows are fetched at a time."""

_FIRST: Final = 16
"""Rows fetched before it is known how large they are: 900 KB each at most."""


def read_relation(connection: psycopg.Connection[Any], mapping: OutboxMapping) -> Relation:
    """What the stream would announce: the columns and their types."""
    rows = connection.execute(
        "select a.attrelid::oid::int8, a.attname, a.atttypid::oid::int8 from pg_attribute a"
        " where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped order by a.attnum",
        [mapping.qualified_name],
    ).fetchall()
    columns = tuple(Column(name, type_oid) for _, name, type_oid in rows)
    return Relation(rows[0][0] if rows else 0, mapping.schema, mapping.table, columns, mapped=True)


def read_rows(
    connection: psycopg.Connection[Any], mapping: OutboxMapping, event_ids: Sequence[str]
) -> Iterator[Row]:
    """The rows with these ids, in order of `seq`; within the caller's transaction. Raises psycopg.Error.

    The values are what the types' output functions write, not casts to text: a cast would strip char(n).
    """
    columns = mapping.columns
    declared = sql.SQL(
        "declare outbox_rows no scroll cursor for select {} from {} where {} = any(%s) order by {}"
    ).format(
        sql.SQL(", ").join(map(sql.Identifier, columns.mapped().values())),
        sql.Identifier(mapping.schema, mapping.table),
        sql.Identifier(columns.event_id),
        sql.Identifier(columns.seq or columns.occurred_at or columns.event_id),
    )
    # A cursor's declaration takes no parameters of the protocol: the client writes them into the text.
    psycopg.ClientCursor(connection).execute(declared, [list(event_ids)])
    size = _FIRST
    while True:
        fetched = connection.execute(sql.SQL("fetch {} from outbox_rows").format(sql.Literal(size)))
        result = fetched.pgresult
        if result is None or result.ntuples == 0:
            break
        held = 0
        for number in range(result.ntuples):
            row = [result.get_value(number, column) for column in range(result.nfields)]
            held += sum(len(value) for value in row if value is not None)
            yield row
        size = max(1, min(len(event_ids), _HELD_BYTES * result.ntuples // max(held, 1)))
    connection.execute("close outbox_rows")
