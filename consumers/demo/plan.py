"""Which frames are approved, and which of them meet a fault. Pure: it all follows from number and seed."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from consumers.providers.simulator_world import Fault

LONG_ONES: Final = (Fault.LATE_ACCEPTANCE, Fault.SLOW_DRIP)
"""They keep an operation in `submitting` until its deadline: what the dispatcher is killed in."""
EVERY: Final = tuple(fault for fault in Fault if fault is not Fault.SAME_JOB)
"""Not the one that makes an operation share another's job: what becomes of it depends on which was faster."""
LEAST: Final = len(LONG_ONES) + len(EVERY)
"""Fewer frames can't show every fault."""
FIRST_PART: Final = 4
"""One frame in this many is approved before the dispatcher is killed, the others after."""
FRAMES_PER_ROUND: Final = 28
"""Every fault strikes once in this many frames, so that three equal ones never follow each other closely:
that would pause the provider account, by design."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A storyboard frame that somebody approves, and what the provider will do to its job."""

    number: int
    prompt: str
    faults: tuple[Fault, ...] = ()

    @property
    def name(self) -> str:
        return f"frame-{self.number:04d}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`first` is approved before the dispatcher is killed, `second` before and while the relay is.

    `expected` is how often each fault must strike; those of `first` may be lost with the dispatcher, and
    don't count.
    """

    first: tuple[Frame, ...]
    second: tuple[Frame, ...]

    @property
    def expected(self) -> Mapping[Fault, int]:
        return Counter(fault for frame in self.second for fault in frame.faults)


def make_plan(operations: int, seed: int) -> Plan:
    """A plan of `operations` frames. Raises ValueError below `LEAST`."""
    if operations < LEAST:
        raise ValueError(f"{operations} frames can't meet every fault; at least {LEAST} can")
    draw = random.Random(f"demo:{seed}")
    size = min(max(len(LONG_ONES), operations // FIRST_PART), operations - len(EVERY))
    first = [*((fault,) for fault in LONG_ONES), *(() for _ in range(size - len(LONG_ONES)))]
    draw.shuffle(first)
    second = _struck(operations - size, draw)
    frames = [
        Frame(number, _prompt(draw), faults) for number, faults in enumerate([*first, *second], start=1)
    ]
    return Plan(tuple(frames[:size]), tuple(frames[size:]))


def _struck(count: int, draw: random.Random) -> list[tuple[Fault, ...]]:
    """Rounds of frames; each has every fault once, in an order of its own."""
    rounds = max(1, count // FRAMES_PER_ROUND)
    sizes = [count // rounds + (1 if number < count % rounds else 0) for number in range(rounds)]
    struck: list[tuple[Fault, ...]] = []
    for size in sizes:
        some: list[tuple[Fault, ...]] = [(fault,) for fault in EVERY] + [()] * (size - len(EVERY))
        draw.shuffle(some)
        struck += some
    return struck


_WHO: Final = ("a lighthouse keeper", "two children", "a red kite", "the last tram", "an old dog", "a diver")
_WHERE: Final = ("in morning fog", "above the harbour", "under paper lanterns", "at the edge of a salt lake")


def _prompt(draw: random.Random) -> str:
    return f"{draw.choice(_WHO)} {draw.choice(_WHERE)}"
