"""One key's records never overlap and never change places; other keys don't wait for them."""

from hypothesis import given
from hypothesis import strategies as st

from consumers.runtime.lanes import Lanes

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60)


@given(STEPS)
def test_each_key_is_worked_in_order_of_arrival_and_one_at_a_time(steps: list[tuple[str, bool]]) -> None:
    lanes: Lanes[int] = Lanes()
    at_work: dict[str, int] = {}
    started: dict[str, list[int]] = {key: [] for key in "abc"}
    arrived: dict[str, list[int]] = {key: [] for key in "abc"}

    def start(key: str, item: int) -> None:
        assert key not in at_work
        at_work[key] = item
        started[key].append(item)

    def leave(key: str) -> None:
        del at_work[key]
        following = lanes.leave(key)
        if following is not None:
            start(key, following)

    for number, (key, arrives) in enumerate(steps):
        if arrives:
            arrived[key].append(number)
            if lanes.arrive(key, number):
                start(key, number)
        elif key in at_work:
            leave(key)
        assert set(at_work) == {each for each in "abc" if len(arrived[each]) and each in at_work}
        assert len(lanes) == len(at_work)
    while at_work:
        leave(next(iter(at_work)))
    assert started == arrived
    assert len(lanes) == lanes.queued == 0


def test_a_key_does_not_wait_for_another() -> None:
    lanes: Lanes[int] = Lanes()
    assert lanes.arrive("slow", 1)
    assert not lanes.arrive("slow", 2)
    assert lanes.arrive("quick", 3)


def test_withdrawing_keeps_what_is_at_work_and_the_order_of_the_rest() -> None:
    lanes: Lanes[int] = Lanes()
    for item in (1, 2, 3, 4):
        lanes.arrive("key", item)
    assert list(lanes.withdraw(lambda item: item % 2 == 0)) == [2, 4]
    assert lanes.leave("key") == 3
    assert lanes.leave("key") is None
