"""What Kafka has, held against the outbox: present, missing, expired, parked; doubled and disordered."""

from uuid import uuid4

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from fix_relay import EVENT_TYPE, RelayUnderTest
from relay.kafka.contents import Contents
from relay.kafka.partitioner import partition_of
from relay.outbox.compare import Topics, Verdict, compare, known_ids
from relay.outbox.event import source_of
from relay.outbox.mapping import parse


def topics_of(relay: RelayUnderTest) -> Topics:
    relay_id = relay.one("select relay_id from relay.source_identity where slot_name = %s", relay.slot)
    return Topics(
        mapping=parse("relay.outbox", "native"), prefix=relay.prefix, one_topic=None, relay_id=relay_id
    )


def collected(relay: RelayUnderTest) -> Contents:
    topics = topics_of(relay)
    contents = Contents(source_of(topics.relay_id))
    contents.collect({"bootstrap.servers": relay.kafka.bootstrap}, topics.read(relay.owner))
    return contents


def verdicts(relay: RelayUnderTest) -> dict[str, Verdict]:
    published = relay.checkpoint()
    assert published is not None
    with collected(relay) as contents, relay.owner.transaction():
        compared = compare(relay.owner, topics_of(relay), contents, published_seq=published.seq, batch_rows=3)
        return {row.event_id: verdict for row, verdict in compared}


def delete_before(relay: RelayUnderTest, offsets: dict[int, int]) -> None:
    """What retention does: the first records of each partition are gone."""
    admin = AdminClient({"bootstrap.servers": relay.kafka.bootstrap})
    topic = f"{relay.prefix}.{EVENT_TYPE}"
    asked = admin.delete_records([TopicPartition(topic, p, offset) for p, offset in offsets.items()])
    for future in asked.values():
        future.result(20)


def test_each_row_of_the_outbox_has_its_verdict(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    process = relay.start()
    present = relay.emit(5)
    (parked,) = relay.emit(event_type="nobody.knows_it")
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    missing = relay.emit(2)
    seen = verdicts(relay)
    assert seen == {
        **dict.fromkeys(present, Verdict.PRESENT),
        parked: Verdict.PARKED,
        **dict.fromkeys(missing, Verdict.MISSING),
    }


def test_rows_that_retention_took_are_told_apart_from_missing_ones(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    process = relay.start()
    first = [event for _ in range(8) for event in relay.emit()]
    relay.wait_published(process)
    ends = {record.partition: record.offset + 1 for record in relay.read()}  # ascending within a partition
    second = [event for _ in range(8) for event in relay.emit()]
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    delete_before(relay, ends)
    (later,) = relay.emit()
    seen = verdicts(relay)
    assert {event: seen[event] for event in first} == dict.fromkeys(first, Verdict.EXPIRED)
    assert {event: seen[event] for event in second} == dict.fromkeys(second, Verdict.PRESENT)
    assert seen[later] is Verdict.MISSING


def test_a_key_is_where_the_partitioner_says(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    process = relay.start()
    relay.emit(20)
    relay.wait_published(process)
    records = relay.read()
    assert len(records) == 20
    assert all(record.partition == partition_of(record.key or b"", 4) for record in records)


def test_doubled_and_disordered_records_are_named(real_kafka: object, relay: RelayUnderTest) -> None:
    process = relay.start()
    key = uuid4()
    ids = [relay.emit(operation_id=key)[0] for _ in range(4)]
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    records = relay.read()
    # As an at-least-once relay would: the third again. And one that stands against its order in the WAL.
    producer = Producer({"bootstrap.servers": relay.kafka.bootstrap, "partitioner": "murmur2_random"})
    again = next(record for record in records if record.event_id == ids[2])
    producer.produce(again.topic, again.value, again.key, headers=list(again.headers.items()))
    early = dict(next(record for record in records if record.event_id == ids[0]).headers)
    early["ce_id"] = (stranger := str(uuid4())).encode()
    producer.produce(again.topic, again.value, again.key, headers=list(early.items()))
    assert producer.flush(20) == 0
    with collected(relay) as contents:
        assert [event for event, _ in contents.doubled()] == [ids[2]]
        assert [(later.event_id, here.event_id) for later, here in contents.disordered()] == [
            (ids[3], stranger)
        ]
        everything = [record.event_id for batch in contents.batches(2) for record in batch]
    assert sorted(everything) == sorted([*ids, ids[2], stranger])
    assert known_ids(relay.owner, parse("relay.outbox", "native"), everything) == set(ids)


@pytest.mark.parametrize("count", [0, 1])
def test_an_empty_outbox_or_topic_is_no_special_case(exactly_once: RelayUnderTest, count: int) -> None:
    relay = exactly_once
    process = relay.start()
    relay.emit(count)
    relay.wait_published(process)
    assert len(verdicts(relay)) == count
