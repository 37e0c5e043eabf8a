"""Consumers as real processes: packages with an entry point, topics, records as the relay writes them, and
offsets."""

import itertools
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fix_kafka import Kafka
from fix_process import Process, RunProcess
from fix_waiting import PATIENCE_S, eventually
from relay.avro.catalog import Catalog

_BY_KEY = -1
"""librdkafka's RD_KAFKA_PARTITION_UA: the partitioner chooses."""

TESTS = Path(__file__).resolve().parent

PROBED = "collection.requested"
"""The event type that the probe consumes."""

PHASES = ("prepared", "claimed", "submitting", "accepted", "succeeded")
"""A life without trouble, version 1 to 5."""


def entry_points(folder: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> Path:
    """Make `folder` look like an installed distribution `name` with these entry points; put it on
    PYTHONPATH."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    text = "".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
        for group, points in groups.items()
    )
    (metadata / "entry_points.txt").write_text(text)
    return folder


@dataclass
class Topic:
    """A topic with records as the relay writes them, and what a group has committed there.

    With one partition, only the first is written and looked at.
    """

    kafka: Kafka
    prefix: str
    event_type: str
    partitions: int
    catalog: Catalog = field(default_factory=Catalog.load)
    _indexes: Iterator[int] = field(default_factory=itertools.count)

    @property
    def name(self) -> str:
        return f"{self.prefix}.{self.event_type}"

    def create(self) -> None:
        if self.kafka.real:
            admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
            admin.create_topics([NewTopic(self.name, self.partitions, 1)])[self.name].result(PATIENCE_S)

    def record(self, payload: Mapping[str, Any], *, version: int | None = None) -> dict[str, Any]:
        """Arguments for `Producer.produce`, key and headers as design-relay section 5 says."""
        index = next(self._indexes)
        schema_version = version or self.catalog.latest(self.event_type)
        headers = {
            "ce_id": str(uuid.uuid4()),
            "ce_type": self.event_type,
            "ce_source": "/outbox-relay/test",
            "ce_time": datetime.now(UTC).isoformat(),
            "ce_specversion": "1.0",
            "relay_lsn": f"0/{index + 1:X}",
            "relay_index": "0",
            "relay_epoch": "1",
            "operation_version": str(payload.get("version", 1)),
            "schema_version": str(schema_version),
        }
        value = self.catalog.encoder(self.event_type, schema_version)(json.dumps(dict(payload)).encode())
        return {
            "key": str(payload["operation_id"]).encode(),
            "value": value,
            "headers": [(name, text.encode()) for name, text in headers.items()],
        }

    def instruct(self, *instructions: str, key: uuid.UUID | None = None, transactional: bool = False) -> None:
        """One probe event per instruction, in order, all of `key` or each of a key of its own."""
        self.produce(
            [
                self.record({"operation_id": str(key or uuid.uuid4()), "job_id": instruction})
                for instruction in instructions
            ],
            transactional=transactional,
        )

    def produce(
        self, records: Sequence[Mapping[str, Any]], *, transactional: bool = False, topic: str | None = None
    ) -> None:
        """Returns once all are acknowledged; with `transactional`, in one committed transaction."""
        properties: dict[str, Any] = {
            "bootstrap.servers": self.kafka.bootstrap,
            "partitioner": "murmur2_random",
            "linger.ms": 0,
        }
        if transactional:
            properties["transactional.id"] = f"{self.prefix}-{uuid.uuid4()}"
        producer = Producer(properties)
        if transactional:
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
        refused: list[object] = []

        def delivered(error: object, _: Message) -> None:
            if error is not None:
                refused.append(error)

        # The embedded broker makes four partitions, whatever the test wants.
        partition = 0 if self.partitions == 1 else _BY_KEY
        for record in records:
            producer.produce(topic or self.name, **record, partition=partition, on_delivery=delivered)
        assert producer.flush(PATIENCE_S) == 0
        assert not refused
        if transactional:
            producer.commit_transaction(PATIENCE_S)

    def committed(self, group: str) -> dict[int, int]:
        """Committed positions by partition; a partition without one is left out."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        wanted = [TopicPartition(self.name, number) for number in range(self.partitions)]
        request = ConsumerGroupTopicPartitions(group, wanted)
        found = admin.list_consumer_group_offsets([request])[group].result(PATIENCE_S)
        return {
            each.partition: each.offset
            for each in found.topic_partitions or []
            if each.offset != OFFSET_INVALID
        }

    def ends(self) -> dict[int, int]:
        """The position after the last record or marker of each partition."""
        reader = Consumer({"bootstrap.servers": self.kafka.bootstrap, "group.id": f"{self.prefix}-ends"})
        try:
            return {
                number: reader.get_watermark_offsets(TopicPartition(self.name, number), PATIENCE_S)[1]
                for number in range(self.partitions)
            }
        finally:
            reader.close()

    def wait_until_drained(self, group: str) -> None:
        """Until the group's lag is 0 on every partition."""
        ends = self.ends()
        eventually(lambda: self.committed(group) == ends, f"{group} commits {ends} on {self.name}")


def transitions(topic: Topic, operation_id: uuid.UUID, versions: range) -> list[dict[str, Any]]:
    """Records of the journal entries `versions` of one operation."""
    return [
        topic.record(
            {
                "operation_id": str(operation_id),
                "owner_id": "studio",
                "kind": "generation",
                "version": version,
                "from_phase": PHASES[version - 2] if version > 1 else None,
                "to_phase": PHASES[version - 1],
                "cause": "answer",
                "reason": "as told",
                "actor": "test",
                "dispatch_no": 1,
                "specification_hash": "00",
                "transitioned_at": datetime.now(UTC).isoformat(),
            }
        )
        for version in versions
    ]


def read_all(kafka: Kafka, topic: str, at_least: int) -> list[Message]:
    """The first `at_least` records of a topic that may not exist yet, waiting for them."""
    reader = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": f"{topic}-reader"})
    found: list[Message] = []

    def enough() -> bool:
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message)
        return len(found) >= at_least

    try:
        eventually(lambda: topic in reader.list_topics(timeout=PATIENCE_S).topics, f"{topic} exists")
        partitions = reader.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        eventually(enough, f"{at_least} records in {topic}")
    finally:
        reader.close()
    return found


