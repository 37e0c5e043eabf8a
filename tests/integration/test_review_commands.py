"""`relay review`: from a lost answer to a decision, by the commands that it shows, the provider asked."""

import asyncio
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from consumers.collect import Collect
from consumers.dispatch import Dispatch
from consumers.providers.simulator_world import Fault
from fix_commands import Command
from fix_operations import OPERATOR, WORKER
from fix_postgres import Database
from fix_process import RunProcess
from fix_scene import Scene


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path) as made:
        yield made


@pytest.fixture
def env(scene: Scene) -> dict[str, str]:
    """An operator's settings: the database as relay_operator, and where the provider is."""
    return scene.environment | {"RELAY_DATABASE_URL": scene.database.url_as(OPERATOR)}


def _dispatched(scene: Scene, *faults: Fault) -> UUID:
    operation = scene.prepare(*faults)
    asyncio.run(scene.handle(Dispatch(), scene.last(operation, "generation.requested")))
    return operation


def _posts(scene: Scene) -> int:
    return len(scene.simulator.truth()["posts"])


def _review(scene: Scene, operation: UUID) -> str:
    return str(
        scene.one("select review_id from relay.review where operation_id = %s and state = 'open'", operation)
    )


def test_a_lost_answer_is_found_confirmed_by_the_provider_and_observed_without_a_second_post(
    scene: Scene, env: dict[str, str], command: Command
) -> None:
    operation = _dispatched(scene, Fault.CUT_BEFORE_ANSWER)
    assert scene.phase(operation) == "uncertain"
    (waiting,) = command("review", "list", "--json", env=env).json
    assert (waiting["operation_id"], waiting["kind"]) == (str(operation), "uncertain_submission")

    known = command("review", "show", str(operation), "--json", env=env).json
    assert known["review"]["review_id"] == waiting["review_id"]
    assert known["operation"]["operation_id"] == str(operation)
    assert len(known["judgement"]["choices"]) == 6
    shown = command("review", "show", waiting["review_id"], env=env)
    assert shown.status == 0
    for words in (
        "Did the provider make a job of this request?",
        "Whether the provider made a job",
        "will still arrive",
        "not yet:",
    ):
        assert words in shown.out
    line = re.search(
        r"relay (review resolve \S+ accepted --job-id ID --revision \d+ --reason '…')", shown.out
    )
    assert line is not None
    words = line[1].replace("…", "seen in their console")
    (job,) = scene.simulator.truth()["jobs"]

    wrong = command(*shlex.split(words.replace("ID", "job-that-never-was")), env=env)
    assert wrong.status == 1
    assert "not_found" in wrong.err
    assert "--unverified" in wrong.err
    assert scene.phase(operation) == "uncertain"

    decided = command(*shlex.split(words.replace("ID", job["job_id"])), env=env)
    assert (decided.status, decided.out) == (
        0,
        f"Operation {operation}: uncertain → accepted, job {job['job_id']}.\n",
    )
    kept = scene.one(
        "select evidence->'decision'->'looked_up' from relay.review where operation_id = %s", operation
    )
    assert (kept["job_id"], kept["answer"]["asked"]) == (job["job_id"], True)

    for _ in range(3):
        asyncio.run(scene.handle(Collect(), scene.last(operation, "collection.requested")))
        scene.advance("1 minute")
    assert scene.phase(operation) == "succeeded"
    assert _posts(scene) == 1


def test_a_person_decides_that_it_is_sent_again_and_it_is_sent_once_more(
    scene: Scene, env: dict[str, str], command: Command
) -> None:
    operation = _dispatched(scene, Fault.CUT_BEFORE_READING)
    review = _review(scene, operation)
    resolve = (
        "review",
        "resolve",
        review,
        "not-accepted",
        "--then",
        "resubmit",
        "--reason",
        "not in their list",
    )
    early = command(*resolve, "--revision", "1", env=env)
    assert early.status == 1
    assert "may still arrive" in early.err
    assert "Decide after that" in early.err
    scene.advance("1 hour")
    stale = command(*resolve, "--revision", "7", env=env)
    assert stale.status == 1
    assert "shown revision 7 of this review, and it is at 1" in stale.err
    decided = command(*resolve, "--revision", "1", "--json", env=env)
    assert decided.status == 0
    assert (decided.json["to_phase"], decided.json["disputed"]) == ("prepared", "2.000000")
    again = command(*resolve, "--revision", "1", env=env)
    assert again.status == 1
    assert "is resolved as not-accepted:resubmit by" in again.err
    asyncio.run(scene.handle(Dispatch(), scene.last(operation, "generation.requested")))
    # The first event again, and the second: neither sends anything more.
    for event in scene.events(operation, "generation.requested"):
        asyncio.run(scene.handle(Dispatch(), event))
    assert _posts(scene) == 2


def test_without_the_providers_url_a_job_is_taken_only_with_a_reason_that_is_kept(
    scene: Scene, env: dict[str, str], command: Command
) -> None:
    operation = _dispatched(scene, Fault.CUT_BEFORE_ANSWER)
    blind = {name: value for name, value in env.items() if not name.startswith("RELAY_PROVIDER_")}
    told = ("--job-id", "j-1", "--revision", "1", "--reason", "their support says so")
    resolve = ("review", "resolve", _review(scene, operation), "accepted", *told)
    refused = command(*resolve, env=blind)
    assert refused.status == 1
    assert "has no URL" in refused.err
    assert command(*resolve, "--unverified", "ticket 7", env=blind).status == 0
    kept = scene.one(
        "select evidence->'decision'->'looked_up' from relay.review where operation_id = %s", operation
    )
    assert kept["unverified"] == "ticket 7"


