"""`relay providers`: a pause is seen, set and lifted by a person, and nothing waits for ever behind it."""

from collections.abc import Iterator

import pytest

from fix_commands import Command
from fix_operations import OPERATOR, PROVIDER, WORKER, Stage
from fix_postgres import Database

PAUSED_BY_FAILURES = (
    "update relay.provider_account set paused_at = relay.now(), paused_reason = '3 in a row: http_502',"
    " failure_reason = 'http_502', failures_in_a_row = 3"
)


@pytest.fixture
def stage(database: Database) -> Iterator[Stage]:
    made = Stage(database)
    yield made
    made.close()


@pytest.fixture
def env(stage: Stage) -> dict[str, str]:
    return {"RELAY_DATABASE_URL": stage.database.url_as(OPERATOR)}


def test_a_paused_account_is_shown_with_what_waits_and_how_to_resume_it(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    stage.connection.execute(PAUSED_BY_FAILURES)
    operation = stage.prepare()
    with stage.acting(WORKER):
        stage.say("hold")
        stage.move(operation, "held", "paused")
    said = command("providers", "list", env=env)
    assert said.status == 0
    assert "3 in a row: http_502" in said.out
    assert f"relay providers resume {PROVIDER}\n" in said.out
    (shown,) = command("providers", "list", "--json", env=env).json
    assert (shown["waiting"], shown["failures_in_a_row"]) == (1, 3)


def test_resuming_lifts_the_pause_and_begins_counting_anew(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    stage.connection.execute(PAUSED_BY_FAILURES)
    said = command("providers", "resume", PROVIDER, env=env)
    assert (said.status, said.out) == (0, f"{PROVIDER}/default may send again.\n")
    assert stage.one("select paused_at is null and failures_in_a_row = 0 from relay.provider_account")


def test_a_person_pauses_with_a_reason(stage: Stage, env: dict[str, str], command: Command) -> None:
    assert command("providers", "pause", PROVIDER, "--reason", "their incident 7", env=env).status == 0
    assert stage.one("select paused_reason from relay.provider_account").startswith("their incident 7 (")
    assert command("providers", "pause", PROVIDER, "--reason", " ", env=env).status == 2


def test_an_unknown_account_is_one_sentence(env: dict[str, str], command: Command) -> None:
    said = command("providers", "resume", "nobody", env=env)
    assert said.status == 1
    assert "There is no account default of a provider nobody." in said.err
