"""Ids that come when they shouldn't: of a refused request, of another operation's job, the second and the
third one, while a hook is pending, after the client gave up. None is dropped, and none pays twice.
"""

import asyncio
from collections.abc import Callable
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest

from consumers.collect import Collect
from consumers.operations import claims
from consumers.operations.answers import Applied, apply_submission
from consumers.operations.audit import audit
from consumers.operations.decisions import Refused
from consumers.operations.resolutions import Resolution
from consumers.providers.profile import Profile
from consumers.providers.simulator_world import Fault
from fix_dispatch import Dispatching
from fix_late import Flight, Late
from fix_proxy import TcpProxy
from fix_waiting import eventually, eventually_async

pytestmark = pytest.mark.anyio


async def _require_no_findings(scene: Dispatching) -> None:
    async with scene.pool.connection() as connection:
        await connection.set_autocommit(True)
        found = await audit(connection)
        await connection.set_autocommit(False)
    assert found == []


def _requests(scene: Dispatching, operation: UUID) -> list[tuple[str, str]]:
    return scene.all(
        "select a.outcome, r.state from relay.attempt a join relay.reservation r using (attempt_id)"
        " where a.operation_id = %s and a.action = 'submit' order by a.started_at",
        operation,
    )


# Of a request that counted as refused ----------------------------------------------------------------------


@pytest.mark.parametrize("at", ["prepared", "held", "claimed"])
async def test_an_id_of_a_refused_request_takes_the_operation_before_it_is_sent_again(
    dispatching: Dispatching, at: str
) -> None:
    operation = dispatching.prepared()
    attempt = await dispatching.begun(operation)
    await dispatching.answered(attempt, operation, "refused", after="delay", retry_after_s=0, charged=False)
    if at == "claimed":
        dispatching.claim(operation)
    elif at == "held":
        dispatching.allow("1")
        await dispatching.hand_over(await dispatching.dispatcher(), operation)
    assert dispatching.row(operation, "phase") == (at,)

    assert await dispatching.answered(attempt, operation, "accepted", job_id="job-1") is Applied.MOVED
    assert dispatching.row(operation, "phase, job_id, claim_token") == ("accepted", "job-1", None)
    # What was given back is booked again, beyond any limit, and stops the owner's next claims.
    assert _requests(dispatching, operation) == [("accepted", "disputed")]
    assert dispatching.all("select disputed, overrun from relay.allowance") == [(5, True)]
    await dispatching.hand_over(await dispatching.dispatcher(), operation)
    assert dispatching.posts(operation) == 0
    await _require_no_findings(dispatching)


async def test_an_id_of_a_refused_request_is_asked_about_while_the_next_one_is_in_flight(
    dispatching: Dispatching,
) -> None:
    """The next one was sent on the ground of the refusal: both stand, and no third one is sent unasked."""
    operation = dispatching.prepared()
    first = await dispatching.begun(operation)
    await dispatching.answered(first, operation, "refused", after="delay", retry_after_s=0, charged=False)
    second = await dispatching.begun(operation)
    assert await dispatching.answered(first, operation, "accepted", job_id="job-1") is Applied.RECORDED
    assert dispatching.row(operation, "phase, claim_token") == ("submitting", second)
    assert dispatching.all("select job_id, role from relay.remote_job") == [("job-1", "candidate")]
    assert dispatching.reviews(operation) == ["contradiction"]
    assert _requests(dispatching, operation) == [("refused", "disputed"), ("open", "reserved")]

    await dispatching.answered(second, operation, "refused", after="delay", retry_after_s=0, charged=False)
    assert dispatching.row(operation, "phase") == ("prepared",)
    dispatching.dispatch_again(operation)
    await dispatching.hand_over(await dispatching.dispatcher(), operation)
    assert dispatching.row(operation, "phase") == ("prepared",)
    assert dispatching.posts(operation) == 0
    await _require_no_findings(dispatching)

    await dispatching.decided(operation, Resolution.ACCEPTED, job_id="job-1")
    assert dispatching.row(operation, "phase, job_id") == ("accepted", "job-1")


