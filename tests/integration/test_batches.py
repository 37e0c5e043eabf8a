"""A batch is sealed once, counts its members right, keeps its own limits, and completes exactly once."""

import asyncio
import threading
from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg
import pytest

from consumers.operations import due
from fix_batches import Batch, join_batch, make_batch, seal_batch
from fix_operations import APPLICATION, OPERATOR, OWNER, UNIT, WORKER, Stage

FORBIDDEN: Final = "OR010"
COMPLETED: Final = "batch.completed"


def _batch(stage: Stage, batch: UUID, columns: LiteralString) -> Any:
    row = stage.connection.execute(
        f"select {columns} from relay.batch where batch_id = %s",
        [batch],
    ).fetchone()
    assert row is not None
    return row[0] if len(row) == 1 else row


def _events(stage: Stage, batch: UUID) -> list[dict[str, Any]]:
    rows = stage.connection.execute(
        "select payload from relay.outbox where operation_id = %s and event_type = %s", [batch, COMPLETED]
    )
    return [payload for (payload,) in rows]


def _cancel(stage: Stage, operation: UUID) -> None:
    with stage.acting(OPERATOR):
        stage.connection.execute("select relay.request_cancel(%s, 'test')", [operation])


def _held(stage: Stage, operation: UUID) -> None:
    with stage.acting(WORKER):
        stage.say("hold")
        assert stage.move(operation, "held", "allowance") == 1


# Membership -------------------------------------------------------------------------------------------------


def test_a_sealed_batch_lets_nobody_in_and_nobody_out(stage: Stage) -> None:
    batch = make_batch(stage, 2)
    with pytest.raises(psycopg.Error) as refused:
        join_batch(stage, batch.batch_id, stage.prepare())
    assert refused.value.sqlstate == FORBIDDEN
    leave = "update relay.operation set batch_id = null where operation_id = %s"
    assert stage.refused_to(None, leave, batch.members[0]) == FORBIDDEN
    assert _batch(stage, batch.batch_id, "members, open_members") == (2, 2)


@pytest.mark.parametrize(
    "change",
    ["sealed_at = null", "members = 5", "owner_id = 'x'", "unit = 'x'", "asked = 'x'"],
)
def test_what_was_sealed_can_not_be_rewritten_even_by_the_owner(stage: Stage, change: LiteralString) -> None:
    batch = make_batch(stage, 2)
    statement = f"update relay.batch set {change} where batch_id = %s"
    assert stage.refused_to(None, statement, batch.batch_id) == FORBIDDEN


def test_a_seal_that_counts_other_members_is_refused_and_a_repeated_one_is_not(stage: Stage) -> None:
    batch = make_batch(stage, 2, seal=False)
    with pytest.raises(psycopg.Error, match="has 2 members, and 3 were to be sealed"):
        seal_batch(stage, batch.batch_id, 3)
    seal_batch(stage, batch.batch_id, 2)
    sealed_at = _batch(stage, batch.batch_id, "sealed_at")
    seal_batch(stage, batch.batch_id, 2)
    assert _batch(stage, batch.batch_id, "sealed_at") == sealed_at


def test_a_batch_is_joined_before_anything_was_done_and_again_in_vain(stage: Stage) -> None:
    batch = make_batch(stage, 1, seal=False)
    assert join_batch(stage, batch.batch_id, batch.members[0]) == batch.members[0]
    assert _batch(stage, batch.batch_id, "members") == 1
    other = make_batch(stage, seal=False)
    claimed = stage.prepare()
    stage.claim(claimed)
    for operation, of in ((batch.members[0], other), (claimed, batch)):
        with pytest.raises(psycopg.Error) as refused:
            join_batch(stage, of.batch_id, operation)
        assert refused.value.sqlstate == FORBIDDEN


def test_owners_and_units_do_not_meet_in_a_batch(stage: Stage) -> None:
    batch = make_batch(stage, seal=False)
    foreign = stage.prepare(owner="another")
    with pytest.raises(psycopg.Error, match="the owner another has no batch"):
        join_batch(stage, batch.batch_id, foreign)
    with stage.acting(APPLICATION):
        dollars: UUID = stage.one(
            "select operation_id from relay.prepare_operation(kind => 'generation', owner_id => %s,"
            " operation_key => 'in dollars', payload => '{}', provider => 'simulator', max_cost => 1,"
            " cost_unit => 'usd')",
            OWNER,
        )
    with pytest.raises(
        psycopg.Error, match=r"counts in credit, and operation .* costs usd: nothing is converted"
    ):
        join_batch(stage, batch.batch_id, dollars)


