"""What the answer to a cancel means for its attempt, and never for the job: only an observation says that.
Pure."""

from dataclasses import dataclass
from typing import Any, Literal

from consumers.providers.answer import Answer
from consumers.providers.evidence import evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAnswer:
    """accepted: the provider took the request. refused: it said no. unsent: no byte left. unknown: it may
    have arrived."""

    outcome: Literal["accepted", "refused", "unsent", "unknown"]
    reason: str
    status: int | None
    evidence: dict[str, Any]


def classify_cancel(answer: Answer) -> CancelAnswer:
    """Raises nothing."""
    status = answer.status
    if not answer.sent and (not answer.hook_returned or answer.malformed):
        outcome, reason = "unsent", "not_connected" if answer.hook_error is None else "not_recorded"
    elif status is None:
        outcome, reason = "unknown", "no_answer"
    elif 200 <= status < 300:
        outcome, reason = "accepted", f"http_{status}"
    elif 400 <= status < 500 and status not in (408, 425, 429):
        outcome, reason = "refused", f"http_{status}"
    else:
        outcome, reason = "unknown", f"http_{status}"
    return CancelAnswer(outcome=outcome, reason=reason, status=status, evidence=evidence(answer))  # type: ignore[arg-type]
