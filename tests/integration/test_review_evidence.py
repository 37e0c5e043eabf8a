"""Evidence about an open question is collected at once and stored whatever it is; it only proposes. What a
profile declares, a complete list that covers the interval and its lag, alone proves that there is no job.
"""

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from consumers.collect import Collect
from consumers.dispatch import Dispatch
from consumers.operations import providers
from consumers.operations.answers import apply_submission
from consumers.providers.outcome import Submission
from consumers.providers.profile import Profile
from consumers.providers.simulator_world import Fault, Plan
from fix_commands import Command
from fix_operations import OPERATOR
from fix_postgres import Database
from fix_scene import Scene

EVIDENCE: Final = "evidence.requested"
LISTING: Final = """
listing:
  path: /v1/jobs?limit=2&since=${since}&until=${until}
  headers:
    Authorization: Bearer ${secret}
  reference: $.client_reference
  cursor: $.next
  next_path: /v1/jobs?limit=2&cursor=${cursor}
  pages: 3
  visibility_lag_s: 30
  proves_absence: true
"""
AFTER_THE_LAG: Final = "70 seconds"
"""The simulator's lease of 15 s, its late delivery of 20 s, and the list's lag of 30 s."""


class Reviewed(Scene):
    """A scene with one operation whose request came to nothing known, by a profile that may have a list."""

    listing: str | None = LISTING

    def push(self, listing: str) -> None:
        self.profile = Profile.parse(self.profile.text + listing, source="test")
        providers.push(self.connection, [self.profile])

    def asked(self, operation: UUID) -> dict[str, Any]:
        """Hand every event that asks for evidence to a collector, the newest last; what is stored then."""
        for event in self.events(operation, EVIDENCE):
            asyncio.run(self.handle(Collect(), event))
        found: dict[str, Any] = self.one(
            "select evidence->'collected' from relay.review where operation_id = %s"
            " order by opened_at limit 1",
            operation,
        )
        return found

    def dispatched(self, *faults: Fault) -> UUID:
        operation = self.prepare(*faults)
        asyncio.run(self.handle(Dispatch(), self.last(operation, "generation.requested")))
        return operation

    def woken(self, operation: UUID, after: str) -> int:
        """Time passes and schedule looks; how many events have asked for evidence by then."""
        asyncio.run(self.wake(after))
        return len(self.events(operation, EVIDENCE))

    def state(self, operation: UUID) -> tuple[Any, ...]:
        return self.all(
            "select o.phase, o.open_reviews, a.outcome, a.outcome_reason, r.state from relay.operation o"
            " join relay.attempt a using (operation_id) join relay.reservation r using (attempt_id)"
            " where o.operation_id = %s",
            operation,
        )[0]


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Reviewed]:
    with Reviewed(database, tmp_path) as made:
        yield made


def test_a_review_asks_for_its_evidence_in_its_own_transaction_and_again_until_it_is_answered(
    scene: Reviewed,
) -> None:
    scene.push(LISTING)
    operation = scene.dispatched(Fault.CUT_BEFORE_ANSWER)
    (event,) = scene.events(operation, EVIDENCE)
    review = scene.one("select review_id from relay.review where operation_id = %s", operation)
    assert event.payload == {"operation_id": str(operation), "review_id": str(review)}
    # Nobody collects: it is asked for again, later and later.
    assert scene.woken(operation, "50 seconds") == 1
    assert scene.woken(operation, "20 seconds") == 2
    assert scene.woken(operation, "90 seconds") == 2
    assert scene.woken(operation, "40 seconds") == 3


def test_a_job_that_the_provider_lists_is_stored_and_proposed_and_moves_nothing(
    scene: Reviewed, command: Command
) -> None:
    scene.push(LISTING)
    for _ in range(3):
        scene.dispatched()
    operation = scene.dispatched(Fault.CUT_BEFORE_ANSWER)
    job = next(one["job_id"] for one in scene.simulator.truth()["jobs"] if one["reference"] == str(operation))
    collected = scene.asked(operation)
    listing = collected["findings"]["listing"]
    assert (listing["matches"], listing["complete"], listing["elements"]) == ([job], True, 4)
    assert collected["findings"]["jobs"][job]["state"] in ("running", "succeeded")
    assert [(one["resolution"], one["job_id"]) for one in collected["proposes"]] == [("accepted", job)]
    assert scene.state(operation)[:3] == ("uncertain", 1, "unknown")
    kept = scene.all(
        "select job_id, role, state is null from relay.remote_job where operation_id = %s", operation
    )
    assert kept == [(job, "candidate", False)]
    revision = scene.one("select revision from relay.review where operation_id = %s", operation)
    assert revision == 2

    env = scene.environment | {"RELAY_DATABASE_URL": scene.database.url_as(OPERATOR)}
    shown = command("review", "show", str(operation), env=env).out
    decide = shown[shown.index("To decide") :]
    assert f"accepted --job-id {job} --revision 2" in decide.splitlines()[1]
    assert f"proposed: the provider lists it as this operation's: {job}" in decide
    assert f"(4 jobs of {listing['since']} to {listing['until']}) has of this operation: {job}." in shown

    # Asked again it says the same: nobody's sight becomes stale by that.
    scene.asked(operation)
    assert scene.one("select revision from relay.review where operation_id = %s", operation) == 2
    assert len(scene.simulator.truth()["posts"]) == 4


