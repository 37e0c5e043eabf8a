"""The publication of the outbox: made once, then only compared with what the relay needs.

It never alters one that exists: whose it is, and what else reads it, only a person can know.
"""

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from relay.errors import REPAIR, OutboxAltered, UsageError
from relay.outbox.mapping import OutboxMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What the publication says of the outbox."""

    outbox_exists: bool
    publication_exists: bool
    inserts: bool
    all_tables: bool
    outbox_included: bool
    row_filter: bool
    column_list: bool
    other_tables: int
    via_root: bool
    partitioned: bool
    missing_columns: tuple[str, ...] = ()
    """Columns that the settings name and the outbox doesn't have."""


def create(
    connection: psycopg.Connection[Any], publication: str, mapping: OutboxMapping, *, new: bool
) -> None:
    """Make the publication of the outbox's inserts, or check the one that is there.

    For a `new` relay, which can't have missed a row yet, whatever is wrong is a UsageError. Raises it also
    when the outbox doesn't exist, and OutboxAltered when a relay's publication says something else.
    """
    found = read(connection, publication, mapping)
    if mapping.source == "message":
        _create_empty(connection, publication, found)
    elif not found.outbox_exists:
        raise UsageError(
            f"The outbox {mapping.qualified_name} doesn't exist.",
            remedy="Create it, or set RELAY_OUTBOX_TABLE.",
        )
    elif not found.publication_exists and not found.missing_columns:
        statement = sql.SQL(
            "create publication {} for table {} with (publish = 'insert', publish_via_partition_root = {})"
        ).format(
            sql.Identifier(publication),
            sql.Identifier(mapping.schema, mapping.table),
            sql.Literal(found.partitioned),
        )
        try:
            connection.execute(statement)
        except psycopg.errors.DuplicateObject:
            pass  # made by somebody else in the meantime: checked below like any other
    found = read(connection, publication, mapping)
    unfit = _unfit(found, publication, mapping)
    if unfit is not None and new:
        wrong, mend = unfit
        raise UsageError(
            f"A relay could not read every row of the outbox: {wrong}.",
            remedy=f"{mend}, or set RELAY_PUBLICATION to a name of the relay's own; then `relay init` again.",
        )
    require(found, publication, mapping)


def _create_empty(connection: psycopg.Connection[Any], publication: str, found: Published) -> None:
    """Messages pass whatever a publication holds, but START_REPLICATION names one: it has no table."""
    if found.publication_exists:
        return
    try:
        connection.execute(
            sql.SQL("create publication {} with (publish = 'insert')").format(sql.Identifier(publication))
        )
    except psycopg.errors.DuplicateObject:
        pass  # made by somebody else in the meantime: the caller checks it like any other


def require(found: Published, publication: str, mapping: OutboxMapping) -> None:
    """Raises OutboxAltered when inserts of the whole outbox are not what the publication sends."""
    unfit = _unfit(found, publication, mapping)
    if unfit is None:
        return
    wrong, mend = unfit
    raise OutboxAltered(
        f"Not every row of the outbox reaches the relay: {wrong}.",
        meaning="Rows committed meanwhile may have been skipped by Postgres; none is confirmed from here on.",
        remedy=f"{mend}, as the outbox's owner. Rows committed in between are not in Kafka. {REPAIR}",
    )


def _unfit(found: Published, publication: str, mapping: OutboxMapping) -> tuple[str, str] | None:
    """What keeps rows from the relay, and the statement that mends it; None when nothing does."""
    name = '"' + publication.replace('"', '""') + '"'
    if mapping.source == "message":
        return _unfit_for_messages(found, name)
    table = mapping.qualified_name
    create_it = f"CREATE PUBLICATION {name} FOR TABLE {table} WITH (publish = 'insert')"
    if not found.outbox_exists:
        return f"the outbox {table} is gone or renamed", f"`ALTER TABLE … RENAME TO …;` (back to {table})"
    if found.missing_columns:
        columns = ", ".join(found.missing_columns)
        return (
            f"the outbox {table} has no column {columns}",
            "Set RELAY_OUTBOX_COLUMNS to what its columns are, or rename them back",
        )
    if not found.publication_exists:
        return f"the publication {name} is gone", f"`{create_it};`"
    if found.all_tables:
        return (
            f"the publication {name} is for all tables, not for the outbox alone",
            f"`DROP PUBLICATION {name}; {create_it};`",
        )
    if not found.outbox_included:
        return (
            f"the publication {name} doesn't have the outbox {table}",
            f"`ALTER PUBLICATION {name} SET TABLE {table};`",
        )
    if not found.inserts:
        return (
            f"the publication {name} doesn't send inserts",
            f"`ALTER PUBLICATION {name} SET (publish = 'insert');`",
        )
    if found.row_filter or found.column_list or found.other_tables:
        return (
            f"the publication {name} has a row filter, a column list or another table",
            f"`ALTER PUBLICATION {name} SET TABLE {table};`",
        )
    if found.partitioned and not found.via_root:
        return (
            f"the outbox {table} is partitioned and the publication {name} announces its leaves",
            f"`ALTER PUBLICATION {name} SET (publish_via_partition_root = true);`",
        )
    return None


def _unfit_for_messages(found: Published, name: str) -> tuple[str, str] | None:
    create_it = f"CREATE PUBLICATION {name} WITH (publish = 'insert')"
    if not found.publication_exists:
        return f"the publication {name} is gone", f"`{create_it};`"
    if found.all_tables or found.other_tables:
        return (
            f"the publication {name} has tables, and with outbox_source = message it must have none",
            f"`DROP PUBLICATION {name}; {create_it};`",
        )
    return None


def read(connection: psycopg.Connection[Any], publication: str, mapping: OutboxMapping) -> Published:
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            """
            select c.oid is not null as outbox_exists,
                   p.oid is not null as publication_exists,
                   coalesce(p.pubinsert, false) as inserts,
                   coalesce(p.puballtables, false) as all_tables,
                   coalesce(p.pubviaroot, false) as via_root,
                   coalesce(c.relkind = 'p', false) as partitioned,
                   r.oid is not null as outbox_included,
                   r.prqual is not null as row_filter,
                   r.prattrs is not null as column_list,
                   (select count(*)::int from pg_publication_rel o
                     where o.prpubid = p.oid and o.prrelid is distinct from c.oid)
                     + (select count(*)::int from pg_publication_namespace n where n.pnpubid = p.oid)
                     as other_tables,
                   array(select named from unnest(%(columns)s::text[]) named
                          where not exists (select from pg_attribute a
                                             where a.attrelid = c.oid and a.attname = named
                                               and a.attnum > 0 and not a.attisdropped))
                     as missing_columns
            from (select to_regclass(%(table)s::text) as oid) t
            left join pg_class c on c.oid = t.oid
            left join pg_publication p on p.pubname = %(publication)s
            left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid
            """,
            {
                "table": mapping.qualified_name if mapping.source == "table" else None,
                "publication": publication,
                "columns": list(mapping.columns.mapped().values()) if mapping.source == "table" else [],
            },
        ).fetchone()
    assert row is not None  # the first table of the join always has its row
    return Published(**{**row, "missing_columns": tuple(row["missing_columns"])})
