"""Draws the table of docs/reviews.md from the answers that the code has; it knows none by itself."""

from consumers.operations.lifecycle import Phase
from consumers.operations.resolutions import OPTIONS, QUESTIONS, Resolution, Steps, typed


def table() -> str:
    """One row for each kind and answer: the phases in which it is taken, and where it leads."""
    lines = ["| kind | answer | while the operation is | then it is |", "|---|---|---|---|"]
    for kind, answers in OPTIONS.items():
        lines.append(f"| **{kind}** | *{QUESTIONS[kind]}* | | |")
        for resolution, steps in answers.items():
            word = typed(resolution)
            if resolution is Resolution.WAIT:
                lines.append(f"| | `{word}` | the same | the same; the review stays open |")
                continue
            lines += [f"| | `{word}` | {phases} | {then} |" for phases, then in _grouped(steps)]
    return "\n".join(lines)


def _grouped(steps: Steps) -> list[tuple[str, str]]:
    by_end: dict[Phase | None, list[str]] = {}
    for phase, then in steps.items():
        by_end.setdefault(then, []).append(str(phase))
    return [(", ".join(phases), str(then) if then else "the same") for then, phases in by_end.items()]
