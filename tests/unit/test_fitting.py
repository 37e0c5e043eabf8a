"""Which held operations fit what is left of an allowance."""

from decimal import Decimal
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from consumers.schedule.fitting import fitting

COSTS = st.lists(st.decimals(min_value=0, max_value=1000, places=6), max_size=30)


def held(costs: list[Decimal]) -> list[tuple[UUID, Decimal]]:
    return [(UUID(int=number), cost) for number, cost in enumerate(costs, start=1)]


@given(COSTS, st.decimals(min_value=-10, max_value=1000, places=6))
def test_what_is_released_fits_together(costs: list[Decimal], room: Decimal) -> None:
    waiting = held(costs)
    released = fitting(room, waiting)
    assert sum((cost for one, cost in waiting if one in released), Decimal(0)) <= max(room, Decimal(0))


@given(COSTS, st.decimals(min_value=0, max_value=1000, places=6))
def test_they_leave_in_the_order_in_which_they_were_held(costs: list[Decimal], room: Decimal) -> None:
    released = fitting(room, held(costs))
    assert released == sorted(released)


@given(COSTS, st.decimals(min_value=0, max_value=1000, places=6))
def test_nothing_that_fits_is_left_behind(costs: list[Decimal], room: Decimal) -> None:
    waiting = held(costs)
    released = fitting(room, waiting)
    left = room - sum((cost for one, cost in waiting if one in released), Decimal(0))
    assert all(cost > left for one, cost in waiting if one not in released)


def test_one_that_does_not_fit_stands_in_nobodys_way() -> None:
    assert fitting(Decimal(5), held([Decimal(9), Decimal(3), Decimal(3), Decimal(2)])) == [
        UUID(int=2),
        UUID(int=4),
    ]
