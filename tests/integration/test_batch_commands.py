"""An application makes a batch in its own transaction; `relay batch` shows what keeps it open and changes
its limits."""

from collections.abc import Iterator
from decimal import Decimal
from uuid import UUID, uuid4

import psycopg
import pytest

from fix_batches import make_batch
from fix_commands import Command
from fix_operations import APPLICATION, OPERATOR, OWNER, PROVIDER, WORKER, Stage
from fix_postgres import Database
from relay.outbox.batch import BatchIntent, prepare_batch, prepare_batch_async, seal_batch, seal_batch_async
from relay.outbox.intent import Intent, prepare, prepare_async


@pytest.fixture
def stage(database: Database) -> Iterator[Stage]:
    made = Stage(database)
    yield made
    made.close()


@pytest.fixture
def env(stage: Stage) -> dict[str, str]:
    return {"RELAY_DATABASE_URL": stage.database.url_as(OPERATOR)}


def _frame(number: int, batch: UUID) -> Intent:
    return Intent("generation", OWNER, f"frame-{number}", {"n": number}, PROVIDER, 2, batch_id=batch)


def test_an_application_approves_a_batch_in_one_transaction_or_not_at_all(stage: Stage) -> None:
    url = stage.database.url_as(APPLICATION)
    reel = BatchIntent(OWNER, "reel-7", max_cost=Decimal("10.5"), max_in_flight=2)
    with psycopg.connect(url) as connection:
        batch = prepare_batch(connection, reel)
        prepare(connection, _frame(1, batch.batch_id))
        connection.rollback()
    assert stage.one("select count(*) from relay.batch") == 0
    for _ in range(2):  # the second time is the retry of a transaction whose answer was lost
        with psycopg.connect(url) as connection:
            batch = prepare_batch(connection, reel)
            frames = [prepare(connection, _frame(number, batch.batch_id)) for number in (1, 2, 3)]
            sealed = seal_batch(connection, batch.batch_id, members=3)
    assert (sealed.members, sealed.open_members, sealed.completed_at) == (3, 3, None)
    assert sealed.sealed_at is not None
    rows = stage.connection.execute("select operation_id, batch_id from relay.operation order by created_at")
    assert rows.fetchall() == [(frame.operation_id, batch.batch_id) for frame in frames]


@pytest.mark.anyio
async def test_the_same_without_blocking(stage: Stage) -> None:
    async with await psycopg.AsyncConnection.connect(stage.database.url_as(APPLICATION)) as connection:
        batch = await prepare_batch_async(connection, BatchIntent(OWNER, "reel-8"))
        await prepare_async(connection, _frame(1, batch.batch_id))
        sealed = await seal_batch_async(connection, batch.batch_id)
    assert sealed.members == 1


def test_a_batch_is_listed_and_shown_with_what_keeps_it_open(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    batch = make_batch(stage, 3, max_cost="20", max_in_flight=2)
    uncertain, prepared, done = batch.members
    stage.uncertain(uncertain)
    stage.succeeded(done)
    with stage.acting(WORKER):
        delivery = stage.one("select relay.prepare_delivery(%s)", done)
    (listed,) = command("batch", "list", "--json", env=env).json["batches"]
    assert (listed["members"], listed["open_members"], listed["in_flight"]) == (3, 3, 1)
    shown = command("batch", "show", str(batch.batch_id), "--json", env=env).json
    assert {row["phase"]: row["operations"] for row in shown["phases"]} == {
        "prepared": 1,
        "succeeded": 1,
        "uncertain": 1,
    }
    assert shown["deliveries"] == {"prepared": 1}
    assert {(row["operation_id"], row["delivery"]) for row in shown["open"]} == {
        (str(uncertain), None),
        (str(prepared), None),
        (str(done), str(delivery)),
    }
    drawn = command("batch", "show", str(batch.batch_id), env=env).out
    assert f"relay review show {uncertain}" in drawn
    assert "10 of 20 credit" in drawn
    assert "sealed" in command("batch", "list", "--open", env=env).out


def test_an_operator_lifts_a_batchs_limits_and_says_why(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    batch = make_batch(stage, 1, max_cost="1", max_in_flight=1)
    said = command("batch", "limit", str(batch.batch_id), "--max-cost", "30.5", "--reason", "more", env=env)
    assert said.out == f"Batch {batch.batch_id}: 0 of 30.5 credit; any number in flight, 0 are.\n"
    shown = command("batch", "show", str(batch.batch_id), "--json", env=env).json
    assert [entry["reason"] for entry in shown["history"]] == ["more"]
    assert "more" in command("batch", "show", str(batch.batch_id), env=env).out
    empty = command("batch", "limit", str(batch.batch_id), "--reason", " ", env=env)
    assert empty.status == 2


def test_a_batch_that_is_not_there_is_a_sentence(env: dict[str, str], command: Command) -> None:
    missing = str(uuid4())
    assert f"There is no batch {missing}." in command("batch", "show", missing, env=env).err
    assert command("batch", "limit", missing, "--reason", "r", env=env).status == 1
    assert command("batch", "list", env=env).out == "There is no batch.\n"
