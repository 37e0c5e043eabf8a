"""What the database itself holds after a restore: nothing is claimed, nothing is forged, no money is lost."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from uuid import UUID, uuid4

import psycopg
import pytest

from consumers.operations import restored as restored_rows
from consumers.operations.audit import audit
from consumers.operations.lost import Submission
from fix_operations import OPERATOR, WORKER, Stage
from fix_postgres import Database, clone
from fix_restore import restored, rewound
from fix_scene import _VERIFIED
from relay.embedded_postgres import EmbeddedPostgres

GATE = "select relay.dispatch_gate()"


@pytest.fixture
def own_stage(postgres: EmbeddedPostgres, migrated_template: str) -> Iterator[Stage]:
    """A database of the test's own, with committed operations."""
    database = clone(postgres, migrated_template, "restored")
    made = Stage(database)
    made.connection.execute(_VERIFIED)
    yield made
    made.close()
    database.drop()


def accept_rewind(stage: Stage) -> None:
    """What `relay init --accept-rewind` does to the source, by the relay's own login."""
    with stage.acting("relay_replicator"):
        stage.connection.execute("update relay.source_identity set unreconciled_since = clock_timestamp()")


def findings(stage: Stage) -> list[str]:

    async def look() -> list[str]:
        async with await psycopg.AsyncConnection.connect(stage.database.url, autocommit=True) as connection:
            return [f"{one.invariant}: {one.what}" for one in await audit(connection)]

    return asyncio.run(look())


