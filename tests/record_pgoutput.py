"""Records what a real server sends, for the decoder's corpus: `python tests/record_pgoutput.py URL > FILE`.

URL is a superuser's, of an empty database with `wal_level = logical`. One CopyData body a line, hexadecimal.
"""

import select
import sys

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

ID = "'00000000-0000-0000-0000-000000000{:03}'"

STATEMENTS = (
    f"""insert into box (id, kind, body, raw, at)
        values ({ID.format(1)}, 'plain', '{{"a": 1}}', '\\x00ff', '2026-11-29 12:00:00.5+00')""",
    f"insert into box (id, kind) values ({ID.format(2)}, 'nulls')",
    f"""insert into box (id, kind, body) values ({ID.format(3)}, 'ünïcödé', '"\\u20ac"')""",
    """begin;
       insert into box (id, kind)
         select ('00000000-0000-0000-0000-00000000010' || n)::uuid, 'many' from generate_series(0, 3) n;
       commit""",
    f"begin; insert into box (id, kind) values ({ID.format(200)}, 'rolled back'); rollback",
    "select pg_logical_emit_message(true, 'prefix', 'transactional')",
    "select pg_logical_emit_message(false, 'prefix', 'at once')",
    f"update box set kind = 'changed' where id = {ID.format(1)}",
    f"delete from box where id = {ID.format(2)}",
    "alter table box add column added mood",
    f"insert into box (id, kind, added) values ({ID.format(300)}, 'typed', 'glad')",
    "truncate box",
)


def main(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create type mood as enum ('glad')")
        connection.execute(
            "create table box (id uuid primary key, kind text, body jsonb, raw bytea, at timestamptz)"
        )
        connection.execute("create publication corpus for table box")
        connection.execute("select pg_create_logical_replication_slot('corpus', 'pgoutput')")
        stream = pq.PGconn.connect(
            make_conninfo(url, replication="database", options="-c timezone=UTC").encode()
        )
        stream.exec_(
            b"START_REPLICATION SLOT corpus LOGICAL 0/0 "
            b"(proto_version '1', publication_names 'corpus', messages 'true')"
        )
        for statement in STATEMENTS:
            connection.execute(statement)
        end = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
        assert end is not None
        high, _, low = str(end[0]).partition("/")
        _print_until(stream, int(high, 16) << 32 | int(low, 16))
        stream.finish()


def _print_until(stream: pq.abc.PGconn, lsn: int) -> None:
    while True:
        size, data = stream.get_copy_data(1)
        if size > 0:
            body = bytes(data)
            sys.stdout.write(body.hex() + "\n")
            if body[:1] == b"k" and int.from_bytes(body[1:9], "big") >= lsn:
                return
        else:
            select.select([stream.socket], [], [])
            stream.consume_input()


if __name__ == "__main__":
    main(sys.argv[1])
