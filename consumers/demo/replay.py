"""Sends a consumer group back to the beginning of its topic, as any member of it may. The group must have no
other member then.
"""

import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from relay.errors import Unavailable

JOIN_S: Final = 30.0
"""For the group to give its partitions to us: it waits until the session of a former member has ended."""


def rewind(properties: Mapping[str, str], group_id: str, topic: str) -> None:
    """Commit offset 0 for every partition of `topic` in `group_id`. Raises Unavailable when the group doesn't
    let us in."""
    assigned: list[TopicPartition] = []

    def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
        assigned.extend(partitions)

    consumer = Consumer(
        {
            **properties,
            "group.id": group_id,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    try:
        expected = len(consumer.list_topics(topic, timeout=JOIN_S).topics[topic].partitions)
        consumer.subscribe([topic], on_assign=on_assign)
        deadline = time.monotonic() + JOIN_S
        while len(assigned) < expected:
            consumer.poll(0.1)
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"The group {group_id} gave {len(assigned)} of {expected} partitions to us."
                )
        consumer.commit(
            offsets=[TopicPartition(topic, one.partition, 0) for one in assigned], asynchronous=False
        )
    except KafkaException as error:
        raise Unavailable(f"The group {group_id} can't be sent back: {error}.") from error
    finally:
        consumer.close()
