"""The phases that Python names. The edges are data in the database (`relay.lifecycle_edge`); a test holds
these names against it, so that neither can drift.
"""

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    PREPARED = "prepared"
    CLAIMED = "claimed"
    SUBMITTING = "submitting"
    UNCERTAIN = "uncertain"
    HELD = "held"
    ACCEPTED = "accepted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"
    LOST = "lost"
    STORED = "stored"


class Cause(StrEnum):
    REQUESTED = "requested"
    CLAIM = "claim"
    HOLD = "hold"
    CANCEL = "cancel"
    SUBMIT = "submit"
    LEASE_EXPIRED = "lease_expired"
    UNSENT = "unsent"
    ANSWER = "answer"
    LATE_ANSWER = "late_answer"
    RULE = "rule"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    REVIEW = "review"
    RELEASE = "release"
    OBSERVATION = "observation"
    DOWNLOAD = "download"
    RETRY = "retry"
    OPERATOR = "operator"
    REPLAY = "replay"
    UNREPLAYED = "unreplayed"
    RESTORED = "restored"


class Hold(StrEnum):
    """Why an operation is held. The first three are released by schedule, the others by a review."""

    ALLOWANCE = "allowance"
    BATCH = "batch"
    PAUSED = "paused"
    CONFIGURATION = "configuration"
    SPECIFICATION = "specification"
    UNREACHABLE = "unreachable"
    RESTORED = "restored"


RELEASED_BY_SCHEDULE: Final = frozenset({Hold.ALLOWANCE, Hold.BATCH, Hold.PAUSED})
LATE_IDS_MOVE: Final = frozenset(
    {Phase.PREPARED, Phase.HELD, Phase.CLAIMED, Phase.SUBMITTING, Phase.UNCERTAIN}
)
"""Phases that an id of an earlier attempt moves to accepted (design-operations, section 6)."""
