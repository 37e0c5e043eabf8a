"""`relay ops audit` finds what a guard would have refused, when somebody with the power to do so went round
it; of what the guards let through it finds nothing.
"""

from collections.abc import Iterator
from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from consumers.operations.audit import Finding, Invariant, audit
from consumers.operations.decisions import Refused
from consumers.operations.queries import Queries
from consumers.operations.refusals import in_words
from fix_operations import OPERATOR, WORKER, Stage
from fix_postgres import Database

pytestmark = pytest.mark.anyio


async def _audit(stage: Stage, role: str = "relay_reader", **more: Any) -> list[Finding]:
    url = stage.database.url_as(role)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        return await audit(connection, **more)


def _every_phase(stage: Stage) -> None:
    """Operations in every phase, by every edge's ordinary way."""
    phases = stage.connection.execute("select lifecycle, phase from relay.lifecycle_phase").fetchall()
    for lifecycle, phase in phases:
        if (lifecycle, phase) != ("generation", "succeeded"):
            stage.in_phase(lifecycle, phase)
    stage.resubmitted(stage.prepare())
    stage.submit(stage.prepare())
    settled = stage.accepted(stage.prepare())
    over = stage.accepted(stage.prepare(owner="spender"))
    with stage.acting(WORKER):
        stage.connection.execute("select relay.settle(%s, 4, 'cost')", [settled])
        stage.connection.execute("select relay.settle(%s, 6, 'cost')", [over])
    stage.allow("spender", "7")


async def test_what_the_guards_let_through_has_no_findings(committing_stage: Stage) -> None:
    committing_stage.allow("spender", "100")
    _every_phase(committing_stage)
    assert await _audit(committing_stage) == []
    assert await _audit(committing_stage, OPERATOR) == []


class Corruption:
    """What somebody did with the guards off, and what `block` must say that it breaks."""

    def __init__(self, block: str, invariant: Invariant, *statements: LiteralString) -> None:
        self.block = block
        self.invariant = invariant
        self.statements = statements

    def __str__(self) -> str:
        return f"{self.block}: {self.statements[-1][:60]}"


