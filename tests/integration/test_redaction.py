"""Redaction blanks what an ended operation's payload, evidence and output locations say, keeps what proves
what was done and paid, and is journaled. It is the only such change that anybody can make.
"""

from collections.abc import Iterator
from typing import Final, LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from fix_batches import make_batch
from fix_commands import Command
from fix_operations import APPLICATION, OPERATOR, ROLES, WORKER, Stage
from fix_postgres import Database

FORBIDDEN: Final = "OR010"
REDACTED: Final = "redacted_at = now(), version = version + 1, redacted_xid = pg_current_xact_id()"
SECRETS: Final = ("a boat", "said-by-the-provider", "https://signed", "a-file-of-ann", "seen-by-a-person")


@pytest.fixture
def stage(database: Database) -> Iterator[Stage]:
    made = Stage(database)
    yield made
    made.close()


@pytest.fixture
def env(stage: Stage) -> dict[str, str]:
    return {"RELAY_DATABASE_URL": stage.database.url_as(OPERATOR)}


def _delivered(stage: Stage) -> UUID:
    """Succeeded, delivered and settled, with something to redact in every table."""
    operation = stage.prepare()
    attempt = stage.accepted(operation)
    with stage.acting(WORKER):
        stage.connection.execute(
            'update relay.attempt set evidence = \'{"body": "said-by-the-provider"}\' where attempt_id = %s',
            [attempt],
        )
        stage.connection.execute("select relay.settle(%s, 4, 'job succeeded')", [attempt])
        stage.say("observation", attempt=stage.observed(operation))
        assert stage.move(operation, "succeeded", "observation") == 1
        stage.connection.execute(
            "insert into relay.output (operation_id, ordinal, name, url, expected_sha256) values"
            " (%s, 0, 'a-file-of-ann', 'https://signed', repeat('a', 64))",
            [operation],
        )
        stage.connection.execute(
            "update relay.output set stored_key = 'studio/a-file-of-ann', stored_bytes = 3,"
            " stored_at = relay.now(), stored_sha256 = repeat('a', 64) where operation_id = %s",
            [operation],
        )
        delivery = stage.one("select relay.prepare_delivery(%s)", operation)
    token = stage.claim(delivery, reserve=False)
    with stage.acting(WORKER):
        stage.insert_attempt(delivery, token, "download")
        stage.finish(token, "accepted")
        stage.say("download", attempt=token)
        assert stage.move(delivery, "stored", "download") == 1
    with stage.acting(OPERATOR):
        stage.connection.execute(
            "insert into relay.incident (operation_id, boundary, what, evidence)"
            " values (%s, 'network', 'x', '{\"excerpt\": \"seen-by-a-person\"}')",
            [operation],
        )
    return operation


def _everything(stage: Stage, operation: UUID) -> str:
    """All rows about the operation but its events', as text."""
    tables = ("operation", "attempt", "review", "incident", "output", "remote_job", "reservation", "journal")
    texts = []
    for table in tables:
        rows = stage.connection.execute(
            sql.SQL("select t::text from relay.{} t where operation_id = %s").format(sql.Identifier(table)),
            [operation],
        )
        texts += [text for (text,) in rows]
    return "\n".join(texts)


