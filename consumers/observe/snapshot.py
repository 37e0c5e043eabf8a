"""Everything that the invariants are judged by, of one quiet moment: tables, topics, the provider's truth and
the delivered files. Pure: it reads nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from consumers.operations.tables import Tables

Position = tuple[int, int, int]
"""Epoch, LSN and index: where the relay says that it read the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """One record of a topic. What its headers don't say is None; `payload` is None when `defect` says why it
    can't be read."""

    topic: str
    partition: int
    offset: int
    key: str
    event_id: UUID | None
    event_type: str | None
    schema_version: int | None
    version: int | None
    position: Position | None
    origin: str | None = None
    payload: Mapping[str, Any] | None = None
    defect: str | None = None

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """A POST that the provider received; `reference` is what the client called its operation."""

    reference: str | None
    fault: str | None
    job_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFile:
    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RealJob:
    """A job that the provider really made, and what it charged."""

    job_id: str
    reference: str | None
    charged: Decimal
    state: str
    files: tuple[ServedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the provider knows. `faults`: each kind, and how often it struck."""

    posts: tuple[Post, ...] = ()
    jobs: tuple[RealJob, ...] = ()
    faults: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """A file as it lies in the store, read back whole."""

    key: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`records` are those of the events' own topics; `dead_letters` are the ids in the relay's dead-letter
    topic. `delivery` is what the relay promised to Kafka, `provider_account` whose truth it is, and
    `rolled_back` the operations whose transaction never committed."""

    tables: Tables
    records: tuple[TopicRecord, ...]
    truth: Truth
    files: tuple[KeptFile, ...]
    delivery: Literal["exactly_once", "at_least_once"]
    provider_account: str
    dead_letters: frozenset[UUID] = frozenset()
    rolled_back: frozenset[UUID] = frozenset()
