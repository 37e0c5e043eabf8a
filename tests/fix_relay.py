"""A relay under test: its database, its topics, the process, and a reader that nobody can deceive.

Real servers and a real `relay run`, logged in as the replicator's role, never as the superuser.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import LatestSpec
from psycopg.types.json import Jsonb

from apache_kafka import ApacheKafka
from fix_kafka import Kafka
from fix_postgres import Database
from fix_process import Process, RunProcess
from fix_waiting import PATIENCE_S, eventually
from relay.errors import Unavailable
from relay.kafka import checkpoint as checkpoints
from relay.kafka.checkpoint import Checkpoint
from relay.outbox.audit import WAIT_S, Audit, Finding, Summary
from relay.outbox.mapping import of_settings
from relay.settings import load
from relay.wal.lsn import parse_lsn
from relay.wal.slot import SourceIdentity, initialise

EVENT_TYPE: Final = "collection.requested"

_NO_LEADER_YET: Final = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_LEADER_EPOCH})

_INSERT: Final = """
    insert into relay.outbox (event_id, event_type, schema_version, operation_id, version, payload)
    values (%s, %s, %s, %s, %s, %s)
"""


OPEN_TRANSACTION_S: Final = 180.0
"""How long a test waits for a transaction that a killed relay left open."""


@dataclass(frozen=True, slots=True)
class Received:
    """One record as a consumer gets it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]
    timestamp_ms: int

    @property
    def event_id(self) -> str:
        return self.headers["ce_id"].decode()

    @property
    def position(self) -> tuple[int, int, int]:
        lsn = parse_lsn(self.headers["relay_lsn"].decode())
        return int(self.headers["relay_epoch"]), lsn, int(self.headers["relay_index"])


