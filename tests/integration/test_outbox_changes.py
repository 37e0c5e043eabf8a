"""The outbox is altered while the relay runs: each event comes once and whole, or it stops with a remedy."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from fix_commands import Command
from fix_process import Process
from fix_relay import EVENT_TYPE, RelayUnderTest
from fix_waiting import eventually

QUOTED: Final = '"My App"."Out Box"'
COLUMNS: Final = (
    '{"event_id": "Event Id", "seq": "n", "event_type": "type", "operation_id": "Key", "payload": "body"}'
)


@contextmanager
def writing(relay: RelayUnderTest) -> Iterator[list[str]]:
    """Somebody else writes events, one a transaction, all the while."""
    written: list[str] = []
    enough = threading.Event()

    def write() -> None:
        with relay.database.connect() as connection:
            while not enough.is_set():
                written.extend(relay.emit(1, connection=connection))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        enough.set()
        writer.join()


def stopped_with(process: Process, status: int, *said: str) -> None:
    assert process.wait() == status, process.output()
    for words in said:
        assert words in process.output()


def published_once(relay: RelayUnderTest, events: list[str]) -> None:
    assert sorted(record.event_id for record in relay.read()) == sorted(events)
    relay.assert_clean()


HARMLESS: Final = (
    "alter table relay.outbox add column note text",
    "alter table relay.outbox add column checked boolean not null default true",
    "alter table relay.outbox rename column note to remark",
    "alter table relay.outbox alter column remark type varchar(40)",
    "alter table relay.outbox drop column remark",
    "alter table relay.outbox alter column version type bigint",
    "alter table relay.outbox alter column event_type type varchar(200)",
    "vacuum full relay.outbox",
    "alter table relay.outbox replica identity full",
    "alter table relay.outbox set (fillfactor = 70)",
    "create index on relay.outbox (operation_id)",
    "cluster relay.outbox using outbox_pkey",
    "truncate parked_nothing",
)


def test_columns_that_are_not_the_relays_and_rewrites_change_no_event(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    process = relay.start()
    relay.owner.execute("create table parked_nothing ()")
    with writing(relay) as events:
        for statement in HARMLESS:
            relay.owner.execute(statement.encode())
            events.extend(relay.emit(2))
    relay.wait_published(process)
    published_once(relay, events)
    assert process.running, process.output()


@pytest.mark.parametrize(
    ("alter", "mend"),
    [
        (
            "alter table relay.outbox rename column payload to body",
            "alter table relay.outbox rename column body to payload",
        ),
        (
            "alter table relay.outbox drop column headers",
            "alter table relay.outbox add column headers jsonb not null default '{}'",
        ),
    ],
)
def test_a_mapped_column_that_goes_stops_and_nothing_is_lost_after_the_repair(
    exactly_once: RelayUnderTest, command: Command, alter: str, mend: str
) -> None:
    """Rows that were written meanwhile stay in the WAL as they were: the table is what brings them back."""
    relay = exactly_once
    process = relay.start()
    events = relay.emit(2)
    relay.owner.execute(alter.encode())
    late = uuid4()
    column = "body" if "body" in alter else "payload"
    query = sql.SQL(
        "insert into relay.outbox (event_id, event_type, schema_version, operation_id, version, {})"
        " values (%s, %s, 1, %s, 1, %s)"
    ).format(sql.Identifier(column))
    payload = Jsonb({"operation_id": str(uuid4()), "job_id": "job-1"})
    relay.owner.execute(query, [late, EVENT_TYPE, uuid4(), payload])
    events.append(str(late))
    stopped_with(process, 15, "RENAME COLUMN", "relay outbox repair")
    relay.wait_slot_free()
    relay.owner.execute(mend.encode())
    repaired = command("outbox", "repair", env=relay.environment(None))
    assert repaired.status == 0, repaired.err
    process = relay.start()
    events += relay.emit(1)
    relay.wait_published(process)
    published_once(relay, events)


def test_a_table_that_is_renamed_or_made_anew_stops(exactly_once: RelayUnderTest, command: Command) -> None:
    relay = exactly_once
    process = relay.start()
    events = relay.emit(1)
    relay.wait_published(process)
    relay.owner.execute("alter table relay.outbox rename to outbox_2")
    relay.owner.execute(
        "insert into relay.outbox_2 (event_id, event_type, schema_version, operation_id, version, payload)"
        " values (%s, %s, 1, %s, 1, %s)",
        [event := uuid4(), EVENT_TYPE, uuid4(), Jsonb({"operation_id": str(uuid4()), "job_id": "job-1"})],
    )
    events.append(str(event))
    stopped_with(process, 15, "outbox_2")
    relay.wait_slot_free()
    relay.owner.execute("alter table relay.outbox_2 rename to outbox")
    repaired = command("outbox", "repair", env=relay.environment(None))
    assert repaired.status == 0, repaired.err
    process = relay.start()
    relay.wait_published(process)
    published_once(relay, events)


def test_an_outbox_that_is_published_can_not_become_unlogged(relay: RelayUnderTest) -> None:
    """Its rows would not be in the WAL; Postgres itself refuses it."""
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        relay.owner.execute("alter table relay.outbox set unlogged")


class Quoted:
    """A partitioned outbox of somebody's own, every name of which needs quoting."""

    def __init__(self, relay: RelayUnderTest) -> None:
        self.relay = relay
        self.settings = {"RELAY_OUTBOX_TABLE": QUOTED, "RELAY_OUTBOX_COLUMNS": COLUMNS}
        self._days = 0
        relay.owner.execute(
            """
            create schema "My App";
            create table "My App"."Out Box" (
              body jsonb, n bigint generated always as identity, "Key" uuid, type text, "Event Id" uuid,
              day int not null, primary key ("Event Id", day)
            ) partition by range (day);
            create table "My App"."Part 0" partition of "My App"."Out Box" for values from (0) to (1);
            grant usage on schema "My App" to public;
            grant select on all tables in schema "My App" to public;
            """
        )

    def attach(self) -> None:
        """One more partition, made apart and attached as people do it."""
        self._days += 1
        day = self._days
        self.relay.owner.execute(
            sql.SQL(
                'create table "My App".{part} (like "My App"."Out Box" including defaults including indexes);'
                'alter table "My App"."Out Box" attach partition "My App".{part}'
                " for values from ({a}) to ({b})"
            ).format(part=sql.Identifier(f"Part {day}"), a=sql.Literal(day), b=sql.Literal(day + 1))
        )

    def emit(self, connection: psycopg.Connection[Any] | None = None) -> str:
        event: UUID = uuid4()
        (connection or self.relay.owner).execute(
            'insert into "My App"."Out Box" (body, "Key", type, "Event Id", day) values (%s, %s, %s, %s, %s)',
            [
                Jsonb({"operation_id": str(uuid4()), "job_id": "job-1"}),
                uuid4(),
                EVENT_TYPE,
                event,
                self._days,
            ],
        )
        return str(event)


