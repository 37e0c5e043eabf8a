"""A reviewer is told what is proven, what isn't, and which commands would be accepted now; what a provider
sent can't move the reviewer's cursor.
"""

import io
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from rich.console import Console

from consumers.operations.decisions import Decision, Refused, require_possible
from consumers.operations.records import Whole
from consumers.operations.resolutions import Resolution
from consumers.review.judgement import judge
from consumers.review.screen import review_screen
from fix_known import ATTEMPT, NOW, REVIEW, known_attempt, known_job, known_review, known_whole


def _commands(seen: Whole) -> dict[str, str | None]:
    return {
        choice.command.split(f"{REVIEW} ")[1]: choice.refused_now
        for choice in judge(seen.reviews[0], seen).choices
    }


def test_silence_proves_nothing_about_a_job() -> None:
    judgement = judge(known_review(), known_whole(known_attempt()))
    assert any("no answer was read (ReadTimeout)" in sentence for sentence in judgement.proven)
    assert any("5 credit are reserved" in sentence for sentence in judgement.proven)
    assert judgement.unproven == (
        f"Whether the provider made a job of attempt {ATTEMPT}, and charged for it.",
    )


def test_a_process_that_knows_that_it_sent_nothing_is_quoted() -> None:
    """It said so after the lease had run out: the operation is uncertain, and a person can go by this."""
    evidence = {"status": None, "sent": False, "error": "DeadlinePassed"}
    (said, *_) = judge(known_review(), known_whole(known_attempt(evidence=evidence))).proven
    assert said == f"Of attempt {ATTEMPT}: its process says that no byte left the machine (DeadlinePassed)."


def test_every_answer_to_an_open_question_is_offered_as_a_command_with_the_revision_that_was_shown() -> None:
    assert _commands(known_whole(known_attempt())) == {
        "accepted --job-id ID --revision 4 --reason '…'": None,
        "not-accepted --then resubmit --revision 4 --reason '…'": None,
        "not-accepted --then reject --revision 4 --reason '…'": None,
        "not-accepted --then cancel --revision 4 --reason '…'": None,
        "abandon --revision 4 --reason '…'": None,
        "wait --revision 4 --reason '…'": None,
    }


def test_each_id_that_was_seen_is_offered_and_quoted_for_the_shell() -> None:
    review = known_review(kind="candidate_id", evidence={"candidates": ["job-1", "it's"]})
    seen = known_whole(known_attempt(), review=review, jobs=(known_job("job-1"),))
    accepted = [command for command in _commands(seen) if command.startswith("accepted")]
    assert accepted == [
        "accepted --job-id job-1 --revision 4 --reason '…'",
        "accepted --job-id 'it'\"'\"'s' --revision 4 --reason '…'",
    ]


@pytest.mark.parametrize("second", [0, 1])
def test_what_may_still_arrive_is_unproven_until_its_last_second(second: int) -> None:
    seen = known_whole(known_attempt(late_delivery_until=NOW + timedelta(seconds=second)))
    refused = _commands(seen)["not-accepted --then resubmit --revision 4 --reason '…'"]
    unproven = judge(known_review(), seen).unproven
    if second:
        assert refused is not None
        assert "may still arrive at the provider until 2026-03-01 12:00:01Z" in refused
        assert any("will still arrive" in sentence for sentence in unproven)
    else:
        assert refused is None
        assert len(unproven) == 1


def test_a_sender_that_never_reported_points_to_its_spool() -> None:
    seen = known_whole(known_attempt(evidence={}, outcome_reason="lease_expired"))
    assert any(
        "/spool/a may hold the answer" in sentence for sentence in judge(known_review(), seen).unproven
    )
    refused = _commands(seen)["not-accepted --then cancel --revision 4 --reason '…'"]
    assert refused is not None
    assert "--spool-lost" in refused


def test_an_attempt_that_a_review_released_is_no_question_any_more() -> None:
    released = known_attempt(
        released_by_review=uuid4(), evidence={}, late_delivery_until=NOW + timedelta(days=1)
    )
    second = known_attempt(attempt_id=UUID(int=9))
    seen = known_whole(released, second)
    assert _commands(seen)["not-accepted --then resubmit --revision 4 --reason '…'"] is None
    assert all(str(ATTEMPT) not in sentence for sentence in judge(known_review(), seen).unproven)