class RelayUnderTest:
    """`initialise`, `start`, `emit`, `read`."""

    def __init__(self, database: Database, kafka: Kafka, prefix: str, run_process: RunProcess) -> None:
        self.database = database
        self.kafka = kafka
        self.prefix = prefix
        self._run_process = run_process
        self.owner: psycopg.Connection[Any] = database.connect()
        self.slot = f"slot_{database.name}"

    def environment(self, login: str | None = "relay_replicator", **extra: str) -> dict[str, str]:
        return {
            "RELAY_DATABASE_URL": self.database.url_as(login) if login else self.database.url,
            "RELAY_KAFKA_BOOTSTRAP": self.kafka.bootstrap,
            "RELAY_TOPIC_PREFIX": self.prefix,
            "RELAY_TOPIC_PARTITIONS": "4",
            "RELAY_SLOT": self.slot,
            "RELAY_LOG_FORMAT": "json",
            **extra,
        }

    def initialise(self, **extra: str) -> SourceIdentity:
        """What `relay init` does after the migrations."""
        return initialise(load(environ=self.environment(None, **extra)).settings)

    def run(self, wait_for: str | None = None, **extra: str) -> Process:
        """`relay run` as a child."""
        return self._run_process(["run"], self.environment(**extra), wait_for)

    def start(self, **extra: str) -> Process:
        """`relay run`, once it publishes."""
        return self.run('"event": "active"', **extra)

    def failing(self, failpoints: str, **extra: str) -> Process:
        return self.run(RELAY_FAILPOINTS=failpoints, RELAY_ALLOW_FAILPOINTS="1", **extra)

    def command(self, *arguments: str, **extra: str) -> Process:
        """A command of an operator's, as the superuser."""
        return self._run_process(arguments, self.environment(None, **extra))

    def emit(
        self,
        count: int = 1,
        *,
        operation_id: UUID | None = None,
        version: int = 1,
        connection: psycopg.Connection[Any] | None = None,
        payload: Mapping[str, Any] | None = None,
        event_type: str = EVENT_TYPE,
        schema_version: int = 1,
    ) -> list[str]:
        """Insert `count` events in one transaction (or in `connection`'s). Returns their ids, in order."""
        target = connection or self.owner
        ids = [uuid4() for _ in range(count)]
        with target.transaction(), target.cursor() as cursor:
            for offset, event_id in enumerate(ids):
                key = operation_id or uuid4()
                document = payload or {"operation_id": str(key), "job_id": "job-1"}
                cursor.execute(
                    _INSERT,
                    [event_id, event_type, schema_version, key, version + offset, Jsonb(document)],
                )
        return [str(event_id) for event_id in ids]

    def emit_many(self, count: int, *, transactions: int) -> None:
        """`count` events spread evenly over `transactions`, made by the server itself."""
        for _ in range(transactions):
            self.owner.execute(
                """
                insert into relay.outbox (event_type, schema_version, operation_id, version, payload)
                select %s, 1, g, 1, jsonb_build_object('operation_id', g, 'job_id', 'job-1')
                from (select gen_random_uuid() as g from generate_series(1, %s)) s
                """,
                [EVENT_TYPE, count // transactions],
            )

    def ids(self) -> list[str]:
        """Of every event in the outbox, sorted."""
        rows = self.owner.execute("select event_id::text from relay.outbox order by 1")
        return [row[0] for row in rows]

    def one(self, query: LiteralString, *parameters: object) -> Any:
        row = self.owner.execute(query, parameters).fetchone()
        return row[0] if row is not None and len(row) == 1 else row

    def insert_lsn(self) -> int:
        return parse_lsn(self.one("select pg_current_wal_insert_lsn()::text"))

    def write_elsewhere(self) -> int:
        """WAL that is nobody's event. Returns the position after it."""
        self.owner.execute("create table if not exists elsewhere (n int)")
        self.owner.execute("insert into elsewhere select generate_series(1, 1000)")
        return self.insert_lsn()

    def confirmed(self) -> int:
        """The slot's `confirmed_flush_lsn`."""
        return parse_lsn(
            self.one(
                "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", self.slot
            )
        )

    def read_to(self) -> int:
        """How far the relay says that it has read (`write_lsn`); 0 while it isn't connected."""
        text = self.one(
            """
            select coalesce(max(write_lsn), '0/0')::text from pg_stat_replication
            where application_name = %s
            """,
            f"outbox-relay-{self.slot}",
        )
        return parse_lsn(text)

    def wait_confirmed(self, lsn: int, process: Process | None = None) -> None:
        def there() -> bool:
            assert process is None or process.running, process.output()
            return self.confirmed() >= lsn

        eventually(there, f"the slot is confirmed to {lsn:X}")

    def wait_published(self, process: Process | None = None, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all that is committed now is in Kafka and confirmed."""
        last = self.one("select max(seq) from relay.outbox") or 0

        def there() -> bool:
            assert process is None or process.running, process.output()
            try:
                found = self.checkpoint()
            except Unavailable:
                return False  # a broker that has just come back has no leader for a moment
            return found is not None and found.seq >= last and self.confirmed() >= found.commit_lsn

        eventually(there, f"seq {last} is published and confirmed", timeout_s)

    def wait_slot_free(self) -> None:
        """A killed relay's walsender may live on for a moment."""

        def free() -> bool:
            query = "select active_pid is null from pg_replication_slots where slot_name = %s"
            return bool(self.one(query, self.slot))

        eventually(free, "the slot is free")

    def checkpoint(self) -> Checkpoint | None:
        relay_id = self.one("select relay_id from relay.source_identity where slot_name = %s", self.slot)
        # A killed relay may have left its transaction open, and nobody has fenced it yet: Kafka ends it after
        # its timeout of a minute, at the next of its rounds.
        return checkpoints.read(
            {"bootstrap.servers": self.kafka.bootstrap}, self.prefix, relay_id, timeout_s=OPEN_TRANSACTION_S
        )

    def checkpoint_lsn(self) -> int:
        """The checkpoint's confirmed LSN; 0 without one."""
        found = self.checkpoint()
        return 0 if found is None else found.confirmed_lsn

    def audit(self, *, wait_s: float = WAIT_S, **extra: str) -> tuple[Summary, list[Finding]]:
        """What `relay outbox audit` finds."""
        settings = load(environ=self.environment(None, **extra)).settings
        mapping = of_settings(settings)
        audit = Audit(settings, mapping, wait_s=wait_s)
        findings = list(audit.findings())
        return audit.summary, findings

    def assert_clean(self) -> None:
        """The last step of a test: every event is where it should be."""
        summary, findings = self.audit()
        assert summary.clean, findings[:20]

    def read(self, *topics: str, isolation: str = "read_committed") -> list[Received]:
        """All records of the topics (this prefix is added; none given: the usual one), partition by
        partition, to the true end."""
        names = [f"{self.prefix}.{topic}" for topic in topics or (EVENT_TYPE,)]
        return read_topics(self.kafka.bootstrap, names, isolation)


def read_topics(bootstrap: str, topics: Sequence[str], isolation: str = "read_committed") -> list[Received]:
    """Every record that a consumer of that isolation level gets, up to the end of each partition."""
    ends = ends_of(bootstrap, topics)
    if not ends:
        return []
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-joined",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",  # retention may have taken the first records
        }
    )
    found: list[Received] = []
    left = {place for place, end in ends.items() if end > 0}
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in ends])

        def all_read() -> bool:
            for message in consumer.consume(1000, 0.2):
                _take(message, found, left, ends)
            return not left

        eventually(all_read, f"{', '.join(topics)} are read to the end")
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.topic, record.partition, record.offset))


