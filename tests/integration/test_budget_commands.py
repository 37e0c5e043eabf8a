"""`relay budget`: limits are set with a reason that is kept, and shown with all that is booked of them."""

from collections.abc import Iterator

import pytest

from fix_commands import Command
from fix_operations import OPERATOR, WORKER, Stage
from fix_postgres import Database


@pytest.fixture
def stage(database: Database) -> Iterator[Stage]:
    made = Stage(database)
    yield made
    made.close()


@pytest.fixture
def env(stage: Stage) -> dict[str, str]:
    return {"RELAY_DATABASE_URL": stage.database.url_as(OPERATOR)}


def test_a_limit_is_set_with_a_reason_that_the_ledger_keeps(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    said = command("budget", "set", "ann", "credit", "12.5", "--reason", "the pilot", env=env)
    assert (said.status, said.out) == (0, "ann may spend 12.5 credit; 12.5 of it are available.\n")
    entry = stage.connection.execute(
        "select entry, amount, reason, actor ~ '^[^@]+@.+$' from relay.ledger where owner_id = 'ann'"
    ).fetchall()
    assert entry == [("limit", stage.one("select 12.5::numeric"), "the pilot", True)]


def test_what_is_booked_is_shown_beside_what_is_left(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    command("budget", "set", "ann", "credit", "20", "--reason", "start", env=env)
    stage.uncertain(stage.prepare(owner="ann", max_cost="5"))
    settled = stage.accepted(stage.prepare(owner="ann", max_cost="5"))
    with stage.acting(WORKER):
        stage.connection.execute("select relay.settle(%s, 4, 'cost')", [settled])
    shown = command("budget", "show", "ann", "--json", env=env).json
    (allowance,) = shown["allowances"]
    assert {
        name: float(allowance[name]) for name in ("limit_amount", "reserved", "settled", "available")
    } == {
        "limit_amount": 20,
        "reserved": 5,
        "settled": 4,
        "available": 11,
    }
    drawn = command("budget", "show", env=env)
    assert "ann" in drawn.out
    assert "studio" in drawn.out


def test_an_overrun_is_shouted_and_a_new_limit_clears_it(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    command("budget", "set", "ann", "credit", "20", "--reason", "start", env=env)
    attempt = stage.accepted(stage.prepare(owner="ann", max_cost="5"))
    with stage.acting(WORKER):
        stage.connection.execute("select relay.settle(%s, 9, 'cost')", [attempt])
    assert "OVERRUN: claims stopped" in command("budget", "show", "ann", env=env).out
    assert (
        command("budget", "set", "ann", "credit", "20", "--reason", "seen", "--json", env=env).json["overrun"]
        is False
    )
    assert "OVERRUN" not in command("budget", "show", "ann", env=env).out


def test_an_owner_without_an_allowance_is_told_so_with_what_waits(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    operation = stage.prepare(owner="bob")
    with stage.acting(WORKER):
        stage.say("hold")
        stage.move(operation, "held", "allowance")
    said = command("budget", "show", "bob", env=env)
    assert said.out == "bob has no allowance: nothing may be spent.\nbob: 1 held for want of 5 credit\n"


def test_only_an_operator_sets_a_limit(stage: Stage, command: Command) -> None:
    worker = {"RELAY_DATABASE_URL": stage.database.url_as(WORKER)}
    said = command("budget", "set", "studio", "credit", "1", "--reason", "r", env=worker)
    assert said.status == 1
    assert "relay_operator" in said.err
    assert stage.one("select limit_amount from relay.allowance where owner_id = 'studio'") == 1_000_000


@pytest.mark.parametrize("limit", ["-5", "much", "NaN", "Infinity", "1e30", "0.0000001", "100000000000000"])
def test_what_is_no_amount_is_wrong_use_and_sets_nothing(
    stage: Stage, env: dict[str, str], command: Command, limit: str
) -> None:
    said = command("budget", "set", "ann", "credit", limit, "--reason", "r", env=env)
    assert said.status == 2
    assert f"'{limit}' is not an amount" in said.err
    assert stage.one("select count(*) from relay.allowance where owner_id = 'ann'") == 0
