"""What follows from an observation, as a pure function."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.operations.lifecycle import Phase
from consumers.operations.polling import (
    RETRY_AFTER_MOST_S,
    SLOWER,
    Contradiction,
    Finish,
    Noted,
    Poll,
    Subject,
    Verdict,
    away_s,
    decide,
    jitter,
    says_nothing_of_the_account,
    storable_cost,
)
from consumers.providers.observation import Observation, Output
from consumers.providers.profile import Profile
from consumers.providers.profiles_folder import load_profiles

NOW: Final = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
PROFILE: Final = load_profiles(())["simulator"]
GENACE: Final = load_profiles(())["genace"]
OUTPUTS: Final = (Output(url="https://files.example/1", name="1.bin"),)
SUBJECT: Final = Subject(
    operation_id=UUID(int=7),
    version=4,
    phase="accepted",
    is_final=False,
    job_id="job-1",
    provider="simulator",
    account="default",
    profile_digest="0" * 64,
    dispatch_no=1,
    max_cost=Decimal("2.000000"),
    accounting="reserved",
    observed_at=None,
    observations=0,
    accepted_at=NOW,
    last_seen_at=NOW,
    updated_at=NOW,
    job_cost=None,
    now=NOW,
)


def saw(state: str, **seen: Any) -> Observation:
    return Observation(state=state, reason=state, evidence={}, **seen)  # type: ignore[arg-type]


def follows(subject: Subject, observation: Observation, profile: Profile = PROFILE) -> Verdict:
    return decide(subject, observation, profile, job_id="job-1", asked_at=NOW)


def later(seconds: float) -> Subject:
    return replace(SUBJECT, now=NOW + timedelta(seconds=seconds))


def poll(subject: Subject, observation: Observation) -> Poll:
    verdict = follows(subject, observation)
    assert isinstance(verdict, Poll)
    return verdict


@pytest.mark.parametrize(
    "observation",
    [saw("running"), saw("succeeded"), saw("unrecognised"), saw("not_found"), saw("error")],
    ids=lambda seen: str(seen.state),
)
@given(st.floats(min_value=0, max_value=1e9))
def test_nothing_but_a_word_of_the_provider_ends_an_operation(
    observation: Observation, seconds: float
) -> None:
    assert isinstance(follows(later(seconds), observation), Poll)


def test_a_success_with_outputs_ends_it_at_the_cost_that_was_said() -> None:
    seen = saw("succeeded", outputs=OUTPUTS, cost=Decimal("0.7"))
    assert follows(SUBJECT, seen) == Finish(Phase.SUCCEEDED, Decimal("0.700000"))


def test_a_success_whose_cost_is_not_said_is_not_settled() -> None:
    assert follows(SUBJECT, saw("succeeded", outputs=OUTPUTS)) == Finish(Phase.SUCCEEDED, None)


def test_where_the_profile_says_so_a_success_costs_what_was_reserved() -> None:
    seen = saw("succeeded", outputs=OUTPUTS)
    assert follows(SUBJECT, seen, GENACE) == Finish(Phase.SUCCEEDED, Decimal("2.000000"))


def test_an_id_that_came_with_an_error_is_never_settled_by_assumption() -> None:
    subject = replace(SUBJECT, accounting="unsettled")
    seen = saw("succeeded", outputs=OUTPUTS)
    assert follows(subject, seen, GENACE) == Finish(Phase.SUCCEEDED, None)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_job_without_a_result_is_never_settled_by_assumption(state: str) -> None:
    assert follows(SUBJECT, saw(state), GENACE) == Finish(Phase(state), None)


def test_the_pace_grows_from_the_least_to_the_most() -> None:
    waits = [poll(replace(SUBJECT, observations=number), saw("running")).delay_s for number in (0, 2, 4, 50)]
    assert waits == sorted(waits)
    assert PROFILE.poll.min_s <= waits[0]
    assert waits[-1] <= PROFILE.poll.max_s * 1.2


def test_retry_after_is_kept_within_reason() -> None:
    assert 17.0 <= poll(SUBJECT, saw("error", retry_after_s=17.0)).delay_s <= 17.0 * 1.2
    longest_s = poll(SUBJECT, saw("error", retry_after_s=80_000.0)).delay_s
    assert RETRY_AFTER_MOST_S <= longest_s <= RETRY_AFTER_MOST_S * 1.2
    assert poll(SUBJECT, saw("error", retry_after_s=0.0)).delay_s >= PROFILE.poll.min_s


def test_an_absent_job_is_doubted_only_beyond_its_grace() -> None:
    grace_s = PROFILE.not_found_grace_s
    assert poll(later(grace_s - 1), saw("not_found")).unknown is None
    doubted = poll(later(grace_s + 1), saw("not_found"))
    assert doubted.unknown == "not_found"
    assert 1.0 <= doubted.delay_s / (PROFILE.poll.max_s * SLOWER) <= 1.2


@pytest.mark.parametrize(
    "seen", [saw("running"), saw("error", retry_after_s=60.0)], ids=["at its pace", "told the same time"]
)
@pytest.mark.parametrize("since_s", [1.0, 2 * PROFILE.give_up_s], ids=["young", "given up"])
def test_jobs_of_one_moment_are_asked_again_in_many(seen: Observation, since_s: float) -> None:
    waits = [
        poll(replace(later(since_s), operation_id=UUID(int=number), observations=50), seen).delay_s
        for number in range(1000)
    ]
    least_s, tenth_s = min(waits), (max(waits) - min(waits)) / 10
    assert max(waits) >= least_s * 1.19
    in_each_tenth = Counter(min(9, int((wait - least_s) / tenth_s)) for wait in waits)
    assert max(in_each_tenth.values()) < 200


def test_what_a_webhook_told_of_during_the_get_is_asked_again_soon() -> None:
    nudged = replace(SUBJECT, observations=50, nudged_at=NOW + timedelta(seconds=1))
    assert poll(nudged, saw("running")).delay_s == PROFILE.poll.min_s
    assert poll(nudged, saw("error", retry_after_s=60.0)).delay_s >= 60.0
    before = replace(nudged, nudged_at=NOW - timedelta(seconds=1))
    assert poll(before, saw("running")).delay_s >= PROFILE.poll.max_s


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        ("no_answer", True),
        ("status_503", True),
        ("status_429", True),
        ("answer_cut", False),
        ("status_400", False),
    ],
)
def test_only_what_would_meet_every_job_counts_against_the_account(reason: str, counts: bool) -> None:
    seen = Observation(state="error", reason=reason, evidence={})
    assert says_nothing_of_the_account(seen) is counts
    assert not says_nothing_of_the_account(saw("not_found"))


def test_an_account_that_stays_away_is_asked_ever_more_rarely_up_to_minutes() -> None:
    waits = [away_s(failed, PROFILE) for failed in range(3, 60)]
    assert waits[0] == PROFILE.poll.min_s
    assert waits == sorted(waits)
    assert waits[-1] == 60.0


def test_the_grace_counts_from_when_the_job_was_last_seen() -> None:
    subject = replace(later(3600), accepted_at=None, last_seen_at=NOW + timedelta(seconds=3599))
    assert poll(subject, saw("not_found")).unknown is None


def test_a_job_past_give_up_is_doubted_whatever_it_says() -> None:
    for state in ("running", "succeeded", "unrecognised", "error"):
        assert poll(later(PROFILE.give_up_s + 1), saw(state)).unknown == "give_up"


@pytest.mark.parametrize(
    ("phase", "observation", "expected"),
    [
        ("succeeded", saw("failed"), Contradiction),
        ("failed", saw("succeeded", outputs=OUTPUTS), Contradiction),
        ("lost", saw("running"), Noted),
        ("lost", saw("succeeded"), Contradiction),
        ("succeeded", saw("succeeded", cost=Decimal("0.5")), Noted),
        ("succeeded", saw("succeeded", cost=Decimal("0.6")), Contradiction),
        ("succeeded", saw("unrecognised"), Noted),
        ("succeeded", saw("not_found"), Noted),
    ],
)
def test_what_ended_is_contradicted_by_another_state_or_cost_alone(
    phase: str, observation: Observation, expected: type[Verdict]
) -> None:
    final = replace(SUBJECT, phase=phase, is_final=True, job_cost=Decimal("0.5"))
    assert isinstance(follows(final, observation), expected)


def test_running_contradicts_an_end_only_when_it_was_asked_for_after_it() -> None:
    final = replace(SUBJECT, phase="succeeded", is_final=True)
    asked_at = NOW + timedelta(seconds=1)
    verdict = decide(final, saw("running"), PROFILE, job_id="job-1", asked_at=asked_at)
    assert isinstance(verdict, Contradiction)
    assert isinstance(follows(final, saw("running")), Noted)


def test_an_answer_about_another_job_moves_nothing() -> None:
    verdict = decide(SUBJECT, saw("succeeded", outputs=OUTPUTS), PROFILE, job_id="job-2", asked_at=NOW)
    assert isinstance(verdict, Noted)


@pytest.mark.parametrize("phase", ["prepared", "claimed", "submitting", "uncertain", "held"])
def test_an_operation_that_is_not_accepted_is_not_moved(phase: str) -> None:
    verdict = follows(replace(SUBJECT, phase=phase), saw("succeeded", outputs=OUTPUTS))
    assert isinstance(verdict, Noted)


@given(st.decimals(min_value=0, max_value=Decimal(10) ** 13, allow_nan=False))
def test_no_charge_is_booked_short(cost: Decimal) -> None:
    kept = storable_cost(cost)
    assert kept is not None
    assert cost <= kept < cost + Decimal("0.000001")


def test_a_cost_that_no_column_holds_is_not_known() -> None:
    assert storable_cost(Decimal(10) ** 14) is None
    assert storable_cost(Decimal("99999999999999.9999991")) is None
    assert storable_cost(Decimal(-1)) is None
    assert storable_cost(None) is None


@given(st.uuids(), st.integers(min_value=0, max_value=10**6))
def test_jitter_is_a_fraction_and_the_same_each_time(operation_id: UUID, number: int) -> None:
    drawn = jitter(operation_id, number)
    assert 0 <= drawn < 1
    assert drawn == jitter(operation_id, number)
