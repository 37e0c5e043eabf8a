"""What becomes of an operation after a restore, by what Kafka, the dispatchers' group and spools know."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID, uuid5

import pytest

from consumers.operations.lost import (
    Decision,
    Life,
    Subject,
    Submission,
    Transition,
    Verdict,
    Witness,
    decide,
    evidence,
    submissions,
)

SPACE: Final = UUID("0b0b6a52-7c35-4d4d-9df7-5c3f1f6a2f11")
OPERATION: Final = uuid5(SPACE, "operation")
FIRST, SECOND = uuid5(SPACE, "first"), uuid5(SPACE, "second")
AT: Final = datetime(2026, 12, 1, 9, 0, tzinfo=UTC)
SUBJECT: Final = Subject(
    operation_id=OPERATION,
    owner_id="studio",
    kind="generation",
    specification_hash="00",
    phase="held",
    phase_reason="restored",
    dispatch_no=1,
    version=2,
    provider="simulator",
    profile_digest="11",
)
SEEN: Final = Witness(covered=True, kept_version=1)
# Cause, attempt and job by the phase that is entered.
STEPS: Final = {
    "claimed": ("claim", None, None),
    "submitting": ("submit", FIRST, None),
    "accepted": ("answer", FIRST, "job-1"),
    "uncertain": ("unknown", FIRST, None),
    "rejected": ("rule", FIRST, None),
    "prepared": ("unsent", FIRST, None),
    "held": ("hold", None, None),
    "cancelled": ("cancel", None, None),
    "succeeded": ("observation", uuid5(SPACE, "observation"), "job-1"),
}


def life(*phases: str, **changed: object) -> Life:
    """The operation's life after version 1, by the phases that it entered; `changed` is said of the last
    step."""
    found = Life(OPERATION, "studio", "generation", "00")
    before = "prepared"
    for number, phase in enumerate(phases):
        cause, attempt_id, job_id = STEPS[phase]
        step = Transition(
            version=2 + number,
            from_phase=before,
            to_phase=phase,
            cause=cause,
            reason="as told",
            actor="dispatch@host",
            dispatch_no=1,
            job_id=job_id,
            attempt_id=attempt_id,
            at=AT + timedelta(seconds=number),
            event_id=uuid5(SPACE, f"event {number}"),
            place=f"relay.operation.transitioned/0@{number}",
            order=(1, 100 + number, 0),
        )
        if number == len(phases) - 1:
            step = replace(step, **changed)  # type: ignore[arg-type]
        found.transitions.append(step)
        before = phase
    return found


def decided(found: Life | None, witness: Witness = SEEN, **changed: object) -> Decision:
    return decide(replace(SUBJECT, **changed), found, witness)  # type: ignore[arg-type]


def test_what_nothing_speaks_of_is_released() -> None:
    assert decided(None).verdict is Verdict.RELEASE


@pytest.mark.parametrize(
    "phases",
    [
        ("claimed", "submitting"),
        ("claimed", "submitting", "uncertain"),
        ("claimed", "submitting", "accepted"),
        ("claimed", "submitting", "rejected"),
        ("claimed", "submitting", "accepted", "succeeded"),
    ],
)
def test_any_submission_that_is_lost_makes_it_uncertain(phases: tuple[str, ...]) -> None:
    found = decided(life(*phases))
    assert found.verdict is Verdict.UNCERTAIN
    assert [one.attempt_id for one in found.submissions] == [FIRST]
    assert found.submissions[0].job_id == ("job-1" if "accepted" in phases else None)
    # Its sender told what came of it, or did not: that decides whether its spool must be read first.
    assert found.submissions[0].reported == (len(phases) > 2)


@pytest.mark.parametrize(
    "phases", [("claimed", "prepared"), ("claimed", "held"), ("claimed", "submitting", "prepared")]
)
def test_what_provably_sent_nothing_is_no_submission(phases: tuple[str, ...]) -> None:
    assert decided(life(*phases)).verdict is Verdict.RELEASE


def test_a_claim_of_whose_end_nobody_heard_counts_as_sent() -> None:
    lost = decided(life("claimed"))
    assert (lost.verdict, len(lost.submissions)) == (Verdict.UNCERTAIN, 1)
    assert lost == decided(life("claimed")), "a second run makes the same attempt"
    # The same for a claim that was restored itself, whose lease or hold ended it only afterwards.
    restored = decided(None, claim_dispatch=1, claim_version=2, claim_end="hold", claim_attempt=SECOND)
    assert restored.verdict is Verdict.UNCERTAIN
    assert [one.attempt_id for one in restored.submissions] == [SECOND]
    ended = replace(SEEN, kept_version=3)
    before = decided(None, ended, claim_dispatch=1, claim_version=2, claim_end="lease_expired")
    assert before.verdict is Verdict.RELEASE


def test_an_event_that_the_dispatchers_are_done_with_and_no_claim_counts_as_sent() -> None:
    handled = replace(SEEN, handled=True, last_dispatch=1)
    assert decided(None, handled).verdict is Verdict.UNCERTAIN
    claimed = decided(life("claimed", "held"), handled)
    assert claimed.verdict is Verdict.RELEASE, "the claim is known, and how it ended"
    assert decided(None, replace(handled, handled=False)).verdict is Verdict.RELEASE


def test_a_spool_speaks_where_kafka_is_silent() -> None:
    told = Submission(attempt_id=SECOND, dispatch_no=1, worker="", sent_at=AT, said="a spool has it")
    found = decided(None, replace(SEEN, spooled=(told,)))
    assert (found.verdict, found.submissions) == (Verdict.UNCERTAIN, (told,))


def test_what_kafka_can_not_vouch_for_stays_held() -> None:
    assert decided(None, replace(SEEN, covered=False)).verdict is Verdict.HOLD
    holes = life("claimed", "held")
    holes.transitions[0] = replace(holes.transitions[0], version=7)
    holes.transitions[1] = replace(holes.transitions[1], version=9)
    assert decided(holes).verdict is Verdict.HOLD


def test_an_end_that_a_person_wanted_is_not_undone() -> None:
    found = decided(life("cancelled", reason="not wanted", actor="ann@desk"))
    assert found.verdict is Verdict.HOLD
    assert "ann@desk" in found.why


def test_what_was_approved_again_waits_beside_its_lost_twin() -> None:
    twin = replace(SEEN, twin=SECOND)
    assert decided(None, replace(twin, kept_version=0), phase="prepared").verdict is Verdict.HOLD
    assert decided(None, twin).verdict is Verdict.RELEASE, "Kafka knew it before: it is no repeat"


def test_a_job_that_a_person_adopted_is_kept_without_an_attempt() -> None:
    found = decided(life("claimed", "submitting", "uncertain", "accepted", cause="review", attempt_id=None))
    assert {one.job_id for one in found.submissions} == {None, "job-1"}
    assert len({one.attempt_id for one in found.submissions}) == 2


def test_what_is_past_sending_is_told_of_and_never_moved_back() -> None:
    assert decided(None, phase="accepted", phase_reason="answer").verdict is Verdict.LEAVE
    late = decided(life("claimed", "submitting"), phase="cancelled", phase_reason="cancel")
    assert late.verdict is Verdict.UNCERTAIN


def test_two_requests_of_one_life_are_two_submissions() -> None:
    found = life("claimed", "submitting", "uncertain")
    again = life("submitting", "accepted").transitions
    found.transitions += [
        replace(one, version=one.version + 5, attempt_id=SECOND, order=(1, 200 + at, 0))
        for at, one in enumerate(again)
    ]
    assert [(one.attempt_id, one.job_id) for one in submissions(found)] == [(FIRST, None), (SECOND, "job-1")]


def test_evidence_names_places_and_is_bounded() -> None:
    told = evidence(life(*["claimed", "prepared"] * 100), [], "because")
    assert (len(told["lost"]), told["lost"][-1]["place"]) == (50, "relay.operation.transitioned/0@199")
