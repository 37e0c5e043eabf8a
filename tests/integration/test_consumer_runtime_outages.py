"""Postgres or Kafka goes away under a consumer: nothing is parked for it, nothing is lost, and it goes on by
itself."""

import signal
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from apache_kafka import ApacheKafka
from fix_consumer import PROBED, ProbeSite, StartProbe, Topic
from fix_kafka import Kafka
from fix_postgres import Database, clone, make_template
from fix_waiting import eventually
from relay.embedded_postgres import EmbeddedPostgres


@pytest.fixture
def group(topic_prefix: str) -> str:
    return f"{topic_prefix}.probe"


@pytest.fixture
def own_database(own_postgres: EmbeddedPostgres) -> Database:
    """On a server that the test may stop."""
    return clone(own_postgres, make_template(own_postgres))


@pytest.fixture
def own_broker(own_kafka: Callable[[], ApacheKafka]) -> ApacheKafka:
    """A broker that the test may stop."""
    broker = own_kafka()
    broker.start()
    return broker


@pytest.fixture
def own_topic(own_broker: ApacheKafka, topic_prefix: str) -> Topic:
    """The probe's topic on `own_broker`."""
    topic = Topic(Kafka(own_broker.bootstrap, own_broker.version, real=True), topic_prefix, PROBED, 1)
    topic.create()
    return topic


def inbox(database: Database, group: str) -> list[tuple[int, int, str, str | None]]:
    """(offset, times seen, outcome, detail) of the group's deliveries, by offset."""
    with database.connect() as connection:
        rows = connection.execute(
            'select "offset", times_seen, last_outcome, detail from relay.event_delivery'
            " where group_id = %s order by 1",
            [group],
        )
        return [(row[0], row[1], row[2], row[3]) for row in rows]


def test_the_inbox_has_each_delivery_before_its_offset_is_committed(
    make_topic: Callable[..., Topic], start_probe: StartProbe, database: Database, group: str
) -> None:
    topic = make_topic()
    topic.instruct("handled", "permanent")
    environment = {"RELAY_DATABASE_URL": database.url_as("relay_worker")}
    child = start_probe(environment)
    topic.wait_until_drained(group)
    assert inbox(database, group) == [
        (0, 1, "handled", None),
        (1, 1, "parked", "permanent: no gate will ever open"),
    ]
    assert child.stop() == 0


def test_a_redelivery_is_counted_once_however_often_it_is_retried(
    make_topic: Callable[..., Topic],
    start_probe: StartProbe,
    probe_site: ProbeSite,
    database: Database,
    group: str,
) -> None:
    topic = make_topic()
    topic.instruct("transient:gate")
    environment = {"RELAY_DATABASE_URL": database.url_as("relay_worker")}
    first = start_probe(environment)
    first.wait_for("^begin", times=3)
    eventually(lambda: inbox(database, group), "the inbox says that it is being retried")
    assert [row[1:] for row in inbox(database, group)] == [(1, "retrying", "the gate is closed")]
    first.kill()
    probe_site.open_gate("gate")
    start_probe(environment)
    topic.wait_until_drained(group)
    assert [row[1:] for row in inbox(database, group)] == [(2, "handled", None)]


def test_no_offset_is_committed_while_the_inbox_cannot_be_written(
    make_topic: Callable[..., Topic], start_probe: StartProbe, own_database: Database, group: str
) -> None:
    topic = make_topic()
    child = start_probe({"RELAY_DATABASE_URL": own_database.url_as("relay_worker")})
    own_database.server.stop("immediate")
    topic.instruct("during the outage")
    child.wait_for("^end during the outage")
    child.wait_for("inbox waits for postgres")
    assert not any(topic.committed(group).values())
    own_database.server.start()
    topic.wait_until_drained(group)
    assert [row[1:] for row in inbox(own_database, group)] == [(1, "handled", None)]
    assert child.output().count("end during the outage") == 1


def test_an_inbox_that_may_not_be_written_ends_the_process_with_a_sentence(
    make_topic: Callable[..., Topic], start_probe: StartProbe, database: Database, group: str
) -> None:
    topic = make_topic()
    topic.instruct("handled")
    child = start_probe({"RELAY_DATABASE_URL": database.url_as("relay_reader")}, wait_for=None)
    assert child.wait() == 1
    assert "relay: The inbox relay.event_delivery can't be written: permission denied" in child.output()
    assert not any(topic.committed(group).values())


def test_a_handler_that_misses_postgres_is_tried_again_and_never_parked(
    make_topic: Callable[..., Topic], start_probe: StartProbe, probe_site: ProbeSite, group: str
) -> None:
    topic = make_topic()
    topic.instruct("away:gate")
    child = start_probe({"RELAY_RETRY_FOR_S": "0"})
    child.wait_for("^begin away", times=4)
    probe_site.open_gate("gate")
    topic.wait_until_drained(group)
    assert "parked" not in child.output()


def test_a_broker_that_restarts_costs_nothing_but_time(
    own_broker: ApacheKafka, own_topic: Topic, start_probe: StartProbe, probe_site: ProbeSite, group: str
) -> None:
    own_topic.instruct("before", "hold:gate")
    child = start_probe({"RELAY_KAFKA_BOOTSTRAP": own_broker.bootstrap})
    child.wait_for("^end before")
    child.wait_for("^begin hold")
    own_broker.kill()
    child.wait_for("kafka complains, going on")
    probe_site.open_gate("gate")
    child.wait_for("^end hold")
    own_broker.start()
    own_topic.instruct("after")
    child.wait_for("^end after")
    own_topic.wait_until_drained(group)
    assert child.stop() == 0


def test_sigterm_ends_a_consumer_whose_broker_is_gone(
    own_broker: ApacheKafka, own_topic: Topic, start_probe: StartProbe, group: str
) -> None:
    own_topic.instruct("handled")
    child = start_probe({"RELAY_KAFKA_BOOTSTRAP": own_broker.bootstrap})
    own_topic.wait_until_drained(group)
    own_broker.kill()
    child.wait_for("kafka complains, going on")
    child.signal(signal.SIGTERM)
    assert child.wait() == 0


def test_a_topic_that_is_made_later_is_found(
    kafka: Kafka, start_probe: StartProbe, topic_prefix: str, group: str
) -> None:
    child = start_probe(wait_for="consumer started")
    topic = Topic(kafka, topic_prefix, PROBED, 1)
    if kafka.real:
        child.wait_for("kafka complains, going on")
    topic.create()
    topic.instruct("late")
    child.wait_for("^end late")
    topic.wait_until_drained(group)


def test_a_topic_that_is_deleted_and_made_anew_is_read_from_its_start(
    make_topic: Callable[..., Topic], start_probe: StartProbe, real_kafka: Kafka, group: str
) -> None:
    topic = make_topic()
    topic.instruct(*(f"old{number}" for number in range(10)))
    child = start_probe()
    topic.wait_until_drained(group)
    admin = AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    admin.delete_topics([topic.name])[topic.name].result()
    eventually(lambda: topic.name not in admin.list_topics(timeout=10).topics, "the topic is deleted")
    topic.create()
    topic.instruct("new0", "new1", key=uuid.uuid4())
    child.wait_for("^end new1")
    topic.wait_until_drained(group)
