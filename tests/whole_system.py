"""A snapshot of a small system in which everything is in order, made by hand: what tests corrupt."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid5

from consumers.observe.snapshot import (
    KeptFile,
    Post,
    RealJob,
    ServedFile,
    Snapshot,
    TopicRecord,
    Truth,
)
from consumers.operations.tables import (
    AllowanceRow,
    AttemptRow,
    JournalRow,
    OperationRow,
    OutboxRow,
    OutputRow,
    RemoteJobRow,
    ReservationRow,
    ReviewRow,
    Tables,
)

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(seconds=60)
LONG_AGO = NOW - timedelta(seconds=300)
SPACE = UUID("6a7e6f1c-2f0b-4c62-9d6f-3b9f6f2f4a11")
ACCOUNT = "simulator/default"


def named(name: str) -> UUID:
    return uuid5(SPACE, name)


# Five generations and a delivery, each told by its phases.
DONE, UNSURE, REFUSED, AGAIN, ASKED, DELIVERY = (
    named(name) for name in ("done", "unsure", "refused", "again", "asked", "delivery")
)
LIVES: dict[UUID, tuple[str, ...]] = {
    DONE: ("prepared", "claimed", "submitting", "accepted", "succeeded"),
    UNSURE: ("prepared", "claimed", "submitting", "uncertain"),
    REFUSED: ("prepared", "claimed", "submitting", "rejected"),
    # Told to come again later, by a rule, and waiting for that time.
    AGAIN: ("prepared", "claimed", "submitting", "prepared"),
    # A person let it be submitted again after an unknown attempt.
    ASKED: (
        "prepared",
        "claimed",
        "submitting",
        "uncertain",
        "prepared",
        "claimed",
        "submitting",
        "accepted",
    ),
    DELIVERY: ("prepared", "claimed", "stored"),
}
FILE = ServedFile(name="frame-1.bin", sha256="ab" * 32, size=10)
KEY = f"studio/{DONE}/0-frame-1.bin"


def attempt(name: str, operation: UUID, outcome: str, *, released: bool = False) -> AttemptRow:
    return AttemptRow(
        attempt_id=named(name), operation_id=operation, action="submit", outcome=outcome, released=released
    )


def reservation(name: str, operation: UUID, state: str, settled: str | None = None) -> ReservationRow:
    return ReservationRow(
        attempt_id=named(name),
        operation_id=operation,
        owner_id="studio",
        unit="credit",
        amount=Decimal(1),
        state=state,
        settled_amount=None if settled is None else Decimal(settled),
    )


def operation(identity: UUID, **more: Any) -> OperationRow:
    phase = LIVES[identity][-1]
    final = phase in ("succeeded", "rejected", "stored")
    fields: dict[str, Any] = {
        "operation_id": identity,
        "kind": "delivery" if identity == DELIVERY else "generation",
        "owner_id": "studio",
        "phase": phase,
        "phase_reason": "told",
        "is_final": final,
        "version": len(LIVES[identity]),
        "job_id": None,
        "provider_account": None if identity == DELIVERY else ACCOUNT,
        "max_cost": Decimal(1),
        "cost_unit": "credit",
        "lease_expires_at": None,
        "next_action_at": None if final or phase == "uncertain" else LATER,
        "open_reviews": 1 if phase == "uncertain" else 0,
        "parent_operation_id": DONE if identity == DELIVERY else None,
    }
    return OperationRow(**fields | more)


def events() -> tuple[OutboxRow, ...]:
    rows: list[OutboxRow] = []
    for identity, phases in LIVES.items():
        for number, phase in enumerate(phases, start=1):
            kinds = ["operation.transitioned"]
            if phase == "prepared":
                kinds.append("delivery.requested" if identity == DELIVERY else "generation.requested")
            rows += [
                OutboxRow(
                    event_id=named(f"{identity} {number} {kind}"),
                    seq=0,
                    event_type=kind,
                    schema_version=1,
                    operation_id=identity,
                    version=number,
                    payload={"operation_id": str(identity), "at": "2026-11-29T13:00:00+01:00", "note": None},
                )
                for kind in kinds
            ]
    return tuple(replace(row, seq=seq) for seq, row in enumerate(rows, start=1))


def record(row: OutboxRow) -> TopicRecord:
    return TopicRecord(
        topic=f"demo.{row.event_type}",
        partition=row.operation_id.int % 4,
        offset=row.seq,
        key=str(row.operation_id),
        event_id=row.event_id,
        event_type=row.event_type,
        schema_version=row.schema_version,
        version=row.version,
        position=(1, 1000 + row.seq, 0),
        # As Avro's logical types come out; an absent field has its default.
        payload={"operation_id": row.operation_id, "at": NOW},
    )


def job(job_id: str, identity: UUID, charged: str = "0.75") -> RealJob:
    return RealJob(
        job_id=job_id, reference=str(identity), charged=Decimal(charged), state="running", files=()
    )


def post(reference: str) -> Post:
    return Post(reference=reference, fault=None, job_id=None)


def whole() -> Snapshot:
    """Everything in order."""
    rows = events()
    reservations = (
        reservation("done-1", DONE, "settled", "0.75"),
        reservation("unsure-1", UNSURE, "reserved"),
        reservation("refused-1", REFUSED, "released"),
        reservation("again-1", AGAIN, "released"),
        reservation("asked-1", ASKED, "disputed"),
        reservation("asked-2", ASKED, "reserved"),
    )
    return Snapshot(
        tables=Tables(
            read_at=NOW,
            outbox=rows,
            operations=(
                operation(DONE, job_id="job-done"),
                operation(UNSURE),
                operation(REFUSED),
                operation(AGAIN),
                operation(ASKED, job_id="job-asked"),
                operation(DELIVERY),
            ),
            attempts=(
                attempt("done-1", DONE, "accepted"),
                attempt("unsure-1", UNSURE, "unknown"),
                attempt("refused-1", REFUSED, "refused"),
                attempt("again-1", AGAIN, "refused"),
                attempt("asked-1", ASKED, "unknown", released=True),
                attempt("asked-2", ASKED, "accepted"),
            ),
            remote_jobs=tuple(
                RemoteJobRow(provider_account=ACCOUNT, job_id=job, operation_id=identity, role="primary")
                for job, identity in (("job-done", DONE), ("job-asked", ASKED))
            ),
            journal=tuple(
                JournalRow(
                    operation_id=identity,
                    version=number,
                    from_phase=phases[number - 2] if number > 1 else None,
                    to_phase=phase,
                    cause="told",
                )
                for identity, phases in LIVES.items()
                for number, phase in enumerate(phases, start=1)
            ),
            reviews=(
                ReviewRow(
                    review_id=named("review"),
                    operation_id=UNSURE,
                    kind="uncertain_submission",
                    reason="no_answer",
                    deadline=LATER,
                ),
            ),
            allowances=(
                AllowanceRow(
                    owner_id="studio",
                    unit="credit",
                    limit_amount=Decimal(10),
                    reserved=Decimal(2),
                    disputed=Decimal(1),
                    settled=Decimal("0.75"),
                    overrun=False,
                ),
            ),
            reservations=reservations,
            outputs=(
                OutputRow(
                    operation_id=DONE,
                    ordinal=0,
                    name=FILE.name,
                    stored_key=KEY,
                    stored_bytes=FILE.size,
                    stored_sha256=FILE.sha256,
                ),
            ),
        ),
        records=tuple(record(row) for row in rows),
        truth=Truth(
            posts=tuple(post(str(identity)) for identity in (DONE, UNSURE, REFUSED, AGAIN, ASKED, ASKED)),
            jobs=(
                job("job-unsure", UNSURE),
                job("job-asked", ASKED),
                replace(job("job-done", DONE), state="succeeded", files=(FILE,)),
            ),
        ),
        files=(
            KeptFile(key=KEY, size=FILE.size, sha256=FILE.sha256),
            KeptFile(key=".incoming/half-0", size=3, sha256="cd" * 32),
        ),
        delivery="exactly_once",
        provider_account=ACCOUNT,
        rolled_back=frozenset({named("rolled back")}),
    )
