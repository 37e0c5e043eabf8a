"""A producer at its end: fenced, it says so once; discarded, it leaves no open transaction behind."""

import uuid

import pytest

from fix_kafka import Kafka
from fix_waiting import eventually
from relay.errors import Fenced
from relay.kafka import spans
from relay.kafka.checkpoint import Checkpoint
from relay.kafka.publisher import Transactional
from relay.kafka.topics import Topics

CHECKPOINT = Checkpoint(
    epoch=1,
    system_identifier="7",
    timeline=1,
    commit_lsn=0,
    index=-1,
    event_id=None,
    seq=0,
    confirmed_lsn=0,
)


def publisher(kafka: Kafka, prefix: str, relay_id: uuid.UUID) -> Transactional:
    return Transactional(
        {"bootstrap.servers": kafka.bootstrap}, prefix=prefix, relay_id=relay_id, batch_bytes=1_000_000
    )


@pytest.fixture
def fenced(real_kafka: Kafka, topic_prefix: str) -> Transactional:
    """Has a record in an open transaction, and a younger producer with its transactional id."""
    topic = f"{topic_prefix}.events"
    Topics({"bootstrap.servers": real_kafka.bootstrap}, partitions=1, replication=1).ensure([topic])
    relay_id = uuid.uuid4()
    older, younger = (publisher(real_kafka, topic_prefix, relay_id) for _ in range(2))
    older.start()
    younger.start()
    older.open()
    older.produce([(topic, b"value", b"key", [], 0)])
    return older


def test_a_poll_says_that_it_was_fenced(fenced: Transactional) -> None:
    def noticed() -> bool:
        try:
            fenced.poll()
        except Fenced:
            return True
        return False

    eventually(noticed, "the producer is fenced")


def test_a_commit_says_that_it_was_fenced(fenced: Transactional) -> None:
    with pytest.raises(Fenced):
        fenced.commit(CHECKPOINT)


def test_discarding_it_is_never_an_error(fenced: Transactional) -> None:
    with pytest.raises(Fenced):
        fenced.commit(CHECKPOINT)
    fenced.discard()
    fenced.discard()


def test_a_discarded_producer_leaves_no_transaction_open(real_kafka: Kafka, topic_prefix: str) -> None:
    """A read_committed reader would stand still at it until Kafka's time-out, which is a minute."""
    topic = f"{topic_prefix}.events"
    Topics({"bootstrap.servers": real_kafka.bootstrap}, partitions=1, replication=1).ensure([topic])
    leaving = publisher(real_kafka, topic_prefix, uuid.uuid4())
    leaving.start()
    leaving.open()
    leaving.produce([(topic, b"value", b"key", [], 0)])

    def written() -> bool:
        leaving.poll()
        return spans.find({"bootstrap.servers": real_kafka.bootstrap}, [topic])[topic, 0].end > 0

    eventually(written, "the record is in the log, not committed")
    leaving.discard()
    found = spans.find({"bootstrap.servers": real_kafka.bootstrap}, [topic])
    assert list(spans.read({"bootstrap.servers": real_kafka.bootstrap}, found, timeout_s=20)) == []