def test_a_complete_list_proves_absence_only_when_all_that_was_accepted_must_be_in_it(
    scene: Reviewed, command: Command
) -> None:
    scene.push(LISTING)
    scene.dispatched()
    operation = scene.dispatched(Fault.CUT_BEFORE_READING)
    scene.simulator.world.plan = Plan(polls=(1, 1))
    early = scene.asked(operation)
    assert "may be missing from it until" in early["findings"]["listing"]["no_proof"]
    assert scene.state(operation) == ("uncertain", 1, "unknown", "no_answer", "reserved")
    # It is asked again when that time is over, and not before.
    assert scene.woken(operation, "30 seconds") == 1
    assert scene.woken(operation, AFTER_THE_LAG) == 2
    proven = scene.asked(operation)
    assert len(proven["findings"]["absent"]) == 1
    assert "no_proof" not in proven["findings"]["listing"]
    # The request's question is answered and its money free; what becomes of the operation is a person's.
    assert scene.state(operation) == ("uncertain", 1, "refused", "proven_absent", "released")
    assert [one["resolution"] for one in proven["proposes"]] == ["not-accepted:resubmit"]

    env = scene.environment | {"RELAY_DATABASE_URL": scene.database.url_as(OPERATOR)}
    review, revision = scene.one(
        "select review_id, revision from relay.review where operation_id = %s", operation
    )
    shown = command("review", "show", str(review), env=env).out
    assert "proves that no job came of attempt" in shown
    words = ["review", "resolve", str(review), "not-accepted", "--then", "resubmit"]
    words += ["--revision", str(revision), "--reason", "their list", "--json"]
    decided = command(*words, env=env).json
    assert (decided["to_phase"], decided["disputed"]) == ("prepared", "0")
    asyncio.run(scene.handle(Dispatch(), scene.last(operation, "generation.requested")))
    assert scene.phase(operation) == "accepted"


INCOMPLETE: Final = [
    ("proves_absence: true", "proves_absence: false", "doesn't declare"),
    ("pages: 3", "pages: 1", "there are more than 1 pages"),
    ("/v1/jobs?limit=2&since", "/v1/nothing?limit=2&since", "HTTP 404"),
    ("reference: $.client_reference", "reference: $.nobody", "an element has no reference at $.nobody"),
    ("cursor: $.next", "cursor: $.jobs[*].job_id", "the next page can't be read"),
    ("reference:", "each: $.tasks[*]\n  reference:", "there is no list at $.tasks[*]"),
]
"""What is changed in the profile's list, and why it then proves nothing."""


def test_a_list_that_may_lack_something_proves_nothing(scene: Reviewed) -> None:
    text = scene.profile.text
    for _ in range(3):
        scene.dispatched()
    for was, becomes, why in INCOMPLETE:
        scene.profile = Profile.parse(text, source="test")
        scene.push(LISTING.replace(was, becomes))
        operation = scene.dispatched(Fault.CUT_BEFORE_READING)
        scene.advance("10 minutes")
        collected = scene.asked(operation)
        assert why in collected["findings"]["listing"]["no_proof"]
        assert scene.state(operation) == ("uncertain", 1, "unknown", "no_answer", "reserved")


def test_a_list_that_can_not_be_asked_proves_nothing_and_is_asked_again(scene: Reviewed) -> None:
    scene.push(LISTING)
    operation = scene.dispatched(Fault.CUT_BEFORE_READING)
    scene.advance("10 minutes")
    scene.simulator.stop()
    collected = scene.asked(operation)
    assert "no answer" in collected["findings"]["listing"]["no_proof"]
    assert scene.state(operation) == ("uncertain", 1, "unknown", "no_answer", "reserved")
    assert scene.woken(operation, "10 minutes") == 1
    assert scene.woken(operation, "10 minutes") == 2


