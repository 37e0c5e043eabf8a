"""Transactions that nobody ended: somebody else's hides the checkpoint, the relay's own runs out of time."""

import uuid

import pytest
from confluent_kafka import Producer

from fix_kafka import Kafka
from fix_relay import RelayUnderTest, ends_of
from fix_waiting import eventually
from relay.errors import Unavailable, UsageError
from relay.kafka import checkpoint as checkpoints
from relay.kafka.publisher import Transactional, transaction_timeout_s
from relay.kafka.topics import Topics

SHORT = {"RELAY_KAFKA_TRANSACTION_TIMEOUT_MS": "5000"}
FIFTEEN_MINUTES = 900_000  # the longest that brokers allow (transaction.max.timeout.ms)


def test_while_anothers_transaction_hides_the_last_checkpoint_the_relay_stops_and_names_it(
    exactly_once: RelayUnderTest,
) -> None:
    """A read_committed reader ends before it, and an older checkpoint would publish everything again."""
    relay = exactly_once
    process = relay.start()
    events = relay.emit(2)
    relay.wait_published(process)
    topic = checkpoints.topic(relay.prefix, relay.one("select relay_id from relay.source_identity"))
    before = ends_of(relay.kafka.bootstrap, [topic])[topic, 0]
    other = Producer(
        {
            "bootstrap.servers": relay.kafka.bootstrap,
            "transactional.id": f"{relay.prefix}-somebody-else",
            "transaction.timeout.ms": FIFTEEN_MINUTES,
        }
    )
    other.init_transactions(60)
    other.begin_transaction()
    other.produce(topic, b"theirs", b"somebody", partition=0)
    assert other.flush(60) == 0
    # The relay at work doesn't mind: it knows where it is.
    events += relay.emit(2)
    relay.wait_confirmed(relay.insert_lsn(), process)
    assert process.stop() == 0, process.output()
    relay.wait_slot_free()
    confirmed = relay.confirmed()
    events += relay.emit(2)

    process = relay.run(**SHORT)
    assert process.wait() == 18, process.output()
    assert f"kafka-transactions.sh abort --topic {topic} --partition 0 --start-offset" in process.output()
    assert f"stands still at {before}" in process.output(), "where the other's transaction began"
    assert relay.confirmed() == confirmed

    other.abort_transaction(60)
    process = relay.start(**SHORT)
    relay.wait_published(process)
    assert sorted(record.event_id for record in relay.read()) == sorted(events)
    relay.assert_clean()


def test_a_transaction_that_kafka_ended_by_its_timeout_is_no_fencing(
    real_kafka: Kafka, topic_prefix: str
) -> None:
    """Nobody took over: to start over from the checkpoint is right, and nobody needs to be woken."""
    topic = f"{topic_prefix}.events"
    kafka = {"bootstrap.servers": real_kafka.bootstrap}
    Topics(kafka, partitions=1, replication=1).ensure([topic])
    alone = Transactional(
        {**kafka, "transaction.timeout.ms": "5000"},
        prefix=topic_prefix,
        relay_id=uuid.uuid4(),
        batch_bytes=1_000_000,
    )
    alone.start()
    alone.open()
    alone.produce([(topic, b"value", b"key", [], 0)])
    # One offset for the record, the next for the marker that aborts it.
    eventually(lambda: ends_of(real_kafka.bootstrap, [topic])[topic, 0] >= 2, "Kafka has ended it")
    with pytest.raises(Unavailable, match=r"transaction\.timeout\.ms"):
        alone.commit(None)
    alone.discard()


@pytest.mark.parametrize("given", ["1000", "soon", "900001", "-1", "6e4"])
def test_a_transaction_timeout_out_of_bounds_is_wrong_use(given: str) -> None:
    with pytest.raises(UsageError, match="RELAY_KAFKA_TRANSACTION_TIMEOUT_MS"):
        transaction_timeout_s({"transaction.timeout.ms": given})


def test_the_transaction_timeout_is_a_minute_unless_it_is_set() -> None:
    assert transaction_timeout_s({}) == 60
    assert transaction_timeout_s({"transaction.timeout.ms": "5000"}) == 5
