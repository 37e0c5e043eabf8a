"""Old rows leave the outbox by pruning alone, and only those that Kafka has."""

import time
from datetime import timedelta

import psycopg
import pytest

from fix_commands import Command
from fix_prune import ids, moving, pruned, stopped
from fix_relay import RelayUnderTest
from fix_versions import measured
from relay.errors import Unavailable
from relay.outbox.prune import prune
from relay.settings import load


def test_what_kafka_has_goes_but_the_row_that_the_checkpoint_names(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    process = relay.start()
    sent = [event for _ in range(10) for event in relay.emit()]
    (parked,) = relay.emit(event_type="nobody.knows_it")
    relay.wait_published(process)
    last = relay.emit()
    relay.wait_published(process)
    assert pruned(relay) == 10  # the slot comes by on its own, in ten seconds at most
    assert ids(relay) == {parked, *last}
    assert process.running, process.output()
    # The relay starts again beside the pruned table, and what is gone isn't taken for a phantom.
    assert process.stop() == 0, process.output()
    process = relay.start()
    more = relay.emit(2)
    relay.wait_published(process)
    relay.assert_clean()
    assert sorted(record.event_id for record in relay.read()) == sorted([*sent, *last, *more])


def test_rows_that_are_not_old_enough_stay(relay: RelayUnderTest) -> None:
    with stopped(relay, 3):
        assert pruned(relay, timedelta(hours=1)) == 0
        assert len(ids(relay)) == 3


def test_a_row_that_the_slot_has_not_passed_stays(relay: RelayUnderTest) -> None:
    with stopped(relay, 3):
        unpublished = relay.emit(2)
        with pytest.raises(Unavailable, match="so none was deleted"):
            pruned(relay, wait_s=0)
        assert ids(relay) >= set(unpublished)
        # What was chosen goes once the relay has come past it, and not what has become the checkpoint's.
        process = relay.start()
        relay.wait_published(process)
        with moving(relay) as sent:
            assert pruned(relay) == 5
        assert ids(relay) == set(sent)
        relay.assert_clean()


def test_a_parked_row_is_not_even_chosen(relay: RelayUnderTest) -> None:
    process = relay.start()
    relay.emit(event_type="nobody.knows_it")
    relay.wait_published(process)
    assert relay.one("select chosen from relay.prune_choose(%s, '0', 100, 100)", relay.slot) == 0


def test_a_transaction_that_commits_after_the_choice_keeps_its_rows(relay: RelayUnderTest) -> None:
    """Its rows are as old as the others by their clock, and were not visible when the rows were chosen."""
    process = relay.start()
    with relay.database.connect() as late:
        with late.transaction():
            relay.emit(3)
            late_ids = set(relay.emit(2, connection=late))
            relay.emit(1)
            relay.wait_published(process)
            with moving(relay) as sent:
                assert pruned(relay) == 4
        relay.wait_published(process)
    assert ids(relay) == {*late_ids, *sent}
    relay.assert_clean()


def test_a_row_that_was_parked_after_the_choice_stays(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    with stopped(relay, 1):
        parked = relay.emit(1, event_type="nobody.knows_it")
        with pytest.raises(Unavailable, match="so none was deleted"):
            pruned(relay, wait_s=0)
        assert relay.one("select sum(cardinality(event_ids)) from relay.prune_batch") == 2
        process = relay.start()
        relay.emit()
        relay.wait_published(process)
        relay.owner.execute("select relay.prune(%s, 'FFFFFFFF/0', '{}')", [relay.slot])
        assert relay.one("select pruned_rows from relay.pruning") == 1
        assert ids(relay) > set(parked)
        relay.assert_clean()


def test_a_prune_that_was_interrupted_leaves_nothing_to_a_later_one_that_is_asked_for_less(
    relay: RelayUnderTest,
) -> None:
    with stopped(relay, 3):
        relay.emit()
        with pytest.raises(Unavailable):
            pruned(relay, wait_s=0)
        process = relay.start()
        relay.wait_published(process)
        assert relay.one("select count(*) from relay.prune_batch") == 1
        assert pruned(relay, timedelta(hours=1)) == 0
        assert len(ids(relay)) == 4


def test_rows_from_before_the_slot_stay_until_a_backfill_or_a_person_lets_them_go(
    relay: RelayUnderTest, command: Command
) -> None:
    relay.owner.execute("select pg_drop_replication_slot(%s)", [relay.slot])
    relay.owner.execute("delete from relay.source_identity")
    before = relay.emit(3)
    relay.initialise()
    process = relay.start()
    relay.emit(2)
    relay.wait_published(process)
    env = relay.environment("relay_operator")
    with moving(relay) as sent:
        done = command("outbox", "prune", "--older-than", "0s", env=env)
    assert done.status == 0, done.err
    assert "2 rows pruned\n3 rows stay: they are from before the slot" in done.out
    assert ids(relay) == {*before, *sent}
    with moving(relay) as more:
        done = command("outbox", "prune", "--older-than", "0s", "--include-unpublished", env=env)
    assert done.status == 0, done.err
    assert ids(relay) == set(more)


def test_an_event_that_only_kafka_has_is_told_from_a_pruned_one(relay: RelayUnderTest) -> None:
    process = relay.start()
    relay.emit(4)
    relay.wait_published(process)
    with moving(relay) as phantoms:
        assert pruned(relay) == 4
    phantoms += relay.emit()
    relay.emit()
    relay.wait_published(process)
    summary, findings = relay.audit()
    assert (summary.clean, summary.pruned) == (True, 4), findings
    # As after a restore: the database has forgotten some that are younger than what was pruned.
    relay.owner.execute("alter table relay.outbox disable trigger user")
    relay.owner.execute("delete from relay.outbox where event_id = any(%s)", [phantoms])
    summary, findings = relay.audit()
    assert {(finding.kind, finding.event_id) for finding in findings} == {
        ("phantom", event_id) for event_id in phantoms
    }
    assert summary.pruned == 4


def test_the_command_says_what_goes(relay: RelayUnderTest, command: Command) -> None:
    env = relay.environment("relay_operator")
    with stopped(relay, 3):
        assert command("outbox", "prune", "--older-than", "0s", "--dry-run", env=env).out == (
            "3 rows would go; the row that the checkpoint names stays in any case\n"
        )
        assert command("outbox", "prune", "--older-than", "1h", env=env).out == "no row was pruned\n"
        wrong = command("outbox", "prune", "--older-than", "a week", env=env)
        assert wrong.status == 2
        assert "write a number and s, m, h or d" in wrong.err
        refused = command(
            "outbox", "prune", "--older-than", "0s", env={**env, "RELAY_OUTBOX_TABLE": "public.events"}
        )
        assert refused.status == 2
        assert "Delete from your own table yourself" in refused.err


@pytest.mark.slow
def test_a_million_old_rows_are_pruned_while_streaming(
    exactly_once: RelayUnderTest, pytestconfig: pytest.Config
) -> None:
    relay = exactly_once
    relay.owner.execute("select pg_drop_replication_slot(%s)", [relay.slot])
    relay.owner.execute("delete from relay.source_identity")
    relay.owner.execute("alter table relay.outbox disable trigger b_guard")
    relay.owner.execute(
        "insert into relay.outbox (event_type, schema_version, operation_id, version, payload, occurred_at)"
        " select 'collection.requested', 1, gen_random_uuid(), 1, '{}', now() - interval '60 days'"
        " from generate_series(1, 1000000)"
    )
    relay.owner.execute("alter table relay.outbox enable always trigger b_guard")
    relay.initialise()
    process = relay.start()
    sent = relay.emit(1)
    relay.wait_published(process)
    gone, began = 0, time.monotonic()
    settings = load(environ=relay.environment(None)).settings
    with psycopg.connect(relay.database.url_as("relay_operator"), autocommit=True) as connection:
        # They are from before the slot, so that only their going is of interest, not a million records.
        for went in prune(connection, settings, timedelta(days=30), batch_rows=50_000, unpublished=True):
            gone += went
            sent += relay.emit(2)
    took_s = time.monotonic() - began
    measured(pytestconfig, "pruning", f"{gone} rows in {took_s:.1f} s, {len(sent)} events sent meanwhile")
    assert gone == 1_000_000
    relay.wait_published(process)
    assert sorted(record.event_id for record in relay.read()) == sorted(sent)
    assert ids(relay) == set(sent)
    relay.assert_clean()