def test_an_error_with_a_job_id_is_shown_with_its_answer_and_settled(
    scene: Scene, env: dict[str, str], command: Command
) -> None:
    operation = _dispatched(scene, Fault.BAD_GATEWAY_WITH_JOB)
    assert scene.phase(operation) == "accepted"
    review = _review(scene, operation)
    (job,) = scene.simulator.truth()["jobs"]
    shown = command("review", "show", review, env=env)
    for words in ("An error came with the job's id", "HTTP 502", job["job_id"], " settle --cost AMOUNT"):
        assert words in shown.out
    settled = command(
        "review",
        "resolve",
        review,
        "settle",
        "--cost",
        "1.5",
        "--revision",
        "1",
        "--reason",
        "invoice",
        env=env,
    )
    assert settled.status == 0
    assert scene.operation(operation, "accounting") == "settled"
    assert scene.reviews(operation) == []


def test_a_workers_login_is_told_which_role_decides(
    scene: Scene, env: dict[str, str], command: Command
) -> None:
    operation = _dispatched(scene, Fault.CUT_BEFORE_ANSWER)
    worker = env | {"RELAY_DATABASE_URL": scene.database.url_as(WORKER)}
    refused = command(
        "review",
        "resolve",
        _review(scene, operation),
        "abandon",
        "--revision",
        "1",
        "--reason",
        "x",
        env=worker,
    )
    assert refused.status == 1
    assert "relay_operator" in refused.err
    assert scene.phase(operation) == "uncertain"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("accepted",), "accepted needs --job-id"),
        (("not-accepted",), "not-accepted needs --then"),
        (("settle",), "settle needs --cost"),
        (("settle", "--cost", "much"), "'much' is not an amount"),
        (("settle", "--cost", "NaN"), "'NaN' is not an amount"),
        (("abandon", "--job-id", "j"), "--job-id belongs to accepted and choose-primary"),
        (("abandon", "--then", "reject"), "--then belongs to not-accepted"),
        (("abandon", "--spool-lost"), "--spool-lost belongs to not-accepted"),
        (("abandon", "--unverified", "x"), "--unverified belongs to accepted and choose-primary"),
        (("choose-primary",), "choose-primary needs --job-id"),
        (("lost", "--for", "60"), "--for belongs to wait"),
        (("wait", "--for", "0"), "0.0 is not in the range"),
        (("abandon", "--reason", " "), "--reason is empty"),
        (("abandon", "--reason", "…"), "--reason is empty"),
        (("forget",), "'forget' is not one of"),
    ],
)
def test_wrong_use_is_said_before_anything_is_asked(
    command: Command, arguments: tuple[str, ...], words: str
) -> None:
    required = ["--revision", "1", *([] if "--reason" in arguments else ["--reason", "r"])]
    finished = command("review", "resolve", str(uuid4()), *arguments, *required, env={})
    assert finished.status == 2
    assert words in finished.err


def test_the_revision_and_the_reason_are_not_optional(command: Command) -> None:
    for left_out in ("--revision", "--reason"):
        given = {"--revision": "1", "--reason": "r"}
        del given[left_out]
        flags = [part for pair in given.items() for part in pair]
        finished = command("review", "resolve", str(uuid4()), "abandon", *flags, env={})
        assert (finished.status, left_out in finished.err) == (2, True)


def test_the_installed_command_lists_what_waits(
    scene: Scene, env: dict[str, str], run_process: RunProcess
) -> None:
    operation = _dispatched(scene, Fault.CUT_BEFORE_ANSWER)
    child = run_process(["review", "list"], env)
    assert child.wait() == 0
    for words in (_review(scene, operation), "uncertain_submission", "relay review show REVIEW"):
        assert words in child.output()


@pytest.mark.parametrize("decision", [["abandon"], ["accepted", "--job-id", "job_1"]])
def test_a_decision_names_the_review_that_was_shown_and_not_its_operation(
    scene: Scene, env: dict[str, str], command: Command, decision: list[str]
) -> None:
    operation = _dispatched(scene, Fault.CUT_BEFORE_ANSWER)
    arguments = ["review", "resolve", str(operation), *decision, "--revision", "1", "--reason", "r"]
    said = command(*arguments, env=env)
    assert said.status == 1
    assert f"`relay review show {operation}`" in said.err
    assert scene.phase(operation) == "uncertain"


def test_a_lookup_without_the_providers_url_says_which_setting_is_missing(
    scene: Scene, env: dict[str, str], command: Command
) -> None:
    operation = _dispatched(scene, Fault.CUT_BEFORE_ANSWER)
    without = {name: value for name, value in env.items() if not name.endswith("_URL") or "DATABASE" in name}
    arguments = ["review", "resolve", _review(scene, operation), "accepted", "--job-id", "job_1"]
    said = command(*arguments, "--revision", "1", "--reason", "r", env=without)
    assert said.status == 1
    assert "RELAY_PROVIDER_SIMULATOR_URL" in said.err
    assert scene.phase(operation) == "uncertain"
