"""Dispatch on real Postgres and real HTTP: one POST, and what became of it, whatever the provider does."""

from decimal import Decimal
from typing import LiteralString
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
import pytest

from consumers.dispatch import Dispatch
from consumers.operations import claims
from consumers.operations.answers import Applied, apply_submission
from consumers.providers.answer import Answer
from consumers.providers.outcome import Submission, classify_submission
from consumers.providers.simulator_world import Fault, Plan
from fix_dispatch import Dispatching
from relay.errors import Unavailable
from syscalls import Call, recorded

pytestmark = pytest.mark.anyio


async def test_an_accepted_answer_is_stored_before_the_event_is_done(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    await dispatching.hand_over(dispatcher, operation)

    phase, job_id = dispatching.row(operation, "phase, job_id")
    assert phase == "accepted"
    assert dispatching.all("select job_id, role from relay.remote_job") == [(job_id, "primary")]
    collection = dispatching.all("select payload from relay.outbox where event_type = 'collection.requested'")
    assert collection == [({"operation_id": str(operation), "job_id": job_id},)]
    assert dispatching.row(operation, "next_action_at is not null, claim_token") == (True, None)
    assert dispatching.posts(operation) == 1


async def test_a_repeated_event_causes_no_second_post(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    for _ in range(3):
        await dispatching.hand_over(dispatcher, operation)
    assert dispatching.posts(operation) == 1


async def test_an_event_of_an_earlier_dispatch_claims_nothing(dispatching: Dispatching) -> None:
    """Refused after delay: prepared again under dispatch 2. The first event, replayed, must not claim it."""
    operation = dispatching.prepared("rate_limited")
    dispatcher = await dispatching.dispatcher()
    await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase, dispatch_no") == ("prepared", 2)
    dispatching.connection.execute("update relay.operation set not_before = null")

    await dispatching.hand_over(dispatcher, operation, which=0)

    assert dispatching.row(operation, "phase, dispatch_no") == ("prepared", 2)
    assert dispatching.posts(operation) == 1


@pytest.mark.parametrize(
    ("fault", "phase", "reservation"),
    [
        ("cut_before_answer", "uncertain", "reserved"),
        ("cut_before_reading", "uncertain", "reserved"),
        ("bad_gateway", "uncertain", "reserved"),
        ("bad_gateway_with_job", "accepted", "reserved"),
        ("error_after_creation", "uncertain", "reserved"),
        ("truncated_answer", "uncertain", "reserved"),
        ("redirect", "uncertain", "reserved"),
        ("unprocessable", "rejected", "released"),
        ("rate_limited", "prepared", "released"),
    ],
)
async def test_each_answer_ends_where_the_table_says(
    dispatching: Dispatching, fault: str, phase: str, reservation: str
) -> None:
    operation = dispatching.prepared(fault)
    if fault == "cut_before_reading":
        # Nothing of the body is read, so the payload can't ask for it: the plan says it.
        dispatching.simulator.world.plan = Plan(faults={Fault(fault): 1.0})
    dispatcher = await dispatching.dispatcher()
    await dispatching.hand_over(dispatcher, operation)

    assert dispatching.row(operation, "phase") == (phase,)
    assert dispatching.all("select state from relay.reservation") == [(reservation,)]
    assert dispatching.posts(operation) == 1
    reviews = dispatching.all("select kind from relay.review where state = 'open'")
    assert bool(reviews) == (phase == "uncertain" or fault == "bad_gateway_with_job")
    assert not list(dispatching.settings().spool.glob("*/*.json*")), "an applied entry leaves the spool"


async def test_an_uncertain_operation_stays_so_under_redelivery(dispatching: Dispatching) -> None:
    operation = dispatching.prepared("cut_before_answer")
    dispatcher = await dispatching.dispatcher()
    for _ in range(3):
        await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase, version") == ("uncertain", 4)
    assert dispatching.posts(operation) == 1


async def test_nothing_is_claimed_while_the_gate_is_closed(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    dispatching.connection.execute("update relay.source_identity set verified_timeline = 7")
    dispatcher = await dispatching.dispatcher()
    with pytest.raises(Unavailable, match="another timeline"):
        await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase, version") == ("prepared", 1)
    assert dispatching.posts(operation) == 0


async def test_a_gate_that_closes_after_the_claim_sends_no_byte(
    dispatching: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    _before_the_hook(dispatching, monkeypatch, "update relay.source_identity set verified_timeline = 7")
    await dispatching.hand_over(dispatcher, operation)
    assert dispatching.posts(operation) == 0
    assert dispatching.row(operation, "phase, dispatch_no") == ("prepared", 2)


async def test_a_cancel_before_the_first_byte_is_obeyed(
    dispatching: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    _before_the_hook(
        dispatching,
        monkeypatch,
        "select relay.request_cancel(operation_id, 'changed our mind') from relay.operation",
    )
    await dispatching.hand_over(dispatcher, operation)
    assert dispatching.posts(operation) == 0
    monkeypatch.undo()
    dispatching.dispatch_again(operation)
    await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase") == ("cancelled",)
    assert dispatching.posts(operation) == 0


async def test_what_does_not_fit_the_allowance_is_held_and_not_sent(dispatching: Dispatching) -> None:
    dispatching.allow("4")
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase, phase_reason, next_action_at is not null") == (
        "held",
        "allowance",
        True,
    )
    assert dispatching.posts(operation) == 0
    assert dispatching.all("select reserved from relay.allowance") == [(Decimal(0),)]


async def test_a_changed_payload_is_held_with_an_incident_and_not_sent(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    # Only a superuser who switches the guard off can do this; the hash is what notices.
    with dispatching.connection.transaction():
        dispatching.connection.execute("alter table relay.operation disable trigger b_guard")
        dispatching.connection.execute('update relay.operation set payload = \'{"prompt": "another"}\'')
        dispatching.connection.execute("set constraints all immediate")
        dispatching.connection.execute("alter table relay.operation enable always trigger b_guard")
    dispatcher = await dispatching.dispatcher()
    await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase, phase_reason") == ("held", "specification")
    assert dispatching.all("select boundary from relay.incident") == [("claim",)]
    assert dispatching.posts(operation) == 0


async def test_a_provider_that_refuses_connections_leaves_the_operation_unsent(
    dispatching: Dispatching,
) -> None:
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    dispatching.simulator.stop()
    await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase, dispatch_no, not_before > relay.now()") == ("prepared", 2, True)
    assert dispatching.all("select outcome, first_sent_at from relay.attempt") == [("unsent", None)]
    assert dispatching.all("select state from relay.reservation") == [("released",)]


async def test_an_operation_that_can_not_be_sent_is_held_for_a_person_in_the_end(
    dispatching: Dispatching,
) -> None:
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    dispatching.simulator.stop()
    for _ in range(8):
        dispatching.dispatch_again(operation)
        await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase, phase_reason, open_reviews") == ("held", "unreachable", 1)


async def test_three_equal_generic_failures_pause_the_account(dispatching: Dispatching) -> None:
    dispatcher = await dispatching.dispatcher()
    for _ in range(3):
        await dispatching.hand_over(dispatcher, dispatching.prepared("bad_gateway"))
    waiting = dispatching.prepared()
    await dispatching.hand_over(dispatcher, waiting)
    assert dispatching.row(waiting, "phase, phase_reason") == ("held", "paused")
    assert dispatching.posts(waiting) == 0


async def test_a_leftover_of_a_dead_process_is_unknown_and_never_sent_again(dispatching: Dispatching) -> None:
    """The spool says that bytes may have left, and nothing more: uncertain at once, before any new claim."""
    operation = dispatching.prepared()
    dead = await dispatching.dispatcher()
    await _leave_sending(dispatching, dead, operation)
    successor = await dispatching.dispatcher()
    assert dispatching.row(operation, "phase, phase_reason") == ("uncertain", "sender_lost")
    await dispatching.hand_over(successor, operation)
    assert dispatching.posts(operation) == 0


async def test_a_spool_that_the_database_does_not_know_stops_new_claims(dispatching: Dispatching) -> None:
    first = await dispatching.dispatcher()
    first._spool.sending("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222")
    await first.close()
    with pytest.raises(Unavailable, match="doesn't know the attempt"):
        await dispatching.dispatcher()


async def test_an_id_that_another_operation_has_is_uncertain_and_reviewed_on_both(
    dispatching: Dispatching,
) -> None:
    """A provider that silently deduplicates answers a second operation with the first one's job."""
    first, second = dispatching.prepared(), dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    await dispatching.hand_over(dispatcher, first)
    (job_id,) = dispatching.row(first, "job_id")
    token = await _leave_sending(dispatching, dispatcher, second)
    profile = dispatching.profile
    async with dispatching.pool.connection() as connection:
        applied = await apply_submission(
            connection,
            attempt_id=token,
            operation_id=second,
            outcome=Submission(verdict="accepted", reason="http_201", job_id=job_id, evidence={}),
            profile=profile,
            actor="test",
        )
    assert applied is Applied.MOVED
    assert dispatching.row(second, "phase, phase_reason") == ("uncertain", "job_id_collision")
    assert {
        row[0] for row in dispatching.all("select operation_id from relay.review where kind = 'id_collision'")
    } == {
        first,
        second,
    }


async def test_an_answer_after_the_lease_ran_out_is_applied_once(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    token = await _leave_sending(dispatching, dispatcher, operation)
    profile = dispatching.profile
    outcomes = [
        Submission(verdict="unknown", reason="lease_expired", evidence={}),
        Submission(verdict="accepted", reason="http_201", job_id="late-1", evidence={}),
        Submission(verdict="accepted", reason="http_201", job_id="late-1", evidence={}),
    ]
    applied = []
    for outcome in outcomes:
        async with dispatching.pool.connection() as connection:
            applied.append(
                await apply_submission(
                    connection,
                    attempt_id=token,
                    operation_id=operation,
                    outcome=outcome,
                    profile=profile,
                    actor="test",
                )
            )
    assert applied == [Applied.MOVED, Applied.MOVED, Applied.RECORDED]
    assert dispatching.row(operation, "phase, phase_reason, job_id") == ("accepted", "http_201", "late-1")
    assert dispatching.all("select cause from relay.journal where to_phase = 'accepted'") == [
        ("late_answer",)
    ]


async def test_the_first_byte_waits_for_a_durable_commit(dispatching: Dispatching) -> None:
    """A database set to asynchronous commits must not lose the one commit that stands before the POST."""
    name = psycopg.sql.Identifier(dispatching.database.name)
    dispatching.connection.execute(
        psycopg.sql.SQL("alter database {} set synchronous_commit = off").format(name)
    )
    dispatching.connection.execute("create table public.seen (synchronous_commit text)")
    dispatching.connection.execute("grant insert on public.seen to public")
    dispatching.connection.execute(
        "create function public.look() returns trigger language plpgsql as $$ begin"
        " insert into public.seen values (current_setting('synchronous_commit')); return new; end $$"
    )
    dispatching.connection.execute(
        "create trigger look before insert on relay.attempt for each row execute function public.look()"
    )
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    await dispatching.hand_over(dispatcher, operation)
    assert dispatching.all("select synchronous_commit from public.seen") == [("on",)]


def _before_the_hook(
    dispatching: Dispatching, monkeypatch: pytest.MonkeyPatch, statement: LiteralString
) -> None:
    """Run `statement` after the claim and before `submitting`."""
    begin = claims.begin_submission

    async def changed(
        connection: psycopg.AsyncConnection[object],
        claimed: claims.Claim,
        sending: claims.Sending,
        worker: str,
    ) -> None:
        dispatching.connection.execute(statement)
        await begin(connection, claimed, sending, worker)

    monkeypatch.setattr(claims, "begin_submission", changed)


async def _leave_sending(dispatching: Dispatching, dispatcher: Dispatch, operation: UUID) -> UUID:
    """What a process that died after the spool's entry and before any byte leaves; its attempt's id."""
    token = uuid4()
    async with dispatching.pool.connection() as connection:
        claimed = await claims.claim(
            connection, operation_id=operation, dispatch_no=1, token=token, worker="dead", lease_s=60
        )
        assert isinstance(claimed, claims.Claim)
        sending = claims.Sending(
            request_sha256="0" * 64,
            idempotency_key=None,
            spool="x",
            deadline_s=10,
            margin_s=5,
            late_delivery_s=20,
        )
        await claims.begin_submission(connection, claimed, sending, "dead")
    dispatcher._spool.sending(str(token), str(operation))
    await dispatcher.close()
    return token


async def test_the_spools_entry_is_on_the_disk_before_the_first_byte_and_the_answer_before_it_is_applied(
    dispatching: Dispatching,
) -> None:
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    provider = urlsplit(dispatching.simulator.url).netloc
    with recorded() as calls:
        await dispatching.hand_over(dispatcher, operation)

    (attempt,) = dispatching.all("select attempt_id, spool from relay.attempt where action = 'submit'")
    entry, folder = f"{attempt[1]}/{attempt[0]}.jsonl", str(attempt[1])
    order = [
        "send" if call.name == "send" else call.target
        for call in calls
        if call.name == "fsync" or call == Call("send", provider)
    ]
    first_byte = order.index("send")
    assert order[:first_byte] == [entry, folder]
    assert entry in order[first_byte:]


async def test_an_answer_full_of_control_characters_is_recorded(dispatching: Dispatching) -> None:
    """JSON writes each as six characters: what the row can't hold must not keep the answer out of it."""
    operation = dispatching.prepared()
    token = await _leave_sending(dispatching, await dispatching.dispatcher(), operation)
    answer = Answer(status=500, body=b"\x01" * 20_000, body_complete=True, sent=True, hook_returned=True)
    async with dispatching.pool.connection() as connection:
        await apply_submission(
            connection,
            attempt_id=token,
            operation_id=operation,
            outcome=classify_submission(dispatching.profile, answer),
            profile=dispatching.profile,
            actor="test",
        )
    assert dispatching.row(operation, "phase") == ("uncertain",)
    assert dispatching.all("select evidence ->> 'body_bytes' from relay.attempt") == [("20000",)]
