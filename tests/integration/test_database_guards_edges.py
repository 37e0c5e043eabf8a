"""The database moves an operation along the edges of `relay.lifecycle_edge` alone, and only for a cause that
the row it names backs. Every edge of the migration is tried: a new one is covered when it is written.
"""

from typing import Final, LiteralString

import pytest

from consumers.operations.lifecycle import Cause, Hold, Phase
from fix_edges import EDGES, MOVES, Edge, action, back, role_of, staged, token
from fix_operations import OPERATOR, WORKER, Stage

NO_EDGE: Final = "OR011"
NOT_BACKED: Final = "OR012"
NO_CONTEXT: Final = "OR013"

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
    operation = staged(stage, edge)
    version = stage.one("select version from relay.operation where operation_id = %s", operation)
    with stage.acting(role_of(edge)):
        assert back(stage, edge, operation)() == 1
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
    operation = staged(stage, edge, backed=False)
    with stage.acting(WORKER if edge.cause == "operator" else role_of(edge)):
        if (edge.before, edge.cause) == ("claimed", "hold"):
            stage.insert_attempt(operation, token(stage, operation), action(edge))
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
    other = staged(stage, edge)
    operation = staged(stage, edge, backed=False)
    with stage.acting(role_of(edge)):
        # Everything that would move `other` is done and said; it is said of `operation`.
        back(stage, edge, other)
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