# {0} is an operation that was accepted, {1} its attempt.
CORRUPTIONS: Final = (
    Corruption(
        "specifications",
        Invariant.SPECIFICATION,
        "update relay.operation set payload = '{{}}' where operation_id = {0}",
    ),
    Corruption(
        "specifications",
        Invariant.SPECIFICATION,
        "update relay.operation set max_cost = 500 where operation_id = {0}",
    ),
    Corruption(
        "profiles",
        Invariant.SPECIFICATION,
        "alter table relay.provider_profile drop constraint provider_profile_check",
        "update relay.provider_profile set document = 'name: other'",
    ),
    Corruption(
        "redaction_journaled",
        Invariant.REDACTION,
        "update relay.operation set redacted_at = now(), payload = null where operation_id = {0}",
    ),
    Corruption(
        "redaction_journaled",
        Invariant.REDACTION,
        "update relay.journal set cause = 'redaction', from_phase = to_phase"
        " where operation_id = {0} and version = 3",
    ),
    Corruption(
        "redaction_blank",
        Invariant.REDACTION,
        "update relay.operation set redacted_at = now() where operation_id = {0}",
    ),
    Corruption(
        "journal_versions",
        Invariant.JOURNAL,
        "update relay.operation set version = 9 where operation_id = {0}",
    ),
    Corruption(
        "journal_versions",
        Invariant.JOURNAL,
        "delete from relay.journal where operation_id = {0} and version = 2",
    ),
    Corruption(
        "journal_chain",
        Invariant.JOURNAL,
        "update relay.journal set to_phase = 'held' where operation_id = {0} and version = 2",
    ),
    Corruption(
        "journal_end",
        Invariant.JOURNAL,
        "update relay.operation set phase = 'failed' where operation_id = {0}",
    ),
    Corruption(
        "journal_edges",
        Invariant.JOURNAL,
        "update relay.journal set cause = 'unsent' where operation_id = {0} and version = 4",
    ),
    Corruption(
        "journal_final",
        Invariant.JOURNAL,
        "update relay.operation set is_final = true where operation_id = {0}",
    ),
    Corruption(
        "events", Invariant.EVENT, "delete from relay.outbox where operation_id = {0} and version = 3"
    ),
    Corruption(
        "submissions",
        Invariant.SUBMISSION,
        "insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker, outcome,"
        " late_delivery_until) values (gen_random_uuid(), {0}, 'submit', 2, 'w', 'unknown', now())",
    ),
    Corruption(
        "submissions_released",
        Invariant.SUBMISSION,
        "update relay.attempt set released_by_review = gen_random_uuid() where attempt_id = {1}",
    ),
    Corruption(
        "submissions_answered",
        Invariant.SUBMISSION,
        "insert into relay.review (operation_id, kind, deadline, state, resolution)"
        " values ({0}, 'hold', relay.now(), 'resolved', 'lost')",
    ),
    Corruption(
        "submissions_by_review",
        Invariant.SUBMISSION,
        "update relay.journal set cause = 'review', review_id = gen_random_uuid()"
        " where operation_id = {0} and version = 4",
    ),
    Corruption("jobs_primary", Invariant.JOB, "delete from relay.remote_job where operation_id = {0}"),
    Corruption(
        "jobs_needed", Invariant.JOB, "update relay.operation set job_id = null where operation_id = {0}"
    ),
    Corruption("jobs_kept", Invariant.JOB, "delete from relay.remote_job where operation_id = {0}"),
    Corruption("money_allowances", Invariant.MONEY, "update relay.allowance set reserved = reserved + 1"),
    Corruption(
        "money_allowances", Invariant.MONEY, "update relay.reservation set amount = 1 where attempt_id = {1}"
    ),
    Corruption("money_ledger", Invariant.MONEY, "delete from relay.ledger where attempt_id = {1}"),
    Corruption(
        "money_ledger",
        Invariant.MONEY,
        "update relay.reservation set state = 'settled', settled_amount = 1 where attempt_id = {1}",
    ),
    Corruption(
        "money_limit_set", Invariant.MONEY, "update relay.allowance set limit_amount = limit_amount + 1"
    ),
    Corruption(
        "money_limit_kept", Invariant.MONEY, "update relay.ledger set amount = 1 where entry = 'limit'"
    ),
    Corruption(
        "money_unbooked",
        Invariant.MONEY,
        "update relay.reservation set state = 'released' where attempt_id = {1}",
    ),
    Corruption(
        "money_above",
        Invariant.MONEY,
        "update relay.reservation set state = 'settled', settled_amount = 50 where attempt_id = {1}",
    ),
    Corruption(
        "money_stranded",
        Invariant.MONEY,
        "insert into relay.reservation (attempt_id, operation_id, owner_id, unit, amount, state)"
        " values (gen_random_uuid(), {0}, 'studio', 'credit', 5, 'reserved')",
    ),
    Corruption(
        "money_totals",
        Invariant.MONEY,
        "insert into relay.ledger (owner_id, unit, entry, amount, reason, actor, settled_change)"
        " values ('studio', 'credit', 'correct', 1, 'x', 'me', 1)",
    ),
    Corruption("money_totals", Invariant.MONEY, "update relay.allowance set settled = settled + 0.000001"),
    Corruption(
        "money_entries",
        Invariant.MONEY,
        "update relay.ledger set disputed_change = 1 where attempt_id = {1} and entry = 'reserve'",
    ),
    Corruption(
        "money_batches",
        Invariant.MONEY,
        "insert into relay.batch (owner_id, batch_key, unit, asked, created_by, disputed)"
        " values ('studio', 'b', 'credit', 'x', 'me', 1)",
    ),
    Corruption("money_overrun", Invariant.MONEY, "update relay.reservation set overrun = true"),
    Corruption("money_overrun", Invariant.MONEY, "update relay.allowance set overrun = true"),
    Corruption(
        "batch_members",
        Invariant.BATCH,
        "insert into relay.batch (owner_id, batch_key, unit, asked, created_by, members, open_members)"
        " values ('studio', 'b', 'credit', 'x', 'me', 1, 1)",
    ),
    Corruption(
        "batch_completed",
        Invariant.BATCH,
        "insert into relay.batch (owner_id, batch_key, unit, asked, created_by, sealed_at)"
        " values ('studio', 'b', 'credit', 'x', 'me', now())",
    ),
    Corruption(
        "batch_completed",
        Invariant.BATCH,
        "insert into relay.batch (owner_id, batch_key, unit, asked, created_by, sealed_at, completed_at)"
        " values ('studio', 'b', 'credit', 'x', 'me', now(), now())",
    ),
    Corruption(
        "waker_none",
        Invariant.WAKER,
        "update relay.operation set next_action_at = null where operation_id = {0}",
    ),
    Corruption(
        "waker_reviews",
        Invariant.WAKER,
        "update relay.operation set open_reviews = 1 where operation_id = {0}",
    ),
    Corruption(
        "waker_hold",
        Invariant.WAKER,
        "update relay.operation set phase = 'held', phase_reason = 'batch', held_at = now()"
        " where operation_id = {0}",
    ),
    Corruption(
        "waker_overdue",
        Invariant.WAKER,
        "update relay.operation set next_action_at = now() - interval '6 minutes' where operation_id = {0}",
    ),
    Corruption(
        "delivery_missing",
        Invariant.DELIVERY,
        "update relay.operation set phase = 'succeeded' where operation_id = {0}",
    ),
    Corruption(
        "delivery_unstored",
        Invariant.DELIVERY,
        "insert into relay.output (operation_id, ordinal, name, url) values ({0}, 0, 'a', 'https://a')",
        "insert into relay.operation (kind, owner_id, operation_key, specification_hash, payload,"
        " payload_version, max_cost, cost_unit, requested_by, phase, phase_reason, parent_operation_id,"
        " is_final) values ('delivery', 'studio', 'd', repeat('0', 64), '{{}}', 1, 0, 'credit', 'me',"
        " 'stored', 'x', {0}, true)",
    ),
    Corruption(
        "delivery_digest",
        Invariant.DELIVERY,
        "insert into relay.output (operation_id, ordinal, name, url, expected_sha256, stored_key,"
        " stored_sha256) values ({0}, 0, 'a', 'https://a', repeat('0', 64), 'k', repeat('1', 64))",
    ),
    Corruption(
        "delivery_size",
        Invariant.DELIVERY,
        "insert into relay.output (operation_id, ordinal, name, url, expected_bytes, stored_key,"
        " stored_bytes) values ({0}, 0, 'a', 'https://a', 7, 'k', 6)",
    ),
    Corruption(
        "delivery_keys",
        Invariant.DELIVERY,
        "insert into relay.output (operation_id, ordinal, name, url, stored_key)"
        " select {0}, n, 'a', 'https://a', 'k' from generate_series(0, 1) n",
    ),
    Corruption("guards_off", Invariant.GUARD, "alter table relay.journal enable trigger a_forbidden"),
    Corruption("guards_missing", Invariant.GUARD, "drop trigger b_guard on relay.attempt"),
)


