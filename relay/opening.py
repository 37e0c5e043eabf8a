"""Opens Kafka for one relay: its topics, then the producer whose start shuts out every former self.

Nobody calls this before the slot is theirs: `init_transactions` ends whatever another relay has open.
"""

import uuid

import structlog

from relay.errors import Unavailable
from relay.kafka import checkpoint as checkpoints
from relay.kafka.checkpoint import Checkpoint
from relay.kafka.publisher import Acknowledged, Publisher, RecordRefused, Transactional
from relay.kafka.topics import Topics
from relay.outbox.event import Schemas, dead_letter_topic, kept_topics, topics_from_start
from relay.outbox.mapping import OutboxMapping
from relay.settings import Settings

log = structlog.get_logger("relay")


def open_publisher(
    settings: Settings, mapping: OutboxMapping, schemas: Schemas, topics: Topics, relay_id: uuid.UUID
) -> Publisher:
    """Topics, then the producer, whose start shuts out every former self. Blocks.

    Raises Unavailable, UsageError, TopicsChanged, CheckpointMissing or Fenced.
    """
    prefix = settings.topic_prefix
    topics.ensure(
        [*topics_from_start(mapping, schemas, prefix, settings.topic), dead_letter_topic(prefix)],
        checkpoint=checkpoints.topic(prefix, relay_id),
        kept=kept_topics(prefix, settings.topic),
    )
    make = Transactional if settings.delivery == "exactly_once" else Acknowledged
    publisher = make(
        settings.require_kafka(),
        prefix=prefix,
        relay_id=relay_id,
        batch_bytes=topics.smallest_limit_bytes(),
    )
    publisher.start()
    if topics.embedded and settings.delivery == "exactly_once":
        log.warning("the embedded broker shows uncommitted records to everybody: this isn't exactly once")
    return publisher


def write_first(publisher: Publisher, checkpoint: Checkpoint) -> None:
    """The checkpoint of a new relay, alone. Raises Unavailable or Fenced."""
    publisher.open()
    try:
        publisher.commit(checkpoint)
    except RecordRefused as refused:
        raise Unavailable(f"Kafka refused the first checkpoint: {refused.reason}.") from refused