async def test_an_id_outranks_a_refusal_that_comes_after_it(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    attempt = await dispatching.begun(operation)
    await dispatching.answered(attempt, operation, "unknown", candidates=("job-1",))
    await dispatching.answered(attempt, operation, "refused", after="final", charged=False)
    assert dispatching.row(operation, "phase") == ("uncertain",)
    assert _requests(dispatching, operation) == [("unknown", "reserved")]
    assert dispatching.one("select evidence ->> 'then' from relay.review") == "told_by_a_test"


async def test_the_database_lets_no_refusal_of_one_request_end_another_in_flight(
    dispatching: Dispatching,
) -> None:
    operation = dispatching.prepared()
    first = await dispatching.begun(operation)
    await dispatching.answered(first, operation, "refused", after="delay", retry_after_s=0, charged=False)
    await dispatching.begun(operation)
    with dispatching.database.connect(
        dispatching.database.url_as("relay_worker"), autocommit=False
    ) as worker:
        worker.execute(
            "select set_config('relay.actor', 'w', true), set_config('relay.cause', 'rule', true),"
            " set_config('relay.reason', 'r', true), set_config('relay.attempt_id', %s, true)",
            [str(first)],
        )
        with pytest.raises(psycopg.DatabaseError, match="not the one in flight"):
            worker.execute("update relay.operation set phase = 'rejected', phase_reason = 'r'")
        worker.rollback()


async def test_the_database_takes_no_request_while_an_earlier_one_is_in_question(
    dispatching: Dispatching,
) -> None:
    operation = dispatching.prepared()
    first = await dispatching.resubmitted(operation)
    token = dispatching.claim(operation)
    await dispatching.answered(first, operation, "unknown", candidates=("job-1",))
    with (
        dispatching.database.connect(dispatching.database.url_as("relay_worker")) as worker,
        pytest.raises(psycopg.DatabaseError, match="asks about an earlier request") as refused,
    ):
        worker.execute(
            "insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker,"
            " late_delivery_until) select claim_token, operation_id, 'submit', dispatch_no, 'w', now()"
            " from relay.operation where claim_token = %s",
            [token],
        )
    assert refused.value.sqlstate == "OR012"


# While a hook is pending -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [None, Fault.ID_ELSEWHERE, Fault.SAME_JOB], ids=["id", "candidate", "shared"]
)
@pytest.mark.parametrize("at", ["before the hook", "within the hook"])
async def test_a_late_id_makes_a_pending_hook_fail_and_no_byte_is_sent(
    late: Late, monkeypatch: pytest.MonkeyPatch, fault: Fault | None, at: str
) -> None:
    """Within the hook: its transaction meets the answer's, which isn't committed yet."""
    if fault is Fault.SAME_JOB:
        await late.dispatched(late.asked())
    flight = await late.fly(late.asked(*([fault] if fault else [])))
    operation = flight.operation
    await late.wake("1 hour")
    await late.decided(operation, Resolution.RESUBMIT, spool_lost=True)
    pending, may_go_on = asyncio.Event(), asyncio.Event()
    begin = claims.begin_submission

    async def begin_late(*arguments: Any) -> None:
        pending.set()
        await may_go_on.wait()
        await begin(*arguments)

    monkeypatch.setattr(claims, "begin_submission", begin_late)
    second = await late.dispatcher()
    async with asyncio.timeout(60):
        sending = asyncio.create_task(late.hand_over(second, operation))
        await pending.wait()
        if at == "before the hook":
            await flight.land()
            may_go_on.set()
            await sending
        else:
            await _land_around(late, flight, may_go_on, sending)

    assert late.posts(operation) == 1
    if fault is None:
        assert late.row(operation, "phase, job_id") == ("accepted", late.real_job(operation))
    else:
        # Nothing is sent again before a person has said what the id is.
        assert late.phase(operation) == "prepared"
        late.dispatch_again(operation)
        version = late.operation(operation, "version")
        await late.dispatched(operation)
        assert late.operation(operation, "version") == version, "it was claimed"
        assert late.posts(operation) == 1
    states = late.all("select state from relay.reservation where operation_id = %s order by 1", operation)
    assert states == [("disputed",), ("released",)]
    await late.require_truth()


