"""What the collected evidence suggests is said with its reason, the likeliest first, and is no more."""

from typing import Any, Final

import pytest

from consumers.operations.lifecycle import Phase
from consumers.operations.resolutions import Kind, Resolution
from consumers.review.judgement import judge
from consumers.review.proposal import propose
from fix_known import known_attempt, known_job, known_review, known_whole

RUNNING: Final = {"state": "running", "reason": "running", "status": 200}
GONE: Final = {"state": "not_found", "reason": "not_found", "status": 404}
AWAY: Final = {"state": "error", "reason": "no_answer", "error": "ConnectError"}
EMPTY: Final = {"complete": True, "matches": [], "elements": 2, "since": "a", "until": "b", "no_proof": "x"}


def _proposed(kind: Kind, phase: Phase, findings: dict[str, Any], job_id: str | None = None) -> list[str]:
    return [
        " ".join(filter(None, (one["resolution"], one.get("job_id"), one.get("cost"))))
        for one in propose(kind, phase, job_id, findings)
    ]


def test_what_the_list_calls_this_operations_comes_before_what_is_only_known() -> None:
    findings = {"jobs": {"a": RUNNING, "b": RUNNING, "c": GONE}, "listing": EMPTY | {"matches": ["b"]}}
    assert _proposed(Kind.CANDIDATE_ID, Phase.UNCERTAIN, findings) == ["accepted b", "accepted a"]


def test_silence_proposes_nothing() -> None:
    for said in (GONE, AWAY):
        assert _proposed(Kind.UNCERTAIN_SUBMISSION, Phase.UNCERTAIN, {"jobs": {"a": said}}) == []


@pytest.mark.parametrize(
    ("phase", "answer"),
    [(Phase.UNCERTAIN, "not-accepted:resubmit"), (Phase.PREPARED, "not-accepted:stay")],
)
def test_an_empty_list_proposes_what_the_phase_takes_and_says_whether_it_is_proof(
    phase: Phase, answer: str
) -> None:
    for findings, word in (
        ({"jobs": {}, "listing": EMPTY}, "no proof"),
        ({"jobs": {}, "listing": EMPTY, "absent": ["attempt"]}, "proves"),
    ):
        (proposal,) = propose(Kind.UNCERTAIN_SUBMISSION, phase, None, findings)
        assert proposal["resolution"] == answer
        assert word in proposal["why"]


def test_an_operation_that_has_its_job_is_offered_no_other_one_by_a_list() -> None:
    findings = {"jobs": {"a": RUNNING}, "listing": EMPTY | {"matches": ["a"]}}
    assert _proposed(Kind.UNCERTAIN_SUBMISSION, Phase.ACCEPTED, findings, "mine") == []


def test_of_two_ids_the_only_one_that_is_known_is_proposed() -> None:
    assert _proposed(Kind.SECOND_ID, Phase.ACCEPTED, {"jobs": {"mine": GONE, "other": RUNNING}}, "mine") == [
        "choose-primary other"
    ]
    both = {"jobs": {"mine": RUNNING, "other": RUNNING}}
    assert _proposed(Kind.SECOND_ID, Phase.ACCEPTED, both, "mine") == []


def test_a_cost_that_the_provider_says_is_proposed_for_the_job_in_question() -> None:
    findings = {"jobs": {"mine": RUNNING | {"cost": "0.66"}, "other": RUNNING | {"cost": "9"}}}
    assert _proposed(Kind.ID_WITH_ERROR, Phase.ACCEPTED, findings, "mine") == ["settle 0.66"]


def test_each_proposal_is_an_answer_that_the_review_takes_and_stands_first_on_the_screen() -> None:
    findings = {"jobs": {"job-1": RUNNING}, "listing": EMPTY | {"matches": ["job-1"]}}
    collected: dict[str, Any] = {
        "at": "now",
        "findings": findings,
        "proposes": propose(Kind.CANDIDATE_ID, Phase.UNCERTAIN, None, findings),
    }
    review = known_review(kind="candidate_id", evidence={"collected": collected})
    seen = known_whole(known_attempt(), review=review, jobs=(known_job("job-2"), known_job("job-1")))
    judgement = judge(review, seen)
    first, *others = judgement.choices
    assert "accepted --job-id job-1 " in first.command
    assert first.proposed is not None
    assert [one.proposed for one in others] == [None] * len(others)
    assert any("knows the job job-1" in one for one in judgement.proven)
    assert Resolution.ACCEPTED in [Resolution(one["resolution"]) for one in collected["proposes"]]
