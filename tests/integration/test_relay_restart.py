"""The relay dies at each boundary, stops cleanly, hands over: nothing is lost, and nothing comes twice."""

from typing import Final

import pytest

from fix_relay import RelayUnderTest
from fix_waiting import eventually
from relay import failpoints

# What only a republish passes is killed in test_relay_republish.py.
BOUNDARIES: Final = sorted(
    name for name in failpoints.NAMES if name.startswith("relay.") and "republish" not in name
)


@pytest.mark.parametrize("failpoint", BOUNDARIES)
def test_after_a_kill_at_any_boundary_each_event_is_there_once(
    failpoint: str, exactly_once: RelayUnderTest
) -> None:
    relay = exactly_once
    events = relay.emit(3) + relay.emit(2)
    process = relay.failing(f"{failpoint}=kill")
    assert process.wait() == -9, process.output()
    events += relay.emit(2)
    process = relay.start()
    relay.wait_published(process)
    assert sorted(record.event_id for record in relay.read()) == sorted(events)


def test_what_kafka_has_is_skipped_even_where_postgres_was_never_told(relay: RelayUnderTest) -> None:
    """At least once skips by the same checkpoint: a kill after it was written doubles nothing."""
    events = relay.emit(3)
    process = relay.failing("relay.before_feedback=kill", RELAY_DELIVERY="at_least_once")
    assert process.wait() == -9, process.output()
    before = relay.confirmed()
    process = relay.start(RELAY_DELIVERY="at_least_once")
    relay.wait_published(process)
    assert relay.confirmed() > before
    assert sorted(record.event_id for record in relay.read()) == sorted(events)


def test_a_kill_in_the_middle_of_a_large_transaction_goes_on_within_it(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    small = {"RELAY_QUEUE_BYTES": str(1024 * 1024), "RELAY_GROUP_BYTES": str(64 * 1024)}
    relay.emit_many(10_000, transactions=1)
    process = relay.failing("relay.kafka_committed=kill@2", **small)
    assert process.wait() == -9, process.output()
    checkpoint = relay.checkpoint()
    assert checkpoint is not None
    assert 0 < checkpoint.index < 9_999

    process = relay.start(**small)
    relay.wait_published(process)
    records = relay.read()
    assert len(records) == 10_000
    assert len({record.event_id for record in records}) == 10_000


def test_a_clean_stop_confirms_all_that_was_read_and_ends_with_zero(relay: RelayUnderTest) -> None:
    process = relay.start()
    events = [event for _ in range(50) for event in relay.emit(2)]
    relay.wait_published(process)
    end = relay.insert_lsn()
    assert process.stop() == 0, process.output()
    relay.wait_slot_free()
    checkpoint = relay.checkpoint()
    assert checkpoint is not None
    assert checkpoint.commit_lsn < relay.confirmed() <= checkpoint.confirmed_lsn <= end
    assert len(relay.read()) == len(events)


def test_a_stop_while_a_standby_waits_ends_with_zero(relay: RelayUnderTest) -> None:
    active = relay.start()
    standby = relay.run('"event": "standby"')
    assert standby.stop() == 0, standby.output()
    assert active.running


def test_a_standby_takes_over_from_a_killed_relay_and_never_disturbs_a_live_one(
    exactly_once: RelayUnderTest,
) -> None:
    relay = exactly_once
    active = relay.start()
    standby = relay.run('"event": "standby"')
    events = relay.emit(5)
    relay.wait_published(active)
    assert active.running, active.output()

    active.kill()
    events += relay.emit(5)
    standby.wait_for('"event": "active"')
    relay.wait_published(standby)
    assert sorted(record.event_id for record in relay.read()) == sorted(events)


def test_the_source_is_verified_before_anything_is_published(relay: RelayUnderTest) -> None:
    query = """
        select state, verified_system_identifier = system_identifier,
               verified_timeline = timeline, verified_server_started_at = pg_postmaster_start_time()
        from relay.source_identity
    """
    assert relay.one("select state from relay.source_identity") == "new"
    relay.start()
    assert relay.one(query) == ("running", True, True, True)


def test_init_may_run_again_at_any_time(relay: RelayUnderTest) -> None:
    made = relay.initialise()
    relay.start()
    again = relay.initialise()
    assert (again.relay_id, again.consistent_point) == (made.relay_id, made.consistent_point)


def test_a_new_slot_is_one_that_a_standby_may_keep_a_copy_of(relay: RelayUnderTest) -> None:
    option = "select (to_jsonb(s) ->> 'failover')::boolean from pg_replication_slots s where slot_name = %s"
    newer = relay.owner.info.server_version >= 17_00_00
    assert relay.one(option, relay.slot) == (True if newer else None)


def test_init_after_a_crash_between_slot_and_identity_takes_the_slot(relay: RelayUnderTest) -> None:
    made = relay.initialise()
    relay.owner.execute("delete from relay.source_identity")
    again = relay.initialise()
    assert again.consistent_point == made.consistent_point


def test_a_postgres_connection_that_is_cut_is_made_again(relay: RelayUnderTest) -> None:
    process = relay.start()
    relay.emit(1)
    relay.wait_published(process)
    relay.owner.execute(
        "select pg_terminate_backend(pid) from pg_stat_replication where application_name = %s",
        [f"outbox-relay-{relay.slot}"],
    )
    process.wait_for('"event": "active"', times=2)
    relay.emit(2)
    relay.wait_published(process)
    assert len(relay.read()) == 3


def test_a_stream_is_drained_and_left_when_postgres_says_that_it_shuts_down(relay: RelayUnderTest) -> None:
    process = relay.start()
    query = "select count(*) from pg_stat_activity where application_name = %s"
    name = f"outbox-relay-{relay.slot}-sql"
    cuts = 0
    # A statement under way at that very moment ends with an error of its own, and the relay starts over
    # because of that one.
    while "Postgres shuts down" not in process.output():
        assert cuts < 10, process.output()
        eventually(lambda: relay.one(query, name) == 1, "the ordinary connection is there")
        relay.owner.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s", [name]
        )
        cuts += 1
        process.wait_for('"event": "active"', times=cuts + 1)