def test_a_job_that_its_list_hid_is_kept_when_it_turns_up(scene: Reviewed) -> None:
    """A provider that declared more than it keeps: what was proven is wrong, and nothing is forgotten."""
    scene.push(LISTING)
    operation = scene.dispatched(Fault.CUT_BEFORE_ANSWER)
    scene.simulator.world.plan = Plan(polls=(1, 1), unlisted=(str(operation),))
    scene.advance("10 minutes")
    (absent,) = scene.asked(operation)["findings"]["absent"]
    assert scene.state(operation)[2:] == ("refused", "proven_absent", "released")
    (job,) = scene.simulator.truth()["jobs"]
    outcome = Submission(verdict="accepted", reason="late", job_id=job["job_id"], evidence={"status": 201})

    async def late() -> None:
        async with scene.context() as ctx, ctx.pool.connection() as connection:
            await apply_submission(
                connection,
                attempt_id=UUID(absent),
                operation_id=operation,
                outcome=outcome,
                profile=scene.profile,
                actor="test",
            )

    asyncio.run(late())
    kept = scene.one("select count(*) from relay.remote_job where job_id = %s", job["job_id"])
    booked = scene.one("select state from relay.reservation where attempt_id = %s", absent)
    assert (kept, booked) == (1, "disputed")


def test_what_an_error_with_an_id_cost_is_asked_for_and_proposed_as_a_command(
    scene: Reviewed, command: Command
) -> None:
    operation = scene.dispatched(Fault.BAD_GATEWAY_WITH_JOB)
    collected = scene.asked(operation)
    (job,) = scene.simulator.truth()["jobs"]
    cost = Decimal(job["charged"])
    (proposal,) = collected["proposes"]
    assert (proposal["resolution"], Decimal(proposal["cost"])) == ("settle", cost)
    env = scene.environment | {"RELAY_DATABASE_URL": scene.database.url_as(OPERATOR)}
    shown = command("review", "show", str(operation), env=env).out
    assert f"settle --cost {proposal['cost']} --revision 2" in shown
    # It only proposes: nothing is settled, and the operation is where it was.
    assert scene.operation(operation, "phase") == "accepted"
    assert scene.state(operation)[4] == "reserved"


def test_without_an_id_and_without_a_list_there_is_nothing_to_ask(scene: Reviewed) -> None:
    operation = scene.dispatched(Fault.CUT_BEFORE_READING)
    assert scene.asked(operation) is None
    row = scene.one("select revision, next_evidence_at from relay.review where operation_id = %s", operation)
    assert row == (1, None)
    assert scene.woken(operation, "10 minutes") == 1


def test_a_person_has_the_provider_asked_once_more(scene: Reviewed, command: Command) -> None:
    scene.push(LISTING)
    operation = scene.dispatched(Fault.CUT_BEFORE_READING)
    env = scene.environment | {"RELAY_DATABASE_URL": scene.database.url_as(OPERATOR)}
    said = command("review", "ask", str(operation), env=env)
    assert said.status == 0
    assert "relay review show" in said.out
    assert len(scene.events(operation, EVIDENCE)) == 2


def test_a_closed_review_asks_for_nothing_more(scene: Reviewed, command: Command) -> None:
    operation = scene.dispatched(Fault.BAD_GATEWAY_WITH_JOB)
    review = scene.one("select review_id from relay.review where operation_id = %s", operation)
    words = [
        "review",
        "resolve",
        str(review),
        "settle",
        "--cost",
        "1",
        "--revision",
        "1",
        "--reason",
        "invoice",
    ]
    env = scene.environment | {"RELAY_DATABASE_URL": scene.database.url_as(OPERATOR)}
    assert command(*words, env=env).status == 0
    scene.asked(operation)
    assert dict(scene.simulator.truth()["gets"]) == {}
    closed = command("review", "ask", str(review), env=env)
    assert (closed.status, "is closed" in closed.err) == (1, True)
    assert scene.woken(operation, "10 minutes") == 1


@pytest.mark.parametrize("kind", ["hold", "uncertain_submission", "second_id"])
def test_each_review_has_the_deadline_that_its_profile_declares_for_its_kind(
    scene: Reviewed, kind: str
) -> None:
    scene.profile = Profile.parse(
        scene.profile.text.replace(
            "review_deadlines_s: {default: 3600}",
            "review_deadlines_s: {default: 3600, hold: 120, second_id: 7200}",
        ),
        source="test",
    )
    providers.push(scene.connection, [scene.profile])
    operation = scene.prepare()
    scene.connection.execute(
        "insert into relay.review (operation_id, kind, deadline) values (%s, %s, relay.now() + '9 days')",
        [operation, kind],
    )
    allowed = scene.one("select extract(epoch from deadline - opened_at) from relay.review")
    assert float(allowed) == scene.profile.review_deadline_s(kind)
