"""Topics of the benchmark: made, asked how far a read_committed reader could get, and deleted."""

import time
from typing import Final

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import LatestSpec, OffsetSpec  # the stub exports them nowhere else
from confluent_kafka.cimpl import NewTopic

PARTITIONS: Final = 6
"""The relay's own default."""

_REQUEST_TIMEOUT_S: Final = 30.0
_LOOK_AGAIN_S: Final = 0.05


def client(bootstrap: str) -> dict[str, str | int | float | bool]:
    """What every client here is made of; librdkafka tells of errors alone."""
    return {"bootstrap.servers": bootstrap, "log_level": 2}


class Topic:
    """One topic with `PARTITIONS` partitions. Every call blocks, for milliseconds once `make` is through."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self._admin = AdminClient(client(bootstrap))
        latest: OffsetSpec = LatestSpec()  # type: ignore[no-untyped-call]
        self._asked = {TopicPartition(name, number): latest for number in range(PARTITIONS)}

    def make(self) -> None:
        """Returns when every partition has its leader. Raises KafkaException."""
        made = self._admin.create_topics(
            [NewTopic(self.name, PARTITIONS, 1)],
            operation_timeout=_REQUEST_TIMEOUT_S,
            request_timeout=_REQUEST_TIMEOUT_S,
        )
        made[self.name].result(_REQUEST_TIMEOUT_S)
        give_up_at = time.monotonic() + _REQUEST_TIMEOUT_S
        while True:
            try:
                self.stable_offsets()
            except KafkaException:
                # The broker hasn't heard of what the controller has made; it says so in many ways.
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(_LOOK_AGAIN_S)
            else:
                return

    def stable_offsets(self) -> list[int]:
        """The last stable offset of each partition: where a read_committed reader would stop now."""
        answers = self._admin.list_offsets(
            self._asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_REQUEST_TIMEOUT_S
        )
        found = {place.partition: answer.result().offset for place, answer in answers.items()}
        return [found[number] for number in range(PARTITIONS)]

    def drop(self) -> None:
        """What was read and counted need not fill the disk."""
        dropped = self._admin.delete_topics(
            [self.name], operation_timeout=_REQUEST_TIMEOUT_S, request_timeout=_REQUEST_TIMEOUT_S
        )
        dropped[self.name].result(_REQUEST_TIMEOUT_S)
