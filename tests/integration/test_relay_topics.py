"""A topic deleted, made anew or repartitioned, under the relay or while none ran, is never papered over."""

import json
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from fix_process import Process, RunProcess
from fix_relay import EVENT_TYPE, RelayUnderTest
from fix_waiting import eventually
from relay.kafka import checkpoint as checkpoints


def admin(relay: RelayUnderTest) -> AdminClient:
    return AdminClient({"bootstrap.servers": relay.kafka.bootstrap})


def exists(relay: RelayUnderTest, topic: str) -> bool:
    return topic in admin(relay).list_topics(timeout=10).topics


def delete(relay: RelayUnderTest, topic: str) -> None:
    client = admin(relay)  # it must outlive its answer
    client.delete_topics([topic])[topic].result(30)
    eventually(lambda: not exists(relay, topic), f"{topic} is gone")


def make_anew(relay: RelayUnderTest, topic: str) -> None:
    delete(relay, topic)
    client = admin(relay)
    client.create_topics([NewTopic(topic, 4, 1)])[topic].result(30)
    eventually(lambda: exists(relay, topic), f"{topic} is there again")


def add_partitions(relay: RelayUnderTest, topic: str) -> None:
    client = admin(relay)
    client.create_partitions([NewPartitions(topic, 6)])[topic].result(30)
    eventually(
        lambda: len(admin(relay).list_topics(timeout=10).topics[topic].partitions) == 6,
        f"{topic} has more partitions",
    )


def ran(relay: RelayUnderTest) -> str:
    """The relay has published something and was stopped. Returns the topic."""
    process = relay.start()
    relay.emit(3)
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    relay.wait_slot_free()
    return f"{relay.prefix}.{EVENT_TYPE}"


def stopped(process: Process, status: int, *said: str) -> None:
    assert process.wait() == status, process.output()
    for text in said:
        assert text in process.output()


def topics(relay: RelayUnderTest, run_process: RunProcess, *args: str) -> str:
    """What `relay topics` says to an operator."""
    process = run_process(["topics", *args], relay.environment("relay_operator"))
    assert process.wait() == 0, process.output()
    return process.output()


def clean_after_a_start(relay: RelayUnderTest) -> None:
    process = relay.start()
    relay.emit(2)
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    relay.assert_clean()


def test_a_topic_that_was_deleted_while_no_relay_ran_stops_it_and_is_not_made_anew(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    relay = exactly_once
    topic = ran(relay)
    relay.emit(1)
    before = relay.confirmed()
    delete(relay, topic)
    stopped(relay.run(), 17, f"{topic} is gone", "relay outbox repair", f"relay topics accept {topic}")
    assert not exists(relay, topic)
    assert relay.confirmed() == before
    relay.wait_slot_free()

    repair = run_process(["outbox", "repair"], relay.environment(None))
    assert repair.wait() == 0, repair.output()
    clean_after_a_start(relay)


def test_a_topic_that_was_made_anew_while_no_relay_ran_stops_it_until_it_is_accepted(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    relay = exactly_once
    topic = ran(relay)
    make_anew(relay, topic)
    stopped(relay.run(), 17, f"{topic} was deleted and made anew")
    listed = {entry["topic"]: entry for entry in json.loads(topics(relay, run_process, "list", "--json"))}
    assert [name for name, entry in listed.items() if entry["differs"]] == [topic]
    assert listed[topic]["now"]["topic_id"] != listed[topic]["recorded"]["topic_id"]
    assert "start at the beginning of the new one" in topics(relay, run_process, "accept", "--all")
    assert "Nothing differs" in topics(relay, run_process, "accept", "--all")
    process = relay.start()
    event = relay.emit(1)
    relay.wait_published(process)
    assert [record.event_id for record in relay.read()] == event


def test_a_topic_that_was_repartitioned_while_no_relay_ran_stops_it_until_it_is_accepted(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    relay = exactly_once
    topic = ran(relay)
    relay.emit(1)
    add_partitions(relay, topic)
    stopped(relay.run(), 17, f"{topic} had 4 partitions and has 6", "out of order")
    assert "had 4 partitions and has 6" in topics(relay, run_process, "list")
    assert "order isn't kept" in topics(relay, run_process, "accept", topic)
    assert "differ" not in topics(relay, run_process, "list")
    clean_after_a_start(relay)


def test_without_the_checkpoints_topic_it_never_starts_fresh(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    relay = exactly_once
    ran(relay)
    relay.emit(1)
    topic = checkpoints.topic(relay.prefix, relay.one("select relay_id from relay.source_identity"))
    delete(relay, topic)
    stopped(relay.run(), 10, f"{topic} is gone")
    assert not exists(relay, topic)
    # Accepting it brings no position back.
    assert "status 10" in topics(relay, run_process, "accept", topic)
    stopped(relay.run(), 10, "no checkpoint")
    relay.wait_slot_free()
    repair = run_process(["outbox", "repair"], relay.environment(None))
    assert repair.wait() == 0, repair.output()
    clean_after_a_start(relay)


def test_without_a_checkpoint_a_repair_still_sees_that_the_database_is_behind(
    exactly_once: RelayUnderTest, run_process: RunProcess
) -> None:
    """Nobody accepted a rewind, and none is noticed by a position: only the events themselves tell."""
    relay = exactly_once
    ran(relay)
    delete(relay, checkpoints.topic(relay.prefix, relay.one("select relay_id from relay.source_identity")))
    (lost,) = relay.owner.execute(
        "select event_id::text from relay.outbox order by seq desc limit 1"
    ).fetchall()
    relay.owner.execute("alter table relay.outbox disable trigger user")
    relay.owner.execute("delete from relay.outbox where event_id = %s", lost)
    repair = run_process(["outbox", "repair"], relay.environment(None))
    assert repair.wait() == 0, repair.output()
    assert f"only in Kafka: {lost[0]}" in repair.output()
    assert "`relay ops reconcile`" in repair.output()
    assert "relay ops reconcile" in relay.one("select relay.dispatch_gate()")


@pytest.mark.slow  # topics are compared every ten seconds
@pytest.mark.parametrize("change", [make_anew, add_partitions])
def test_a_topic_that_changes_under_a_relay_at_work_stops_it(
    change: Callable[[RelayUnderTest, str], None], exactly_once: RelayUnderTest
) -> None:
    relay = exactly_once
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    topic = f"{relay.prefix}.{EVENT_TYPE}"
    change(relay, topic)
    stopped(process, 17, topic)
    relay.wait_slot_free()
    stopped(relay.run(), 17, topic)  # and a restart doesn't make it right


def test_accept_says_what_it_needs_to_know(relay: RelayUnderTest, run_process: RunProcess) -> None:
    environment = relay.environment("relay_operator")
    for args, said in ((["accept"], "--all"), (["accept", "somebody.elses"], "relay topics list")):
        process = run_process(["topics", *args], environment)
        assert process.wait() == 2, process.output()
        assert said in process.output()