async def _land_around(
    late: Late, flight: Flight, may_go_on: asyncio.Event, sending: asyncio.Task[None]
) -> None:
    """The answer is applied, the hook meets its locks, and only then the answer is committed."""
    applied, may_commit = asyncio.Event(), asyncio.Event()

    async def apply_slowly(connection: psycopg.AsyncConnection[Any], **more: Any) -> Applied:
        async with connection.transaction():
            result = await apply_submission(connection, **more)
            applied.set()
            await may_commit.wait()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("consumers.dispatch.apply_submission", apply_slowly)
        landing = asyncio.create_task(flight.land())
        await applied.wait()
        may_go_on.set()
        waits: LiteralString = (
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and wait_event_type = 'Lock'"
        )

        async def somebody_waits() -> bool:
            return bool(late.one(waits))

        await eventually_async(somebody_waits, "the hook waits for the answer's transaction")
        may_commit.set()
        await landing
        await sending


# Whose is it? ----------------------------------------------------------------------------------------------


async def test_a_job_that_three_operations_were_given_is_asked_about_on_all_of_them(late: Late) -> None:
    first = late.asked()
    await late.dispatched(first)
    second, third = late.asked(Fault.SAME_JOB), late.asked(Fault.SAME_JOB)
    await late.dispatched(second)
    await late.dispatched(third)
    job_id = late.operation(first, "job_id")
    for operation in (second, third):
        assert late.row(operation, "phase, phase_reason") == ("uncertain", "job_id_collision")
    together = sorted(map(str, (first, second, third)))
    for operation in (first, second, third):
        assert late.all(
            "select kind, evidence -> 'operations', evidence ->> 'job_id' from relay.review"
            " where operation_id = %s and state = 'open'",
            operation,
        ) == [("id_collision", together, job_id)]
    assert late.all("select role from relay.remote_job where job_id = %s order by 1", job_id) == [
        ("candidate",),
        ("candidate",),
        ("primary",),
    ]
    await late.require_truth()


async def test_a_job_that_eight_requests_are_given_at_once_is_one_operations_and_asked_about_on_all(
    dispatching: Dispatching,
) -> None:
    operations = [dispatching.prepared() for _ in range(8)]
    attempts = [await dispatching.begun(operation) for operation in operations]
    answers = zip(attempts, operations, strict=True)
    done = await asyncio.gather(
        *(dispatching.answered(attempt, operation, "accepted", job_id="X") for attempt, operation in answers)
    )
    assert done == [Applied.MOVED] * 8
    phases = dispatching.all(
        "select phase, phase_reason, count(*) from relay.operation group by 1, 2 order by 1"
    )
    assert phases == [("accepted", "told_by_a_test", 1), ("uncertain", "job_id_collision", 7)]
    roles = dispatching.all("select role, count(*) from relay.remote_job group by 1 order by 1")
    assert roles == [("candidate", 7), ("primary", 1)]
    assert all(dispatching.reviews(operation) == ["id_collision"] for operation in operations)
    await _require_no_findings(dispatching)


async def test_answers_whose_ids_cross_never_wait_for_each_other(dispatching: Dispatching) -> None:
    """Each says first an id of its own and then the other's: with locks in one order there's no deadlock."""
    for number in range(12):
        left, right = dispatching.prepared(), dispatching.prepared()
        a, b = await dispatching.begun(left), await dispatching.begun(right)
        await dispatching.answered(a, left, "accepted", job_id=f"left-{number}")
        await dispatching.answered(b, right, "accepted", job_id=f"right-{number}")
        done = await asyncio.gather(
            dispatching.answered(a, left, "accepted", job_id=f"right-{number}"),
            dispatching.answered(b, right, "accepted", job_id=f"left-{number}"),
        )
        assert list(done) == [Applied.RECORDED] * 2
        for operation in (left, right):
            assert set(dispatching.reviews(operation)) == {"id_collision"}
            assert dispatching.row(operation, "phase") == ("accepted",)
    await _require_no_findings(dispatching)


@pytest.mark.parametrize("held_as", ["duplicate", "candidate"])
async def test_an_id_that_another_operation_has_in_any_role_is_asked_about_on_both(
    dispatching: Dispatching, held_as: str
) -> None:
    first, second = dispatching.prepared(), dispatching.prepared()
    attempt = await dispatching.begun(first)
    if held_as == "duplicate":
        await dispatching.answered(attempt, first, "accepted", job_id="job-1")
        await dispatching.answered(attempt, first, "accepted", job_id="X")
    else:
        await dispatching.answered(attempt, first, "unknown", candidates=("X",))
    other = await dispatching.begun(second)
    await dispatching.answered(other, second, "accepted", job_id="X")
    # A second job of the first one is the first one's; what was only seen there proves nothing.
    phase = "uncertain" if held_as == "duplicate" else "accepted"
    assert dispatching.row(second, "phase") == (phase,)
    assert "id_collision" in dispatching.reviews(first)
    assert dispatching.reviews(second) == ["id_collision"]
    await _require_no_findings(dispatching)


