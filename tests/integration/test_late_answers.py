"""An answer that comes late, whatever happened meanwhile and whatever it says, ends in a recorded truth: the
right review or incident, the right money, no id dropped, and every other request with its own outcome.

Each row of `late_answers.txt` is played with a real POST: the dispatcher has the provider's answer in its
hand, something happens, and then the answer is applied.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from consumers.collect import Collect
from consumers.operations.resolutions import Resolution
from consumers.providers.simulator_world import Fault
from fix_late import Flight, Late

pytestmark = pytest.mark.anyio

ANSWERS: Final[dict[str, tuple[Fault, ...]]] = {
    "acceptance": (),
    "error with id": (Fault.BAD_GATEWAY_WITH_JOB,),
    "candidate": (Fault.ID_ELSEWHERE,),
    "unknown": (Fault.ERROR_AFTER_CREATION,),
    "refusal": (Fault.UNPROCESSABLE,),
    "costly refusal": (Fault.RATE_LIMITED,),
    "another's id": (Fault.SAME_JOB,),
}


# What happens meanwhile ---------------------------------------------------------------------------------


async def lease_expired(late: Late, flight: Flight) -> None:
    await late.wake("1 hour")
    assert late.phase(flight.operation) == "uncertain"


async def accepted_with_another_id(late: Late, flight: Flight) -> None:
    await lease_expired(late, flight)
    job_id = late.strange_job(flight.operation)
    await late.decided(flight.operation, Resolution.ACCEPTED, job_id=job_id)


async def accepted_with_the_same_id(late: Late, flight: Flight) -> None:
    await lease_expired(late, flight)
    job_id = late.real_job(flight.operation) or late.strange_job(flight.operation)
    # The provider gives one job to two: a person says that it is this one's all the same.
    await late.decided(flight.operation, Resolution.ACCEPTED, job_id=job_id, override="it is this one's")


async def resubmitted(late: Late, flight: Flight) -> None:
    await lease_expired(late, flight)
    await late.decided(flight.operation, Resolution.RESUBMIT, spool_lost=True)
    assert late.phase(flight.operation) == "prepared"


async def resubmitted_and_held(late: Late, flight: Flight) -> None:
    await resubmitted(late, flight)
    late.allow("5", late.operation(flight.operation, "owner_id"))
    await late.dispatched(flight.operation)
    assert late.phase(flight.operation) == "held"


async def resubmitted_and_claimed(late: Late, flight: Flight) -> None:
    await resubmitted(late, flight)
    late.claim(flight.operation)


async def resubmitted_and_in_flight(late: Late, flight: Flight) -> Flight:
    await resubmitted(late, flight)
    return await late.fly(flight.operation)


async def resubmitted_and_accepted(late: Late, flight: Flight) -> None:
    await resubmitted(late, flight)
    await late.dispatched(flight.operation)
    assert late.phase(flight.operation) == "accepted"


async def resubmitted_and_uncertain(late: Late, flight: Flight) -> Flight:
    second = await resubmitted_and_in_flight(late, flight)
    await late.wake("1 hour")
    assert late.phase(flight.operation) == "uncertain"
    return second


async def rejected_by_a_person(late: Late, flight: Flight) -> None:
    await lease_expired(late, flight)
    await late.decided(flight.operation, Resolution.NOT_ACCEPTED_REJECT, spool_lost=True)


async def cancelled_by_a_person(late: Late, flight: Flight) -> None:
    await lease_expired(late, flight)
    await late.decided(flight.operation, Resolution.NOT_ACCEPTED_CANCEL, spool_lost=True)


async def abandoned(late: Late, flight: Flight) -> None:
    await lease_expired(late, flight)
    await late.decided(flight.operation, Resolution.ABANDON)


async def cancelled_after_resubmission(late: Late, flight: Flight) -> None:
    await resubmitted(late, flight)
    late.connection.execute("select relay.request_cancel(%s, 'changed our mind')", [flight.operation])
    assert late.phase(flight.operation) == "cancelled"


async def succeeded(late: Late, flight: Flight) -> None:
    await resubmitted_and_accepted(late, flight)
    await late.handle(Collect(), late.last(flight.operation, "collection.requested"))
    assert late.phase(flight.operation) == "succeeded"


async def failed(late: Late, flight: Flight) -> None:
    await resubmitted_and_accepted(late, flight)
    job = late.simulator.world.jobs[late.operation(flight.operation, "job_id")]
    job.faults |= {Fault.JOB_FAILED}
    await late.handle(Collect(), late.last(flight.operation, "collection.requested"))
    assert late.phase(flight.operation) == "failed"


async def lost(late: Late, flight: Flight) -> None:
    await resubmitted_and_accepted(late, flight)
    late.connection.execute(
        "insert into relay.review (operation_id, kind, deadline) values (%s, 'job_unknown', relay.now())",
        [flight.operation],
    )
    await late.decided(flight.operation, Resolution.LOST)


MEANWHILE: Final[dict[str, Callable[[Late, Flight], Awaitable[Flight | None]]]] = {
    "the lease ran out": lease_expired,
    "review: accepted, another id": accepted_with_another_id,
    "review: accepted, the same id": accepted_with_the_same_id,
    "review: resubmit, prepared": resubmitted,
    "review: resubmit, held": resubmitted_and_held,
    "review: resubmit, claimed": resubmitted_and_claimed,
    "review: resubmit, submitting": resubmitted_and_in_flight,
    "review: resubmit, accepted": resubmitted_and_accepted,
    "review: resubmit, uncertain": resubmitted_and_uncertain,
    "review: resubmit, cancelled": cancelled_after_resubmission,
    "review: resubmit, succeeded": succeeded,
    "review: resubmit, failed": failed,
    "review: resubmit, lost": lost,
    "review: reject": rejected_by_a_person,
    "review: cancel": cancelled_by_a_person,
    "review: abandon": abandoned,
}
NOTHING_ELSE_IS_MADE: Final = {("review: accepted, another id", "unknown"): (Fault.BAD_GATEWAY,)}
"""A person named a job, and the answer names none: one that it made all the same, nobody could ever know."""
EXPECTED: Final = Path(__file__).with_name("late_answers.txt")


async def _play(late: Late, meanwhile: str, answer: str) -> str:
    """One row: answer, phase, open questions, incidents, each request with its money; POSTs in the end."""
    if answer == "another's id":
        other = late.asked()
        await late.dispatched(other)
    flight = await late.fly(late.asked(*NOTHING_ELSE_IS_MADE.get((meanwhile, answer), ANSWERS[answer])))
    second = await MEANWHILE[meanwhile](late, flight)
    await flight.land()
    operation = flight.operation
    await late.require_truth(in_flight=second is not None)

    before = late.everything(operation)
    await late.replay(flight.attempt)
    assert late.everything(operation) == before, "the same answer once more changed something"

    row = _told(late, operation)
    if answer == "another's id":
        assert late.reviews(other) == ["id_collision"]
        assert late.phase(other) == "accepted"
    if second is not None:
        await second.land()
        await late.require_truth()
        row += f" | then {_told(late, operation)}"
    late.dispatch_again(operation)
    await late.dispatched(operation)
    await late.require_truth()
    return f"{answer} | {row} | {late.posts(operation)} POSTs"


def _expected() -> dict[str, list[str]]:
    expected: dict[str, list[str]] = {}
    rows: list[str] = []
    for line in EXPECTED.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            rows.append(line.strip())
        elif line and not line.startswith("#"):
            rows = expected[line] = []
    return expected


def _told(late: Late, operation: UUID) -> str:
    phase = late.phase(operation)
    incidents = late.all("select boundary from relay.incident where operation_id = %s", operation)
    requests = late.all(
        "select a.outcome, r.state || case when r.settled_amount = 0 then ' 0' else '' end"
        " from relay.attempt a left join relay.reservation r using (attempt_id)"
        " where a.operation_id = %s and a.action = 'submit' order by a.started_at",
        operation,
    )
    told = [
        phase,
        " ".join(late.reviews(operation)) or "-",
        " ".join(boundary for (boundary,) in incidents) or "-",
        ", ".join(f"{outcome}/{state}" for outcome, state in requests),
    ]
    return " | ".join(told)


@pytest.mark.parametrize("meanwhile", MEANWHILE)
async def test_a_late_answer_ends_in_a_recorded_truth(late: Late, meanwhile: str) -> None:
    rows = [await _play(late, meanwhile, answer) for answer in ANSWERS]
    assert rows == _expected()[meanwhile], "\n".join([meanwhile, *(f"  {row}" for row in rows)])
