"""Draws a lifecycle from the rows of the database, as the Mermaid diagram of `docs/operation-lifecycle.md`.

It never knows an edge by itself: what the table doesn't have isn't drawn.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Edge(NamedTuple):
    """A row of `relay.lifecycle_edge`; `from_phase` is '' for the creation."""

    from_phase: str
    to_phase: str
    cause: str


def draw(edges: Iterable[Edge], phases: Sequence[str], final: Iterable[str]) -> str:
    """A `stateDiagram-v2` block, one arrow for each pair of phases, its causes beside it.

    `phases` gives the order; `final` those that nothing but a review leaves.
    """
    causes: dict[tuple[str, str], list[str]] = {}
    for edge in edges:
        causes.setdefault((edge.from_phase, edge.to_phase), []).append(edge.cause)
    place = {phase: number for number, phase in enumerate(["", *phases])}
    lines = ["```mermaid", "stateDiagram-v2"]
    for (here, there), names in sorted(causes.items(), key=lambda pair: tuple(place[p] for p in pair[0])):
        lines.append(f"  {here or '[*]'} --> {there}: {', '.join(sorted(names))}")
    ends = set(final)
    lines += [f"  {phase} --> [*]" for phase in phases if phase in ends]
    return "\n".join([*lines, "```"])
