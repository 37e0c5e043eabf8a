"""`relay budget settle|refund|reconcile`: what no machine settles waits for a person, in sight; corrections
add up in the ledger to the last of six decimals; an overrun stops its owner until it is lifted.
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from fix_batches import make_batch
from fix_commands import Command
from fix_operations import OPERATOR, WORKER, Stage
from fix_postgres import Database


@pytest.fixture
def stage(database: Database) -> Iterator[Stage]:
    made = Stage(database)
    yield made
    made.close()


@pytest.fixture
def env(stage: Stage) -> dict[str, str]:
    return {"RELAY_DATABASE_URL": stage.database.url_as(OPERATOR)}


def _money(stage: Stage, owner: str = "studio", unit: str = "credit") -> tuple[Any, ...]:
    row = stage.connection.execute(
        "select reserved, disputed, settled, overrun from relay.allowance where owner_id = %s and unit = %s",
        [owner, unit],
    ).fetchone()
    assert row is not None
    return tuple(row)


def _entries(stage: Stage, attempt: UUID) -> list[tuple[Any, ...]]:
    return stage.connection.execute(
        "select entry, amount from relay.ledger where attempt_id = %s order by entry_id", [attempt]
    ).fetchall()


def _refused(stage: Stage, operation: UUID, *, charged: bool | None) -> UUID:
    attempt = stage.submit(operation)
    with stage.acting(WORKER):
        stage.finish(attempt, "refused", charged=charged)
        stage.say("rule", attempt=attempt)
        assert stage.move(operation, "rejected", "rule") == 1
    return attempt


def _settled(stage: Stage, cost: str, *, max_cost: str = "5", owner: str = "studio") -> tuple[UUID, UUID]:
    operation = stage.prepare(max_cost=max_cost, owner=owner)
    attempt = stage.accepted(operation)
    with stage.acting(WORKER):
        stage.connection.execute(
            "update relay.remote_job set cost = %s where attempt_id = %s", [cost, attempt]
        )
        stage.connection.execute("select relay.settle(%s, %s, 'job succeeded')", [attempt, cost])
        stage.say("observation", attempt=stage.observed(operation))
        assert stage.move(operation, "failed", "observation") == 1
    return operation, attempt


def _clean(command: Command, env: dict[str, str]) -> None:
    audit = command("ops", "audit", env=env)
    assert (audit.status, audit.out) == (0, "Nothing was found that may not be.\n")


def test_what_a_refusal_may_have_cost_is_in_sight_although_no_review_is_open(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    attempt = _refused(stage, stage.prepare(), charged=None)
    assert command("review", "list", env=env).out == "Nothing waits for a decision.\n"
    assert "1 waiting to be settled or refunded" in command("budget", "show", env=env).out
    shown = command("budget", "show", "--open", env=env).out
    assert str(attempt) in shown
    assert "may have charged for it" in shown
    (difference,) = command("budget", "reconcile", "--json", env=env).json["differences"]
    assert (difference["kind"], difference["attempt_id"]) == ("open", str(attempt))
    assert command("budget", "reconcile", env=env).status == 0
    said = command("budget", "refund", str(attempt), "--reason", "their mail of today", env=env)
    assert said.out == f"Attempt {attempt}: 5 → 0 credit settled; studio has 1000000 available.\n"
    assert _money(stage) == (0, 0, 0, False)
    assert command("budget", "show", "--open", "--json", env=env).json["waiting"] == []
    _clean(command, env)


def test_a_failed_job_without_a_cost_stays_reserved_and_in_sight_until_it_is_settled(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    operation = stage.in_phase("generation", "failed")
    (waiting,) = command("budget", "show", "--open", "--json", env=env).json["waiting"]
    assert (waiting["operation_id"], waiting["state"], waiting["amount"]) == (
        str(operation),
        "reserved",
        "5.000000",
    )
    said = command(
        "budget", "settle", str(operation), "0.000001", "--reason", "invoice", "--json", env=env
    ).json
    assert (said["before"], said["settled"]) == ("5.000000", "0.000001")
    assert _money(stage) == (0, 0, Decimal("0.000001"), False)
    _clean(command, env)


def test_a_correction_books_the_difference_below_zero_and_above_to_six_decimals(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    _, attempt = _settled(stage, "4.5")
    for cost in ("1.234567", "4.999999", "0"):
        assert command("budget", "settle", str(attempt), cost, "--reason", "invoice", env=env).status == 0
        assert _money(stage) == (0, 0, Decimal(cost), False)
    assert _entries(stage, attempt) == [
        ("reserve", 5),
        ("settle", Decimal("4.5")),
        ("correct", Decimal("-3.265433")),
        ("correct", Decimal("3.765432")),
        ("correct", Decimal("-4.999999")),
    ]
    again = command("budget", "settle", str(attempt), "0", "--reason", "again", env=env)
    assert (again.status, "is settled with 0 credit already" in again.err) == (1, True)
    _clean(command, env)


def test_a_refund_of_a_part_and_of_the_rest_and_never_of_more_than_was_settled(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    _, attempt = _settled(stage, "4")
    assert command("budget", "refund", str(attempt), "1.5", "--reason", "r", env=env).status == 0
    assert _money(stage) == (0, 0, Decimal("2.5"), False)
    more = command("budget", "refund", str(attempt), "2.500001", "--reason", "r", env=env)
    assert (more.status, "is settled with 2.5" in more.err) == (1, True)
    assert command("budget", "refund", str(attempt), "--reason", "the rest", env=env).status == 0
    assert _money(stage) == (0, 0, 0, False)
    none_left = command("budget", "refund", str(attempt), "--reason", "again", env=env)
    assert (none_left.status, "a refund of 0" in none_left.err.lower()) == (1, True)
    _clean(command, env)


@pytest.mark.parametrize("cost", ["1.0000001", "-1", "1e14", "NaN"])
def test_what_is_no_amount_of_six_decimals_settles_nothing(
    stage: Stage, env: dict[str, str], command: Command, cost: str
) -> None:
    attempt = _refused(stage, stage.prepare(), charged=True)
    said = command("budget", "settle", str(attempt), cost, "--reason", "r", env=env)
    assert (said.status, "is not an amount" in said.err) == (2, True)
    assert _money(stage) == (0, 5, 0, False)


def test_money_of_what_is_under_way_or_in_doubt_is_left_to_its_observation_or_review(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    for phase, said in (
        ("accepted", "Wait until it has ended"),
        ("submitting", "Wait until it has ended"),
        ("uncertain", "Decide its review first"),
    ):
        operation = stage.in_phase("generation", phase)
        refused = command("budget", "settle", str(operation), "1", "--reason", "r", env=env)
        assert (refused.status, said in refused.err) == (1, True), (phase, refused.err)
    nothing = command("budget", "settle", str(uuid4()), "1", "--reason", "r", env=env)
    assert (nothing.status, "Nothing is booked for" in nothing.err) == (1, True)


def test_two_amounts_of_one_operation_are_told_apart(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    operation = stage.prepare()
    first = stage.resubmitted(operation)
    second = _refused(stage, operation, charged=True)
    unclear = command("budget", "settle", str(operation), "1", "--reason", "r", env=env)
    assert (unclear.status, "Name the attempt" in unclear.err) == (1, True)
    assert command("budget", "settle", str(first), "1", "--reason", "r", env=env).status == 0
    assert (
        stage.one("select accounting from relay.operation where operation_id = %s", operation) == "disputed"
    )
    assert command("budget", "settle", str(second), "2", "--reason", "r", env=env).status == 0
    assert stage.one("select accounting from relay.operation where operation_id = %s", operation) == "settled"
    assert _money(stage) == (0, 0, 3, False)
    _clean(command, env)


@pytest.mark.parametrize(
    "lift",
    [
        ("set", "ann", "credit", "30"),
        ("settle", "{attempt}", "5"),
        ("refund", "{attempt}", "4"),
    ],
    ids=["limit", "settlement", "refund"],
)
def test_an_overrun_stops_its_owner_until_a_limit_a_settlement_or_a_refund_lifts_it(
    stage: Stage, env: dict[str, str], command: Command, lift: tuple[str, ...]
) -> None:
    stage.allow("ann", "20")
    _, attempt = _settled(stage, "9", owner="ann")
    assert _money(stage, "ann") == (0, 0, 9, True)
    waiting = stage.prepare(owner="ann")
    token = stage.claim(waiting, reserve=False)
    with stage.acting(WORKER):
        assert stage.one("select relay.reserve_or_why(%s, %s)", waiting, token) == "allowance"
    arguments = [part.format(attempt=attempt) for part in lift]
    assert command("budget", *arguments, "--reason", "seen", env=env).status == 0
    assert _money(stage, "ann")[3] is False
    with stage.acting(WORKER):
        assert stage.one("select relay.reserve_or_why(%s, %s)", waiting, token) is None
    _clean(command, env)


def test_a_limit_that_is_not_raised_above_what_is_booked_lifts_no_overrun(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    stage.allow("ann", "6")
    _settled(stage, "9", owner="ann")
    said = command("budget", "set", "ann", "credit", "8", "--reason", "a little", "--json", env=env).json
    assert (said["overrun"], said["available"]) == (True, "-1.000000")
    assert (
        command("budget", "set", "ann", "credit", "9", "--reason", "all", "--json", env=env).json["overrun"]
        is False
    )


def test_two_overruns_are_lifted_one_by_one(stage: Stage, env: dict[str, str], command: Command) -> None:
    stage.allow("ann", "100")
    attempts = [stage.accepted(stage.prepare(owner="ann")) for _ in range(2)]
    for attempt in attempts:
        with stage.acting(WORKER):
            stage.connection.execute("select relay.settle(%s, 9, 'job failed')", [attempt])
    for attempt, stopped in zip(attempts, (True, False), strict=True):
        command("budget", "settle", str(attempt), "5", "--reason", "r", env=env)
        assert _money(stage, "ann")[3] is stopped
    _clean(command, env)


def test_a_job_that_becomes_known_after_its_money_was_given_back_is_booked_again_and_stops_the_owner(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    stage.allow("ann", "6")
    given_back = stage.prepare(owner="ann")
    attempt = _refused(stage, given_back, charged=False)
    assert _money(stage, "ann") == (0, 0, 0, False)
    with stage.acting(WORKER):
        stage.remote_job(given_back, attempt, "job-after-all", "candidate")
    assert _money(stage, "ann") == (0, 5, 0, True)
    _clean(command, env)
    # Said to have cost nothing, and known to have made a job afterwards.
    assert command("budget", "refund", str(attempt), "--reason", "their mail", env=env).status == 0
    assert _money(stage, "ann") == (0, 0, 0, False)
    with stage.acting(WORKER):
        stage.remote_job(given_back, attempt, "job-once-more", "candidate")
    assert _money(stage, "ann") == (0, 5, 0, True)
    assert command("budget", "settle", str(attempt), "3", "--reason", "invoice", env=env).status == 0
    assert _money(stage, "ann") == (0, 0, 3, False)
    _clean(command, env)


def test_units_do_not_meet(stage: Stage, env: dict[str, str], command: Command) -> None:
    command("budget", "set", "ann", "usd", "100", "--reason", "r", env=env)
    operation = stage.prepare(owner="ann")
    token = stage.claim(operation, reserve=False)
    with stage.acting(WORKER):
        assert stage.one("select relay.reserve_or_why(%s, %s)", operation, token) == "allowance"
    assert _money(stage, "ann", "usd") == (0, 0, 0, False)


def test_zero_and_the_largest_amount_are_amounts(stage: Stage, env: dict[str, str], command: Command) -> None:
    huge = "99999999999999.999999"
    command("budget", "set", "ann", "credit", huge, "--reason", "r", env=env)
    stage.uncertain(stage.prepare(owner="ann", max_cost=huge))
    stage.uncertain(stage.prepare(owner="ann", max_cost="0"))
    assert _money(stage, "ann") == (Decimal(huge), 0, 0, False)
    beyond = stage.prepare(owner="ann", max_cost="0.000001")
    token = stage.claim(beyond, reserve=False)
    with stage.acting(WORKER):
        assert stage.one("select relay.reserve_or_why(%s, %s)", beyond, token) == "allowance"
    # What was charged is booked past any limit, however large, and the sums have room for it.
    stage.allow("bob", huge)
    for attempt in [stage.accepted(stage.prepare(owner="bob", max_cost="1")) for _ in range(3)]:
        with stage.acting(WORKER):
            stage.connection.execute("select relay.settle(%s, %s, 'job failed')", [attempt, huge])
    assert _money(stage, "bob") == (0, 0, 3 * Decimal(huge), True)


def test_a_price_that_nobody_named_is_not_taken_for_the_reservation_when_another_attempt_is_settled(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    operation = stage.prepare()
    first = stage.resubmitted(operation)
    attempt = stage.accepted(operation)
    with stage.acting(WORKER):
        review = stage.raise_review(operation, "id_with_error")
    stage.connection.execute("alter table relay.review disable trigger b_guard")
    stage.connection.execute(
        "update relay.review set attempt_id = %s where review_id = %s", [attempt, review]
    )
    stage.connection.execute("alter table relay.review enable always trigger b_guard")
    assert command("budget", "settle", str(first), "1", "--reason", "r", env=env).status == 0
    assert (
        stage.one("select accounting from relay.operation where operation_id = %s", operation) == "unsettled"
    )
    assert command("budget", "settle", str(attempt), "2", "--reason", "r", env=env).status == 0
    assert stage.one("select state from relay.review where review_id = %s", review) == "superseded"


def test_a_batchs_money_follows_its_members_corrections(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    batch = make_batch(stage, 1, max_cost="10")
    attempt = _refused(stage, batch.members[0], charged=True)
    of_batch = "select reserved, disputed, settled from relay.batch where batch_id = %s"
    row = "select (reserved, disputed, settled)::text from relay.batch where batch_id = %s"
    assert stage.connection.execute(of_batch, [batch.batch_id]).fetchone() == (0, 5, 0)
    command("budget", "settle", str(attempt), "3", "--reason", "r", env=env)
    command("budget", "refund", str(attempt), "1", "--reason", "r", env=env)
    assert stage.one(row, batch.batch_id) == "(0.000000,0.000000,2.000000)"
    _clean(command, env)


def test_reconcile_lists_what_was_charged_beside_what_is_booked_and_changes_nothing(
    stage: Stage, env: dict[str, str], command: Command
) -> None:
    agreed = command("budget", "reconcile", env=env)
    assert (agreed.status, agreed.out) == (0, "Ledger, reservations and charges agree.\n")
    _settled(stage, "4")
    differing, attempt = _settled(stage, "4")
    corrected, by_hand = _settled(stage, "4")
    stage.connection.execute("update relay.remote_job set cost = 4.5 where attempt_id = %s", [attempt])
    command("budget", "refund", str(by_hand), "1", "--reason", "r", env=env)
    assert command("budget", "reconcile", env=env).status == 1
    before = stage.one("select count(*) from relay.ledger")
    (found,) = command("budget", "reconcile", "--json", env=env).json["differences"]
    assert (found["kind"], found["operation_id"]) == ("charge", str(differing))
    assert "cost 4.5 credit, and 4 are settled" in found["what"]
    assert found["run"] == f"relay budget settle {attempt} 4.5 --reason '…'"
    assert str(corrected) not in str(found)
    assert stage.one("select count(*) from relay.ledger") == before
    command("budget", "settle", str(attempt), "4.5", "--reason", "as they say", env=env)
    assert command("budget", "reconcile", env=env).status == 0
    stage.connection.execute("update relay.allowance set settled = settled + 1 where owner_id = 'studio'")
    kinds = {one["kind"] for one in command("budget", "reconcile", "--json", env=env).json["differences"]}
    assert kinds == {"ledger"}


def test_only_an_operator_settles_and_refunds(stage: Stage, command: Command) -> None:
    attempt = _refused(stage, stage.prepare(), charged=True)
    worker = {"RELAY_DATABASE_URL": stage.database.url_as("relay_reader")}
    for arguments in (("settle", str(attempt), "1"), ("refund", str(attempt))):
        said = command("budget", *arguments, "--reason", "r", env=worker)
        assert (said.status, "relay_operator" in said.err) == (1, True)
    assert _money(stage) == (0, 5, 0, False)