async def test_a_candidate_that_is_another_operations_job_is_asked_about_on_both(
    dispatching: Dispatching,
) -> None:
    first, second = dispatching.prepared(), dispatching.prepared()
    await dispatching.answered(await dispatching.begun(first), first, "accepted", job_id="X")
    await dispatching.answered(await dispatching.begun(second), second, "unknown", candidates=("X",))
    assert dispatching.reviews(first) == ["id_collision"]
    assert dispatching.reviews(second) == ["candidate_id", "id_collision"]


# The second one --------------------------------------------------------------------------------------------


async def test_every_id_that_one_request_names_is_kept_and_told_to_whoever_decides(
    dispatching: Dispatching,
) -> None:
    operation = dispatching.prepared()
    attempt = await dispatching.begun(operation)
    for job_id in ("job-1", "job-2", "job-2", "job-3", "job-1"):
        await dispatching.answered(attempt, operation, "accepted", job_id=job_id)
    assert dispatching.row(operation, "phase, job_id") == ("accepted", "job-1")
    assert dispatching.all("select job_id, role from relay.remote_job order by job_id") == [
        ("job-1", "primary"),
        ("job-2", "duplicate"),
        ("job-3", "duplicate"),
    ]
    # One question, which was raised with the third id; an id that is known already changes nothing.
    assert dispatching.all("select kind, revision, evidence -> 'job_ids' from relay.review") == [
        ("second_id", 2, ["job-1", "job-2", "job-3"])
    ]
    assert dispatching.one("select count(*) from relay.incident") == 2
    await _require_no_findings(dispatching)


async def test_a_candidate_of_an_earlier_request_stays_a_question_when_another_one_is_accepted(
    dispatching: Dispatching,
) -> None:
    operation = dispatching.prepared()
    first = await dispatching.resubmitted(operation)
    second = await dispatching.begun(operation)
    await dispatching.answered(second, operation, "unknown")
    await dispatching.answered(first, operation, "unknown", candidates=("job-1",))
    await dispatching.answered(second, operation, "accepted", job_id="job-2")
    assert dispatching.row(operation, "phase, job_id") == ("accepted", "job-2")
    asked = "select kind, attempt_id, evidence -> 'candidates' from relay.review where state = 'open'"
    assert dispatching.all(asked) == [("candidate_id", first, ["job-1"])]


# After the client gave up ----------------------------------------------------------------------------------


async def test_a_request_that_the_provider_reads_after_the_client_gave_up_is_found_and_paid_once(
    late: Late,
    tcp_proxy: Callable[[str, int], TcpProxy],
) -> None:
    """The network holds the whole POST back; the client gives up and closes; then the provider reads it."""
    shipped = "  deadline_s: 10\n\naccept:"
    assert late.profile.text.count(shipped) == 1
    hasty = late.profile.text.replace(shipped, shipped.replace("10", "1"))
    late.use_profile(Profile.parse(hasty, source="test"))
    host, _, port = late.simulator.url.removeprefix("http://").partition(":")
    proxy = tcp_proxy(host, int(port))
    proxy.pause("to_server")
    late.simulator.url = f"http://{proxy.host}:{proxy.port}"
    operation = late.asked()
    dispatcher = await late.dispatcher()
    await late.hand_over(dispatcher, operation)
    assert late.row(operation, "phase, phase_reason") == ("uncertain", "no_answer")
    assert late.posts(operation) == 0
    with pytest.raises(Refused, match="may still arrive"):
        await late.decided(operation, Resolution.RESUBMIT)

    proxy.resume()
    eventually(lambda: late.posts(operation) == 1, "the provider reads the request")
    await late.require_truth()
    # The provider's own list shows it to whoever looks, as late as it was.
    await late.decided(operation, Resolution.ACCEPTED, job_id=late.real_job(operation))
    await late.handle(Collect(), late.last(operation, "collection.requested"))
    assert late.phase(operation) == "succeeded"
    assert late.posts(operation) == 1
    await late.require_truth()
