"""Only a person decides what stays unknown, once, and nothing waits for nobody."""

from typing import Final

import psycopg
import pytest

from consumers.operations.lifecycle import Cause
from fix_operations import AFTER_LATE_DELIVERY, OPERATOR, WORKER, Stage

NO_EDGE: Final = "OR011"
NOT_BACKED: Final = "OR012"


@pytest.mark.parametrize("resolution", ["accepted", "abandon", "not-accepted:reject"])
def test_a_review_moves_an_operation_only_where_it_was_resolved_to(stage: Stage, resolution: str) -> None:
    operation = stage.in_phase("generation", "uncertain")
    with stage.acting(OPERATOR):
        stage.later(AFTER_LATE_DELIVERY)
        review = stage.open_review(operation)
        stage.resolve(review, resolution)
        stage.say("review", review=review)
        for after in ("prepared", "cancelled"):
            assert stage.move_refused(operation, after) == NOT_BACKED


def test_a_resubmission_by_review_needs_the_earlier_attempt_released(stage: Stage) -> None:
    operation = stage.in_phase("generation", "uncertain")
    with stage.acting(OPERATOR):
        stage.later(AFTER_LATE_DELIVERY)
        review = stage.open_review(operation)
        stage.resolve(review, "not-accepted:resubmit")
        stage.say("review", review=review)
        assert stage.move_refused(operation, "prepared") == NOT_BACKED


@pytest.mark.parametrize("then", ["resubmit", "reject", "cancel"])
def test_not_accepted_is_refused_while_the_request_may_still_arrive(stage: Stage, then: str) -> None:
    operation = stage.in_phase("generation", "uncertain")
    with stage.acting(OPERATOR):
        review = stage.open_review(operation)
        stage.resolve(review, f"not-accepted:{then}")
        stage.say("review", review=review)
        after = {"resubmit": "prepared", "reject": "rejected", "cancel": "cancelled"}[then]
        assert stage.move_refused(operation, after) == NOT_BACKED


def test_a_review_resolved_in_an_earlier_transaction_moves_nothing(committing_stage: Stage) -> None:
    stage = committing_stage
    operation = stage.in_phase("generation", "uncertain")
    with stage.acting(OPERATOR):
        # Two reviews: with one resolved the other is still the waker.
        stage.raise_review(operation)
        review = stage.one(
            "select review_id from relay.review where operation_id = %s and kind = 'uncertain_submission'",
            operation,
        )
        stage.resolve(review, "abandon")
    with stage.acting(OPERATOR):
        stage.say("review", review=review)
        assert stage.move_refused(operation, "abandoned") == NOT_BACKED


def test_a_worker_can_not_forge_the_resolution_of_a_review(stage: Stage) -> None:
    operation = stage.in_phase("generation", "uncertain")
    review = stage.open_review(operation)
    with stage.acting(WORKER):
        for column, value in (
            ("state", "'resolved'"),
            ("resolution", "'abandon'"),
            ("resolved_by", "'me'"),
            ("resolved_xid", "pg_current_xact_id()"),
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), stage.connection.transaction():
                stage.connection.execute(f"update relay.review set {column} = {value}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), stage.connection.transaction():
            stage.connection.execute(
                "insert into relay.review (operation_id, kind, deadline, state, resolution, resolved_xid)"
                " values (%s, 'hold', relay.now(), 'resolved', 'abandon', pg_current_xact_id())",
                [operation],
            )
        stage.say("review", review=review)
        assert stage.move_refused(operation, "abandoned") == NOT_BACKED


def test_only_an_operators_login_can_resolve_a_review_even_with_the_tables_privileges(stage: Stage) -> None:
    operation = stage.in_phase("generation", "uncertain")
    review = stage.open_review(operation)
    stage.connection.execute("grant update on relay.review to relay_worker")
    with pytest.raises(psycopg.errors.Error) as refused, stage.acting(WORKER):
        stage.resolve(review, "abandon")
    assert refused.value.sqlstate == NOT_BACKED


def test_no_lease_and_no_timer_brings_an_uncertain_operation_back(stage: Stage) -> None:
    operation = stage.in_phase("generation", "uncertain")
    with stage.acting(WORKER):
        stage.later("10 years")
        for cause in Cause:
            stage.say(cause)
            assert stage.move_refused(operation, "prepared") in (NO_EDGE, NOT_BACKED)


# The waker --------------------------------------------------------------------------------------------------


def test_a_commit_that_would_leave_an_operation_without_a_waker_is_refused(committing_stage: Stage) -> None:
    stage = committing_stage
    operation = stage.prepare()
    with pytest.raises(psycopg.errors.Error) as refused, stage.acting(WORKER):
        stage.connection.execute(
            "update relay.operation set next_action_at = null where operation_id = %s", [operation]
        )
    assert refused.value.sqlstate == "OR014"


def test_a_review_can_not_be_resolved_without_moving_what_waits_for_it(committing_stage: Stage) -> None:
    stage = committing_stage
    operation = stage.in_phase("generation", "uncertain")
    with pytest.raises(psycopg.errors.Error) as refused, stage.acting(OPERATOR):
        stage.resolve(stage.open_review(operation), "abandon")
    assert refused.value.sqlstate == "OR014"
