"""Attempts, jobs and money: what was sent is not rewritten, an id has one owner, and amounts add up."""

from typing import Any, Final, LiteralString
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from fix_operations import OPERATOR, OWNER, UNIT, WORKER, Stage

FORBIDDEN: Final = "OR010"
NO_PRIVILEGE: Final = "42501"


# Attempts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "attempt_id = gen_random_uuid()",
        "action = 'observe'",
        "dispatch_no = dispatch_no + 1",
        "worker = 'another'",
        "started_at = now()",
        "idempotency_key = 'another'",
        "request_sha256 = 'another'",
        "first_sent_at = now()",
    ],
)
def test_what_was_sent_can_not_be_rewritten(stage: Stage, change: str) -> None:
    attempt = stage.submit(stage.prepare())
    statement = sql.SQL("update relay.attempt set {} where attempt_id = {}").format(
        sql.SQL(change),
        sql.Literal(attempt),
    )
    assert stage.refused_to(None, statement) == FORBIDDEN


def test_an_outcome_is_decided_once_and_only_unknown_may_become_known(stage: Stage) -> None:
    outcomes = ("open", "accepted", "refused", "unsent", "unknown")
    allowed = {("unknown", "accepted"), ("unknown", "refused"), *(("open", after) for after in outcomes)}
    for before in outcomes:
        attempt = stage.submit(stage.prepare())
        stage.finish(attempt, before)
        for after in outcomes:
            if before == after or (before, after) in allowed:
                continue
            change = "update relay.attempt set outcome = %s where attempt_id = %s"
            assert stage.refused_to(WORKER, change, after, attempt) == FORBIDDEN, (before, after)


@pytest.mark.parametrize("outcome", ["accepted", "refused", "unknown"])
def test_an_attempt_begins_open_or_unsent(stage: Stage, outcome: str) -> None:
    operation = stage.prepare()
    token = stage.claim(operation)
    with pytest.raises(psycopg.errors.Error) as refused, stage.acting(WORKER):
        stage.insert_attempt(operation, token, outcome=outcome)
    assert refused.value.sqlstate == FORBIDDEN


def test_an_attempt_belongs_to_a_living_claim(stage: Stage) -> None:
    operation = stage.prepare()
    token = stage.claim(operation)
    for of, name in ((operation, uuid4()), (stage.prepare(), token)):
        with pytest.raises(psycopg.errors.Error) as refused, stage.acting(WORKER):
            stage.insert_attempt(of, name)
        assert refused.value.sqlstate == "OR012"


def test_a_worker_releases_no_attempt(stage: Stage) -> None:
    operation = stage.prepare()
    stage.uncertain(operation)
    review = stage.open_review(operation)
    change = "update relay.attempt set released_by_review = %s"
    assert stage.refused_to(WORKER, change, review) == NO_PRIVILEGE
    # An open review, even an operator's, has decided nothing.
    assert stage.refused_to(OPERATOR, change, review) == "OR012"


def test_a_resolved_review_is_closed_for_good(stage: Stage) -> None:
    operation = stage.in_phase("generation", "abandoned")
    change = "update relay.review set resolution = 'accepted' where operation_id = %s"
    assert stage.refused_to(OPERATOR, change, operation) == FORBIDDEN
    assert stage.refused_to(None, change, operation) == FORBIDDEN


# Jobs -------------------------------------------------------------------------------------------------------


def test_a_job_has_one_primary_operation(stage: Stage) -> None:
    first, second = stage.prepare(), stage.prepare()
    stage.remote_job(first, None, "job-7")
    with pytest.raises(psycopg.errors.UniqueViolation), stage.acting(WORKER):
        stage.remote_job(second, None, "job-7")
    # As a candidate or duplicate it is kept: every id ever seen is.
    with stage.acting(WORKER):
        stage.remote_job(second, None, "job-7", "candidate")


@pytest.mark.parametrize("job", ["", "a\nb", "a\x7fb", "j" * 513])
def test_a_job_id_is_printable_and_bounded(stage: Stage, job: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation), stage.acting(WORKER):
        stage.remote_job(stage.prepare(), None, job)


def test_a_job_of_512_wide_characters_fits_its_index(stage: Stage) -> None:
    operation = stage.prepare()
    with stage.acting(WORKER):
        stage.remote_job(operation, None, "作" * 512)


def test_a_job_can_not_name_the_attempt_of_another_operation(stage: Stage) -> None:
    attempt = stage.submit(stage.prepare())
    other = stage.prepare()
    with pytest.raises(psycopg.errors.Error) as refused, stage.acting(WORKER):
        stage.remote_job(other, attempt, "job-8")
    assert refused.value.sqlstate == "OR012"


@pytest.mark.parametrize("change", ["job_id = 'another'", "attempt_id = null", "first_seen_at = now()"])
def test_an_id_that_was_seen_can_not_change(stage: Stage, change: str) -> None:
    stage.accepted(stage.prepare())
    statement = sql.SQL("update relay.remote_job set {}").format(sql.SQL(change))
    assert stage.refused_to(None, statement) == FORBIDDEN


