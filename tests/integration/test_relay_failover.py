"""A standby takes over: the relay follows it by itself, and stops where the promotion lost what Kafka has."""

import json
from uuid import uuid4

import pytest

from fix_kafka import Kafka
from fix_process import RunProcess
from fix_relay import EVENT_TYPE
from fix_standby import Applications, Pair, RelayOnPair
from fix_waiting import eventually

pytestmark = pytest.mark.slow

DELIVERY = "delivery.requested"


def test_a_promotion_under_load_loses_nothing_and_repeats_nothing(relay_on_pair: RelayOnPair) -> None:
    relay, pair = relay_on_pair, relay_on_pair.pair
    process = relay.start_synced()
    pair.synchronous()
    with Applications(f"{pair.both(relay.database.url)}?target_session_attrs=read-write") as applications:
        applications.wait_for_more(100)
        pair.primary.stop("immediate")
        pair.promote()
        relay.move()
        applications.wait_for_more(100)
    process.wait_for('"event": "active"', times=2)
    relay.wait_published(process)
    events = relay.ids()
    assert set(applications.acknowledged) <= set(events)
    assert sorted(record.event_id for record in relay.read()) == events
    assert relay.one("select timeline, verified_timeline from relay.source_identity") == (2, 2)
    relay.assert_clean()


def test_a_relay_that_starts_again_after_a_promotion_goes_on_and_never_goes_back(
    relay_on_pair: RelayOnPair,
) -> None:
    relay, pair = relay_on_pair, relay_on_pair.pair
    process = relay.start_synced()
    pair.synchronous()
    assert process.stop() == 0, process.output()
    relay.emit(3)
    pair.wait_caught_up()
    only_standby = relay.database.url.replace(f":{pair.primary.port}/", f":{pair.standby.port}/")
    # A relay that knows the standby alone waits there. It verifies the new timeline, and dies before Kafka
    # has heard of it.
    process = relay.run(
        "This Postgres is a standby",
        RELAY_DATABASE_URL=only_standby,
        RELAY_FAILPOINTS="relay.transaction_read=kill",
        RELAY_ALLOW_FAILPOINTS="1",
    )
    pair.primary.stop("immediate")
    pair.promote()
    relay.move()
    assert process.wait() == -9, process.output()
    assert relay.one("select verified_timeline from relay.source_identity") == 2
    process = relay.start()
    relay.emit(3)
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    assert sorted(record.event_id for record in relay.read()) == relay.ids()
    relay.assert_clean()

    # The old primary comes back as if nothing had happened: two of them take writes now.
    pair.primary.start()
    process = relay.run(RELAY_DATABASE_URL=pair.primary.url(relay.database.name))
    assert process.wait() == 13, process.output()
    assert "timeline 1, whose history has no timeline 2" in process.output()


def test_a_clean_promotion_lowers_what_was_confirmed_to_the_switch(relay_on_pair: RelayOnPair) -> None:
    relay, pair = relay_on_pair, relay_on_pair.pair
    pair.set(pair.primary, "synchronized_standby_slots", "")
    process = relay.start_synced()
    pair.wait_caught_up()
    assert process.stop() == 0, process.output()
    pair.proxy.cut()
    beyond = relay.write_elsewhere()  # lost with the primary, and nobody's event
    process = relay.start()
    eventually(lambda: relay.checkpoint_lsn() >= beyond, "the slot was moved past it while idle")
    pair.primary.stop("immediate")
    switch = pair.ask(pair.standby, "select pg_last_wal_replay_lsn()::text")
    pair.promote()
    relay.move()
    relay.emit(1)
    # Events may come now at positions that the old primary had confirmed already.
    process.wait_for(f'"from_lsn": "{switch}".*"event": "active"')
    relay.wait_published(process)
    assert sorted(record.event_id for record in relay.read()) == relay.ids()
    checkpoint = relay.checkpoint()
    assert checkpoint is not None
    assert checkpoint.timeline == 2
    relay.assert_clean()


