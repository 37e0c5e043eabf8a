"""The ordinary connection's thread: it answers, reports what is away, and can be closed at any moment."""

import gc

import pytest

from fix_postgres import Database
from fix_waiting import eventually
from relay.errors import Unavailable, UsageError
from relay.wal.ordinary import Connection, OrdinaryConnection


def answer(connection: Connection) -> int:
    row = connection.execute("select 42").fetchone()
    assert row is not None
    return int(row[0])


def nothing() -> None:
    return


def test_closing_right_after_an_answer_is_never_an_error(database: Database) -> None:
    """The thread may see the end before the caller has finished saying it."""
    for _ in range(30):
        ordinary = OrdinaryConnection(database.url, "test", nothing)
        future = ordinary.ask(answer)
        ordinary.close()
        assert future.result(30) == 42
    gc.collect()  # a socket that was forgotten would warn here, and a warning fails the test


def test_a_connection_that_was_ended_is_unavailable_once_and_then_made_anew(database: Database) -> None:
    ordinary = OrdinaryConnection(database.url, "test-ended", nothing)
    assert ordinary.ask(answer).result(30) == 42
    with database.connect() as owner:
        owner.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity where application_name = %s",
            ["test-ended"],
        )
    eventually(lambda: ordinary.shutting_down, "57P01 is heard while nothing was asked")
    assert ordinary.ask(answer).result(30) == 42
    ordinary.close()


def test_a_database_that_is_away_is_unavailable() -> None:
    ordinary = OrdinaryConnection("host=127.0.0.1 port=1 dbname=none", "test", nothing)
    with pytest.raises(Unavailable):
        ordinary.ask(answer).result(30)
    ordinary.close()


def test_a_refusal_of_the_database_is_a_sentence_for_a_person(database: Database) -> None:
    ordinary = OrdinaryConnection(database.url, "test", nothing)
    with pytest.raises(UsageError, match="Postgres refused"):
        ordinary.ask(lambda connection: connection.execute("select nonsense")).result(30)
    assert ordinary.ask(answer).result(30) == 42
    ordinary.close()
