"""What is told late or out of order: no id, no money and no question of another request is lost."""

from decimal import Decimal
from uuid import UUID

import psycopg
import pytest

from consumers.operations.answers import Applied
from consumers.operations.decisions import Refused
from consumers.operations.resolutions import Resolution
from fix_dispatch import Dispatching

pytestmark = pytest.mark.anyio


def _outcomes(scene: Dispatching, operation: UUID) -> list[tuple[str, str]]:
    """Attempt's outcome and its reservation's state, the older attempt first."""
    return scene.all(
        "select a.outcome, r.state from relay.attempt a join relay.reservation r using (attempt_id)"
        " where a.operation_id = %s and a.action = 'submit' order by a.started_at",
        operation,
    )


def _questions(scene: Dispatching, operation: UUID) -> list[tuple[str, UUID]]:
    return scene.all(
        "select kind, attempt_id from relay.review where operation_id = %s and state = 'open' order by kind",
        operation,
    )


async def test_a_late_refusal_of_one_request_decides_nothing_about_another(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    first = await dispatching.resubmitted(operation)
    second = await dispatching.begun(operation)
    await dispatching.answered(second, operation, "unknown")
    applied = await dispatching.answered(first, operation, "refused", after="final", charged=False)
    assert applied is Applied.RECORDED
    assert dispatching.row(operation, "phase") == ("uncertain",)
    assert _questions(dispatching, operation) == [("uncertain_submission", second)]


async def test_the_database_lets_no_refusal_end_what_another_request_left_uncertain(
    dispatching: Dispatching,
) -> None:
    operation = dispatching.prepared()
    first = await dispatching.resubmitted(operation)
    second = await dispatching.begun(operation)
    await dispatching.answered(second, operation, "unknown")
    await dispatching.answered(first, operation, "refused", after="final", charged=False)
    reject = "update relay.operation set phase = 'rejected', phase_reason = 'r' where operation_id = %s"
    worker_url = dispatching.database.url_as("relay_worker")
    with dispatching.database.connect(worker_url, autocommit=False) as worker:
        worker.execute(
            "select set_config('relay.actor', 'w', true), set_config('relay.cause', 'rule', true),"
            " set_config('relay.reason', 'r', true), set_config('relay.attempt_id', %s, true)",
            [str(first)],
        )
        with pytest.raises(psycopg.DatabaseError, match="another request may have reached") as refused:
            worker.execute(reject, [operation])
        worker.rollback()
    assert refused.value.sqlstate == "OR012"


async def test_a_late_id_leaves_the_question_of_the_later_request_open(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    first = await dispatching.resubmitted(operation)
    second = await dispatching.begun(operation)
    await dispatching.answered(second, operation, "unknown")
    await dispatching.answered(first, operation, "accepted", job_id="late-1")
    assert dispatching.row(operation, "phase, job_id") == ("accepted", "late-1")
    assert _questions(dispatching, operation) == [("uncertain_submission", second)]
    assert _outcomes(dispatching, operation) == [("accepted", "disputed"), ("unknown", "reserved")]


@pytest.mark.parametrize("at", ["prepared", "held", "claimed", "submitting"])
async def test_a_late_id_takes_the_operation_from_whatever_comes_next(
    dispatching: Dispatching, at: str
) -> None:
    operation = dispatching.prepared()
    first = await dispatching.resubmitted(operation)
    if at == "held":
        dispatching.allow("5")
        await dispatching.hand_over(await dispatching.dispatcher(), operation)
    elif at != "prepared":
        dispatching.claim(operation)
    if at == "submitting":
        await dispatching.wake("2 minutes")
        await dispatching.begun(operation)
    assert dispatching.row(operation, "phase") == (at,)
    assert await dispatching.answered(first, operation, "accepted", job_id="late-1") is Applied.MOVED
    assert dispatching.row(operation, "phase, job_id, claim_token") == ("accepted", "late-1", None)
    await dispatching.hand_over(await dispatching.dispatcher(), operation)
    assert dispatching.posts(operation) == 0


async def test_a_request_that_was_never_sent_gives_its_money_back_though_a_late_id_was_faster(
    dispatching: Dispatching,
) -> None:
    operation = dispatching.prepared()
    first = await dispatching.resubmitted(operation)
    second = await dispatching.begun(operation)
    await dispatching.answered(first, operation, "accepted", job_id="late-1")
    assert await dispatching.answered(second, operation, "unsent") is Applied.RECORDED
    assert dispatching.row(operation, "phase, accounting") == ("accepted", "disputed")
    assert _outcomes(dispatching, operation) == [("accepted", "disputed"), ("unsent", "released")]


async def test_a_request_in_flight_whose_answer_is_lost_is_asked_about_though_a_late_id_was_faster(
    dispatching: Dispatching,
) -> None:
    """It may have made a second job, and its money stays reserved until somebody says what it cost."""
    operation = dispatching.prepared()
    first = await dispatching.resubmitted(operation)
    second = await dispatching.begun(operation)
    await dispatching.answered(first, operation, "accepted", job_id="late-1")
    await dispatching.answered(second, operation, "unknown")
    assert _questions(dispatching, operation) == [("uncertain_submission", second)]
    resolved = await dispatching.decided(operation, Resolution.SETTLE, cost=Decimal(0))
    assert resolved.to_phase == "accepted"
    assert _outcomes(dispatching, operation) == [("accepted", "disputed"), ("unknown", "settled")]


async def test_a_request_that_its_process_never_reported_is_asked_about_in_the_end(
    dispatching: Dispatching,
) -> None:
    operation = dispatching.prepared()
    first = await dispatching.resubmitted(operation)
    second = await dispatching.begun(operation)
    await dispatching.answered(first, operation, "accepted", job_id="late-1")
    await dispatching.wake("1 day")
    assert _outcomes(dispatching, operation)[1] == ("unknown", "reserved")
    assert ("uncertain_submission", second) in _questions(dispatching, operation)


@pytest.mark.parametrize("first_is_late", [True, False])
async def test_two_requests_answered_with_one_job_leave_no_money_unasked_for(
    dispatching: Dispatching, first_is_late: bool
) -> None:
    """A provider that deduplicates: whether both were charged is not for us to guess."""
    operation = dispatching.prepared()
    first = await dispatching.resubmitted(operation)
    second = await dispatching.begun(operation)
    if not first_is_late:
        await dispatching.answered(first, operation, "unknown", candidates=("job-1",))
    else:
        await dispatching.answered(first, operation, "accepted", job_id="job-1")
    await dispatching.answered(second, operation, "accepted", job_id="job-1")
    assert dispatching.row(operation, "phase, job_id") == ("accepted", "job-1")
    assert ("second_id", second) in _questions(dispatching, operation)


async def test_what_was_proven_unsent_too_late_is_told_to_the_reviewer(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    attempt = await dispatching.begun(operation)
    await dispatching.wake("1 hour")
    assert dispatching.row(operation, "phase") == ("uncertain",)
    await dispatching.answered(attempt, operation, "unsent", evidence={"sent": False})
    assert dispatching.all("select evidence, outcome from relay.attempt") == [({"sent": False}, "unknown")]
    # It has reported: nobody needs to call its spool lost.
    await dispatching.decided(operation, Resolution.RESUBMIT)
    assert dispatching.row(operation, "phase") == ("prepared",)


async def test_a_decision_at_a_sight_without_the_late_evidence_is_refused(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    attempt = await dispatching.begun(operation)
    await dispatching.wake("1 hour")
    seen = dispatching.one("select revision from relay.review where operation_id = %s", operation)
    await dispatching.answered(attempt, operation, "unknown", candidates=("job-1",))
    with pytest.raises(Refused, match="You were shown revision"):
        await dispatching.decided(operation, Resolution.RESUBMIT, revision=seen)
    assert dispatching.row(operation, "phase") == ("uncertain",)


async def test_a_candidate_that_turns_up_after_the_end_is_asked_about(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    attempt = await dispatching.begun(operation)
    await dispatching.wake("1 hour")
    await dispatching.decided(operation, Resolution.ABANDON)
    await dispatching.answered(attempt, operation, "unknown", candidates=("job-1",))
    assert _questions(dispatching, operation) == [("candidate_id", attempt)]
    assert dispatching.all("select boundary from relay.incident") == [("id_commit",)]
    await dispatching.decided(operation, Resolution.ACCEPTED, job_id="job-1")
    assert dispatching.row(operation, "phase, job_id") == ("accepted", "job-1")
    assert _outcomes(dispatching, operation) == [("accepted", "disputed")]


async def test_an_id_of_a_request_that_counted_as_refused_is_kept_and_asked_about(
    dispatching: Dispatching,
) -> None:
    """As when a later release reads the spool's answer better than the one that died applying it."""
    operation = dispatching.prepared()
    attempt = await dispatching.begun(operation)
    await dispatching.answered(attempt, operation, "refused", after="final", charged=False)
    await dispatching.answered(attempt, operation, "accepted", job_id="job-1")
    assert dispatching.row(operation, "phase") == ("rejected",)
    assert dispatching.all("select job_id, role from relay.remote_job") == [("job-1", "candidate")]
    assert _questions(dispatching, operation) == [("contradiction", attempt)]
    # Its money had been given back: what the job costs is beyond what anybody reserved.
    assert _outcomes(dispatching, operation) == [("accepted", "disputed")]
    assert dispatching.all("select disputed, settled, overrun from relay.allowance") == [(5, 0, True)]

    await dispatching.decided(operation, Resolution.ACCEPTED, job_id="job-1")
    assert dispatching.row(operation, "phase, job_id") == ("accepted", "job-1")
    dispatching.connection.execute("select relay.settle(%s, 3, 'told by a test')", [attempt])
    assert dispatching.all("select disputed, settled, overrun from relay.allowance") == [(0, 3, False)]


async def test_a_candidate_of_an_earlier_request_that_proves_true_is_paid_by_that_request(
    dispatching: Dispatching,
) -> None:
    operation = dispatching.prepared()
    first = await dispatching.resubmitted(operation)
    second = await dispatching.begun(operation)
    await dispatching.answered(second, operation, "unknown")
    await dispatching.answered(first, operation, "unknown", candidates=("job-1",))
    await dispatching.decided(operation, Resolution.ACCEPTED, job_id="job-1")
    assert dispatching.row(operation, "phase, job_id") == ("accepted", "job-1")
    assert _outcomes(dispatching, operation) == [("accepted", "disputed"), ("unknown", "reserved")]
    assert ("uncertain_submission", second) in _questions(dispatching, operation)


async def test_what_a_question_is_about_is_what_its_cost_is_booked_on(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    first = await dispatching.begun(operation)
    await dispatching.answered(first, operation, "refused", after="delay", retry_after_s=0, charged=False)
    second = await dispatching.begun(operation)
    await dispatching.answered(second, operation, "accepted", job_id="job-2")
    await dispatching.answered(first, operation, "accepted", job_id="job-1")
    assert _questions(dispatching, operation) == [("second_id", first)]
    await dispatching.decided(operation, Resolution.SETTLE, cost=Decimal(3))
    assert _outcomes(dispatching, operation) == [("refused", "settled"), ("accepted", "reserved")]
