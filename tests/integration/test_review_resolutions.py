"""What each answer changes in the database, and that the database takes no other: review, phase, jobs and
money move together, and two reviewers can't both win.
"""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest

from consumers.operations import reviews
from consumers.operations.decisions import Refused
from consumers.operations.resolutions import Kind, Resolution, rows
from fix_operations import AFTER_LATE_DELIVERY, OPERATOR, WORKER, Stage
from fix_reviews import decision, state_of, uncertain, with_second_job
from review_page import table

pytestmark = pytest.mark.anyio

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reviews.md"
NOT_BACKED: Final = "OR012"

Operator = psycopg.AsyncConnection[Any]


async def test_the_database_takes_the_very_answers_that_people_are_offered(stage: Stage) -> None:
    known = stage.connection.execute(
        "select kind, resolution, from_phase, to_phase from relay.review_option"
    ).fetchall()
    assert set(known) == set(rows())


async def test_the_page_shows_the_answers_that_there_are() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), f"put this into {PAGE.name}:\n{table()}"


async def test_the_database_refuses_every_answer_that_its_table_does_not_have(stage: Stage) -> None:
    """Whoever writes SQL by hand is held to the same."""
    allowed = {(kind, resolution, phase) for kind, resolution, phase, _ in rows()}
    refused = 0
    for phase in ("held", "uncertain", "accepted", "succeeded", "abandoned"):
        operation = stage.in_phase("generation", phase)
        for kind in Kind:
            review = stage.raise_review(operation, kind)
            for resolution in Resolution:
                if (kind, resolution, phase) in allowed:
                    continue
                statement = (
                    "update relay.review set state = 'resolved', resolution = %s, resolution_reason = 'r',"
                    " resolved_by = 'me' where review_id = %s"
                )
                code = stage.refused_to(OPERATOR, statement, str(resolution), review)
                assert code == NOT_BACKED, (kind, resolution, phase)
                refused += 1
    assert refused > 300


# Which job counts -----------------------------------------------------------------------------------------


async def test_another_job_becomes_the_operations_own_and_the_old_one_stays_booked(
    committing_stage: Stage, operator: Operator
) -> None:
    stage = committing_stage
    operation, first, second, review = with_second_job(stage)
    old = stage.one("select job_id from relay.operation where operation_id = %s", operation)
    version = stage.one("select version from relay.operation where operation_id = %s", operation)
    chosen = f"late-{operation}"
    resolved = await reviews.resolve(operator, decision(review, Resolution.CHOOSE_PRIMARY, job_id=chosen))
    assert (resolved.from_phase, resolved.to_phase, resolved.job_id) == ("accepted", "accepted", chosen)
    # The first one's money was disputed by the resubmission; the second one's is from now on.
    assert resolved.disputed == Decimal(5)
    roles = dict(
        stage.connection.execute(
            "select job_id, role from relay.remote_job where operation_id = %s", [operation]
        ).fetchall()
    )
    assert roles == {old: "duplicate", chosen: "primary"}
    money = dict(
        stage.connection.execute(
            "select attempt_id, state from relay.reservation where operation_id = %s", [operation]
        ).fetchall()
    )
    assert money == {first: "disputed", second: "disputed"}
    entry = stage.connection.execute(
        "select version, from_phase, to_phase, cause, job_id, review_id from relay.journal"
        " where operation_id = %s order by version desc limit 1",
        [operation],
    ).fetchone()
    assert entry == (version + 1, "accepted", "accepted", "review", chosen, review)
    events = stage.connection.execute(
        "select event_type, payload->>'job_id' from relay.outbox where operation_id = %s and version = %s",
        [operation, version + 1],
    ).fetchall()
    assert set(events) == {("operation.transitioned", chosen), ("collection.requested", chosen)}


async def test_keeping_the_job_answers_the_question_and_moves_nothing(
    committing_stage: Stage, operator: Operator
) -> None:
    stage = committing_stage
    operation, _, _, review = with_second_job(stage)
    before = stage.connection.execute(
        "select phase, version, job_id from relay.operation where operation_id = %s", [operation]
    ).fetchone()
    assert before is not None
    await reviews.resolve(operator, decision(review, Resolution.CHOOSE_PRIMARY, job_id=before[2]))
    after = stage.connection.execute(
        "select phase, version, job_id, open_reviews from relay.operation where operation_id = %s",
        [operation],
    ).fetchone()
    assert after == (*before, 0)


async def test_no_worker_changes_an_operations_job_without_a_review(committing_stage: Stage) -> None:
    stage = committing_stage
    operation, first, _, review = with_second_job(stage)
    for role, cause in ((WORKER, "late_answer"), (OPERATOR, "late_answer"), (OPERATOR, "review")):
        with stage.acting(role):
            stage.say(cause, attempt=first, review=review)
            code = stage.move_refused(operation, "accepted", job_id=f"late-{operation}")
        assert code in ("OR011", NOT_BACKED), (role, cause)