def headers_of(message: Message) -> dict[str, str]:
    """A record's headers as text."""
    return {
        name: value.decode()
        for name, value in dict(message.headers() or []).items()
        if isinstance(value, bytes)
    }


def offsets_of(output: str, word: str) -> list[tuple[int, int]]:
    """(partition, offset) of each line that the probe began with `word`, in order."""
    found = re.findall(rf"^{word} .* at=(\d+)/(\d+)$", output, re.MULTILINE)
    return [(int(partition), int(offset)) for partition, offset in found]


class StartProbe(Protocol):
    """Start `relay consume probe` and wait until it has its partitions."""

    def __call__(
        self, env: Mapping[str, str] | None = None, *, name: str = ..., wait_for: str | None = ...
    ) -> Process: ...


@dataclass
class ProbeSite:
    """Where probes are installed, what they are told, and gates that they wait at."""

    folder: Path
    environment: dict[str, str]

    def open_gate(self, name: str) -> None:
        (self.folder / "gates" / name).touch()


@pytest.fixture
def make_topic(kafka: Kafka, topic_prefix: str) -> Callable[..., Topic]:
    """Makes topics of the test's own prefix; one partition unless told otherwise."""

    def make(event_type: str = PROBED, partitions: int = 1) -> Topic:
        topic = Topic(kafka, topic_prefix, event_type, partitions)
        topic.create()
        return topic

    return make


@pytest.fixture
def probe_site(tmp_path: Path, kafka: Kafka, topic_prefix: str) -> ProbeSite:
    """Without a database; a test that wants the inbox adds RELAY_DATABASE_URL."""
    points = {"relay.consumers": {"probe": "probe_consumer:Probe", "raw": "probe_consumer:Raw"}}
    site = entry_points(tmp_path / "site", "relay-test-probes", points)
    (site / "gates").mkdir()
    return ProbeSite(
        site,
        {
            "PYTHONPATH": f"{site}:{TESTS}",
            "PROBE_FOLDER": str(site / "gates"),
            "RELAY_KAFKA_BOOTSTRAP": kafka.bootstrap,
            "RELAY_TOPIC_PREFIX": topic_prefix,
            # A killed member's partitions go to another within this; the default is 45 s.
            "RELAY_KAFKA_SESSION_TIMEOUT_MS": "4000",
            "RELAY_KAFKA_HEARTBEAT_INTERVAL_MS": "500",
        },
    )


@pytest.fixture
def start_probe(probe_site: ProbeSite, run_process: RunProcess) -> StartProbe:
    """Starts probes; a member that has its partitions has said "partitions assigned"."""

    def start(
        env: Mapping[str, str] | None = None,
        *,
        name: str = "probe",
        wait_for: str | None = "partitions assigned",
    ) -> Process:
        return run_process(["consume", name], {**probe_site.environment, **(env or {})}, wait_for)

    return start
