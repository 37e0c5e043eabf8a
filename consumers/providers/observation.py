"""What the answer to a GET says about a job. Pure; it never turns silence or an unknown word into a state."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from consumers.providers.answer import Answer
from consumers.providers.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One file of a succeeded job. `name` is safe as a file name and unique among the job's outputs."""

    url: str
    name: str
    content_type: str | None = None
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen. `unrecognised`: an answer that fits the profile nowhere; `not_found`: 404 or 410;
    `error`: nothing was learnt, ask again."""

    state: Literal["running", "succeeded", "failed", "cancelled", "unrecognised", "not_found", "error"]
    reason: str
    outputs: tuple[Output, ...] = ()
    cost: Decimal | None = None
    word: str | None = None
    """The provider's own word for the state."""
    retry_after_s: float | None = None
    evidence: dict[str, Any]


def classify_observation(profile: Profile, answer: Answer, *, job_id: str | None = None) -> Observation:
    """Read a GET's answer. With `job_id`, an answer about another job is an error. Raises nothing."""
    raise NotImplementedError