@pytest.fixture
def own_stage(database: Database) -> Iterator[Stage]:
    """A database of the test's own, to be corrupted."""
    stage = Stage(database)
    yield stage
    stage.close()


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=str)
async def test_what_went_round_a_guard_is_found(own_stage: Stage, corruption: Corruption) -> None:
    operation = own_stage.prepare()
    attempt = own_stage.accepted(operation)
    assert await _audit(own_stage) == []
    _with_guards_off(own_stage, operation, attempt, corruption.statements)
    findings = await _audit(own_stage)
    assert corruption.invariant in {finding.invariant for finding in findings}
    if corruption.block != "specifications":
        rows = own_stage.connection.execute(Queries("audit")[corruption.block], {"overdue_s": 300}).fetchall()
        assert rows
        assert {Finding(corruption.invariant, *row) for row in rows} <= set(findings)


def test_every_check_of_the_audit_has_a_corruption_that_it_finds() -> None:
    assert {corruption.block for corruption in CORRUPTIONS} == set(Queries("audit"))


async def test_a_reader_without_rights_is_told_which_role_to_use(own_stage: Stage) -> None:
    with pytest.raises(Refused, match="relay_operator"), in_words():
        await _audit(own_stage, "relay_app")


def _with_guards_off(
    stage: Stage, operation: UUID, attempt: UUID, statements: tuple[LiteralString, ...]
) -> None:
    with stage.connection.transaction():
        guards = stage.connection.execute(
            "select c.relname, t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid"
            " where c.relnamespace = 'relay'::regnamespace and not t.tgisinternal"
        ).fetchall()
        for table, guard in guards:
            _switch(stage, "alter table {} disable trigger {}", table, guard)
        for statement in statements:
            stage.connection.execute(sql.SQL(statement).format(sql.Literal(operation), sql.Literal(attempt)))
        still = stage.connection.execute(
            "select c.relname, t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid"
            " where c.relnamespace = 'relay'::regnamespace and not t.tgisinternal and t.tgenabled = 'D'"
        ).fetchall()
        for table, guard in still:
            _switch(stage, "alter table {} enable always trigger {}", table, guard)


def _switch(stage: Stage, statement: LiteralString, table: str, guard: str) -> None:
    stage.connection.execute(sql.SQL(statement).format(sql.Identifier("relay", table), sql.Identifier(guard)))
