"""Old rows leave the outbox by pruning alone, and only those that Kafka has."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest

from fix_commands import Command
from fix_relay import RelayUnderTest
from fix_waiting import eventually
from relay.errors import Unavailable
from relay.outbox.prune import prune
from relay.settings import load

NOW = timedelta(0)


def pruned(relay: RelayUnderTest, older_than: timedelta = NOW, *, wait_s: float = 60.0) -> int:
    settings = load(environ=relay.environment(None)).settings
    with psycopg.connect(relay.database.url_as("relay_operator"), autocommit=True) as connection:
        return sum(prune(connection, settings, older_than, batch_rows=4, wait_s=wait_s))


def ids(relay: RelayUnderTest) -> set[str]:
    return {str(row[0]) for row in relay.owner.execute("select event_id from relay.outbox")}


@contextmanager
def stopped(relay: RelayUnderTest, events: int) -> Iterator[list[str]]:
    """A relay that has published so many events and ended."""
    process = relay.start()
    sent = [event for _ in range(events) for event in relay.emit()]
    relay.wait_published(process)
    assert process.stop() == 0, process.output()
    relay.wait_slot_free()
    yield sent


def test_what_kafka_has_goes_but_the_row_that_the_checkpoint_names(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    process = relay.start()
    sent = [event for _ in range(10) for event in relay.emit()]
    (parked,) = relay.emit(event_type="nobody.knows_it")
    relay.wait_published(process)
    last = relay.emit()
    relay.wait_published(process)
    assert pruned(relay) == 10
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
        assert pruned(relay) > 0
        assert len(ids(relay)) == 1
        relay.assert_clean()


def test_a_delete_before_the_slot_has_passed_deletes_nothing(relay: RelayUnderTest) -> None:
    """What holds whatever the command that asks for it does."""
    with stopped(relay, 1):
        relay.emit(3)
        assert relay.one("select chosen from relay.prune_choose(%s, '0', 100, 100)", relay.slot) == 4
        assert relay.one("select relay.prune(%s, null)", relay.slot) is None
        assert len(ids(relay)) == 4


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
            assert pruned(relay) == 3
        relay.wait_published(process)
    assert ids(relay) > late_ids
    relay.assert_clean()


@pytest.mark.parametrize("role", ["relay_worker", "relay_replicator", "relay_reader", "relay_app"])
def test_only_an_operator_may_prune(relay: RelayUnderTest, role: str) -> None:
    with (
        psycopg.connect(relay.database.url_as(role), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("select relay.prune(%s, null)", [relay.slot])


def test_a_delete_by_hand_is_refused_even_to_the_owner(relay: RelayUnderTest) -> None:
    relay.emit()
    relay.owner.execute("set session_replication_role = replica")
    with pytest.raises(psycopg.DatabaseError, match="by relay outbox prune alone"):
        relay.owner.execute("delete from relay.outbox")
    with psycopg.connect(relay.database.url_as("relay_operator"), autocommit=True) as operator:
        operator.execute("set relay.pruning = 'on'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            operator.execute("delete from relay.outbox")
    with pytest.raises(psycopg.DatabaseError, match="insert-only"):
        relay.owner.execute("update relay.outbox set version = 2")
    relay.owner.execute("set session_replication_role = origin")


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        ("select pg_drop_replication_slot(slot_name) from relay.source_identity", "is gone"),
        ("update relay.source_identity set state = 'repairing'", "is repairing"),
    ],
)
def test_without_a_healthy_slot_nothing_goes(relay: RelayUnderTest, break_it: str, said: str) -> None:
    with stopped(relay, 2):
        relay.owner.execute(break_it.encode())
        with pytest.raises(psycopg.DatabaseError, match=said):
            pruned(relay)
        assert len(ids(relay)) == 2


def test_the_command_says_what_goes(relay: RelayUnderTest, command: Command) -> None:
    env = relay.environment("relay_operator")
    with stopped(relay, 3):
        assert command("outbox", "prune", "--older-than", "0s", "--dry-run", env=env).out == (
            "3 rows are older than that\n"
        )
        assert command("outbox", "prune", "--older-than", "1h", env=env).out == "no row is older than that\n"
        wrong = command("outbox", "prune", "--older-than", "a week", env=env)
        assert wrong.status == 2
        assert "write a number and s, m, h or d" in wrong.err
        refused = command(
            "outbox", "prune", "--older-than", "0s", env={**env, "RELAY_OUTBOX_TABLE": "public.events"}
        )
        assert refused.status == 2
        assert "Delete from your own table yourself" in refused.err


@pytest.mark.slow
def test_a_million_old_rows_are_pruned_while_streaming(exactly_once: RelayUnderTest) -> None:
    relay = exactly_once
    # Rows that no relay of this database has ever had to publish: only their going is of interest.
    relay.owner.execute("alter table relay.outbox disable trigger user")
    relay.owner.execute("select pg_drop_replication_slot(%s)", [relay.slot])
    relay.owner.execute("delete from relay.source_identity")
    relay.owner.execute(
        "insert into relay.outbox (event_type, schema_version, operation_id, version, payload, occurred_at)"
        " select 'collection.requested', 1, gen_random_uuid(), 1, '{}', now() - interval '60 days'"
        " from generate_series(1, 1000000)"
    )
    relay.owner.execute("alter table relay.outbox enable trigger user")
    relay.owner.execute("alter table relay.outbox enable always trigger a_pruned_only")
    relay.owner.execute("alter table relay.outbox enable always trigger a_forbidden")
    relay.owner.execute("alter table relay.outbox enable always trigger a_truncate_forbidden")
    relay.initialise()
    process = relay.start()
    sent = relay.emit(1)
    relay.wait_published(process)
    settings = load(environ=relay.environment(None)).settings
    with psycopg.connect(relay.database.url_as("relay_operator"), autocommit=True) as connection:
        gone = 0
        for went in prune(connection, settings, timedelta(days=30), batch_rows=50_000):
            gone += went
            sent += relay.emit(2)
    assert gone == 1_000_000
    relay.wait_published(process)
    assert sorted(record.event_id for record in relay.read()) == sorted(sent)
    assert eventually(lambda: ids(relay) == set(sent), "only the new rows are left")
    relay.assert_clean()