async def test_only_the_choice_of_a_job_changes_the_job_of_what_is_accepted(committing_stage: Stage) -> None:
    """A review that was resolved otherwise in this very transaction backs no other job."""
    stage = committing_stage
    operation, first, _, review = with_second_job(stage)
    with stage.acting(OPERATOR):
        old = stage.one("select job_id from relay.operation where operation_id = %s", operation)
        roles = "update relay.remote_job set role = %s where operation_id = %s and job_id = %s"
        stage.resolve(review, "settle")
        stage.connection.execute(roles, ["duplicate", operation, old])
        stage.connection.execute(roles, ["primary", operation, f"late-{operation}"])
        stage.say("review", attempt=first, review=review)
        assert stage.move_refused(operation, "accepted", job_id=f"late-{operation}") == NOT_BACKED


# Waiting --------------------------------------------------------------------------------------------------


async def test_waiting_keeps_the_question_open_moves_its_deadline_and_makes_other_sights_stale(
    committing_stage: Stage, operator: Operator
) -> None:
    stage = committing_stage
    operation, _, review = uncertain(stage)
    before = state_of(stage, operation)
    resolved = await reviews.resolve(operator, decision(review, Resolution.WAIT, wait_s=7200))
    row = stage.connection.execute(
        "select state, revision, severity, deadline, evidence->'waits' from relay.review"
        " where review_id = %s",
        [review],
    ).fetchone()
    assert row == ("open", 2, 1, resolved.look_again, [{"by": "ann@desk", "why": "I looked"}])
    assert state_of(stage, operation) == before
    with pytest.raises(Refused, match="You were shown revision 1"):
        await reviews.resolve(operator, decision(review, Resolution.ABANDON))
    # Without a time of its own it waits as long as it was given at first.
    await reviews.resolve(operator, decision(review, Resolution.WAIT, revision=2))
    waited = stage.one("select evidence->'waits' from relay.review where review_id = %s", review)
    assert len(waited) == 2


# What has gone on without its question --------------------------------------------------------------------


def _accepted_with_an_older_question(stage: Stage) -> tuple[UUID, UUID, UUID]:
    """An operation that a late id took, while what its second request came to is unknown: operation, that
    request's attempt, its review."""
    operation = stage.prepare()
    first = stage.resubmitted(operation)
    second = stage.submit(operation)
    with stage.acting(WORKER):
        stage.finish(first, "accepted")
        job = stage.remote_job(operation, first, f"late-{operation}")
        stage.say("late_answer", attempt=first)
        assert stage.move(operation, "accepted", job_id=job) == 1
        stage.finish(second, "unknown")
        stage.connection.execute(
            "update relay.attempt set evidence = '{\"status\": null}' where attempt_id = %s", [second]
        )
        stage.connection.execute(
            "insert into relay.review (operation_id, attempt_id, kind, deadline)"
            " values (%s, %s, 'uncertain_submission', relay.now())",
            [operation, second],
        )
    return operation, second, stage.open_review(operation)


@pytest.mark.parametrize("resolution", [Resolution.NOT_ACCEPTED_STAY, Resolution.ABANDON])
async def test_the_question_of_another_request_is_answered_and_the_operation_stays(
    committing_stage: Stage, operator: Operator, resolution: Resolution
) -> None:
    stage = committing_stage
    operation, second, review = _accepted_with_an_older_question(stage)
    resolved = await reviews.resolve(operator, decision(review, resolution))
    assert (resolved.to_phase, resolved.disputed) == ("accepted", Decimal(5))
    state = stage.one("select state from relay.reservation where attempt_id = %s", second)
    released = stage.one("select released_by_review from relay.attempt where attempt_id = %s", second)
    assert state == "disputed"
    assert (released == review) is (resolution is Resolution.NOT_ACCEPTED_STAY)
    assert stage.one("select open_reviews from relay.operation where operation_id = %s", operation) == 0


async def test_a_job_of_another_request_is_kept_as_a_second_one_and_its_cost_asked_for(
    committing_stage: Stage, operator: Operator
) -> None:
    stage = committing_stage
    operation, second, review = _accepted_with_an_older_question(stage)
    job = f"second-{operation}"
    resolved = await reviews.resolve(operator, decision(review, Resolution.ACCEPTED, job_id=job))
    assert (resolved.to_phase, resolved.job_id) == ("accepted", f"late-{operation}")
    kept = stage.connection.execute(
        "select j.role, a.outcome, r.state from relay.remote_job j join relay.attempt a using (attempt_id)"
        " join relay.reservation r using (attempt_id) where j.job_id = %s",
        [job],
    ).fetchone()
    assert kept == ("duplicate", "accepted", "reserved")
    asked = stage.connection.execute(
        "select kind, attempt_id from relay.review where operation_id = %s and state = 'open'", [operation]
    ).fetchall()
    assert asked == [("second_id", second)]
    assert stage.one("select boundary from relay.incident where operation_id = %s", operation) == "id_commit"
    again = stage.open_review(operation)
    await reviews.resolve(operator, decision(again, Resolution.SETTLE, cost=Decimal(3)))
    settled = stage.one("select settled_amount from relay.reservation where attempt_id = %s", second)
    assert settled == Decimal(3)


