"""The life of each operation, rebuilt from `operation.transitioned` alone. Pure; it reads no table and no
topic.

Events may come again and out of order: a version counts once, and what contradicts what is known is kept as a
finding, never taken as the truth.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Transition:
    """One entry of an operation's journal, as its event tells it."""

    version: int
    from_phase: str | None
    to_phase: str
    cause: str
    reason: str
    actor: str
    dispatch_no: int
    job_id: str | None
    attempt_id: UUID | None
    review_id: UUID | None
    transitioned_at: datetime


@dataclass(slots=True)
class Life:
    """What is known of one operation."""

    operation_id: UUID
    owner_id: str
    kind: str
    specification_hash: str
    transitions: dict[int, Transition] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)

    def in_order(self) -> list[Transition]:
        return [self.transitions[version] for version in sorted(self.transitions)]

    @property
    def phase(self) -> str:
        """The phase after the highest version known."""
        return self.transitions[max(self.transitions)].to_phase

    def missing_versions(self) -> list[int]:
        """Versions below the highest one known that no event told of: the journal runs from 1 without
        holes."""
        return [version for version in range(1, max(self.transitions)) if version not in self.transitions]

    def breaks(self) -> list[str]:
        """Where one transition doesn't begin in the phase in which the one before it ended."""
        found = []
        for version, transition in sorted(self.transitions.items()):
            before = self.transitions.get(version - 1)
            expected = before.to_phase if before else None
            if (before or version == 1) and transition.from_phase != expected:
                found.append(
                    f"version {version} leaves {transition.from_phase or 'nothing'}, "
                    f"and version {version - 1} entered {expected or 'nothing'}"
                )
        return found

    @property
    def complete(self) -> bool:
        """Every version from 1 is known, each follows from the one before, and nothing contradicts
        another."""
        return not (self.missing_versions() or self.breaks() or self.contradictions)


class History:
    """All operations of the events given to `add`."""

    def __init__(self) -> None:
        self._lives: dict[UUID, Life] = {}

    def __len__(self) -> int:
        return len(self._lives)

    def __iter__(self) -> Iterator[Life]:
        """In the order in which they were first heard of."""
        return iter(self._lives.values())

    def get(self, operation_id: UUID) -> Life | None:
        return self._lives.get(operation_id)

    def add(self, payload: Mapping[str, Any]) -> bool:
        """Take one decoded `operation.transitioned`; False when that version was known already."""
        operation_id: UUID = payload["operation_id"]
        life = self._lives.get(operation_id)
        if life is None:
            life = self._lives[operation_id] = Life(
                operation_id, payload["owner_id"], payload["kind"], payload["specification_hash"]
            )
        for name in ("owner_id", "kind", "specification_hash"):
            if payload[name] != getattr(life, name):
                life.contradictions.append(f"version {payload['version']} has another {name}")
        transition = Transition(
            version=payload["version"],
            from_phase=payload["from_phase"],
            to_phase=payload["to_phase"],
            cause=payload["cause"],
            reason=payload["reason"],
            actor=payload["actor"],
            dispatch_no=payload["dispatch_no"],
            job_id=payload["job_id"],
            attempt_id=payload["attempt_id"],
            review_id=payload["review_id"],
            transitioned_at=payload["transitioned_at"],
        )
        known = life.transitions.setdefault(transition.version, transition)
        if known is transition:
            return True
        if known != transition:
            life.contradictions.append(f"version {transition.version} was told in two ways")
        return False
