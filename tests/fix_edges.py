"""Every edge of `relay.lifecycle_edge`, as the migrations have it, and how a test stages and backs it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

from fix_operations import AFTER_LATE_DELIVERY, AFTER_THE_LEASE, OPERATOR, WORKER, Stage
from fix_replay import declare, replayed
from fix_restore import restored
from relay.contracts import POSTGRES

_EDGE: Final = re.compile(r"^  \('(\w+)', '(\w*)', '(\w+)', '(\w+)'\)[,;]$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Edge:
    lifecycle: str
    before: str
    after: str
    cause: str

    def __str__(self) -> str:
        return f"{self.lifecycle}-{self.before}-{self.after}-{self.cause}"


def _edges() -> list[Edge]:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(POSTGRES.glob("*.sql")))
    return [Edge(*found) for found in _EDGE.findall(text)]


EDGES: Final = _edges()
MOVES: Final = [edge for edge in EDGES if edge.before]

# How an edge is staged and backed ---------------------------------------------------------------------------


def role_of(edge: Edge) -> str:
    return OPERATOR if edge.cause in ("review", "operator", "cancel", "restored") else WORKER


def action(edge: Edge) -> str:
    return "download" if edge.lifecycle == "delivery" else "submit"


def token(stage: Stage, operation: UUID) -> UUID:
    token: UUID = stage.one("select claim_token from relay.operation where operation_id = %s", operation)
    return token


def staged(stage: Stage, edge: Edge, *, backed: bool = True) -> UUID:
    """An operation in the phase where `edge` begins, with the past that the edge presumes."""
    if edge.cause == "unreplayed" and backed:
        return replayed(stage, edge.before)
    if edge.cause == "late_answer" and edge.before in ("prepared", "held", "claimed"):
        operation = stage.prepare()
        stage.resubmitted(operation)
        if edge.before == "claimed":
            stage.claim(operation)
        elif edge.before == "held":
            with stage.acting(WORKER):
                stage.say("hold")
                stage.move(operation, "held", "paused")
        return operation
    if edge.lifecycle == "delivery" and edge.before == "claimed":
        return stage.claimed_delivery(attempt=edge.cause in ("download", "retry"))[0]
    held_for = "allowance" if edge.cause == "release" and backed else "configuration"
    return stage.in_phase(edge.lifecycle, edge.before, held_for=held_for)


def _earlier_attempt(stage: Stage, operation: UUID) -> UUID:
    attempt: UUID = stage.one(
        "select attempt_id from relay.attempt where operation_id = %s and action = 'submit'"
        " order by started_at limit 1",
        operation,
    )
    return attempt


def back(stage: Stage, edge: Edge, operation: UUID, reason: str = "configuration") -> Callable[[], int]:
    """Do what backs `edge`'s cause and say it; the returned function takes the edge, for `reason`."""
    columns: dict[str, object] = {}
    attempt: UUID | None = None
    review: UUID | None = None
    match edge.cause:
        case "claim":
            columns = {"claim_token": uuid4(), "claimed_by": "w", "lease_expires_at": stage.lease()}
        case "cancel":
            stage.connection.execute("set local session authorization default")
            columns = {"cancel_requested": True}
        case "restored":
            stage.connection.execute("set local session authorization default")
            attempt = restored(stage, operation)
        case "replay":
            stage.connection.execute("set local session authorization default")
            declare(stage, operation)
        case "unreplayed":
            if edge.before == "submitting":
                stage.finish(token(stage, operation), "refused", charged=False)
        case "submit":
            attempt = stage.insert_attempt(operation, token(stage, operation))
        case "lease_expired":
            if edge.before == "submitting":
                stage.finish(token(stage, operation), "unknown")
            stage.later(AFTER_THE_LEASE)
        case "unsent" if edge.before == "claimed":
            attempt = stage.insert_attempt(operation, token(stage, operation), outcome="unsent")
        case "unsent" | "refused" | "unknown":
            attempt = token(stage, operation)
            stage.finish(attempt, edge.cause, charged=False)
        case "answer" | "late_answer":
            attempt = _earlier_attempt(stage, operation)
            stage.finish(attempt, "accepted")
            columns = {"job_id": stage.remote_job(operation, attempt, f"job-{uuid4()}")}
        case "rule":
            attempt = _earlier_attempt(stage, operation)
            stage.finish(attempt, "refused", charged=True)
        case "observation":
            attempt = stage.observed(operation)
        case "download":
            attempt = token(stage, operation)
            stage.finish(attempt, "accepted" if edge.after == "stored" else "refused")
        case "retry":
            attempt = token(stage, operation)
            stage.finish(attempt, "unsent")
        case "review":
            review, columns = _decide(stage, edge, operation)
        case "hold" | "release" | "operator":
            pass
        case _:
            raise KeyError(f"this test can't back the cause {edge.cause}")
    stage.say(edge.cause, attempt=attempt, review=review)
    return lambda: stage.move(operation, edge.after, reason, **columns)


def _decide(stage: Stage, edge: Edge, operation: UUID) -> tuple[UUID, dict[str, object]]:
    stage.later(AFTER_LATE_DELIVERY)
    waits = edge.before == "uncertain" or (edge.before == "held" and edge.after != "accepted")
    kind = "candidate_id" if edge.after == "accepted" else "job_unknown"
    review = stage.open_review(operation) if waits else stage.raise_review(operation, kind)
    words = {"prepared": "resubmit", "rejected": "reject", "cancelled": "cancel"}
    if edge.after in words:
        resolution = f"not-accepted:{words[edge.after]}"
        if edge.before == "held":
            resolution = "release" if edge.after == "prepared" else words[edge.after]
    else:
        resolution = {"accepted": "accepted", "abandoned": "abandon", "lost": "lost"}[edge.after]
        if edge.before == "accepted" == edge.after:
            resolution = "choose-primary"
    stage.resolve(review, resolution)
    if resolution == "not-accepted:resubmit":
        stage.connection.execute(
            "update relay.attempt set released_by_review = %s where operation_id = %s", [review, operation]
        )
    if edge.after == "accepted":
        return review, {"job_id": stage.remote_job(operation, None, f"job-{uuid4()}")}
    return review, {}