def test_what_is_redacted_says_nothing_any_more_and_proves_what_it_proved(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    operation = _delivered(stage)
    before = _everything(stage, operation)
    assert all(secret in before for secret in SECRETS)
    kept: LiteralString = (
        "select operation_key, specification_hash, job_id, max_cost, accounting, source_ref, phase"
        " from relay.operation order by created_at"
    )
    kept_before = stage.connection.execute(kept).fetchall()
    money = "select * from relay.ledger order by entry_id"
    money_before = stage.connection.execute(money).fetchall()
    said = command("ops", "redact", str(operation), "--reason", "ann asked for it", env=env)
    assert said.status == 0, said.err
    assert "studio/a-file-of-ann" in said.out
    after = _everything(stage, operation)
    assert not [secret for secret in SECRETS if secret in after]
    assert stage.connection.execute(kept).fetchall() == kept_before
    assert stage.connection.execute(money).fetchall() == money_before
    digests = "select stored_sha256, stored_bytes from relay.output where operation_id = %s"
    assert stage.connection.execute(digests, [operation]).fetchall() == [("a" * 64, 3)]
    entry = stage.connection.execute(
        "select j.version, from_phase, to_phase, cause, reason, j.actor ~ '@' from relay.journal j"
        " join relay.operation o using (operation_id) where operation_id = %s and j.version = o.version",
        [operation],
    ).fetchone()
    assert entry == (6, "succeeded", "succeeded", "redaction", "ann asked for it", True)
    assert (
        stage.one(
            "select payload->>'cause' from relay.outbox where operation_id = %s and version = 6", operation
        )
        == "redaction"
    )
    audit = command("ops", "audit", env=env)
    assert (audit.status, audit.out) == (0, "Nothing was found that may not be.\n")
    shown = command("ops", "show", str(operation), "--json", env=env)
    assert (shown.status, shown.json["operation"]["phase"]) == (0, "succeeded")


def test_what_is_redacted_answers_the_same_approval_as_before(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    operation = stage.prepare("frame-7")
    with stage.acting(OPERATOR):
        stage.connection.execute("select relay.request_cancel(%s, 'test')", [operation])
    assert command("ops", "redact", str(operation), "--reason", "r", "--json", env=env).json["files"] == []
    assert stage.prepare("frame-7") == operation
    with stage.acting(APPLICATION), pytest.raises(psycopg.Error) as refused, stage.connection.transaction():
        stage.connection.execute(
            "select relay.prepare_operation(kind => 'generation', owner_id => 'studio',"
            " operation_key => 'frame-7', payload => '{}', provider => 'simulator', max_cost => 5)"
        )
    assert refused.value.sqlstate == "OR001"


@pytest.mark.parametrize("phase", ["prepared", "claimed", "submitting", "uncertain", "held", "accepted"])
def test_what_has_not_ended_is_not_redacted(
    stage: Stage, env: dict[str, str], command: Command, phase: str
) -> None:
    operation = stage.in_phase("generation", phase)
    said = command("ops", "redact", str(operation), "--reason", "r", env=env)
    assert (said.status, "only what has ended is redacted" in said.err) == (1, True)
    assert stage.one("select payload from relay.operation where operation_id = %s", operation)


def test_evidence_that_a_review_a_dispute_or_a_delivery_still_needs_is_kept(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    reviewed = stage.in_phase("generation", "rejected")
    with stage.acting(WORKER):
        stage.raise_review(reviewed, "contradiction")
    unsettled = stage.in_phase("generation", "failed")
    delivering = stage.delivery()
    parent = stage.one("select parent_operation_id from relay.operation where operation_id = %s", delivering)
    stage.connection.execute(
        "select relay.settle(attempt_id, 1, 'x') from relay.reservation where operation_id = %s", [parent]
    )
    for operation, why in (
        (reviewed, "decided by its evidence"),
        (unsettled, "is unsettled"),
        (parent, "still being delivered"),
    ):
        said = command("ops", "redact", str(operation), "--reason", "r", env=env)
        assert (said.status, why in said.err) == (1, True), said.err


def test_evidence_that_comes_after_a_redaction_can_be_redacted_again(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    operation = stage.in_phase("generation", "rejected")
    assert command("ops", "redact", str(operation), "--reason", "r", env=env).status == 0
    with stage.acting(WORKER):
        stage.connection.execute(
            "update relay.attempt set evidence = %s where operation_id = %s",
            ['{"late": "said-by-the-provider"}', operation],
        )
    assert command("ops", "redact", str(operation), "--reason", "again", env=env).status == 0
    assert "said-by-the-provider" not in _everything(stage, operation)
    causes = stage.connection.execute(
        "select cause from relay.journal where operation_id = %s order by version", [operation]
    ).fetchall()
    assert [cause for (cause,) in causes][-2:] == ["redaction", "redaction"]


def test_a_payload_that_is_elsewhere_loses_its_place_and_keeps_its_digest(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    with stage.acting(APPLICATION):
        operation = stage.one(
            "select operation_id from relay.prepare_operation(kind => 'generation', owner_id => 'studio',"
            " operation_key => 'k', payload_ref => 's3://bucket/a-file-of-ann',"
            " payload_sha256 => repeat('a', 64), payload_bytes => 3, provider => 'simulator', max_cost => 5)"
        )
        stage.connection.execute("select relay.request_cancel(%s, 'test')", [operation])
    assert command("ops", "redact", str(operation), "--reason", "r", env=env).status == 0
    row = stage.connection.execute(
        "select payload_ref, payload_sha256, payload_bytes from relay.operation"
    ).fetchone()
    assert row == (None, "a" * 64, 3)
    assert command("ops", "audit", env=env).status == 0


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("operation", "payload = null, redacted_at = now()"),
        (
            "operation",
            f"{REDACTED}, payload = null, source_ref = 'x'",
        ),
        ("operation", REDACTED),
        ("incident", "evidence = '{{}}'"),
        ("review", "evidence = '{{}}'"),
    ],
    ids=["no-transaction", "more", "less", "incident", "review"],
)
def test_even_the_owner_blanks_nothing_beside_the_function(
    stage: Stage, table: str, change: LiteralString
) -> None:
    operation = _delivered(stage)
    with stage.acting(OPERATOR):
        review = stage.raise_review(operation, "contradiction")
        stage.resolve(review, "settle")
    statement = sql.SQL("update relay.{} set " + change + " where operation_id = %s").format(
        sql.Identifier(table)
    )
    assert stage.refused_to(None, statement, operation) == FORBIDDEN


@pytest.mark.parametrize("role", [role for role in ROLES if role != OPERATOR])
def test_only_an_operator_redacts(stage: Stage, role: str) -> None:
    operation = stage.in_phase("generation", "rejected")
    assert stage.refused_to(role, "select relay.redact_operation(%s, 'r')", operation) == "42501"


def test_a_member_that_is_redacted_leaves_its_batch_as_it_is(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    batch = make_batch(stage, 1)
    with stage.acting(OPERATOR):
        stage.connection.execute("select relay.request_cancel(%s, 'test')", [batch.members[0]])
    assert command("ops", "redact", str(batch.members[0]), "--reason", "r", env=env).status == 0
    assert command("ops", "audit", env=env).status == 0
