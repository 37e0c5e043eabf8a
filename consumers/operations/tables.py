"""What the tables hold, row by row, as an independent reader sees them. Pure: it reads nothing and decides
nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    event_id: UUID
    seq: int
    event_type: str
    schema_version: int
    operation_id: UUID
    version: int | None
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRow:
    """`job_id` is the primary job's. `provider_account` is None for a delivery."""

    operation_id: UUID
    kind: str
    owner_id: str
    phase: str
    phase_reason: str
    is_final: bool
    version: int
    job_id: str | None
    provider_account: str | None
    max_cost: Decimal
    cost_unit: str
    lease_expires_at: datetime | None
    next_action_at: datetime | None
    open_reviews: int
    parent_operation_id: UUID | None
    source_ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """`released`: a review decided that the operation may be submitted again in spite of this attempt."""

    attempt_id: UUID
    operation_id: UUID
    action: str
    outcome: str
    released: bool
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteJobRow:
    provider_account: str
    job_id: str
    operation_id: UUID
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRow:
    operation_id: UUID
    version: int
    from_phase: str | None
    to_phase: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRow:
    """An open review."""

    review_id: UUID
    operation_id: UUID
    kind: str
    reason: str
    deadline: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowanceRow:
    owner_id: str
    unit: str
    limit_amount: Decimal
    reserved: Decimal
    disputed: Decimal
    settled: Decimal
    overrun: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRow:
    attempt_id: UUID
    operation_id: UUID
    owner_id: str
    unit: str
    amount: Decimal
    state: str
    settled_amount: Decimal | None

    @property
    def booked(self) -> Decimal:
        """What it still takes of the allowance."""
        if self.state == "settled":
            return self.settled_amount or Decimal(0)
        return self.amount if self.state in ("reserved", "disputed") else Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRow:
    """`stored_key` is None until the file is delivered."""

    operation_id: UUID
    ordinal: int
    name: str
    stored_key: str | None
    stored_bytes: int | None
    stored_sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All of it, of one instant; `read_at` is the database's clock then. `parked` are the ids of events that
    could not be sent."""

    read_at: datetime
    outbox: tuple[OutboxRow, ...] = ()
    parked: frozenset[UUID] = frozenset()
    operations: tuple[OperationRow, ...] = ()
    attempts: tuple[AttemptRow, ...] = ()
    remote_jobs: tuple[RemoteJobRow, ...] = ()
    journal: tuple[JournalRow, ...] = ()
    reviews: tuple[ReviewRow, ...] = ()
    allowances: tuple[AllowanceRow, ...] = ()
    reservations: tuple[ReservationRow, ...] = ()
    outputs: tuple[OutputRow, ...] = ()