def test_a_promotion_that_lost_what_kafka_has_stops_and_names_every_phantom(
    relay_on_pair: RelayOnPair,
) -> None:
    relay, pair = relay_on_pair, relay_on_pair.pair
    pair.set(pair.primary, "synchronized_standby_slots", "")
    process = relay.start_synced()
    kept = relay.ids()
    pair.wait_caught_up()
    pair.proxy.cut()
    operation = uuid4()
    lost = relay.emit(3, operation_id=operation) + [relay.emit(1)[0] for _ in range(12)]
    # Of a type that no row is left of.
    delivery = {"owner_id": "o", "kind": "k", "dispatch_no": 1, "parent_operation_id": str(uuid4())}
    delivery["operation_id"] = str(uuid4())
    lost += relay.emit(1, event_type=DELIVERY, payload=delivery)
    relay.wait_published(process)
    pair.primary.stop("immediate")
    pair.promote()
    relay.move()
    before = relay.confirmed()
    events = relay.emit(2)

    assert process.wait() == 12, process.output()
    said = process.output().partition("relay: The promotion at")[2]
    assert f"Events that only Kafka has: {len(lost)}." in said
    assert f"… and {len(lost) - 10} more" in said
    logged = [json.loads(line) for line in process.output().splitlines() if '"event": "phantom"' in line]
    assert sorted(line["event_id"] for line in logged) == sorted(lost)
    of_operation = [line for line in logged if line["key"] == str(operation)]
    assert {line["event_type"] for line in of_operation} == {EVENT_TYPE}
    published = relay.read(EVENT_TYPE, DELIVERY)
    places = {f"{record.topic}/{record.partition}@{record.offset}" for record in published}
    assert {f"{line['topic']}/{line['partition']}@{line['offset']}" for line in logged} <= places
    assert "`relay init --accept-rewind`" in said

    # The command that it names lists them all; nothing was published or confirmed meanwhile.
    _, findings = relay.audit(wait_s=0)
    assert sorted(f.event_id for f in findings if f.kind == "phantom") == sorted(lost)
    assert relay.confirmed() == before
    assert sorted(record.event_id for record in relay.read(EVENT_TYPE, DELIVERY)) == sorted(kept + lost)

    accepted = relay.command("init", "--accept-rewind")
    assert accepted.wait() == 0, accepted.output()
    for event_id in lost:
        assert event_id in accepted.output()
    process = relay.start()
    relay.wait_published(process)
    after = [record.event_id for record in relay.read(EVENT_TYPE, DELIVERY)]
    assert sorted(after) == sorted(kept + lost + events)


def test_a_standby_without_a_copy_of_the_slot_stops_and_repair_brings_the_rest(
    pair: Pair, real_kafka: Kafka, topic_prefix: str, run_process: RunProcess
) -> None:
    """As with a slot from before Postgres 17, which no standby keeps a copy of."""
    relay = RelayOnPair(pair, real_kafka, topic_prefix, run_process)
    try:
        relay.owner.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [relay.slot])
        relay.initialise()
        process = relay.start()
        relay.emit(3)
        relay.wait_published(process)
        pair.wait_caught_up()
        pair.primary.stop("immediate")
        pair.promote()
        relay.move()
        relay.emit(3)
        assert process.wait() == 14, process.output()
        assert "`relay outbox repair`" in process.output()

        repaired = relay.command("outbox", "repair")
        assert repaired.wait() == 0, repaired.output()
        assert relay.one("select failover from pg_replication_slots"), "the next promotion finds it"
        process = relay.start()
        relay.emit(1)
        relay.wait_published(process)
        assert sorted(record.event_id for record in relay.read()) == relay.ids()
        relay.assert_clean()
    finally:
        relay.owner.close()


def test_what_the_standby_does_not_have_is_not_published_until_it_is_back(relay_on_pair: RelayOnPair) -> None:
    relay, pair = relay_on_pair, relay_on_pair.pair
    process = relay.start_synced()
    kept = relay.ids()
    pair.proxy.cut()
    waiting = relay.emit(2)
    process.wait_for("synchronized_standby_slots")
    assert sorted(record.event_id for record in relay.read()) == kept
    pair.proxy.resume()
    relay.wait_published(process)
    assert sorted(record.event_id for record in relay.read()) == sorted(kept + waiting)
    relay.assert_clean()
