"""No service role owns anything, no function runs for the public, and none that runs with more rights than
its caller can be led astray by the caller's search path.
"""

from typing import Final

import psycopg
import pytest

from fix_operations import APPLICATION, OPERATOR, ROLES, WORKER, Stage

# What each group may call. A new function is for nobody until it is named here.
MAY_CALL: Final = {
    "relay_app": {
        "now", "context", "prepare_operation", "request_cancel", "emit_event", "prepare_batch", "in_batch",
        "seal_batch", "owners_of_login",
    },
    "relay_replicator": {"now", "context"},
    "relay_worker": {
        "now", "context", "emit", "emit_evidence", "reserve", "reserve_or_why", "settle", "prepare_delivery",
        "dispatch_gate", "specification_hash", "hashed_field", "reference_hash",
        "earlier_request_is_in_question", "take_permit", "give_permit_back",
        "unknown_request", "why_no_replay", "paying_attempt", "reserve_unless_replayed",
    },
    "relay_operator": {
        "now", "context", "emit", "emit_evidence", "settle", "dispute", "set_allowance", "dispatch_gate",
        "specification_hash", "hashed_field", "reference_hash", "prepare_operation", "request_cancel",
        "old_rows", "prune_choose", "prune",
        "republish_parked", "discard_parked", "prepare_batch", "in_batch", "seal_batch", "set_batch_limits",
        "correct", "refund", "begin_cancel", "finish_cancel", "redact_operation",
        "restore_attempt", "end_reconciliation", "paying_attempt", "unknown_request",
    },
    "relay_reader": {"now", "context", "dispatch_gate"},
}  # fmt: skip
TABLES: Final = "relkind in ('r', 'p', 'v', 'm', 'S', 'f') and relnamespace = 'relay'::regnamespace"


@pytest.mark.parametrize("role", ROLES)
def test_a_role_calls_the_functions_that_are_named_here_and_no_others(stage: Stage, role: str) -> None:
    rows = stage.connection.execute(
        "select proname from pg_proc where pronamespace = 'relay'::regnamespace"
        " and has_function_privilege(%s, oid, 'execute')",
        [role],
    )
    assert {row[0] for row in rows} == MAY_CALL[role]


def test_the_public_executes_no_function_of_the_schema(stage: Stage) -> None:
    stage.connection.execute("create role nobody_in_particular")
    rows = stage.connection.execute(
        "select proname from pg_proc where pronamespace = 'relay'::regnamespace"
        " and has_function_privilege('nobody_in_particular', oid, 'execute')"
    )
    assert rows.fetchall() == []
    assert not stage.one("select has_schema_privilege('nobody_in_particular', 'relay', 'usage')")


def test_a_guard_or_a_function_with_more_rights_than_its_caller_has_a_fixed_search_path(
    stage: Stage,
) -> None:
    rows = stage.connection.execute(
        "select proname, proconfig from pg_proc where pronamespace = 'relay'::regnamespace"
        " and (prosecdef or prorettype = 'trigger'::regtype)"
    ).fetchall()
    assert len(rows) > 10
    assert {row[0] for row in rows if row[1] != ["search_path=pg_catalog, pg_temp"]} == set()


def test_a_table_of_the_callers_own_is_not_mistaken_for_ours(stage: Stage) -> None:
    operation = stage.prepare()
    with stage.acting(WORKER):
        stage.connection.execute("create temporary table operation_kind (kind text, lifecycle text)")
        stage.connection.execute("set local search_path = pg_temp, relay")
    stage.submit(operation)


def test_a_catalog_of_the_callers_own_opens_no_guard(stage: Stage) -> None:
    """An application that shadows pg_class would speak for anybody's operation."""
    operation = stage.prepare()
    with stage.acting(APPLICATION):
        stage.connection.execute("create temporary table pg_class (oid oid, relowner oid)")
        forged = (
            "insert into relay.outbox (event_type, schema_version, operation_id, version, payload)"
            " values ('operation.transitioned', 1, %s, 9, '{}')"
        )
        refused = stage.refused(lambda: stage.connection.execute(forged, [operation]))
    assert refused == "OR010"


@pytest.mark.parametrize("role", ROLES)
def test_a_role_owns_nothing_and_creates_nothing(stage: Stage, role: str) -> None:
    owned = stage.one(
        "select count(*) from ("
        "select relowner as owner from pg_class where relnamespace = 'relay'::regnamespace"
        " union all select proowner from pg_proc where pronamespace = 'relay'::regnamespace"
        " union all select nspowner from pg_namespace where nspname = 'relay') x where owner = %s::regrole",
        role,
    )
    assert owned == 0
    assert not stage.one("select has_schema_privilege(%s, 'relay', 'create')", role)
    attributes = stage.connection.execute(
        "select rolsuper, rolcreaterole, rolcreatedb, rolbypassrls, rolcanlogin from pg_roles"
        " where rolname = %s",
        [role],
    ).fetchone()
    assert attributes == (False, False, False, False, False)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_deletes_and_truncates_in_no_table(stage: Stage, role: str) -> None:
    rows = stage.connection.execute(
        f"select relname from pg_class where {TABLES} and relkind in ('r', 'p') and"
        " has_table_privilege(%s, oid, 'delete, truncate, trigger, references')",
        [role],
    )
    assert rows.fetchall() == []


def test_a_reader_and_a_replicator_change_no_operation(stage: Stage) -> None:
    writes = "has_any_column_privilege(r, c.oid, 'insert, update')"
    rows = stage.connection.execute(
        "select r, relname from pg_class c, unnest(array['relay_reader', 'relay_replicator']) r"
        f" where {TABLES} and relkind in ('r', 'p') and ({writes})"
    )
    written = {"source_identity", "parked_event", "known_topic"}
    assert set(rows) == {("relay_replicator", table) for table in written}


def test_a_worker_is_not_an_operator_by_any_path(stage: Stage) -> None:
    assert not stage.one("select pg_has_role('relay_worker', 'relay_operator', 'member')")
    with stage.acting(WORKER):
        assert stage.refused_to(WORKER, "set local role relay_operator") == "42501"
        assert stage.refused_to(WORKER, "select relay.dispute(gen_random_uuid(), 'forged')") == "42501"
        assert stage.refused_to(WORKER, "select relay.set_allowance('o', 'u', 1, 'forged')") == "42501"
        assert (
            stage.refused_to(WORKER, "select relay.release_reservation(gen_random_uuid(), 'forged')")
            == "42501"
        )


def test_the_clock_of_operations_belongs_to_the_owner(stage: Stage) -> None:
    for role in (WORKER, OPERATOR):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), stage.acting(role):
            stage.connection.execute(
                "create or replace function relay.now() returns timestamptz language sql as 'select now()'"
            )
