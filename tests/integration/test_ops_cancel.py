"""`relay ops cancel` in every phase: what wasn't sent ends at once, a job only by its provider's word, asked
for once; and elsewhere it is refused in one sentence.
"""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from consumers.collect import Collect
from consumers.operations import providers
from consumers.providers.profile import Profile
from consumers.providers.profiles_folder import load_profiles
from consumers.providers.simulator_world import Fault, Plan
from fix_commands import Command, Finished
from fix_postgres import Database
from fix_scene import Scene

SLOW = Plan(polls=(50, 50))
"""Jobs that are still running when they are asked for."""


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Scene:
    return Scene(database, tmp_path, plan=SLOW)


def _cancel(scene: Scene, command: Command, operation: UUID, *more: str) -> Finished:
    environment = scene.environment | {"RELAY_DATABASE_URL": scene.database.url_as("relay_operator")}
    return command("ops", "cancel", str(operation), "--reason", "not wanted", *more, env=environment)


def _changed(scene: Scene, *, destroys: bool | None) -> None:
    """The profile in force from here on destroys, or doesn't, or (None) has no cancel."""
    text = load_profiles(())["simulator"].text
    start, end = text.index("cancel:\n"), text.index("# Its files are served")
    cancel = (
        "" if destroys is None else text[start:end].rstrip() + f"\n  destroys: {str(destroys).lower()}\n\n"
    )
    scene.profile = Profile.parse(text[:start] + cancel + text[end:], source="test")
    providers.push(scene.connection, [scene.profile])


def _cancels(scene: Scene) -> dict[str, int]:
    found: dict[str, int] = scene.simulator.truth()["cancels"]
    return found


def _attempts(scene: Scene, operation: UUID) -> list[tuple[str, int | None]]:
    return scene.all(
        "select outcome, http_status from relay.attempt where operation_id = %s and action = 'cancel'"
        " order by started_at",
        operation,
    )


def test_what_was_not_sent_is_cancelled_at_once_and_never_sent(scene: Scene, command: Command) -> None:
    with scene:
        prepared, held = scene.prepare(), scene.prepare(owner="somebody without money")
        assert asyncio.run(scene.dispatch(held)) == "held"
        for operation in (prepared, held):
            said = _cancel(scene, command, operation)
            assert (said.status, said.out) == (0, f"Operation {operation} is cancelled.\n")
            assert asyncio.run(scene.dispatch(operation)) == "cancelled"
        assert scene.simulator.truth()["posts"] == []


def test_a_claim_that_was_told_to_cancel_sends_nothing(scene: Scene, command: Command) -> None:
    with scene:
        operation = scene.prepare()
        scene.claim(operation)
        said = _cancel(scene, command, operation)
        assert (said.status, "will do nothing for it any more" in said.out) == (0, True)
        asyncio.run(scene.wake("2 minutes"))
        assert asyncio.run(scene.dispatch(operation)) == "cancelled"
        assert scene.simulator.truth()["posts"] == []


def test_what_is_on_its_way_in_doubt_or_over_is_refused_in_one_sentence(
    scene: Scene, command: Command
) -> None:
    with scene:
        submitting, uncertain = scene.prepare(), scene.prepare()
        scene.claim(submitting, submitting=True)
        said = _cancel(scene, command, submitting)
        assert (said.status, "on its way to the provider" in said.err) == (1, True)
        scene.claim(uncertain, submitting=True)
        asyncio.run(scene.wake("2 minutes"))
        assert scene.phase(uncertain) == "uncertain"
        said = _cancel(scene, command, uncertain)
        assert (said.status, f"`relay review show {uncertain}`" in said.err) == (1, True)
        assert scene.operation(uncertain, "cancel_requested") is False
        over = scene.prepare()
        _cancel(scene, command, over)
        said = _cancel(scene, command, over)
        assert (said.status, "has ended: it is cancelled" in said.err) == (1, True)


def test_a_running_job_is_cancelled_by_its_providers_word_asked_for_once_and_costs_what_it_says(
    scene: Scene, command: Command
) -> None:
    with scene:
        operation = asyncio.run(scene.accepted())
        job = scene.operation(operation, "job_id")
        said = _cancel(scene, command, operation)
        assert (said.status, "once an observation says so" in said.out) == (0, True)
        assert scene.phase(operation) == "accepted"
        assert _attempts(scene, operation) == [("accepted", 202)]
        again = _cancel(scene, command, operation)
        assert again.status == 1
        assert _cancels(scene) == {job: 1}
        asyncio.run(scene.handle(Collect(), scene.last(operation, "collection.requested")))
        assert scene.phase(operation) == "cancelled"
        assert scene.all("select state, settled_amount from relay.reservation") == [("settled", 0)]
        over = _cancel(scene, command, operation)
        assert "has ended: it is cancelled" in over.err


