"""The demo's plan shows every fault where it can be counted, and never so that the provider gets paused."""

import pytest

from consumers.demo.plan import EVERY, LEAST, LONG_ONES, make_plan
from consumers.providers.simulator_world import Fault

SIZES = [LEAST, 40, 41, 100, 300]
GENERIC = [Fault.BAD_GATEWAY, Fault.ERROR_AFTER_CREATION]
"""Three equal ones of these in a row pause the provider account."""


@pytest.mark.parametrize("operations", SIZES)
def test_every_frame_is_approved_once(operations: int) -> None:
    plan = make_plan(operations, seed=1)
    names = [frame.name for frame in (*plan.first, *plan.second)]
    assert len(set(names)) == len(names) == operations


@pytest.mark.parametrize("operations", SIZES)
@pytest.mark.parametrize("seed", range(5))
def test_every_fault_strikes_after_the_dispatcher_was_killed(operations: int, seed: int) -> None:
    plan = make_plan(operations, seed)
    assert set(plan.expected) == set(EVERY)
    assert len(set(plan.expected.values())) == 1


@pytest.mark.parametrize("operations", SIZES)
def test_something_long_is_under_way_when_the_dispatcher_is_killed(operations: int) -> None:
    plan = make_plan(operations, seed=1)
    assert {fault for frame in plan.first for fault in frame.faults} == set(LONG_ONES)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("fault", GENERIC)
def test_equal_failures_are_far_apart(fault: Fault, seed: int) -> None:
    struck = [number for number, frame in enumerate(make_plan(300, seed).second) if fault in frame.faults]
    thirds = zip(struck, struck[2:], strict=False)
    assert all(third - first > len(EVERY) for first, third in thirds)


def test_a_seed_is_a_plan() -> None:
    assert make_plan(40, seed=3) == make_plan(40, seed=3)
    assert make_plan(40, seed=3) != make_plan(40, seed=4)


def test_too_few_frames_are_refused() -> None:
    with pytest.raises(ValueError, match="can't meet every fault"):
        make_plan(LEAST - 1, seed=1)
