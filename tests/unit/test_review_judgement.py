"""A reviewer is told what is proven, what isn't, and which commands would be accepted now; what a provider
sent can't move the reviewer's cursor.
"""

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID, uuid4

import pytest
from rich.console import Console

from consumers.operations.decisions import Decision, Refused, Resolution, require_possible
from consumers.operations.records import Attempt, Entry, Job, Operation, Reservation, Review, Whole
from consumers.review.judgement import judge
from consumers.review.screen import review_screen

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
OPERATION: Final = UUID(int=1)
ATTEMPT: Final = UUID(int=2)
REVIEW: Final = UUID(int=3)


def _attempt(**changes: Any) -> Attempt:
    attempt = Attempt(
        attempt_id=ATTEMPT,
        action="submit",
        dispatch_no=1,
        worker="dispatch@host:1",
        started_at=NOW,
        first_sent_at=NOW,
        finished_at=NOW,
        outcome="unknown",
        outcome_reason="no_answer",
        charged=None,
        http_status=None,
        request_sha256="0" * 64,
        idempotency_key=None,
        spool="/spool/a",
        late_delivery_until=NOW - timedelta(seconds=1),
        released_by_review=None,
        evidence={"status": None, "error": "ReadTimeout"},
    )
    return replace(attempt, **changes)


def _review(**changes: Any) -> Review:
    review = Review(
        review_id=REVIEW,
        attempt_id=ATTEMPT,
        kind="uncertain_submission",
        state="open",
        severity=1,
        revision=4,
        opened_at=NOW,
        deadline=NOW,
        evidence={},
        resolution=None,
        resolution_reason=None,
        resolved_by=None,
        resolved_at=None,
    )
    return replace(review, **changes)


def _whole(
    *attempts: Attempt, review: Review | None = None, jobs: tuple[Job, ...] = (), **changes: Any
) -> Whole:
    operation = Operation(
        operation_id=OPERATION,
        kind="generation",
        owner_id="studio",
        operation_key="frame 7",
        phase="uncertain",
        phase_reason="no_answer",
        is_final=False,
        job_id=None,
        provider="genace",
        account="default",
        profile_digest="0" * 64,
        specification_hash="1" * 64,
        payload_bytes=10,
        max_cost=Decimal(5),
        cost_unit="credit",
        accounting="reserved",
        source_ref=None,
        requested_by="ann",
        dispatch_no=1,
        version=4,
        claimed_by=None,
        lease_expires_at=None,
        not_before=None,
        next_action_at=None,
        held_at=None,
        open_reviews=1,
        observed_at=None,
        observations=0,
        cancel_requested=False,
        parent_operation_id=None,
        created_at=NOW,
        updated_at=NOW,
    )
    operation = replace(operation, **changes)
    entry = Entry(
        version=operation.version,
        from_phase="claimed",
        to_phase=operation.phase,
        cause="hold",
        reason="RELAY_PROVIDER_GENACE_SECRET is not set",
        actor="w",
        attempt_id=None,
        review_id=None,
        job_id=None,
        dispatch_no=1,
        at=NOW,
    )
    booked = Reservation(
        attempt_id=ATTEMPT,
        unit="credit",
        amount=Decimal("5.000000"),
        state="reserved",
        settled_amount=None,
        created_at=NOW,
        updated_at=NOW,
    )
    return Whole(
        read_at=NOW,
        operation=operation,
        journal=(entry,),
        attempts=attempts,
        jobs=jobs,
        reservations=(booked,) if attempts else (),
        outputs=(),
        reviews=(review or _review(),),
        incidents=(),
        deliveries=(),
    )


def _job(job_id: str, role: str = "candidate") -> Job:
    return Job(
        provider_account="genace/default",
        job_id=job_id,
        attempt_id=ATTEMPT,
        role=role,
        state=None,
        cost=None,
        first_seen_at=NOW,
    )


def _commands(seen: Whole) -> dict[str, str | None]:
    return {
        choice.command.split(f"{REVIEW} ")[1]: choice.refused_now
        for choice in judge(seen.reviews[0], seen).choices
    }


def test_silence_proves_nothing_about_a_job() -> None:
    judgement = judge(_review(), _whole(_attempt()))
    assert any("no answer was read (ReadTimeout)" in sentence for sentence in judgement.proven)
    assert any("5 credit are reserved" in sentence for sentence in judgement.proven)
    assert judgement.unproven == (
        f"Whether the provider made a job of attempt {ATTEMPT}, and charged for it.",
    )


def test_a_process_that_knows_that_it_sent_nothing_is_quoted() -> None:
    """It said so after the lease had run out: the operation is uncertain, and a person can go by this."""
    evidence = {"status": None, "sent": False, "error": "DeadlinePassed"}
    (said, *_) = judge(_review(), _whole(_attempt(evidence=evidence))).proven
    assert said == f"Of attempt {ATTEMPT}: its process says that no byte left the machine (DeadlinePassed)."


def test_every_answer_to_an_open_question_is_offered_as_a_command_with_the_revision_that_was_shown() -> None:
    assert _commands(_whole(_attempt())) == {
        "accepted --job-id ID --revision 4 --reason '…'": None,
        "not-accepted --then resubmit --revision 4 --reason '…'": None,
        "not-accepted --then reject --revision 4 --reason '…'": None,
        "not-accepted --then cancel --revision 4 --reason '…'": None,
        "abandon --revision 4 --reason '…'": None,
    }