def test_an_answer_that_is_lost_is_not_asked_for_again_by_itself(scene: Scene, command: Command) -> None:
    with scene:
        operation = asyncio.run(scene.accepted())
        job = scene.operation(operation, "job_id")
        scene.simulator.world.plan = Plan(polls=(50, 50), cancels="cut")
        said = _cancel(scene, command, operation)
        assert (said.status, "is not known" in said.err) == (1, True)
        assert _attempts(scene, operation) == [("unknown", None)]
        asyncio.run(scene.handle(Collect(), scene.last(operation, "collection.requested")))
        assert scene.phase(operation) == "cancelled"
        assert _cancels(scene) == {job: 1}


def test_a_provider_that_was_asked_is_asked_again_only_when_that_is_known(
    scene: Scene, command: Command
) -> None:
    with scene:
        operation = asyncio.run(scene.accepted())
        job = scene.operation(operation, "job_id")
        scene.connection.execute(
            "select relay.begin_cancel(%s, gen_random_uuid(), %s, 'a command that died', 'x', false, 'r')",
            [operation, job],
        )
        said = _cancel(scene, command, operation)
        assert (said.status, "say --again" in said.err, _cancels(scene)) == (1, True, {})
        assert _cancel(scene, command, operation, "--again").status == 0
        assert _cancels(scene) == {job: 1}


def test_a_refusal_of_the_provider_leaves_the_job_running(scene: Scene, command: Command) -> None:
    with scene:
        operation = asyncio.run(scene.accepted())
        scene.simulator.world.plan = Plan(polls=(50, 50), cancels="refused")
        said = _cancel(scene, command, operation)
        assert (said.status, "refuses to cancel the job" in said.err) == (1, True)
        assert _attempts(scene, operation) == [("refused", 409)]
        assert scene.phase(operation) == "accepted"


def test_a_profile_without_a_cancel_or_with_one_that_destroys_sends_nothing(
    scene: Scene, command: Command
) -> None:
    with scene:
        _changed(scene, destroys=None)
        without = asyncio.run(scene.accepted())
        said = _cancel(scene, command, without)
        assert (said.status, "The profile of simulator has no cancel" in said.err) == (1, True)
        _changed(scene, destroys=True)
        destroying = asyncio.run(scene.accepted())
        said = _cancel(scene, command, destroying)
        assert (said.status, "say --force" in said.err, _cancels(scene)) == (1, True, {})
        assert _cancel(scene, command, destroying, "--force").status == 0
        assert len(_cancels(scene)) == 1


def test_a_job_that_has_ended_at_the_provider_is_observed_and_not_cancelled(
    database: Database, tmp_path: Path, command: Command
) -> None:
    with Scene(database, tmp_path) as scene:
        operation = asyncio.run(scene.accepted(Fault.JOB_FAILED))
        said = _cancel(scene, command, operation)
        assert (said.status, "is failed already" in said.err) == (1, True)
        assert (_cancels(scene), _attempts(scene, operation)) == ({}, [])


def test_a_provider_that_is_away_is_not_asked(scene: Scene, command: Command) -> None:
    with scene:
        operation = asyncio.run(scene.accepted())
    # The simulator is gone, its address stays.
    said = _cancel(scene, command, operation)
    assert (said.status, "Nothing was sent" in said.err) == (1, True)


def test_a_delivery_is_cancelled_before_it_is_claimed(
    database: Database, tmp_path: Path, command: Command
) -> None:
    with Scene(database, tmp_path) as scene:
        operation = asyncio.run(scene.accepted())
        asyncio.run(scene.handle(Collect(), scene.last(operation, "collection.requested")))
        delivery = scene.delivery_of(operation)
        assert _cancel(scene, command, delivery).out == f"Operation {delivery} is cancelled.\n"


def test_a_cancel_needs_a_reason(scene: Scene, command: Command) -> None:
    with scene:
        environment = scene.environment
        said = command("ops", "cancel", str(scene.prepare()), "--reason", " ", env=environment)
        assert said.status == 2
