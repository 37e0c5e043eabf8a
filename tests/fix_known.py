"""What is known of one operation under review, made by hand: for tests of what is judged by it alone."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from consumers.operations.records import Attempt, Entry, Job, Operation, Reservation, Review, Whole

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
OPERATION: Final = UUID(int=1)
ATTEMPT: Final = UUID(int=2)
REVIEW: Final = UUID(int=3)


def known_attempt(**changes: Any) -> Attempt:
    attempt = Attempt(
        attempt_id=ATTEMPT,
        action="submit",
        dispatch_no=1,
        worker="dispatch@host:1",
        started_at=NOW,
        first_sent_at=NOW,
        finished_at=NOW,
        outcome="unknown",
        outcome_reason="no_answer",
        charged=None,
        http_status=None,
        request_sha256="0" * 64,
        idempotency_key=None,
        spool="/spool/a",
        late_delivery_until=NOW - timedelta(seconds=1),
        released_by_review=None,
        evidence={"status": None, "error": "ReadTimeout"},
    )
    return replace(attempt, **changes)


def known_review(**changes: Any) -> Review:
    review = Review(
        review_id=REVIEW,
        attempt_id=ATTEMPT,
        kind="uncertain_submission",
        state="open",
        severity=1,
        revision=4,
        opened_at=NOW,
        deadline=NOW,
        evidence={},
        resolution=None,
        resolution_reason=None,
        resolved_by=None,
        resolved_at=None,
    )
    return replace(review, **changes)


def known_whole(
    *attempts: Attempt, review: Review | None = None, jobs: tuple[Job, ...] = (), **changes: Any
) -> Whole:
    operation = Operation(
        operation_id=OPERATION,
        kind="generation",
        owner_id="studio",
        operation_key="frame 7",
        phase="uncertain",
        phase_reason="no_answer",
        is_final=False,
        job_id=None,
        provider="genace",
        account="default",
        profile_digest="0" * 64,
        specification_hash="1" * 64,
        payload_bytes=10,
        max_cost=Decimal(5),
        cost_unit="credit",
        accounting="reserved",
        source_ref=None,
        requested_by="ann",
        dispatch_no=1,
        version=4,
        claimed_by=None,
        lease_expires_at=None,
        not_before=None,
        next_action_at=None,
        held_at=None,
        open_reviews=1,
        observed_at=None,
        observations=0,
        cancel_requested=False,
        parent_operation_id=None,
        created_at=NOW,
        updated_at=NOW,
    )
    operation = replace(operation, **changes)
    entry = Entry(
        version=operation.version,
        from_phase="claimed",
        to_phase=operation.phase,
        cause="hold",
        reason="RELAY_PROVIDER_GENACE_SECRET is not set",
        actor="w",
        attempt_id=None,
        review_id=None,
        job_id=None,
        dispatch_no=1,
        at=NOW,
    )
    booked = Reservation(
        attempt_id=ATTEMPT,
        unit="credit",
        amount=Decimal("5.000000"),
        state="reserved",
        settled_amount=None,
        created_at=NOW,
        updated_at=NOW,
    )
    return Whole(
        read_at=NOW,
        operation=operation,
        journal=(entry,),
        attempts=attempts,
        jobs=jobs,
        reservations=(booked,) if attempts else (),
        outputs=(),
        reviews=(review or known_review(),),
        incidents=(),
        deliveries=(),
    )


def known_job(job_id: str, role: str = "candidate") -> Job:
    return Job(
        provider_account="genace/default",
        job_id=job_id,
        attempt_id=ATTEMPT,
        role=role,
        state=None,
        cost=None,
        first_seen_at=NOW,
    )