def test_each_id_that_was_seen_is_offered_and_quoted_for_the_shell() -> None:
    review = _review(kind="candidate_id", evidence={"candidates": ["job-1", "it's"]})
    seen = _whole(_attempt(), review=review, jobs=(_job("job-1"),))
    accepted = [command for command in _commands(seen) if command.startswith("accepted")]
    assert accepted == [
        "accepted --job-id job-1 --revision 4 --reason '…'",
        "accepted --job-id 'it'\"'\"'s' --revision 4 --reason '…'",
    ]


@pytest.mark.parametrize("second", [0, 1])
def test_what_may_still_arrive_is_unproven_until_its_last_second(second: int) -> None:
    seen = _whole(_attempt(late_delivery_until=NOW + timedelta(seconds=second)))
    refused = _commands(seen)["not-accepted --then resubmit --revision 4 --reason '…'"]
    unproven = judge(_review(), seen).unproven
    if second:
        assert refused is not None
        assert "may still arrive at the provider until 2026-03-01 12:00:01Z" in refused
        assert any("will still arrive" in sentence for sentence in unproven)
    else:
        assert refused is None
        assert len(unproven) == 1


def test_a_sender_that_never_reported_points_to_its_spool() -> None:
    seen = _whole(_attempt(evidence={}, outcome_reason="lease_expired"))
    assert any("/spool/a may hold the answer" in sentence for sentence in judge(_review(), seen).unproven)
    refused = _commands(seen)["not-accepted --then cancel --revision 4 --reason '…'"]
    assert refused is not None
    assert "--spool-lost" in refused


def test_an_attempt_that_a_review_released_is_no_question_any_more() -> None:
    released = _attempt(released_by_review=uuid4(), evidence={}, late_delivery_until=NOW + timedelta(days=1))
    second = _attempt(attempt_id=UUID(int=9))
    seen = _whole(released, second)
    assert _commands(seen)["not-accepted --then resubmit --revision 4 --reason '…'"] is None
    assert all(str(ATTEMPT) not in sentence for sentence in judge(_review(), seen).unproven)


def test_what_provably_did_nothing_is_said_so() -> None:
    unsent = _attempt(attempt_id=UUID(int=7), outcome="unsent", outcome_reason="connect_refused")
    refused = _attempt(
        attempt_id=UUID(int=8), outcome="refused", outcome_reason="rate_limited", charged=False
    )
    proven = judge(_review(), _whole(unsent, refused, _attempt())).proven
    assert any("No byte of attempt" in sentence and "connect_refused" in sentence for sentence in proven)
    assert any("rate_limited, not charged" in sentence for sentence in proven)


def test_a_hold_says_what_for_and_offers_three_ends() -> None:
    review = _review(kind="hold", attempt_id=None)
    seen = _whole(review=review, phase="held", phase_reason="configuration")
    judgement = judge(review, seen)
    assert judgement.proven == ("It is held for configuration: RELAY_PROVIDER_GENACE_SECRET is not set.",)
    assert [command.split()[0] for command in _commands(seen)] == ["release", "reject", "cancel"]


def test_a_hold_whose_reason_is_a_code_says_what_the_download_met_with() -> None:
    review = _review(kind="hold", attempt_id=None)
    met = _attempt(action="download", evidence={"error": "The output's origin is not https."})
    seen = _whole(met, review=review, phase="held", phase_reason="output_forbidden")
    seen = replace(seen, journal=(replace(seen.journal[-1], reason="output_forbidden"),))
    held = "It is held for output_forbidden: The output's origin is not https."
    assert held in judge(review, seen).proven


def test_a_delivery_that_is_held_can_not_be_rejected_by_anybody() -> None:
    review = _review(kind="hold", attempt_id=None)
    seen = _whole(review=review, phase="held", phase_reason="configuration", parent_operation_id=UUID(int=5))
    assert [command.split()[0] for command in _commands(seen)] == ["release", "cancel"]


def test_a_question_that_no_command_decides_yet_is_said_to_stay_open() -> None:
    review = _review(kind="second_id")
    seen = _whole(review=review, phase="succeeded", job_id="j")
    out = io.StringIO()
    Console(file=out, width=200).print(review_screen(review, seen, judge(review, seen)))
    assert "No command of this release decides" in out.getvalue()


def test_a_final_operation_whose_job_turned_up_can_be_accepted_after_all() -> None:
    review = _review(kind="contradiction", evidence={"job_id": "job-5"})
    seen = _whole(_attempt(), review=review, phase="abandoned")
    commands = list(_commands(seen))
    assert commands[0] == "accepted --job-id job-5 --revision 4 --reason '…'"
    assert [command.split()[0] for command in commands] == ["accepted", "settle"]


def test_only_a_job_that_the_provider_no_longer_knows_can_be_lost() -> None:
    for kind, offered in (("job_unknown", True), ("id_with_error", False)):
        review = _review(kind=kind)
        seen = _whole(_attempt(outcome="accepted"), review=review, phase="accepted", job_id="j")
        assert any(command.startswith("lost") for command in _commands(seen)) is offered


@pytest.mark.parametrize("resolution", sorted(set(Resolution)))
def test_a_closed_review_takes_no_decision(resolution: Resolution) -> None:
    closed = _review(state="resolved", resolution="abandon", resolved_by="bob")
    decision = Decision(review_id=REVIEW, revision=4, resolution=resolution, reason="r", actor="a")
    with pytest.raises(Refused, match="is resolved as abandon by bob"):
        require_possible(_whole(_attempt(), review=closed), decision)


def test_what_a_provider_sent_can_not_move_the_cursor_or_pretend_to_be_markup() -> None:
    body = "\x1b[2J\x1b]0;pwned\x07 [bold red]PAID[/] \x9b1A \u202e"
    seen = _whole(_attempt(evidence={"status": 500, "body": body, "body_bytes": 9, "error": "\x1b[1A"}))
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
