"""Which held operations fit what is left of an allowance or a batch's limits. Pure."""

from collections.abc import Iterable
from decimal import Decimal
from uuid import UUID


def fitting(
    room: Decimal | None, held: Iterable[tuple[UUID, Decimal]], places: int | None = None
) -> list[UUID]:
    """Those to release, of `held` (id and maximum cost) in the order in which they were held: at most
    `places`, and at most `room` together. None is no limit.

    One that doesn't fit stands in nobody's way: what is left may never be enough for it, and money comes back
    only when a reservation ends or a person raises the limit.
    """
    released: list[UUID] = []
    for operation_id, max_cost in held:
        if places is not None and len(released) >= places:
            break
        if room is not None:
            if max_cost > room:
                continue
            room -= max_cost
        released.append(operation_id)
    return released