def ends_of(bootstrap: str, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    """Where each partition of those topics that exist truly ends."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    known = admin.list_topics(timeout=10).topics
    partitions = [TopicPartition(t, p, 0) for t in topics if t in known for p in known[t].partitions]
    if not partitions:
        return {}
    return eventually(lambda: _ends(admin, partitions), "each partition says where it ends")


def _ends(admin: AdminClient, partitions: Sequence[TopicPartition]) -> dict[tuple[str, int], int]:
    """The true end of each partition; nothing while a broker that has just come up has no leader for one."""
    asked = admin.list_offsets(
        {TopicPartition(p.topic, p.partition): LatestSpec() for p in partitions},  # type: ignore[no-untyped-call]
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=10,
    )
    try:
        return {(p.topic, p.partition): future.result(20).offset for p, future in asked.items()}
    except KafkaException as error:
        if error.args[0].retriable() or error.args[0].code() in _NO_LEADER_YET:
            return {}
        raise


def _take(
    message: Message,
    found: list[Received],
    left: set[tuple[str, int]],
    ends: Mapping[tuple[str, int], int],
) -> None:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    place = (topic, partition)
    if message.error() is not None:  # the end of the partition, as far as this reader may see
        if offset >= ends[place]:
            left.discard(place)
        return
    headers: dict[str, bytes] = {}
    for header in message.headers() or []:
        value = header[1]
        assert isinstance(value, bytes)
        headers[str(header[0])] = value
    found.append(
        Received(topic, partition, offset, message.key(), message.value(), headers, message.timestamp()[1])
    )


@pytest.fixture
def relay(
    database: Database, kafka: Kafka, topic_prefix: str, run_process: RunProcess
) -> Iterator[RelayUnderTest]:
    """Publication, slot and identity exist; nothing runs."""
    under_test = RelayUnderTest(database, kafka, topic_prefix, run_process)
    try:
        under_test.initialise()
        yield under_test
    finally:
        under_test.owner.close()


@pytest.fixture
def exactly_once(real_kafka: Kafka, relay: RelayUnderTest) -> RelayUnderTest:
    """`relay` on a broker that hides what isn't committed."""
    return relay


@pytest.fixture
def freezable(
    own_kafka: Callable[[], ApacheKafka], database: Database, topic_prefix: str, run_process: RunProcess
) -> Iterator[tuple[RelayUnderTest, ApacheKafka]]:
    """A relay on a broker of its own, which a test may stop with SIGSTOP."""
    broker = own_kafka()
    broker.start()
    relay = RelayUnderTest(
        database, Kafka(broker.bootstrap, broker.version, real=True), topic_prefix, run_process
    )
    relay.initialise()
    try:
        yield relay, broker
    finally:
        relay.owner.close()
