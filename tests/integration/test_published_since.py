"""The end of each partition names every event since a position, however little of it is read at first."""

from fix_relay import EVENT_TYPE, RelayUnderTest
from relay.kafka.since import published_since
from relay.outbox.event import source_of


def test_every_record_since_a_position_is_found_however_deep_it_lies(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    process = relay.start()
    for _ in range(20):
        relay.emit(2)
    relay.wait_published(process)
    records = sorted(relay.read(), key=lambda record: record.position)
    relay_id = relay.one("select relay_id from relay.source_identity")
    where = {"bootstrap.servers": relay.kafka.bootstrap}
    topics = [f"{relay.prefix}.{EVENT_TYPE}", f"{relay.prefix}.never-made"]
    for first in (5, 38):
        lsn = records[first].position[1]
        found = list(published_since(where, topics, source=source_of(relay_id), epoch=1, lsn=lsn, window=1))
        expected = [record for record in records if record.position[1] >= lsn]
        assert sorted(event.event_id for event in found) == sorted(record.event_id for record in expected)
        assert {(event.topic, event.partition, event.offset) for event in found} == {
            (record.topic, record.partition, record.offset) for record in expected
        }
    assert all(event.event_type == EVENT_TYPE for event in found)
    assert {event.key.encode() for event in found} == {record.key for record in records[38:]}
    assert not list(published_since(where, topics, source="/outbox-relay/another", epoch=1, lsn=0))
