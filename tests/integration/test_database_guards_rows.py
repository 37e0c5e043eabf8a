"""What was approved, tried and paid is kept: no role, the owner included, may change or remove it. A
superuser can switch all this off; `relay ops audit` then tells.
"""

from typing import Final, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from fix_operations import APPLICATION, OPERATOR, ROLES, WORKER, Stage

FORBIDDEN: Final = "OR010"
NO_PRIVILEGE: Final = "42501"

# table → one of its columns
APPEND_ONLY: Final = {
    "journal": "reason",
    "ledger": "reason",
    "outbox": "event_type",
    "incident": "what",
    "provider_profile": "document",
}
KEPT: Final = ("operation", "attempt", "remote_job", "review", "output", "reservation", "allowance")
EVERYBODY: Final = (None, *ROLES)


def _kept_rows(stage: Stage) -> UUID:
    """An operation with a row in every table that must keep it."""
    operation = stage.prepare()
    attempt = stage.accepted(operation)
    stage.raise_review(operation)
    stage.connection.execute(
        "insert into relay.output (operation_id, ordinal, name, url) values (%s, 0, 'a', 'https://a')",
        [operation],
    )
    stage.connection.execute(
        "insert into relay.incident (operation_id, attempt_id, boundary, what)"
        " values (%s, %s, 'network', 'x')",
        [operation, attempt],
    )
    # TRUNCATE would stumble over pending triggers before it came to the guard.
    stage.connection.execute("set constraints all immediate")
    stage.connection.execute("set constraints all deferred")
    return operation


@pytest.mark.parametrize("table", [*APPEND_ONLY, *KEPT])
@pytest.mark.parametrize("role", EVERYBODY)
def test_nobody_deletes_or_truncates_what_is_kept(stage: Stage, role: str | None, table: str) -> None:
    _kept_rows(stage)
    name = sql.Identifier("relay", table)
    expected = FORBIDDEN if role is None else NO_PRIVILEGE
    assert stage.connection.execute(sql.SQL("select from {}").format(name)).rowcount > 0
    assert stage.refused_to(role, sql.SQL("delete from {}").format(name)) == expected
    assert stage.refused_to(role, sql.SQL("truncate {} cascade").format(name)) == expected


@pytest.mark.parametrize("table", APPEND_ONLY)
@pytest.mark.parametrize("role", EVERYBODY)
def test_nobody_changes_what_is_append_only(stage: Stage, role: str | None, table: str) -> None:
    _kept_rows(stage)
    column = sql.Identifier(APPEND_ONLY[table])
    change = sql.SQL("update {} set {} = {}").format(sql.Identifier("relay", table), column, column)
    assert stage.refused_to(role, change) == (FORBIDDEN if role is None else NO_PRIVILEGE)


@pytest.mark.parametrize(
    "table", ["journal", "ledger", "reservation", "allowance", "operation", "provider_profile"]
)
@pytest.mark.parametrize("role", ROLES)
def test_no_service_writes_these_rows_itself(stage: Stage, role: str, table: str) -> None:
    insert = sql.SQL("insert into {} default values").format(sql.Identifier("relay", table))
    assert stage.refused_to(role, insert) == NO_PRIVILEGE


@pytest.mark.parametrize("role", ["relay_replicator", WORKER, OPERATOR, "relay_reader"])
def test_only_applications_and_transitions_write_the_outbox(stage: Stage, role: str) -> None:
    assert stage.refused_to(role, *_event("order.paid", uuid4())) == NO_PRIVILEGE


@pytest.mark.parametrize(
    "event_type", ["operation.transitioned", "collection.requested", "generation.requested"]
)
def test_an_application_can_not_speak_for_an_operation(stage: Stage, event_type: str) -> None:
    assert stage.refused_to(APPLICATION, *_event(event_type, uuid4())) == FORBIDDEN


def test_an_application_writes_events_of_its_own(stage: Stage) -> None:
    with stage.acting(APPLICATION):
        assert stage.connection.execute(*_executed("order.paid", uuid4())).rowcount == 1


@pytest.mark.parametrize("role", [None, APPLICATION])
def test_an_event_id_can_be_used_once(stage: Stage, role: str | None) -> None:
    event = uuid4()
    with stage.acting(APPLICATION):
        stage.connection.execute(*_executed("order.paid", event))
    assert stage.refused_to(role, *_event("order.paid", event)) == "23505"


_INSERT_EVENT: Final = (
    "insert into relay.outbox (event_id, event_type, schema_version, operation_id, payload)"
    " values (%s, %s, 1, gen_random_uuid(), '{}')"
)


def _event(event_type: str, event: UUID) -> tuple[LiteralString, UUID, str]:
    return _INSERT_EVENT, event, event_type


def _executed(event_type: str, event: UUID) -> tuple[LiteralString, list[object]]:
    return _INSERT_EVENT, [event, event_type]