def test_one_key_is_one_batch_and_other_limits_are_a_conflict(stage: Stage) -> None:
    made = (
        "select batch_id from relay.prepare_batch(owner_id => 'studio', batch_key => 'reel', max_cost => %s)"
    )
    with stage.acting(APPLICATION):
        first = stage.one(made, 5)
        assert stage.one(made, "5.000") == first
        with (
            pytest.raises(psycopg.Error, match=r"max_cost 5.* and this call has .*max_cost 6") as refused,
            stage.connection.transaction(),
        ):
            stage.connection.execute(made, [6])
        assert refused.value.sqlstate == "OR001"


# Completion -------------------------------------------------------------------------------------------------


def test_uncertain_and_held_members_keep_a_batch_open_and_the_last_end_completes_it_once(
    stage: Stage,
) -> None:
    batch = make_batch(stage, 4)
    uncertain, held, cancelled, rejected = batch.members
    stage.uncertain(uncertain)
    _held(stage, held)
    _cancel(stage, cancelled)
    attempt = stage.submit(rejected)
    with stage.acting(WORKER):
        stage.finish(attempt, "refused", charged=False)
        stage.say("rule", attempt=attempt)
        assert stage.move(rejected, "rejected", "rule") == 1
    assert _batch(stage, batch.batch_id, "open_members, in_flight, completed_at") == (2, 1, None)
    _cancel(stage, held)
    with stage.acting(OPERATOR):
        review = stage.open_review(uncertain)
        stage.resolve(review, "abandon")
        stage.say("review", review=review)
        assert stage.move(uncertain, "abandoned", "abandon") == 1
    assert _batch(stage, batch.batch_id, "open_members, in_flight, completed_at is not null") == (0, 0, True)
    (event,) = _events(stage, batch.batch_id)
    assert (event["members"], event["succeeded"], event["stored"]) == (4, 0, 0)


def test_a_member_that_succeeded_is_open_until_its_outputs_are_stored(stage: Stage) -> None:
    batch = make_batch(stage, 1)
    (member,) = batch.members
    stage.succeeded(member)
    assert _batch(stage, batch.batch_id, "open_members, completed_at") == (1, None)
    with stage.acting(WORKER):
        delivery: UUID = stage.one("select relay.prepare_delivery(%s)", member)
    assert (
        stage.one("select batch_id from relay.operation where operation_id = %s", delivery) == batch.batch_id
    )
    token = stage.claim(delivery, reserve=False)
    with stage.acting(WORKER):
        stage.insert_attempt(delivery, token, "download")
        stage.finish(token, "accepted")
        stage.say("download", attempt=token)
        assert stage.move(delivery, "stored", "download") == 1
    assert _batch(stage, batch.batch_id, "members, open_members, completed_at is not null") == (1, 0, True)
    (event,) = _events(stage, batch.batch_id)
    assert (event["succeeded"], event["stored"]) == (1, 1)


def test_a_member_that_ended_before_the_seal_completes_it_at_the_seal(stage: Stage) -> None:
    batch = make_batch(stage, 1, seal=False)
    _cancel(stage, batch.members[0])
    assert _events(stage, batch.batch_id) == []
    seal_batch(stage, batch.batch_id)
    assert len(_events(stage, batch.batch_id)) == 1


def test_a_member_that_comes_back_to_life_does_not_complete_its_batch_twice(stage: Stage) -> None:
    batch = make_batch(stage, 1)
    (member,) = batch.members
    attempt = stage.uncertain(member)
    with stage.acting(OPERATOR):
        review = stage.open_review(member)
        stage.resolve(review, "abandon")
        stage.say("review", review=review)
        stage.move(member, "abandoned", "abandon")
    completed_at = _batch(stage, batch.batch_id, "completed_at")
    with stage.acting(OPERATOR):
        job = stage.remote_job(member, attempt, "job-late")
        review = stage.raise_review(member, "contradiction")
        stage.resolve(review, "accepted")
        stage.say("review", review=review)
        assert stage.move(member, "accepted", "review", job_id=job) == 1
    assert _batch(stage, batch.batch_id, "open_members, in_flight") == (1, 1)
    with stage.acting(WORKER):
        stage.say("observation", attempt=stage.observed(member))
        assert stage.move(member, "failed", "observation") == 1
    assert _batch(stage, batch.batch_id, "open_members, completed_at") == (0, completed_at)
    assert len(_events(stage, batch.batch_id)) == 1
    again = "update relay.batch set completed_at = now() where batch_id = %s"
    assert stage.refused_to(None, again, batch.batch_id) == FORBIDDEN


