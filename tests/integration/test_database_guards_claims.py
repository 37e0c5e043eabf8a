"""A claim is made once, in time, and becomes at most one submission."""

from typing import Final
from uuid import uuid4

import pytest

from fix_operations import AFTER_THE_LEASE, OPERATOR, WORKER, Stage

NO_EDGE: Final = "OR011"
NOT_BACKED: Final = "OR012"


def test_an_operation_can_not_be_claimed_before_not_before(stage: Stage) -> None:
    operation = stage.prepare()
    stage.connection.execute("update relay.operation set not_before = relay.now() + '1 minute'")
    with stage.acting(WORKER):
        stage.say("claim")
        claim = {"claim_token": uuid4(), "claimed_by": "w", "lease_expires_at": stage.lease()}
        assert stage.move_refused(operation, "claimed", **claim) == NOT_BACKED
        stage.later("61 seconds")
        claim["lease_expires_at"] = stage.lease()
        assert stage.move(operation, "claimed", **claim) == 1


def test_a_claim_whose_lease_is_past_is_refused(stage: Stage) -> None:
    operation = stage.prepare()
    with stage.acting(WORKER):
        stage.say("claim")
        past = {
            "claim_token": uuid4(),
            "claimed_by": "w",
            "lease_expires_at": stage.one("select relay.now()"),
        }
        assert stage.move_refused(operation, "claimed", **past) == NOT_BACKED


def test_a_token_that_made_an_attempt_can_not_claim_again(stage: Stage) -> None:
    operation = stage.prepare()
    used = stage.submit(operation)
    with stage.acting(WORKER):
        stage.finish(used, "unsent")
        stage.say("unsent", attempt=used)
        stage.move(operation, "prepared")
        stage.say("claim")
        again = {"claim_token": used, "claimed_by": "w", "lease_expires_at": stage.lease()}
        assert stage.move_refused(operation, "claimed", **again) == NOT_BACKED


def test_nothing_is_submitted_after_the_lease(stage: Stage) -> None:
    operation = stage.prepare()
    token = stage.claim(operation)
    with stage.acting(WORKER):
        stage.insert_attempt(operation, token)
        stage.later(AFTER_THE_LEASE)
        stage.say("submit", attempt=token)
        assert stage.move_refused(operation, "submitting", lease_expires_at=stage.lease()) == NOT_BACKED


def test_nothing_is_submitted_when_a_cancel_was_requested(stage: Stage) -> None:
    operation = stage.prepare()
    token = stage.claim(operation)
    with stage.acting(OPERATOR):
        assert stage.one("select relay.request_cancel(%s, 'changed my mind')", operation) == "claimed"
    with stage.acting(WORKER):
        stage.insert_attempt(operation, token)
        stage.say("submit", attempt=token)
        assert stage.move_refused(operation, "submitting") == NOT_BACKED


def test_nothing_is_submitted_without_a_reservation(stage: Stage) -> None:
    operation = stage.prepare()
    token = stage.claim(operation, reserve=False)
    with stage.acting(WORKER):
        stage.insert_attempt(operation, token)
        stage.say("submit", attempt=token)
        assert stage.move_refused(operation, "submitting") == NOT_BACKED


def test_a_submission_keeps_the_token_of_its_claim(stage: Stage) -> None:
    operation = stage.prepare()
    token = stage.claim(operation)
    with stage.acting(WORKER):
        stage.insert_attempt(operation, token)
        stage.say("submit", attempt=token)
        assert stage.move_refused(operation, "submitting", claim_token=uuid4()) == NOT_BACKED


@pytest.mark.parametrize("outcome", ["open", "unknown", "accepted"])
def test_nothing_is_submitted_while_an_earlier_attempt_may_have_reached_the_provider(
    stage: Stage, outcome: str
) -> None:
    operation = stage.prepare()
    earlier = stage.claim(operation)
    with stage.acting(WORKER):
        stage.insert_attempt(operation, earlier)
        if outcome != "open":
            stage.finish(earlier, outcome)
        stage.later(AFTER_THE_LEASE)
        stage.say("lease_expired")
        assert stage.move(operation, "prepared") == 1
        stage.later("0")
    token = stage.claim(operation)
    with stage.acting(WORKER):
        stage.insert_attempt(operation, token)
        stage.say("submit", attempt=token)
        assert stage.move_refused(operation, "submitting") == NOT_BACKED


@pytest.mark.parametrize("outcome", ["unsent", "refused"])
def test_an_attempt_that_provably_did_nothing_does_not_stop_the_next(stage: Stage, outcome: str) -> None:
    operation = stage.prepare()
    earlier = stage.submit(operation)
    with stage.acting(WORKER):
        stage.finish(earlier, outcome, charged=False)
        stage.say(outcome, attempt=earlier)
        assert stage.move(operation, "prepared") == 1
    assert stage.submit(operation) != earlier


def test_an_attempt_that_a_review_released_does_not_stop_the_next(stage: Stage) -> None:
    operation = stage.prepare()
    released = stage.resubmitted(operation)
    assert stage.submit(operation) != released


def test_nothing_is_submitted_for_an_operation_that_has_a_job(stage: Stage) -> None:
    operation = stage.prepare()
    stage.resubmitted(operation)
    token = stage.claim(operation)
    with stage.acting(WORKER):
        stage.remote_job(operation, None, "job-seen-late")
        stage.insert_attempt(operation, token)
        stage.say("submit", attempt=token)
        assert stage.move_refused(operation, "submitting") == NOT_BACKED


def test_accepted_without_its_job_in_remote_job_is_refused(stage: Stage) -> None:
    operation = stage.prepare()
    attempt = stage.submit(operation)
    with stage.acting(WORKER):
        stage.finish(attempt, "accepted")
        stage.remote_job(operation, attempt, "job-candidate", "candidate")
        stage.say("answer", attempt=attempt)
        assert stage.move_refused(operation, "accepted", job_id="job-candidate") == NOT_BACKED
        assert stage.move_refused(operation, "accepted", job_id="job-never-seen") == NOT_BACKED


def test_a_job_is_set_by_becoming_accepted_alone(stage: Stage) -> None:
    operation = stage.prepare()
    attempt = stage.submit(operation)
    with stage.acting(WORKER):
        stage.finish(attempt, "unknown")
        job = stage.remote_job(operation, attempt, "job-candidate", "candidate")
        stage.say("unknown", attempt=attempt)
        assert stage.move_refused(operation, "uncertain", job_id=job) == "OR010"


def test_an_expired_lease_on_a_submission_needs_its_attempt_recorded_as_unknown(stage: Stage) -> None:
    operation = stage.in_phase("generation", "submitting")
    with stage.acting(WORKER):
        stage.later(AFTER_THE_LEASE)
        stage.say("lease_expired")
        assert stage.move_refused(operation, "uncertain") == NOT_BACKED
