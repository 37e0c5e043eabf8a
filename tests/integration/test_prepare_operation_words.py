"""Whoever prepares an operation wrongly reads one sentence, and never the name of a constraint."""

from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest

from consumers.operations.refusals import sentence
from fix_operations import APPLICATION, PROVIDER, WORKER, Stage

CALL: Final = (
    "select operation_id from relay.prepare_operation(kind => %(kind)s, owner_id => %(owner_id)s,"
    " operation_key => %(operation_key)s, payload => %(payload)s, provider => %(provider)s,"
    " max_cost => %(max_cost)s, cost_unit => %(cost_unit)s, payload_version => %(payload_version)s,"
    " account => %(account)s, source_ref => %(source_ref)s, not_before => %(not_before)s,"
    " requested_by => %(requested_by)s, traceparent => %(traceparent)s)"
)
GOOD: Final[dict[str, Any]] = {
    "kind": "generation",
    "owner_id": "studio",
    "operation_key": "k",
    "payload": '{"prompt": "a boat"}',
    "provider": PROVIDER,
    "max_cost": 5,
    "cost_unit": "credit",
    "payload_version": 1,
    "account": "default",
    "source_ref": None,
    "not_before": None,
    "requested_by": None,
    "traceparent": None,
}
BAD: Final = [
    ("owner_id", "", "owner_id is empty"),
    ("owner_id", " \n", "owner_id is empty"),
    ("owner_id", None, "must not be null"),
    ("owner_id", "x" * 201, "owner_id has 201 characters"),
    ("operation_key", "", "operation_key is empty"),
    ("operation_key", "x" * 301, "operation_key has 301 characters"),
    ("operation_key", None, "must not be null"),
    ("payload", None, "give payload, or payload_ref"),
    ("payload_version", 0, "payload_version is 0"),
    ("payload_version", None, "payload_version is null"),
    ("max_cost", -1, "max_cost -1 is not an amount"),
    ("max_cost", "NaN", "max_cost NaN is not an amount"),
    ("max_cost", "0.0000001", "more than six decimals"),
    ("max_cost", "100000000000000", "is 10^14 or more"),
    ("max_cost", "Infinity", "is 10^14 or more"),
    ("cost_unit", "", "cost_unit is ''"),
    ("cost_unit", None, "cost_unit is NULL"),
    ("cost_unit", "u" * 41, "cost_unit is"),
    ("source_ref", "r" * 2001, "source_ref has 2001 characters"),
    ("traceparent", "t" * 513, "traceparent has 513 characters"),
    ("requested_by", "b" * 201, "requested_by has 201 characters"),
    ("kind", "no-such", "kind no-such is not registered"),
    ("provider", "nobody", "provider nobody has no account default"),
    ("provider", None, "has no account"),
    ("account", "nobody", "has no account nobody"),
]


def test_what_can_not_be_prepared_is_said_in_words(stage: Stage) -> None:
    for name, value, words in BAD:
        with pytest.raises(psycopg.Error) as refused, stage.acting(APPLICATION):
            stage.connection.execute(CALL, GOOD | {"operation_key": str(uuid4()), name: value})
        said = refused.value.diag.message_primary or ""
        assert words in said, (name, value)
        assert "violates" not in said, (name, value)
        assert "constraint" not in said, (name, value)
        known = sentence(refused.value)
        assert known is None or "violates" not in str(known)


def test_a_payload_beyond_its_bound_is_said_in_bytes(stage: Stage) -> None:
    with pytest.raises(psycopg.Error, match="the payload has 16777228 bytes"), stage.acting(APPLICATION):
        stage.connection.execute(CALL, GOOD | {"payload": f'{{"prompt": "{"x" * 16777214}"}}'})


def test_what_is_right_is_prepared(stage: Stage) -> None:
    with stage.acting(APPLICATION):
        row = stage.connection.execute(CALL, GOOD | {"source_ref": "r" * 2000}).fetchone()
    assert row is not None


def test_no_application_asks_for_evidence(stage: Stage) -> None:
    statement = (
        "insert into relay.outbox (event_type, schema_version, operation_id, payload)"
        " values ('evidence.requested', 1, gen_random_uuid(), '{}')"
    )
    assert stage.refused_to(APPLICATION, statement) == "OR010"


def test_what_a_delivery_copies_from_an_old_operation_keeps_no_paid_job_from_its_end(
    committing_stage: Stage,
) -> None:
    """Before it was bounded, a source could be as long as anybody liked."""
    stage = committing_stage
    stage.connection.execute("alter table relay.operation disable trigger a_words")
    operation: Any = stage.one(
        "select operation_id from relay.prepare_operation(kind => 'generation', owner_id => 'studio',"
        " operation_key => 'old', payload => '{}', provider => 'simulator', max_cost => 5,"
        " source_ref => repeat('x', 3000))"
    )
    stage.connection.execute("alter table relay.operation enable always trigger a_words")
    stage.succeeded(operation)
    with stage.acting(WORKER):
        assert stage.one("select relay.prepare_delivery(%s)", operation) is not None
