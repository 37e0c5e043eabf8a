"""Whose the slot is, decided from what the server says: fenced, our own leftover, or somebody else's."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from relay.errors import Fenced
from relay.standby import FREE_LOOKS, Holder, require_not_taken, wait_until_free

STARTED = datetime(2026, 12, 1, tzinfo=UTC)
OURS = Holder(11, STARTED)
OTHERS = Holder(12, STARTED)
FREE = Holder(None, STARTED)


def looked(was: Holder | None, seen: Iterable[Holder]) -> tuple[int, int]:
    """How often it looked, and how often it announced itself a standby."""
    answers = iter(seen)
    looks, announced = [], []

    def ask(_: object) -> Holder:
        looks.append(1)
        return next(answers)

    wait_until_free("slot", was, ask=ask, sleep=lambda _: None, announce=lambda: announced.append(1))
    return len(looks), len(announced)


def test_who_was_taken_over_from_is_fenced() -> None:
    with pytest.raises(Fenced, match="taken over the slot slot"):
        require_not_taken(OURS, OTHERS, "slot")


@pytest.mark.parametrize(
    ("was", "now"),
    [
        pytest.param(None, OTHERS, id="it never had the slot, or gave it up itself"),
        pytest.param(OURS, OURS, id="the server has not noticed yet"),
        pytest.param(OURS, FREE, id="nobody took it"),
        pytest.param(OURS, Holder(12, STARTED + timedelta(hours=1)), id="the server was started again"),
    ],
)
def test_who_was_not_taken_over_from_is_not_fenced(was: Holder | None, now: Holder) -> None:
    require_not_taken(was, now, "slot")


def test_a_standby_leaves_a_slot_that_is_free_for_one_look_to_a_relay_that_was_cut_off() -> None:
    assert FREE_LOOKS == 2
    assert looked(None, [OTHERS, FREE, OTHERS, FREE, FREE]) == (5, 1)


def test_a_relay_that_was_cut_off_waits_for_its_own_leftover_and_is_no_standby() -> None:
    assert looked(OURS, [OURS, OURS, FREE]) == (3, 0)


def test_a_relay_that_waits_for_its_own_leftover_is_fenced_when_another_was_quicker() -> None:
    with pytest.raises(Fenced):
        looked(OURS, [OURS, OTHERS])
