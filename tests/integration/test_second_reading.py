"""What reading the whole once more found: books, batches and rows from before an upgrade."""

import asyncio
from typing import Any, LiteralString

import psycopg

from consumers.operations import due
from fix_batches import make_batch
from fix_operations import OPERATOR, WORKER, Stage


def test_a_candidate_that_becomes_the_job_after_a_refund_is_booked_again(stage: Stage) -> None:
    operation = stage.prepare()
    attempt = stage.resubmitted(operation)
    with stage.acting(WORKER):
        stage.remote_job(operation, attempt, "job-1", role="candidate")
    with stage.acting(OPERATOR):
        stage.connection.execute("select relay.refund(%s, null, 'never charged')", [attempt])
    state: LiteralString = "select state from relay.reservation where attempt_id = %s"
    assert stage.one(state, attempt) == "settled"

    stage.connection.execute("update relay.remote_job set role = 'duplicate' where job_id = 'job-1'")

    assert stage.one(state, attempt) == "disputed"


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


def test_a_batch_in_which_nothing_fits_hides_none_in_which_something_does(committing_stage: Stage) -> None:
    """More of the first kind than a round looks at would starve the second for ever."""
    stage = committing_stage
    full, roomy = (make_batch(stage, 1).batch_id for _ in range(2))
    for batch in (full, roomy):
        with stage.acting(WORKER):
            stage.say("hold")
            member = stage.one("select operation_id from relay.operation where batch_id = %s", batch)
            assert stage.move(member, "held", "batch") == 1
    stage.connection.execute("alter table relay.batch disable trigger user")
    stage.connection.execute("update relay.batch set max_cost = 1 where batch_id = %s", [full])
    stage.connection.execute("alter table relay.batch enable trigger user")

    async def looked_at() -> list[Any]:
        url = stage.database.url_as(WORKER)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            return [one.batch_id for one in await due.batches(connection, 1)]

    assert asyncio.run(looked_at()) == [roomy]
