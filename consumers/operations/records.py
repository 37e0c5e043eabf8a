"""What is known of one operation, row by row, as people are shown it. Pure; a payload and an output's URL,
which may open the file to whoever reads it, are never in here.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One row, without its payload. Amounts are in `cost_unit`."""

    operation_id: UUID
    kind: str
    owner_id: str
    operation_key: str
    phase: str
    phase_reason: str
    is_final: bool
    job_id: str | None
    provider: str | None
    account: str | None
    profile_digest: str | None
    specification_hash: str
    payload_bytes: int
    payload_sha256: str | None = None
    """Of a payload by reference."""
    max_cost: Decimal
    cost_unit: str
    accounting: str
    source_ref: str | None
    requested_by: str
    dispatch_no: int
    version: int
    claimed_by: str | None
    lease_expires_at: datetime | None
    not_before: datetime | None
    next_action_at: datetime | None
    held_at: datetime | None
    open_reviews: int
    observed_at: datetime | None
    observations: int
    cancel_requested: bool
    parent_operation_id: UUID | None
    created_at: datetime
    updated_at: datetime

    @property
    def provider_account(self) -> str | None:
        return None if self.provider is None else f"{self.provider}/{self.account}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One transition in the journal."""

    version: int
    from_phase: str | None
    to_phase: str
    cause: str
    reason: str
    actor: str
    attempt_id: UUID | None
    review_id: UUID | None
    job_id: str | None
    dispatch_no: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One real outside action."""

    attempt_id: UUID
    action: str
    dispatch_no: int
    worker: str
    started_at: datetime
    first_sent_at: datetime | None
    finished_at: datetime | None
    outcome: str
    outcome_reason: str | None
    charged: bool | None
    http_status: int | None
    request_sha256: str | None
    idempotency_key: str | None
    spool: str | None
    late_delivery_until: datetime | None
    released_by_review: UUID | None
    evidence: dict[str, Any]

    @property
    def reported(self) -> bool:
        """Whether the process that made it, or the one that adopted its spool, has said what came of it. A
        lease that ran out is not a report."""
        return bool(self.evidence)

    @property
    def undecided(self) -> bool:
        """A submission that may have made a job, and that no review has released."""
        return (
            self.action == "submit"
            and self.outcome in ("open", "unknown")
            and self.released_by_review is None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A provider's id that was seen for this operation."""

    provider_account: str
    job_id: str
    attempt_id: UUID | None
    role: str
    state: str | None
    cost: Decimal | None
    first_seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    attempt_id: UUID
    unit: str
    amount: Decimal
    state: str
    settled_amount: Decimal | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    ordinal: int
    name: str
    content_type: str | None
    expected_bytes: int | None
    stored_key: str | None
    stored_bytes: int | None
    stored_sha256: str | None
    stored_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    review_id: UUID
    attempt_id: UUID | None
    kind: str
    state: str
    severity: int
    revision: int
    opened_at: datetime
    deadline: datetime
    evidence: dict[str, Any]
    resolution: str | None
    resolution_reason: str | None
    resolved_by: str | None
    resolved_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    incident_id: UUID
    attempt_id: UUID | None
    boundary: str
    what: str
    evidence: dict[str, Any]
    opened_at: datetime
    decision: str | None
    """What became of it; None: nobody has decided yet."""
    decided_by: str | None
    decided_at: datetime | None
    decided_by_review: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Everything that is known of one operation, of one instant; `read_at` is the database's clock then."""

    read_at: datetime
    operation: Operation
    journal: tuple[Entry, ...]
    attempts: tuple[Attempt, ...]
    jobs: tuple[Job, ...]
    reservations: tuple[Reservation, ...]
    outputs: tuple[Output, ...]
    reviews: tuple[Review, ...]
    incidents: tuple[Incident, ...]
    deliveries: tuple[UUID, ...]

    def review(self, review_id: UUID) -> Review:
        """Raises KeyError when it is another operation's."""
        for one in self.reviews:
            if one.review_id == review_id:
                return one
        raise KeyError(review_id)
