"""However many prepare one key at once, there is one operation, one event, and everybody learns of it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import IsolationLevel

from fix_operations import APPLICATION, PROVIDER, Stage
from fix_waiting import eventually
from relay.outbox.intent import Intent, Prepared, prepare

AT_ONCE: Final = 16


def _intent(key: str, max_cost: str = "5") -> Intent:
    return Intent("generation", "studio", key, '{"prompt": "a boat"}', PROVIDER, Decimal(max_cost))


def _at_once(work: Callable[[int], Any]) -> list[Any]:
    """Every thread's result, or the error that it raised."""
    start = threading.Barrier(AT_ONCE)

    def run(number: int) -> Any:
        start.wait()
        try:
            return work(number)
        except psycopg.Error as error:
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(run, range(AT_ONCE)))


def _events(stage: Stage, operation: UUID) -> int:
    count: int = stage.one(
        "select count(*) from relay.outbox where operation_id = %s and event_type = 'generation.requested'",
        operation,
    )
    return count


@pytest.mark.parametrize("round_no", range(5))
def test_one_key_at_once_is_one_operation_that_everybody_gets(committing_stage: Stage, round_no: int) -> None:
    url = committing_stage.database.url_as(APPLICATION)
    key = f"{round_no}-{uuid4()}"

    def work(_: int) -> Prepared:
        with psycopg.connect(url) as connection:
            return prepare(connection, _intent(key))

    results = _at_once(work)
    assert {type(result) for result in results} == {Prepared}
    assert len({result.operation_id for result in results}) == 1
    assert _events(committing_stage, results[0].operation_id) == 1


def test_two_specifications_at_once_are_one_operation_and_a_conflict_for_the_others(
    committing_stage: Stage,
) -> None:
    url = committing_stage.database.url_as(APPLICATION)
    key = str(uuid4())

    def work(number: int) -> Prepared:
        with psycopg.connect(url) as connection:
            return prepare(connection, _intent(key, "5" if number % 2 else "6"))

    results = _at_once(work)
    made = [result for result in results if isinstance(result, Prepared)]
    refused = [result for result in results if isinstance(result, psycopg.Error)]
    assert len({result.operation_id for result in made}) == 1
    assert (len(made), len(refused)) == (AT_ONCE // 2, AT_ONCE // 2)
    assert {error.sqlstate for error in refused} == {"OR001"}


def test_who_waits_for_a_transaction_that_rolls_back_makes_the_operation_itself(
    committing_stage: Stage,
) -> None:
    url = committing_stage.database.url_as(APPLICATION)
    key = str(uuid4())
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        rolled_back = prepare(first, _intent(key))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(prepare, second, _intent(key))
            _wait_until_blocked(committing_stage, second.info.backend_pid)
            first.rollback()
            made = waiting.result(60)
    assert made.operation_id != rolled_back.operation_id
    assert _events(committing_stage, rolled_back.operation_id) == 0
    assert _events(committing_stage, made.operation_id) == 1


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_snapshot_older_than_the_operation_gets_a_serialization_failure(
    committing_stage: Stage, level: IsolationLevel
) -> None:
    url = committing_stage.database.url_as(APPLICATION)
    key = str(uuid4())
    with psycopg.connect(url) as older, psycopg.connect(url) as newer:
        older.isolation_level = level
        older.execute("select count(*) from relay.operation")
        made = prepare(newer, _intent(key))
        newer.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            prepare(older, _intent(key))
        older.rollback()
        # The whole transaction again, as the docstring says.
        assert prepare(older, _intent(key)).operation_id == made.operation_id


def _wait_until_blocked(stage: Stage, pid: int) -> None:
    """Until Postgres says that this backend waits for another one."""
    eventually(lambda: stage.one("select cardinality(pg_blocking_pids(%s)) > 0", pid), "a wait for the first")
