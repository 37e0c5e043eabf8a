"""What a login may not do is said at the start, with the grant that is missing: no event is tried for it."""

import pytest

from fix_commands import Command
from fix_kafka import Kafka
from fix_operations import OPERATOR
from fix_postgres import Database
from fix_process import RunProcess

CONSUMERS = ("dispatch", "collect", "deliver")


@pytest.fixture
def environment(kafka: Kafka, topic_prefix: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("worker")
    return {
        "RELAY_KAFKA_BOOTSTRAP": kafka.bootstrap,
        "RELAY_TOPIC_PREFIX": topic_prefix,
        "RELAY_SPOOL": str(folder / "spool"),
        "RELAY_OUTPUTS_URL": (folder / "outputs").as_uri(),
    }


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_consumer_whose_login_is_no_workers_does_not_start(
    database: Database, environment: dict[str, str], run_process: RunProcess, name: str
) -> None:
    process = run_process(
        ["consume", name], environment | {"RELAY_DATABASE_URL": database.url_as("relay_reader")}
    )
    assert process.wait() == 2
    assert 'grant relay_worker to "login_relay_reader";' in process.output()
    assert "consumer started" not in process.output()


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_consumer_without_its_tables_does_not_start(
    empty_database: Database, environment: dict[str, str], run_process: RunProcess, name: str
) -> None:
    process = run_process(["consume", name], environment | {"RELAY_DATABASE_URL": empty_database.url})
    assert process.wait() == 2
    assert "`relay init`" in process.output()


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_consumer_that_needs_a_database_does_not_start_without_one(
    environment: dict[str, str], run_process: RunProcess, name: str
) -> None:
    process = run_process(["consume", name], environment)
    assert process.wait() == 2
    assert "RELAY_DATABASE_URL is not set" in process.output()


@pytest.mark.parametrize("how", [["--once"], []])
def test_schedule_says_what_is_missing_and_ends(
    database: Database, empty_database: Database, run_process: RunProcess, how: list[str]
) -> None:
    for url, said in (
        (database.url_as("relay_reader"), 'grant relay_worker to "login_relay_reader";'),
        (empty_database.url, "`relay init`"),
    ):
        process = run_process(["schedule", *how], {"RELAY_DATABASE_URL": url})
        assert process.wait() == 2
        assert said in process.output()
        assert "Traceback" not in process.output()


def test_an_operator_may_let_schedule_do_what_is_due(database: Database, command: Command) -> None:
    done = command("schedule", "--once", env={"RELAY_DATABASE_URL": database.url_as(OPERATOR)})
    assert (done.status, done.out) == (0, "nothing was due; 0 overdue\n")


def test_json_is_for_one_round_alone(database: Database, command: Command) -> None:
    assert command("schedule", "--json", env={"RELAY_DATABASE_URL": database.url}).status == 2
