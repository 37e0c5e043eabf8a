"""The database moves an operation along the edges of `relay.lifecycle_edge` alone, and only for a cause that
the row it names backs. Every edge of the migration is tried: a new one is covered when it is written.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, LiteralString
from uuid import UUID, uuid4

import pytest

from consumers.operations.lifecycle import Cause, Hold, Phase
from fix_operations import AFTER_LATE_DELIVERY, AFTER_THE_LEASE, OPERATOR, WORKER, Stage
from fix_replay import declare, replayed
from fix_restore import restored
from relay.contracts import POSTGRES

NO_EDGE: Final = "OR011"
NOT_BACKED: Final = "OR012"
NO_CONTEXT: Final = "OR013"

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
PHASES: Final = sorted({(edge.lifecycle, edge.after) for edge in EDGES})
CAUSES: Final = sorted({edge.cause for edge in MOVES})
# A hold before anything was sent only stops: it proves nothing and spends nothing.
NEEDS_NO_ROW: Final = {Edge("generation", "prepared", "held", "hold")}

by_edge = pytest.mark.parametrize("edge", MOVES, ids=str)


def test_the_edges_tried_here_are_the_edges_of_the_database(stage: Stage) -> None:
    rows = stage.connection.execute("select lifecycle, from_phase, to_phase, cause from relay.lifecycle_edge")
    assert {Edge(*row) for row in rows} == set(EDGES)
    assert len(EDGES) > 50


def test_the_names_in_python_are_the_phases_causes_and_holds_of_the_database(stage: Stage) -> None:
    phases = {row[0] for row in stage.connection.execute("select phase from relay.lifecycle_phase")}
    causes = {row[0] for row in stage.connection.execute("select cause from relay.lifecycle_edge")}
    assert {str(phase) for phase in Phase} == phases
    assert {str(cause) for cause in Cause} == causes
    released = [hold for hold in Hold if _released_by_schedule(stage, hold)]
    assert released == [Hold.ALLOWANCE, Hold.BATCH, Hold.PAUSED]


def _released_by_schedule(stage: Stage, hold: Hold) -> bool:
    operation = stage.in_phase("generation", "held", held_for=hold)
    stage.say("release")
    try:
        return stage.move_refused(operation, "prepared") != NOT_BACKED
    except AssertionError:
        return True


@by_edge
def test_an_edge_whose_cause_is_backed_is_taken_and_leaves_a_waker(stage: Stage, edge: Edge) -> None:
    operation = _staged(stage, edge)
    version = stage.one("select version from relay.operation where operation_id = %s", operation)
    with stage.acting(_role(edge)):
        assert _back(stage, edge, operation)() == 1
        stage.connection.execute("set constraints all immediate")
    row = stage.connection.execute(
        "select j.from_phase, j.to_phase, j.cause, o.version, o.is_final = p.is_final"
        " from relay.operation o join relay.journal j using (operation_id, version)"
        " join relay.operation_kind k using (kind)"
        " join relay.lifecycle_phase p on p.lifecycle = k.lifecycle and p.phase = o.phase"
        " where o.operation_id = %s",
        [operation],
    ).fetchone()
    assert row == (edge.before, edge.after, edge.cause, version + 1, True)


@pytest.mark.parametrize("edge", [edge for edge in MOVES if edge not in NEEDS_NO_ROW], ids=str)
def test_an_edge_whose_cause_names_no_row_is_refused(stage: Stage, edge: Edge) -> None:
    operation = _staged(stage, edge, backed=False)
    with stage.acting(WORKER if edge.cause == "operator" else _role(edge)):
        if (edge.before, edge.cause) == ("claimed", "hold"):
            stage.insert_attempt(operation, _token(stage, operation), _action(edge))
        stage.say(edge.cause)
        columns = {"job_id": "job-unheard-of"} if edge.after == "accepted" else {}
        assert stage.move_refused(operation, edge.after, **columns) == NOT_BACKED


@pytest.mark.parametrize(
    "edge",
    [
        edge
        for edge in MOVES
        if edge.cause not in ("claim", "hold", "cancel", "submit", "release", "operator")
    ],
    ids=str,
)
def test_a_row_of_another_operation_backs_nothing(stage: Stage, edge: Edge) -> None:
    other = _staged(stage, edge)
    operation = _staged(stage, edge, backed=False)
    with stage.acting(_role(edge)):
        # Everything that would move `other` is done and said; it is said of `operation`.
        _back(stage, edge, other)
        stage.later("0")
        columns = {"job_id": "job-unheard-of"} if edge.after == "accepted" else {}
        assert stage.move_refused(operation, edge.after, **columns) == NOT_BACKED


@pytest.mark.parametrize(("lifecycle", "before"), PHASES, ids=str)
def test_what_is_no_edge_is_refused_to_everybody_for_any_cause(
    stage: Stage, lifecycle: str, before: str
) -> None:
    operation = stage.in_phase(lifecycle, before)
    tried = 0
    for role in (None, WORKER, OPERATOR):
        for line, after in PHASES:
            for cause in CAUSES:
                if after == before or Edge(lifecycle, before, after, cause) in EDGES:
                    continue
                if role is None:
                    stage.say(cause)
                    assert stage.move_refused(operation, after) == NO_EDGE, (after, cause)
                elif line == lifecycle:
                    with stage.acting(role):
                        stage.say(cause)
                        assert stage.move_refused(operation, after) == NO_EDGE, (role, after, cause)
                tried += 1
    assert tried > 100
    stage.say("claim")
    assert stage.move_refused(operation, "a phase of nobody's") == NO_EDGE


@pytest.mark.parametrize("missing", ["actor", "cause", "reason"])
def test_a_transition_that_does_not_say_who_why_and_by_what_cause_is_refused(
    stage: Stage, missing: str
) -> None:
    operation = stage.prepare()
    stage.say("hold")
    stage.connection.execute("select set_config('relay.' || %s, '', true)", [missing])
    assert stage.move_refused(operation, "held") == NO_CONTEXT


@pytest.mark.parametrize("role", [None, WORKER, OPERATOR])
def test_an_operation_may_only_begin_prepared(stage: Stage, role: str | None) -> None:
    insert: LiteralString = (
        "insert into relay.operation (kind, owner_id, operation_key, specification_hash, payload,"
        " payload_version, max_cost, cost_unit, requested_by, phase, phase_reason) values ('delivery',"
        " 'studio', 'k', repeat('0', 64), '{}', 1, 0, 'credit', 'me', 'succeeded', 'x')"
    )
    assert stage.refused_to(role, insert) == (NO_EDGE if role is None else "42501")


# The rows that an attempt's cause may name ------------------------------------------------------------------

WRONG_OUTCOMES: Final = {
    "answer": {"open", "refused", "unsent", "unknown"},
    "rule": {"open", "accepted", "unsent", "unknown"},
    "refused": {"open", "accepted", "unsent", "unknown"},
    "unsent": {"open", "accepted", "refused", "unknown"},
    "unknown": {"open", "accepted", "refused", "unsent"},
}


@pytest.mark.parametrize(
    ("cause", "outcome"), [(c, o) for c, wrong in WRONG_OUTCOMES.items() for o in sorted(wrong)]
)
def test_an_attempt_with_another_outcome_backs_nothing(stage: Stage, cause: str, outcome: str) -> None:
    operation = stage.prepare()
    attempt = stage.submit(operation)
    after = {"answer": "accepted", "rule": "rejected", "refused": "prepared", "unsent": "prepared"}.get(
        cause, "uncertain"
    )
    with stage.acting(WORKER):
        if outcome != "open":
            stage.finish(attempt, outcome)
        stage.say(cause, attempt=attempt)
        assert stage.move_refused(operation, after) == NOT_BACKED


# How an edge is staged and backed ---------------------------------------------------------------------------


def _role(edge: Edge) -> str:
    return OPERATOR if edge.cause in ("review", "operator", "cancel", "restored") else WORKER


def _action(edge: Edge) -> str:
    return "download" if edge.lifecycle == "delivery" else "submit"


def _token(stage: Stage, operation: UUID) -> UUID:
    token: UUID = stage.one("select claim_token from relay.operation where operation_id = %s", operation)
    return token


def _staged(stage: Stage, edge: Edge, *, backed: bool = True) -> UUID:
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


def _back(stage: Stage, edge: Edge, operation: UUID) -> Callable[[], int]:
    """Do what backs `edge`'s cause and say it; the returned function takes the edge."""
    columns: dict[str, object] = {}
    reason = "test"
    attempt: UUID | None = None
    review: UUID | None = None
    match edge.cause:
        case "claim":
            columns = {"claim_token": uuid4(), "claimed_by": "w", "lease_expires_at": stage.lease()}
        case "hold":
            reason = "configuration"
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
                stage.finish(_token(stage, operation), "refused", charged=False)
        case "submit":
            attempt = stage.insert_attempt(operation, _token(stage, operation))
        case "lease_expired":
            if edge.before == "submitting":
                stage.finish(_token(stage, operation), "unknown")
            stage.later(AFTER_THE_LEASE)
        case "unsent" if edge.before == "claimed":
            attempt = stage.insert_attempt(operation, _token(stage, operation), outcome="unsent")
        case "unsent" | "refused" | "unknown":
            attempt = _token(stage, operation)
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
            attempt = _token(stage, operation)
            stage.finish(attempt, "accepted" if edge.after == "stored" else "refused")
        case "retry":
            attempt = _token(stage, operation)
            stage.finish(attempt, "unsent")
        case "review":
            review, columns = _decide(stage, edge, operation)
        case "release" | "operator":
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