def phase(stage: Stage, operation: UUID) -> tuple[str, str]:
    row = stage.connection.execute(
        "select phase, phase_reason from relay.operation where operation_id = %s", [operation]
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def test_an_accepted_rewind_holds_all_that_could_be_submitted_again(own_stage: Stage) -> None:
    stage = own_stage
    prepared, claimed, spoken = stage.prepare(), stage.prepare(), stage.prepare()
    token = stage.claim(claimed)
    sent, accepted = stage.in_phase("generation", "submitting"), stage.in_phase("generation", "accepted")
    held = stage.in_phase("generation", "held", held_for="configuration")
    with stage.acting(WORKER):
        stage.say("hold")
        stage.move(spoken, "held", "allowance")
    delivery = stage.delivery()
    assert stage.one(GATE) is None
    accept_rewind(stage)
    assert "relay ops reconcile" in stage.one(GATE)
    assert {phase(stage, one) for one in (prepared, claimed, spoken)} == {("held", "restored")}
    assert phase(stage, held) == ("held", "configuration")
    assert [phase(stage, one)[0] for one in (sent, accepted, delivery)] == [
        "submitting",
        "accepted",
        "prepared",
    ]
    assert findings(stage) == []
    # Not even schedule lets any go: each waits in a review.
    with stage.acting(WORKER):
        stage.say("release")
        assert stage.move_refused(prepared, "prepared") == "OR012"

    # The claim's own attempt comes back with its money, which was given back meanwhile.
    with stage.acting(OPERATOR):
        for attempt, operation in ((token, claimed), (uuid4(), prepared)):
            assert stage.one(
                "select relay.restore_attempt(%s, %s, 1, 'w', null, null, relay.now() + '1 hour', 'r', '{}')",
                operation,
                attempt,
            )
            stage.say("restored", attempt=attempt)
            assert stage.move(operation, "uncertain", "restored") == 1
    assert findings(stage) == []
    since = stage.one("select unreconciled_since from relay.source_identity")
    with stage.acting(OPERATOR):
        assert stage.one("select relay.end_reconciliation(%s - interval '1 s', 'ann')", since) is False
        assert stage.one("select relay.end_reconciliation(%s, 'ann')", since) is True
    assert stage.one(GATE) is None


def test_an_id_is_kept_although_its_profile_can_not_be_read(own_stage: Stage) -> None:
    stage = own_stage
    operation = stage.prepare()
    attempt = restored(stage, operation)

    async def kept_twice() -> list[bool]:
        url = stage.database.url_as(OPERATOR)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            return [
                await restored_rows.keep_job(connection, operation, attempt, "job-of-old") for _ in range(2)
            ]

    assert asyncio.run(kept_twice()) == [True, False]
    found = stage.connection.execute("select operation_id, job_id, role from relay.remote_job").fetchall()
    assert found == [(operation, "job-of-old", "candidate")]


def test_what_was_spent_before_the_restore_is_booked_whatever_the_limit(stage: Stage) -> None:
    operation = stage.prepare(owner="poor", max_cost="7")
    restored(stage, operation)
    row = stage.connection.execute(
        "select limit_amount, reserved, overrun from relay.allowance where owner_id = 'poor'"
    ).fetchone()
    assert row == (0, 7, True)


def test_only_an_operator_who_reconciles_tells_of_a_lost_submission(stage: Stage) -> None:
    operation = stage.prepare()
    call = "select relay.restore_attempt(%s, gen_random_uuid(), 1, 'w', null, null, now() + '1 h', 'r', '{}')"
    assert stage.refused_to(OPERATOR, call, operation) == "OR012", "no rewind was accepted"
    rewound(stage)
    assert stage.refused_to(WORKER, call, operation) == "42501"
    assert stage.refused_to(WORKER, "select relay.end_reconciliation(now(), 'me')") == "42501"
    insert = (
        "insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker, outcome, restored,"
        " late_delivery_until) values (gen_random_uuid(), %s, 'submit', 1, 'w', 'accepted', true, now())"
    )
    assert stage.refused_to(WORKER, insert, operation) == "42501"
    assert stage.refused_to(None, insert, operation) == "OR010", "what is restored is unknown"


@pytest.mark.slow
def test_a_dump_put_back_into_the_running_server_is_not_the_database_that_was_verified(
    own_stage: Stage, postgres: EmbeddedPostgres
) -> None:
    """Same cluster, same timeline, same start of the server: only the tables' own identity tells."""
    stage, name = own_stage, own_stage.database.name
    assert stage.one(GATE) is None
    environment = {**os.environ, "PGPASSWORD": postgres.password}
    connects = ("--host", postgres.host, "--port", str(postgres.port), "--username", "postgres")
    dumped = subprocess.run(
        [postgres.bindir / "pg_dump", *connects, "--format=custom", name],
        check=True,
        capture_output=True,
        env=environment,
    ).stdout
    with psycopg.connect(postgres.superuser_url, autocommit=True) as connection:
        connection.execute(f"create database {name}_back")
    back = Database(postgres, f"{name}_back")
    try:
        subprocess.run(
            [postgres.bindir / "pg_restore", *connects, "--dbname", back.name],
            check=True,
            input=dumped,
            env=environment,
        )
        with back.connect() as connection:
            closed = connection.execute(GATE).fetchone()
            assert closed == ("the tables were restored since the relay verified them",)
            # The relay's own word opens it again, once it has compared them with Kafka.
            connection.execute("update relay.source_identity set verified_at = clock_timestamp()")
            assert connection.execute(GATE).fetchone() == (None,)
    finally:
        back.drop()


def test_a_late_answer_that_is_lost_leaves_its_known_attempt_held_until_its_id_is_applied(
    own_stage: Stage,
) -> None:
    """Resubmitted by a person, accepted by the first request's late answer, and then restored to in between:
    nothing new was sent, so nothing new comes back, and the reconciliation goes on."""
    stage = own_stage
    operation = stage.prepare()
    attempt = stage.resubmitted(operation)
    accept_rewind(stage)
    assert phase(stage, operation) == ("held", "restored")
    late = Submission(attempt_id=attempt, dispatch_no=1, worker="w", sent_at=None, said="late_answer")

    async def bring_back() -> bool:
        url = stage.database.url_as(OPERATOR)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            return await restored_rows.make_uncertain(
                connection,
                operation,
                [late],
                actor="ann",
                why="it was accepted",
                late_delivery_s=60,
                review_deadline_s=60,
                told={"job_ids": ["job-1"]},
            )

    assert asyncio.run(bring_back()) is False
    assert phase(stage, operation) == ("held", "restored")
    assert findings(stage) == []