def _prepared_again(stage: Stage, operation: UUID) -> UUID:
    return stage.resubmitted(operation)


def _claimed_again(stage: Stage, operation: UUID) -> UUID:
    first = stage.resubmitted(operation)
    stage.claim(operation)
    return first


def _submitting_again(stage: Stage, operation: UUID) -> UUID:
    first = stage.resubmitted(operation)
    stage.submit(operation)
    return first


def _held_again(stage: Stage, operation: UUID) -> UUID:
    first = stage.resubmitted(operation)
    stage.claim(operation)
    with stage.acting(WORKER):
        stage.say("hold")
        assert stage.move(operation, "held", "configuration") == 1
    return first


@pytest.mark.parametrize("staged", [_prepared_again, _claimed_again, _submitting_again, _held_again])
async def test_a_person_who_finds_the_first_requests_job_stops_the_second_dispatch(
    committing_stage: Stage, operator: Operator, staged: Callable[[Stage, UUID], UUID]
) -> None:
    stage = committing_stage
    operation = stage.prepare()
    first = staged(stage, operation)
    with stage.acting(WORKER):
        job = stage.remote_job(operation, first, f"found-{uuid4()}", "candidate")
        stage.connection.execute(
            "insert into relay.review (operation_id, attempt_id, kind, deadline)"
            " values (%s, %s, 'candidate_id', relay.now())",
            [operation, first],
        )
    review = stage.one(
        "select review_id from relay.review where operation_id = %s and kind = 'candidate_id'", operation
    )
    revision = stage.one("select revision from relay.review where review_id = %s", review)
    await reviews.resolve(operator, decision(review, Resolution.ACCEPTED, job_id=job, revision=revision))
    row = stage.connection.execute(
        "select phase, job_id, claim_token from relay.operation where operation_id = %s", [operation]
    ).fetchone()
    assert row == ("accepted", job, None)
    first_state = stage.one("select state from relay.reservation where attempt_id = %s", first)
    assert first_state == "disputed"
    assert (
        stage.one(
            "select count(*) from relay.review where operation_id = %s and state = 'open' and kind = 'hold'",
            operation,
        )
        == 0
    )


async def test_the_database_releases_no_request_that_may_still_arrive(stage: Stage) -> None:
    """Whatever the phase: of an operation that has gone on the transition's own check says nothing."""
    operation = stage.prepare()
    first = stage.submit(operation)
    with stage.acting(WORKER):
        stage.finish(first, "unknown")
        job = stage.remote_job(operation, None, f"job-{operation}")
        second = stage.raise_review(operation, "uncertain_submission")
    with stage.acting(OPERATOR):
        stage.resolve(second, "not-accepted:stay")
        statement = "update relay.attempt set released_by_review = %s where attempt_id = %s"
        assert stage.refused(lambda: stage.connection.execute(statement, [second, first])) == NOT_BACKED
        stage.later(AFTER_LATE_DELIVERY)
        stage.connection.execute(statement, [second, first])
    assert job


# Costs ----------------------------------------------------------------------------------------------------


async def test_a_cost_that_was_settled_wrongly_is_corrected_and_a_right_one_confirmed(
    committing_stage: Stage, operator: Operator
) -> None:
    stage = committing_stage
    operation = stage.prepare()
    attempt = stage.accepted(operation)
    with stage.acting(WORKER):
        stage.connection.execute("select relay.settle(%s, 4, 'job succeeded')", [attempt])

    def booked() -> list[tuple[str, Decimal]]:
        return stage.connection.execute(
            "select entry, amount from relay.ledger where attempt_id = %s order by entry_id", [attempt]
        ).fetchall()

    before = booked()
    same = stage.raise_review(operation, "contradiction")
    await reviews.resolve(operator, decision(same, Resolution.SETTLE, cost=Decimal("4.0")))
    assert booked() == before
    other = stage.raise_review(operation, "contradiction")
    await reviews.resolve(operator, decision(other, Resolution.SETTLE, cost=Decimal("2.5")))
    assert booked() == [*before, ("correct", Decimal("-1.5"))]
    state = stage.connection.execute(
        "select r.state, r.settled_amount, o.open_reviews from relay.reservation r"
        " join relay.operation o using (operation_id) where r.attempt_id = %s",
        [attempt],
    ).fetchone()
    assert state == ("settled", Decimal("2.5"), 0)


async def test_what_never_reserved_anything_can_cost_nothing(
    committing_stage: Stage, operator: Operator
) -> None:
    operation = committing_stage.prepare()
    review = committing_stage.raise_review(operation, "contradiction")
    with pytest.raises(Refused, match="nothing was ever reserved"):
        await reviews.resolve(operator, decision(review, Resolution.SETTLE, cost=Decimal(3)))