def test_one_members_failure_moves_no_other_member(stage: Stage) -> None:
    batch = make_batch(stage, 3)
    failed, *others = batch.members
    attempt = stage.submit(failed)
    with stage.acting(WORKER):
        stage.finish(attempt, "refused", charged=True)
        stage.say("rule", attempt=attempt)
        stage.move(failed, "rejected", "rule")
    rows = stage.connection.execute(
        "select phase, dispatch_no, version from relay.operation where operation_id = any(%s)", [others]
    ).fetchall()
    assert rows == [("prepared", 1, 1)] * 2


REPETITIONS: Final = 60


def test_the_last_two_members_that_end_together_complete_their_batch_once(committing_stage: Stage) -> None:
    stage = committing_stage
    batches = [make_batch(stage, 2) for _ in range(REPETITIONS)]
    together = threading.Barrier(2, timeout=60)
    failed: list[BaseException] = []

    def end(which: int) -> None:
        try:
            url = stage.database.url_as(OPERATOR)
            with psycopg.connect(url, autocommit=True) as own:
                for batch in batches:
                    together.wait()
                    own.execute("select relay.request_cancel(%s, 'test')", [batch.members[which]])
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            failed.append(error)
            together.abort()

    threads = [threading.Thread(target=end, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    ids = [batch.batch_id for batch in batches]
    counted = stage.connection.execute(
        "select b.open_members, b.completed_at is not null, count(e.event_id) from relay.batch b"
        " left join relay.outbox e on e.operation_id = b.batch_id where b.batch_id = any(%s)"
        " group by b.batch_id",
        [ids],
    ).fetchall()
    assert counted == [(0, True, 1)] * REPETITIONS


# Limits -----------------------------------------------------------------------------------------------------


def _why(stage: Stage, operation: UUID) -> str | None:
    token = stage.claim(operation, reserve=False)
    with stage.acting(WORKER):
        why: str | None = stage.one("select relay.reserve_or_why(%s, %s)", operation, token)
        if why is not None:
            stage.say("hold")
            assert stage.move(operation, "held", why) == 1
    return why


def test_a_batchs_own_limit_on_money_holds_beside_the_owners_allowance(stage: Stage) -> None:
    batch = make_batch(stage, 3, max_cost="10.5", each="5.25")
    assert [_why(stage, member) for member in batch.members] == [None, None, "batch"]
    assert _batch(stage, batch.batch_id, "reserved, disputed, settled") == (10.5, 0, 0)


def test_a_batchs_limit_on_jobs_in_flight_counts_what_may_still_run(stage: Stage) -> None:
    batch = make_batch(stage, 4, max_in_flight=2)
    first, second, third, fourth = batch.members
    stage.uncertain(first)
    assert _why(stage, second) is None
    assert _why(stage, third) == "batch"
    assert _batch(stage, batch.batch_id, "in_flight") == 2
    with stage.acting(WORKER):
        stage.say("hold")
        assert stage.move(second, "held", "paused") == 1
    assert _why(stage, fourth) is None


def test_what_a_batch_is_held_for_is_neither_reviewed_nor_released_by_anybody_but_schedule(
    stage: Stage,
) -> None:
    batch = make_batch(stage, 1, max_cost="1", each="5")
    (member,) = batch.members
    assert _why(stage, member) == "batch"
    row = stage.connection.execute(
        "select open_reviews, next_action_at is not null from relay.operation where operation_id = %s",
        [member],
    ).fetchone()
    assert row == (0, True)
    assert (
        stage.one("select reserved from relay.allowance where owner_id = %s and unit = %s", OWNER, UNIT) == 0
    )


def test_an_operator_changes_the_limits_with_a_reason_that_is_kept(stage: Stage) -> None:
    batch: Batch = make_batch(stage, 1, max_cost="1")
    change = "select relay.set_batch_limits(%s, 20, null, 'more frames')"
    assert stage.refused_to(WORKER, change, batch.batch_id) == "42501"
    with stage.acting(OPERATOR):
        stage.say("release", actor="ann@desk")
        stage.connection.execute(change, [batch.batch_id])
    (entry,) = _batch(stage, batch.batch_id, "history")
    assert (entry["who"], entry["reason"], entry["max_cost"]) == ("ann@desk", "more frames", 20)


def test_an_application_can_not_say_that_a_batch_completed(stage: Stage) -> None:
    forge = (
        "insert into relay.outbox (event_type, schema_version, operation_id, payload)"
        " values ('batch.completed', 1, gen_random_uuid(), '{}')"
    )
    assert stage.refused_to(APPLICATION, forge) == FORBIDDEN


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
