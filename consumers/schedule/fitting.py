"""Which of an owner's held operations fit what is left of its allowance. Pure."""

from collections.abc import Iterable
from decimal import Decimal
from uuid import UUID


def fitting(room: Decimal, held: Iterable[tuple[UUID, Decimal]]) -> list[UUID]:
    """Those to release, of `held` (id and maximum cost) in the order in which they were held.

    One that doesn't fit stands in nobody's way: what is left may never be enough for it, and money comes back
    only when a reservation ends or a person raises the limit.
    """
    released: list[UUID] = []
    for operation_id, max_cost in held:
        if max_cost <= room:
            released.append(operation_id)
            room -= max_cost
    return released
