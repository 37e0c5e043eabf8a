"""What no pruning may do, whoever asks for it and however: each refusal says what mends it."""

from typing import Final

import psycopg
import pytest

from fix_commands import Command
from fix_kafka import Kafka
from fix_postgres import clone, make_template
from fix_process import RunProcess
from fix_prune import ids, pruned, stopped
from fix_relay import RelayUnderTest
from relay.embedded_postgres import EmbeddedPostgres
from relay.errors import RelayError


def test_a_delete_before_the_slot_has_passed_deletes_nothing(relay: RelayUnderTest) -> None:
    """What holds whatever the command that asks for it does."""
    with stopped(relay, 1):
        relay.emit(3)
        assert relay.one("select chosen from relay.prune_choose(%s, '0', 100, 100)", relay.slot) == 4
        assert relay.one("select relay.prune(%s, 'FFFFFFFF/0', '{}')", relay.slot) is None
        assert len(ids(relay)) == 4


@pytest.mark.parametrize("role", ["relay_worker", "relay_replicator", "relay_reader", "relay_app"])
def test_only_an_operator_may_prune(relay: RelayUnderTest, role: str) -> None:
    with (
        psycopg.connect(relay.database.url_as(role), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("select relay.prune(%s, '0/0', '{}')", [relay.slot])


def test_a_delete_by_hand_is_refused_even_to_the_owner(relay: RelayUnderTest) -> None:
    relay.emit()
    relay.owner.execute("set session_replication_role = replica")
    for setting in ("relay.pruning", "relay.deleting"):
        relay.owner.execute("select set_config(%s, 'on', false)", [setting])
    with pytest.raises(psycopg.DatabaseError, match="by relay outbox prune alone"):
        relay.owner.execute("delete from relay.outbox")
    with pytest.raises(psycopg.DatabaseError, match="insert-only"):
        relay.owner.execute("update relay.outbox set version = 2")
    for role in ("relay_operator", "relay_worker", "relay_replicator", "relay_app"):
        with psycopg.connect(relay.database.url_as(role), autocommit=True) as connection:
            for statement in (
                "delete from relay.outbox",
                "update relay.pruning set deleting = pg_current_xact_id()",
                "insert into relay.prune_batch (event_ids, chosen_lsn) values ('{}', '0/0')",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement.encode())


def test_after_pruning_the_same_transaction_deletes_nothing_by_hand(relay: RelayUnderTest) -> None:
    with stopped(relay, 2), relay.owner.transaction():
        relay.owner.execute("select relay.prune(%s, 'FFFFFFFF/0', '{}')", [relay.slot])
        with (
            pytest.raises(psycopg.DatabaseError, match="by relay outbox prune alone"),
            relay.owner.transaction(),
        ):
            relay.owner.execute("delete from relay.outbox")


# What is broken, what is said of it, and the command that mends it.
BROKEN: Final = {
    "a repair is under way": (
        "update relay.source_identity set state = 'repairing'",
        "is repairing",
        "`relay outbox repair`",
    ),
    "the relay never ran": (
        "update relay.source_identity set state = 'new'",
        "is new",
        "`relay run`",
    ),
    "the server was restarted or restored": (
        "update relay.source_identity set verified_server_started_at = '2020-01-01'",
        "hasn't compared this server with Kafka since it started",
        "`relay run`",
    ),
    "the server was promoted": (
        "update relay.source_identity set verified_timeline = 7",
        "hasn't compared this server with Kafka since it started",
        "`relay run`",
    ),
    "Kafka is of another epoch": (
        "update relay.source_identity set epoch = 2",
        "of epoch 1",
        "`relay outbox repair`",
    ),
    "another relay of this outbox has no slot": (
        """
        insert into relay.source_identity
        select (jsonb_populate_record(i, jsonb_build_object(
          'relay_id', gen_random_uuid(), 'slot_name', 'another'))).* from relay.source_identity i
        """,
        "replication slot another is gone",
        "`relay outbox repair`",
    ),
    "the slot was advanced by hand": (
        "select pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) from relay.source_identity",
        "the checkpoint in Kafka that should allow it",
        "`relay outbox repair`",
    ),
    "the slot was made anew": (
        """
        select pg_drop_replication_slot(slot_name),
               pg_create_logical_replication_slot(slot_name, 'pgoutput') from relay.source_identity
        """,
        "the checkpoint in Kafka that should allow it",
        "`relay outbox repair`",
    ),
    "the slot is gone": (
        "select pg_drop_replication_slot(slot_name) from relay.source_identity",
        "is gone",
        "`relay outbox repair`",
    ),
}


def test_without_a_healthy_slot_and_checkpoint_nothing_goes(relay: RelayUnderTest, command: Command) -> None:
    env = relay.environment("relay_operator")
    with stopped(relay, 2):
        relay.emit(2)  # which Kafka doesn't have, whatever the slot says
        relay.owner.execute("create table known as select * from relay.source_identity")
        for broken, (break_it, said, remedy) in BROKEN.items():
            relay.owner.execute(break_it.encode())
            done = command("outbox", "prune", "--older-than", "0s", env=env)
            assert done.status == 1, broken
            assert said in done.err, broken
            assert remedy in done.err, broken
            assert len(ids(relay)) == 4, broken
            relay.owner.execute("delete from relay.source_identity")
            relay.owner.execute("insert into relay.source_identity select * from known")


def test_a_slot_that_is_lost_takes_no_row_with_it(
    own_postgres: EmbeddedPostgres, kafka: Kafka, topic_prefix: str, run_process: RunProcess
) -> None:
    database = clone(own_postgres, make_template(own_postgres))
    relay = RelayUnderTest(database, kafka, topic_prefix, run_process)
    relay.initialise()
    with relay.owner, stopped(relay, 2):
        relay.emit(2)
        relay.owner.execute("alter system set max_slot_wal_keep_size = '1MB'")
        relay.owner.execute("select pg_reload_conf()")
        relay.owner.execute("create table elsewhere (n int)")
        for _ in range(3):  # past a segment, then a checkpoint: the slot is invalidated
            relay.owner.execute("insert into elsewhere select generate_series(1, 300000)")
            relay.owner.execute("select pg_switch_wal()")
        relay.owner.execute("checkpoint")
        with pytest.raises(RelayError, match=r"in danger \(wal_status = lost\)"):
            pruned(relay)
        assert len(ids(relay)) == 4