def test_a_partitioned_quoted_outbox_gains_and_loses_partitions_while_it_is_read(
    real_kafka: object, relay: RelayUnderTest
) -> None:
    relay.owner.execute("select pg_drop_replication_slot(%s)", [relay.slot])
    relay.owner.execute("delete from relay.source_identity")
    relay.owner.execute("drop publication outbox_relay")
    outbox = Quoted(relay)
    relay.initialise(**outbox.settings)
    process = relay.start(**outbox.settings)
    events = [outbox.emit()]
    for _ in range(3):
        outbox.attach()
        events += [outbox.emit(), outbox.emit()]
    # A column moves to the end, in one transaction, as its type is changed by hand.
    with relay.owner.transaction():
        relay.owner.execute(
            """
            alter table "My App"."Out Box" add column body_2 jsonb;
            update "My App"."Out Box" set body_2 = body;
            alter table "My App"."Out Box" drop column body;
            alter table "My App"."Out Box" rename column body_2 to body;
            """
        )
        events.append(outbox.emit())
    events.append(outbox.emit())
    relay.owner.execute('alter table "My App"."Out Box" detach partition "My App"."Part 0"')
    events.append(outbox.emit())

    def all_there() -> bool:
        assert process.running, process.output()
        return len(relay.read()) >= len(events)

    eventually(all_there, "every event of every partition has come")
    assert sorted(record.event_id for record in relay.read()) == sorted(events)
    assert process.stop() == 0, process.output()