def test_a_worker_can_not_take_the_primary_job_from_its_operation(stage: Stage) -> None:
    stage.accepted(stage.prepare())
    assert stage.refused_to(WORKER, "update relay.remote_job set role = 'candidate'") == "OR012"


# Money ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amount", ["NaN", "-1", "Infinity", "0.0000001", "1.0000005", "1e14"])
@pytest.mark.parametrize(
    "call",
    [
        "select relay.set_allowance('o', 'u', {}, 'test')",
        "select relay.prepare_operation('generation', 'o', 'k', '{{}}', 'simulator', {})",
        "select relay.prepare_batch(owner_id => 'o', batch_key => 'k', max_cost => {})",
        "select relay.settle(gen_random_uuid(), {}, 'test')",
        "select relay.correct(gen_random_uuid(), {}, 'test')",
        "select relay.refund(gen_random_uuid(), {}, 'test')",
    ],
    ids=["allowance", "operation", "batch", "settle", "correct", "refund"],
)
def test_what_is_no_amount_is_booked_nowhere(stage: Stage, call: LiteralString, amount: str) -> None:
    written = sql.SQL(call).format(sql.Literal(amount) + sql.SQL("::numeric"))
    assert stage.refused_to(OPERATOR, written) == "22003"


def test_a_reservation_that_does_not_fit_the_allowance_is_not_made(stage: Stage) -> None:
    stage.allow("small", "12", UNIT)
    claims = []
    for expected in (True, True, False):
        operation = stage.prepare(owner="small", max_cost="5")
        token = stage.claim(operation, reserve=False)
        with stage.acting(WORKER):
            assert stage.one("select relay.reserve(%s, %s)", operation, token) is expected
        claims.append(token)
    assert _money(stage, "small") == (12, 10, 0, 0, False)


def test_money_is_reserved_for_a_living_claim_alone(stage: Stage) -> None:
    prepared = stage.prepare()
    claimed = stage.prepare()
    stage.claim(claimed, reserve=False)
    for operation in (prepared, claimed):
        reserve = "select relay.reserve(%s, gen_random_uuid())"
        assert stage.refused_to(WORKER, reserve, operation) == "OR012"


def test_no_allowance_means_that_nothing_may_be_spent(stage: Stage) -> None:
    operation = stage.prepare(owner="nobody", max_cost="0")
    token = stage.claim(operation, reserve=False)
    with stage.acting(WORKER):
        assert stage.one("select relay.reserve(%s, %s)", operation, token) is False


def test_unsent_gives_back_and_unknown_keeps_the_money(stage: Stage) -> None:
    stage.allow("payer", "100", UNIT)
    sent = stage.prepare(owner="payer")
    stage.uncertain(sent)
    unsent = stage.submit(stage.prepare(owner="payer"))
    stage.finish(unsent, "unsent")
    assert _money(stage, "payer") == (100, 5, 0, 0, False)


def test_a_cost_above_the_reservation_is_booked_and_stops_the_owners_claims(stage: Stage) -> None:
    stage.allow("payer", "100", UNIT)
    attempt = stage.accepted(stage.prepare(owner="payer"))
    with stage.acting(WORKER):
        assert stage.one("select relay.settle(%s, 7, 'cost')", attempt) is True
        assert stage.one("select relay.settle(%s, 7, 'again')", attempt) is False
    assert _money(stage, "payer") == (100, 0, 0, 7, True)
    operation = stage.prepare(owner="payer")
    token = stage.claim(operation, reserve=False)
    with stage.acting(WORKER):
        assert stage.one("select relay.reserve(%s, %s)", operation, token) is False


def test_an_open_dispute_is_not_forgotten_when_a_later_attempt_gives_its_money_back(stage: Stage) -> None:
    operation = stage.prepare()
    stage.resubmitted(operation)
    stage.claim(operation)
    with stage.acting(WORKER):
        stage.say("hold")
        assert stage.move(operation, "held", "paused") == 1
    assert (
        stage.one("select accounting from relay.operation where operation_id = %s", operation) == "disputed"
    )


def _money(stage: Stage, owner: str) -> tuple[Any, ...] | None:
    return stage.connection.execute(
        "select limit_amount, reserved, disputed, settled, overrun from relay.allowance"
        " where owner_id = %s and unit = %s",
        [owner, UNIT],
    ).fetchone()


def test_two_owners_do_not_share_a_delivery_or_a_parent(stage: Stage) -> None:
    parent = stage.prepare(owner=OWNER)
    with pytest.raises(psycopg.errors.ForeignKeyViolation), stage.connection.transaction():
        stage.connection.execute(
            "insert into relay.operation (kind, owner_id, operation_key, specification_hash, payload,"
            " payload_version, max_cost, cost_unit, requested_by, phase, phase_reason, parent_operation_id)"
            " values ('delivery', 'somebody else', 'k', repeat('0', 64), '{}', 1, 0, 'credit', 'me',"
            " 'prepared', 'x', %s)",
            [parent],
        )