def test_what_provably_did_nothing_is_said_so() -> None:
    unsent = known_attempt(attempt_id=UUID(int=7), outcome="unsent", outcome_reason="connect_refused")
    refused = known_attempt(
        attempt_id=UUID(int=8), outcome="refused", outcome_reason="rate_limited", charged=False
    )
    proven = judge(known_review(), known_whole(unsent, refused, known_attempt())).proven
    assert any("No byte of attempt" in sentence and "connect_refused" in sentence for sentence in proven)
    assert any("rate_limited, not charged" in sentence for sentence in proven)


def test_a_hold_says_what_for_and_offers_every_answer_that_it_takes() -> None:
    review = known_review(kind="hold", attempt_id=None)
    seen = known_whole(review=review, phase="held", phase_reason="configuration")
    judgement = judge(review, seen)
    assert judgement.proven == ("It is held for configuration: RELAY_PROVIDER_GENACE_SECRET is not set.",)
    assert [command.split()[0] for command in _commands(seen)] == ["release", "reject", "cancel", "wait"]


def test_what_is_held_since_a_restore_is_not_called_unsent() -> None:
    review = known_review(kind="hold", attempt_id=None)
    seen = known_whole(review=review, phase="held", phase_reason="restored")
    (said,) = judge(review, seen).unproven
    assert "`relay ops reconcile`" in said


def test_a_hold_whose_reason_is_a_code_says_what_the_download_met_with() -> None:
    review = known_review(kind="hold", attempt_id=None)
    met = known_attempt(action="download", evidence={"error": "The output's origin is not https."})
    seen = known_whole(met, review=review, phase="held", phase_reason="output_forbidden")
    seen = replace(seen, journal=(replace(seen.journal[-1], reason="output_forbidden"),))
    held = "It is held for output_forbidden: The output's origin is not https."
    assert held in judge(review, seen).proven


def test_a_delivery_that_is_held_can_not_be_rejected_by_anybody() -> None:
    review = known_review(kind="hold", attempt_id=None)
    seen = known_whole(
        review=review, phase="held", phase_reason="configuration", parent_operation_id=UUID(int=5)
    )
    assert [command.split()[0] for command in _commands(seen)] == ["release", "cancel", "wait"]


def test_a_final_operation_whose_job_turned_up_can_be_accepted_after_all() -> None:
    review = known_review(kind="contradiction", evidence={"job_id": "job-5"})
    seen = known_whole(known_attempt(), review=review, phase="abandoned")
    commands = list(_commands(seen))
    assert commands[0] == "accepted --job-id job-5 --revision 4 --reason '…'"
    assert [command.split()[0] for command in commands] == ["accepted", "settle", "wait"]


def test_only_a_job_that_the_provider_no_longer_knows_can_be_lost() -> None:
    for kind, offered in (("job_unknown", True), ("id_with_error", False)):
        review = known_review(kind=kind)
        seen = known_whole(known_attempt(outcome="accepted"), review=review, phase="accepted", job_id="j")
        assert any(command.startswith("lost") for command in _commands(seen)) is offered


@pytest.mark.parametrize("resolution", sorted(set(Resolution)))
def test_a_closed_review_takes_no_decision(resolution: Resolution) -> None:
    closed = known_review(state="resolved", resolution="abandon", resolved_by="bob")
    decision = Decision(review_id=REVIEW, revision=4, resolution=resolution, reason="r", actor="a")
    with pytest.raises(Refused, match="is resolved as abandon by bob"):
        require_possible(known_whole(known_attempt(), review=closed), decision)


def test_what_a_provider_sent_can_not_move_the_cursor_or_pretend_to_be_markup() -> None:
    body = "\x1b[2J\x1b]0;pwned\x07 [bold red]PAID[/] \x9b1A \u202e"
    seen = known_whole(
        known_attempt(evidence={"status": 500, "body": body, "body_bytes": 9, "error": "\x1b[1A"})
    )
    review = seen.reviews[0]
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="truecolor", width=200)
    console.print(review_screen(review, seen, judge(review, seen)))
    drawn = out.getvalue()
    assert "\x1b[2J" not in drawn
    assert "\x1b[1A" not in drawn
    assert not {"\x07", "\x9b", "\u202e"} & set(drawn)
    assert "\\x1b[2J" in drawn
    assert "[bold red]PAID[/]" in drawn
