"""Each kind of review takes its own answers, in the phases where they are true, and says why no other."""

from itertools import product
from typing import Final
from uuid import UUID

import pytest

from consumers.operations.decisions import Decision, Refused, leads_to, require_possible
from consumers.operations.lifecycle import Phase
from consumers.operations.resolutions import NAMES_A_JOB, OPTIONS, Kind, Resolution
from consumers.review.judgement import judge
from fix_known import ATTEMPT, REVIEW, known_attempt, known_job, known_review, known_whole

_PAIRS: Final = list(product(Kind, Resolution))


def _decision(resolution: Resolution, **more: object) -> Decision:
    given = {"job_id": "job-1" if resolution in NAMES_A_JOB else None, "cost": 1} | more
    return Decision(review_id=REVIEW, revision=4, resolution=resolution, reason="r", actor="a", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "resolution"), _PAIRS)
def test_what_a_kind_does_not_ask_is_no_answer_to_it(kind: Kind, resolution: Resolution) -> None:
    steps = OPTIONS[kind].get(resolution, {})
    for phase in Phase:
        seen = known_whole(
            known_attempt(), review=known_review(kind=kind), jobs=(known_job("job-1"),), phase=phase
        )
        commands = [choice.command for choice in judge(seen.reviews[0], seen).choices]
        offered = any(f"{REVIEW} {resolution.replace(':', ' --then ')} " in line for line in commands)
        assert offered == (phase in steps), (phase, commands)
        if phase in steps:
            require_possible(seen, _decision(resolution))
            continue
        with pytest.raises(Refused) as refused:
            require_possible(seen, _decision(resolution))
        assert refused.value.meaning == "Nothing was changed."
        assert f"`relay review show {REVIEW}`" in refused.value.remedy
        expected = f"asks: {judge(seen.reviews[0], seen).question}" if not steps else f"is {phase}"
        assert expected in refused.value.message


@pytest.mark.parametrize("kind", Kind)
def test_whoever_is_undecided_may_wait_and_no_question_is_without_an_end(kind: Kind) -> None:
    """For each phase in which such a review can be open there is an answer that closes it."""
    answers = OPTIONS[kind]
    reachable: set[Phase] = {phase for phase in answers[Resolution.WAIT] if phase != "stored"}
    only_while: dict[Kind, set[Phase]] = {
        Kind.JOB_UNKNOWN: {Phase.ACCEPTED},  # it is superseded when the operation moves on
        Kind.ID_WITH_ERROR: reachable
        - {Phase.PREPARED, Phase.CLAIMED, Phase.SUBMITTING, Phase.HELD}
        - {Phase.UNCERTAIN},
    }
    only_while[Kind.SECOND_ID] = only_while[Kind.ID_WITH_ERROR]
    for phase in only_while.get(kind, reachable):
        assert [one for one in answers if one is not Resolution.WAIT and phase in answers[one]], phase


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED, Phase.LOST])
def test_another_job_is_never_chosen_for_what_has_ended(phase: Phase) -> None:
    jobs = (known_job("job-1", "primary"), known_job("job-2", "duplicate"))
    review = known_review(kind="second_id")
    seen = known_whole(known_attempt(), review=review, jobs=jobs, phase=phase, job_id="job-1", is_final=True)
    assert leads_to(seen, _decision(Resolution.CHOOSE_PRIMARY)) is None
    with pytest.raises(Refused, match=f"ended as {phase} with the job job-1.*settle what the other one cost"):
        require_possible(seen, _decision(Resolution.CHOOSE_PRIMARY, job_id="job-2"))


def test_only_an_id_that_was_seen_for_the_operation_can_be_chosen() -> None:
    review = known_review(kind="second_id")
    seen = known_whole(
        known_attempt(), review=review, jobs=(known_job("job-1"),), phase="accepted", job_id="job-1"
    )
    with pytest.raises(Refused, match=r"job-9 was never seen.*Those that were seen: job-1"):
        require_possible(seen, _decision(Resolution.CHOOSE_PRIMARY, job_id="job-9"))


def test_a_second_id_is_kept_and_an_operation_that_had_a_job_keeps_it() -> None:
    for phase in (Phase.ACCEPTED, Phase.CANCELLED, Phase.SUCCEEDED):
        review = known_review(kind="uncertain_submission")
        seen = known_whole(known_attempt(), review=review, phase=phase, job_id="job-0")
        assert leads_to(seen, _decision(Resolution.ACCEPTED)) is None
    seen = known_whole(known_attempt(), review=known_review(), phase="cancelled")
    assert leads_to(seen, _decision(Resolution.ACCEPTED)) is Phase.ACCEPTED


def test_no_job_came_of_it_is_said_of_the_one_request_that_is_asked_about() -> None:
    """Where the operation has gone on, another request may be in flight, of which this says nothing."""
    later = known_attempt(attempt_id=UUID(int=9), outcome="open", evidence={}, late_delivery_until=None)
    seen = known_whole(known_attempt(), later, phase="submitting")
    require_possible(seen, _decision(Resolution.NOT_ACCEPTED_STAY))
    asked = known_whole(
        known_attempt(), later, review=known_review(attempt_id=later.attempt_id), phase="accepted"
    )
    with pytest.raises(Refused, match=f"attempt {later.attempt_id} has not reported"):
        require_possible(asked, _decision(Resolution.NOT_ACCEPTED_STAY))
    assert later.attempt_id != ATTEMPT
