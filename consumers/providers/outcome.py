"""What a submission's answer means: the table of the design, as one pure function. It never guesses: what is
not proven is unknown.
"""

from dataclasses import dataclass
from typing import Any, Literal

from consumers.providers.answer import Answer
from consumers.providers.observation import Observation, Output, classify_observation
from consumers.providers.profile import Profile

__all__ = ["Observation", "Output", "Submission", "classify_observation", "classify_submission"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What one submit attempt came to.

    accepted: `job_id` is the job. refused: a rule of the profile says that there is none; `after` and
    `charged` are the rule's. unsent: proven that no byte left. unknown: everything else; `candidates` are ids
    that were seen and prove nothing. An accepted answer may have candidates too: other declared ids.
    """

    verdict: Literal["accepted", "refused", "unsent", "unknown"]
    reason: str
    """ASCII, lower case with underscores."""
    job_id: str | None = None
    candidates: tuple[str, ...] = ()
    after: Literal["final", "fix", "delay"] | None = None
    retry_after_s: float | None = None
    charged: bool | None = None
    accounting: Literal["reserved", "unsettled"] = "reserved"
    hold: Literal["configuration"] | None = None
    generic_failure: bool = False
    """401, 403 or 5xx that no rule is about: several in a row pause the provider account."""
    evidence: dict[str, Any]
    """JSON-able, bounded, secrets removed, ids first."""


def classify_submission(profile: Profile, answer: Answer) -> Submission:
    """Apply the profile's rules, then the table of design-operations 5. Raises nothing."""
    raise NotImplementedError
