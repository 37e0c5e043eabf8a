"""Infrastructure that is away parks nothing, a permanent failure isn't tried again, a transient one ends."""

from hypothesis import given
from hypothesis import strategies as st

from consumers.runtime.retry import (
    CEILING_S,
    FIRST_CEILING_S,
    UNAVAILABLE_CEILING_S,
    Again,
    Failure,
    Park,
    decide,
)

ATTEMPTS = st.integers(1, 10_000)
TIMES_S = st.floats(0, 1e9)
DRAWS = st.floats(0, 1, exclude_max=True)


@given(ATTEMPTS, TIMES_S, DRAWS)
def test_infrastructure_that_is_away_parks_nothing(attempt: int, failing_for_s: float, draw: float) -> None:
    decision = decide(
        Failure.UNAVAILABLE, attempt=attempt, failing_for_s=failing_for_s, retry_for_s=0, draw=draw
    )
    assert isinstance(decision, Again)
    assert 0 <= decision.delay_s <= UNAVAILABLE_CEILING_S


@given(ATTEMPTS, TIMES_S, DRAWS)
def test_a_permanent_failure_is_parked_at_once(attempt: int, failing_for_s: float, draw: float) -> None:
    assert decide(
        Failure.PERMANENT, attempt=attempt, failing_for_s=failing_for_s, retry_for_s=1e9, draw=draw
    ) == Park("permanent")


@given(ATTEMPTS, st.floats(0, 900), st.floats(0, 900), DRAWS)
def test_a_transient_failure_is_tried_until_its_time_is_over_and_then_parked(
    attempt: int, failing_for_s: float, retry_for_s: float, draw: float
) -> None:
    decision = decide(
        Failure.TRANSIENT, attempt=attempt, failing_for_s=failing_for_s, retry_for_s=retry_for_s, draw=draw
    )
    if failing_for_s >= retry_for_s:
        assert decision == Park("exhausted")
    else:
        assert isinstance(decision, Again)
        assert 0 <= decision.delay_s <= min(CEILING_S, retry_for_s - failing_for_s)


def test_the_ceiling_doubles_and_jitter_reaches_down_to_zero() -> None:
    def delay_s(attempt: int, draw: float) -> float:
        decision = decide(Failure.TRANSIENT, attempt=attempt, failing_for_s=0, retry_for_s=900, draw=draw)
        assert isinstance(decision, Again)
        return decision.delay_s

    assert [delay_s(attempt, 0.5) for attempt in (1, 2, 3)] == [
        FIRST_CEILING_S * factor / 2 for factor in (1, 2, 4)
    ]
    assert delay_s(5, 0.0) == 0


def test_a_handler_that_asks_for_a_delay_gets_at_least_that() -> None:
    decision = decide(
        Failure.TRANSIENT, attempt=1, failing_for_s=0, retry_for_s=900, draw=0.1, retry_after_s=12.5
    )
    assert decision == Again(12.5)
