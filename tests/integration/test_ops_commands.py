"""`relay ops` shows what is known and never a payload or an output's URL; the audit says what it found."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from fix_commands import Command
from fix_operations import OPERATOR, Stage
from fix_postgres import Database


@pytest.fixture
def stage(database: Database) -> Iterator[Stage]:
    made = Stage(database)
    yield made
    made.close()


@pytest.fixture
def env(stage: Stage) -> dict[str, str]:
    return {"RELAY_DATABASE_URL": stage.database.url_as(OPERATOR)}


def test_operations_are_listed_by_phase_and_owner(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    uncertain = stage.in_phase("generation", "uncertain")
    stage.in_phase("generation", "accepted")
    stage.allow("another", "10")
    another = stage.prepare(owner="another")
    everything = command("ops", "list", "--json", env=env).json
    assert everything["phases"] == {"accepted": 1, "prepared": 1, "uncertain": 1}
    assert len(everything["operations"]) == 3
    (found,) = command("ops", "list", "--phase", "uncertain", "--json", env=env).json["operations"]
    assert found["operation_id"] == str(uncertain)
    (found,) = command("ops", "list", "--owner", "another", "--json", env=env).json["operations"]
    assert found["operation_id"] == str(another)
    drawn = command("ops", "list", env=env)
    assert str(uncertain) in drawn.out
    assert "1 accepted, 1 prepared, 1 uncertain" in drawn.out
    assert command("ops", "list", "--phase", "lost and found", env=env).status == 2


def test_one_is_shown_whole_and_without_its_payload(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    operation = stage.prepare()
    stage.succeeded(operation)
    stage.connection.execute(
        "insert into relay.output (operation_id, ordinal, name, url) values (%s, 0, 'frame.png', 'https://signed')",
        [operation],
    )
    drawn = command("ops", "show", str(operation), env=env)
    whole = command("ops", "show", str(operation), "--json", env=env)
    for said in (drawn.out, whole.out):
        assert "a boat" not in said
        assert "https://signed" not in said
        assert "frame.png" in said
        for phase in ("prepared", "claimed", "submitting", "accepted", "succeeded"):
            assert phase in said
    assert [entry["version"] for entry in whole.json["journal"]] == [1, 2, 3, 4, 5]
    assert [attempt["action"] for attempt in whole.json["attempts"]] == ["submit", "observe"]


def test_what_is_not_there_is_said_in_a_sentence(env: dict[str, str], command: Command) -> None:
    missing = uuid4()
    finished = command("ops", "show", str(missing), env=env)
    assert (finished.status, finished.out) == (1, "")
    assert f"There is no operation {missing}." in finished.err
    assert command("ops", "show", "frame 7", env=env).status == 2


def test_the_audits_status_is_1_when_it_finds_anything(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    stage.in_phase("generation", "uncertain")
    clean = command("ops", "audit", env=env)
    assert (clean.status, clean.out) == (0, "Nothing was found that may not be.\n")
    assert command("ops", "audit", "--json", env=env).json == {"findings": []}
    operation = stage.prepare()
    stage.connection.execute("alter table relay.operation disable trigger b_guard")
    stage.connection.execute("update relay.operation set payload = '{}' where operation_id = %s", [operation])
    stage.connection.execute("alter table relay.operation enable always trigger b_guard")
    broken = command("ops", "audit", "--json", env=env)
    assert broken.status == 1
    (finding,) = broken.json["findings"]
    assert (finding["invariant"], finding["operation_id"]) == ("specification", str(operation))
    drawn = command("ops", "audit", env=env)
    assert drawn.status == 1
    assert str(operation) in drawn.out
    assert "1 specification" in drawn.out


def test_what_is_due_for_too_long_is_found_at_the_bound_that_was_given(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    operation = stage.prepare()
    stage.connection.execute(
        "update relay.operation set next_action_at = relay.now() - interval '1 minute'"
        " where operation_id = %s",
        [operation],
    )
    assert command("ops", "audit", env=env).status == 0
    late = command("ops", "audit", "--overdue-s", "30", "--json", env=env)
    assert late.status == 1
    assert [finding["invariant"] for finding in late.json["findings"]] == ["waker"]


def test_an_empty_database_and_a_server_that_is_away_are_sentences(
    empty_database: Database, command: Command
) -> None:
    finished = command("ops", "list", env={"RELAY_DATABASE_URL": empty_database.url})
    assert finished.status == 1
    assert "relay init" in finished.err
    away = command("ops", "list", env={"RELAY_DATABASE_URL": "postgresql://127.0.0.1:1/app"})
    assert away.status == 1
    assert "can't be reached" in away.err
    assert command("ops", "list", env={}).status == 2
