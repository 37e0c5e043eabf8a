"""What a reconciliation is asked for, and what it found and did. Pure: rows to be shown or printed."""

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from uuid import UUID

from consumers.operations.lost import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """One operation and what becomes of it. `changed`: this run did it; an earlier one may have."""

    operation_id: UUID
    owner_id: str
    phase: str
    verdict: Verdict
    why: str
    job_ids: list[str]
    attempt_ids: list[UUID]
    changed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Phantom:
    """An operation that only Kafka or a spool knows: it was approved after the restored state."""

    operation_id: UUID
    owner_id: str
    kind: str
    specification_hash: str
    phase: str
    job_ids: list[str]
    attempt_ids: list[UUID]
    places: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """An entry of a spool that no operation can be held against."""

    path: str
    attempt_id: str
    operation_id: str
    why: str


@dataclass(slots=True, kw_only=True)
class Report:
    """What was compared, and what came of it."""

    applied: bool
    closed_since: datetime
    transitions_read: int = 0
    spools_read: list[str] = field(default_factory=list)
    spool_entries: int = 0
    incomplete_partitions: list[int] = field(default_factory=list)
    reaches_back: bool = True
    unreadable: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    operations: list[Decided] = field(default_factory=list)
    phantoms: list[Phantom] = field(default_factory=list)
    spooled: list[Spooled] = field(default_factory=list)
    deliveries_lost: int = 0
    dispatch_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """`apply`: not only look. `history_lost`, `spool_lost`: a person says that there is none to be had."""

    actor: str
    spools: tuple[Path, ...]
    apply: bool = False
    history_lost: bool = False
    spool_lost: bool = False