SPECIFICATION: Final = {
    "operation_id": "gen_random_uuid()",
    "kind": "'delivery'",
    "owner_id": "'somebody else'",
    "operation_key": "'another key'",
    "specification_hash": "repeat('0', 64)",
    "payload": "'{}'",
    "payload_ref": "'s3://another/bucket'",
    "payload_sha256": "repeat('0', 64)",
    "payload_bytes": "1",
    "payload_version": "99",
    "max_cost": "max_cost + 1",
    "cost_unit": "'gold'",
    "provider": "null",
    "account": "'another'",
    "profile_digest": "repeat('0', 64)",
    "source_ref": "'another revision'",
    "parent_operation_id": "operation_id",
    "traceparent": "'another trace'",
    "created_at": "created_at - interval '1 day'",
    "requested_by": "'somebody else'",
    "redacted_at": "now()",
    "redacted_xid": "pg_current_xact_id()",
}


@pytest.mark.parametrize("column", SPECIFICATION)
@pytest.mark.parametrize("role", [None, WORKER, OPERATOR, APPLICATION])
def test_nobody_changes_what_was_approved(stage: Stage, role: str | None, column: str) -> None:
    operation = stage.prepare()
    change = sql.SQL("update relay.operation set {} = {} where operation_id = {}").format(
        sql.Identifier(column),
        sql.SQL(SPECIFICATION[column]),
        sql.Literal(operation),
    )
    assert stage.refused_to(role, change) == (FORBIDDEN if role is None else NO_PRIVILEGE)


def test_every_column_of_an_operation_is_either_guarded_here_or_moves_with_its_life(stage: Stage) -> None:
    columns = {
        row[0]
        for row in stage.connection.execute(
            "select attname from pg_attribute where attrelid = 'relay.operation'::regclass and attnum > 0"
        )
    }
    moves = {
        "phase", "phase_reason", "is_final", "job_id", "dispatch_no", "version", "claim_token", "claimed_by",
        "lease_expires_at", "not_before", "next_action_at", "held_at", "open_reviews", "observed_at",
        "observations", "accounting", "cancel_requested", "updated_at", "batch_id",
        "unanswered", "seen_at", "nudged_at", "waits_until",
    }  # fmt: skip
    assert columns == set(SPECIFICATION) | moves


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("version", "version + 1"),
        ("dispatch_no", "dispatch_no + 1"),
        ("job_id", "'job-1'"),
        ("claim_token", "gen_random_uuid()"),
        ("claimed_by", "'somebody else'"),
        ("lease_expires_at", "lease_expires_at + interval '1 hour'"),
        ("held_at", "now()"),
        ("is_final", "true"),
        ("phase_reason", "'another'"),
    ],
)
def test_claim_job_and_version_move_only_with_the_phase(stage: Stage, column: str, value: str) -> None:
    operation = stage.in_phase("generation", "claimed")
    change = sql.SQL("update relay.operation set {} = {} where operation_id = {}").format(
        sql.Identifier(column),
        sql.SQL(value),
        sql.Literal(operation),
    )
    assert stage.refused_to(None, change) == FORBIDDEN


def test_a_requested_cancel_can_not_be_taken_back(stage: Stage) -> None:
    operation = stage.in_phase("generation", "claimed")
    with stage.acting(OPERATOR):
        stage.connection.execute("select relay.request_cancel(%s, 'test')", [operation])
    assert stage.refused_to(None, "update relay.operation set cancel_requested = false") == FORBIDDEN
    assert stage.one("select cancel_requested from relay.operation where operation_id = %s", operation)


def test_guards_hold_under_session_replication_role_replica(stage: Stage) -> None:
    operation = _kept_rows(stage)
    stage.connection.execute("set local session_replication_role = replica")
    for statement in (
        "delete from relay.operation",
        "truncate relay.outbox",
        "update relay.journal set reason = ''",
        "update relay.ledger set reason = ''",
        "update relay.operation set payload = ''",
        "update relay.attempt set worker = ''",
        "update relay.remote_job set job_id = ''",
    ):
        assert stage.refused_to(None, statement) == FORBIDDEN, statement
    stage.say("claim")
    assert stage.refused_to(None, "update relay.operation set phase = 'claimed'") == "OR011"
    before = stage.one("select count(*) from relay.journal where operation_id = %s", operation)
    stage.say("observation", attempt=stage.observed(operation))
    assert stage.move(operation, "failed") == 1
    assert stage.one("select count(*) from relay.journal where operation_id = %s", operation) == before + 1
    # The waker is a constraint trigger: it holds too.
    waiting = stage.prepare()
    stage.connection.execute(
        "update relay.operation set next_action_at = null where operation_id = %s", [waiting]
    )
    with pytest.raises(psycopg.errors.Error) as refused, stage.connection.transaction():
        stage.connection.execute("set constraints all immediate")
    assert refused.value.sqlstate == "OR014"


def test_every_guard_is_enabled_always(stage: Stage) -> None:
    ordinary = stage.connection.execute(
        "select c.relname, t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        " where c.relnamespace = 'relay'::regnamespace and not t.tgisinternal and t.tgenabled <> 'A'"
    ).fetchall()
    assert ordinary == []
