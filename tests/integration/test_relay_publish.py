"""What reaches Kafka, on real servers: each committed event once, in order, as the record promised."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from fix_postgres import Database
from fix_process import RunProcess
from fix_relay import RelayUnderTest, read_topics
from relay.avro.catalog import Catalog


def test_each_committed_event_is_published_once_and_none_of_a_rolled_back_transaction(
    exactly_once: RelayUnderTest,
) -> None:
    relay = exactly_once
    process = relay.start()
    committed = relay.emit(3)
    with relay.database.connect() as other, other.transaction(force_rollback=True):
        relay.emit(2, connection=other)
    committed += [event for _ in range(20) for event in relay.emit(2)]
    with relay.owner.transaction(), relay.database.connect() as inner:
        relay.owner.execute("savepoint s")
        relay.emit(1, connection=relay.owner)
        relay.owner.execute("rollback to savepoint s")
        committed += relay.emit(1, connection=inner)
    relay.wait_published(process)
    assert process.stop() == 0, process.output()

    assert sorted(record.event_id for record in relay.read()) == sorted(committed)


def test_events_of_one_operation_are_on_one_partition_in_commit_order(relay: RelayUnderTest) -> None:
    process = relay.start()
    operations = [uuid4() for _ in range(8)]

    def write(operation_index: int) -> None:
        with relay.database.connect() as connection:
            for version in range(1, 16):
                relay.emit(
                    1, operation_id=operations[operation_index], version=version, connection=connection
                )

    with ThreadPoolExecutor(len(operations)) as pool:
        list(pool.map(write, range(len(operations))))
    relay.wait_published(process)

    records = relay.read()
    for operation in operations:
        own = [record for record in records if record.key == str(operation).encode()]
        assert len({record.partition for record in own}) == 1
        assert [int(record.headers["operation_version"]) for record in own] == list(range(1, 16))
        assert [record.position for record in own] == sorted(record.position for record in own)


def test_a_record_is_what_its_row_says(relay: RelayUnderTest) -> None:
    process = relay.start()
    operation = uuid4()
    (event_id,) = relay.emit(1, operation_id=operation, version=4)
    relay.wait_published(process)

    (record,) = relay.read()
    relay_id = relay.one("select relay_id from relay.source_identity")
    decoded = Catalog.load().decode(record.value or b"")
    assert {name: str(value) for name, value in decoded.value.items()} == {
        "operation_id": str(operation),
        "job_id": "job-1",
    }
    assert record.key == str(operation).encode()
    assert record.event_id == event_id
    assert record.headers["ce_type"] == b"collection.requested"
    assert record.headers["ce_source"] == f"/outbox-relay/{relay_id}".encode()
    assert record.headers["operation_version"] == b"4"
    assert record.position[0] == 1
    occurred = relay.one(
        """
        select to_char(occurred_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS')
        from relay.outbox where event_id = %s
        """,
        event_id,
    )
    assert record.headers["ce_time"].startswith(occurred.encode())
    assert record.headers["ce_time"].endswith(b"Z")


def test_a_transaction_larger_than_the_queue_is_published_whole_and_in_order(relay: RelayUnderTest) -> None:
    process = relay.start(RELAY_QUEUE_BYTES=str(1024 * 1024), RELAY_GROUP_BYTES=str(64 * 1024))
    relay.emit_many(10_000, transactions=1)
    last = relay.emit(1)
    relay.wait_published(process)

    records = relay.read()
    assert len(records) == 10_001
    assert len({record.event_id for record in records}) == 10_001
    for partition in range(4):
        positions = [record.position for record in records if record.partition == partition]
        assert positions == sorted(positions)
    assert max(records, key=lambda record: record.position).event_id == last[0]


def test_at_least_once_publishes_all_and_confirms(relay: RelayUnderTest) -> None:
    process = relay.start(RELAY_DELIVERY="at_least_once")
    events = [event for _ in range(10) for event in relay.emit(5)]
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    assert sorted(record.event_id for record in relay.read()) == sorted(events)


def test_one_topic_takes_everything(relay: RelayUnderTest) -> None:
    process = relay.start(RELAY_TOPIC=f"{relay.prefix}.all")
    (event,) = relay.emit(1)
    relay.wait_published(process)
    (record,) = relay.read("all")
    assert record.event_id == event


@pytest.mark.parametrize(
    ("column", "payload", "carried"),
    [
        ("bytea", r"\x00ff7b", b"\x00\xff\x7b"),
        ("jsonb", '{"b": 1, "a": 12345678901234567890.10}', b'{"a": 12345678901234567890.10, "b": 1}'),
    ],
)
def test_debeziums_table_is_carried_through(
    column: str,
    payload: str,
    carried: bytes,
    database: Database,
    relay: RelayUnderTest,
    run_process: RunProcess,
) -> None:
    relay.owner.execute(
        f"""
        create table public."Outbox Event" (
          id uuid primary key, aggregatetype varchar(255) not null, aggregateid varchar(255) not null,
          type varchar(255) not null, payload {column})
        """.encode()
    )
    settings = {
        "RELAY_SLOT": f"debezium_{database.name}",
        "RELAY_PUBLICATION": "debezium",
        "RELAY_OUTBOX_TABLE": 'public."Outbox Event"',
        "RELAY_OUTBOX_COLUMNS": "debezium",
    }
    relay.slot = settings["RELAY_SLOT"]
    relay.initialise(**settings)
    process = relay.start(**settings)
    assert "repair, backfill and audit don't exist" in process.output()
    aggregate = f"order-{relay.prefix}"
    event_id = uuid4()
    with relay.owner.transaction():  # Debezium's users insert and delete in one transaction
        relay.owner.execute(
            'insert into public."Outbox Event" values (%s, %s, %s, %s, %s)',
            [event_id, aggregate, "o-7", "OrderPlaced", payload],
        )
        relay.owner.execute('delete from public."Outbox Event"')
    relay.wait_confirmed(relay.insert_lsn(), process)

    (record,) = read_topics(relay.kafka.bootstrap, [f"outbox.event.{aggregate}"])
    assert (record.key, record.value) == (b"o-7", carried)
    assert record.headers["id"] == record.headers["ce_id"] == str(event_id).encode()
    assert record.headers["ce_type"] == b"OrderPlaced"
