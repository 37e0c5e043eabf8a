"""No answer is lost between the provider and the database, whatever fails in the process that has it."""

import asyncio
import hashlib
from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg
import pytest

from consumers import dispatch
from consumers.operations import claims, providers
from consumers.operations.answers import Applied, apply_submission, attempted
from consumers.operations.resolutions import Resolution
from consumers.providers.client import ProviderClient
from consumers.providers.outcome import Submission
from consumers.providers.profile import Profile
from fix_dispatch import Dispatching
from relay import migrations
from relay.embedded_postgres import EmbeddedPostgres
from relay.errors import SchemaError, Unavailable

pytestmark = pytest.mark.anyio

END_SESSIONS: Final = (
    "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)


async def test_an_answer_is_on_the_disk_before_anything_is_made_of_it(
    dispatching: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in what reads the answer must not cost the id that is in it."""
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()

    def broken(*_: object) -> Submission:
        raise ArithmeticError("nobody thought of this answer")

    monkeypatch.setattr(dispatch, "classify_submission", broken)
    with pytest.raises(ArithmeticError):
        await dispatching.hand_over(dispatcher, operation)
    await dispatcher.close()
    monkeypatch.undo()

    await dispatching.dispatcher()
    assert dispatching.row(operation, "phase, job_id is not null") == ("accepted", True)
    assert dispatching.posts(operation) == 1


async def test_a_commit_whose_answer_was_lost_before_the_first_byte_sends_nothing_and_holds_no_money(
    dispatching: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    begin = claims.begin_submission

    async def landed(*arguments: Any) -> None:
        await begin(*arguments)
        raise psycopg.OperationalError("the connection was lost while COMMIT was on its way")

    monkeypatch.setattr(claims, "begin_submission", landed)
    await dispatching.hand_over(dispatcher, operation)

    assert dispatching.posts(operation) == 0
    assert dispatching.row(operation, "phase, dispatch_no, accounting") == ("prepared", 2, "none")
    assert dispatching.all("select outcome from relay.attempt") == [("unsent",)]
    assert dispatching.all("select state from relay.reservation") == [("released",)]


@pytest.mark.parametrize(
    "change",
    [
        END_SESSIONS,
        "update public.moved set by_interval = '61 seconds'",
        "update relay.provider_account set paused_at = relay.now(), paused_reason = 'by hand'",
    ],
    ids=["the connection breaks", "the lease runs out", "the account is paused"],
)
async def test_what_changes_between_the_claim_and_the_first_byte_lets_none_leave(
    dispatching: Dispatching, monkeypatch: pytest.MonkeyPatch, change: LiteralString
) -> None:
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    begin = claims.begin_submission

    async def changed(*arguments: Any) -> None:
        dispatching.connection.execute(change)
        await begin(*arguments)

    monkeypatch.setattr(claims, "begin_submission", changed)
    await dispatching.hand_over(dispatcher, operation)

    assert dispatching.posts(operation) == 0
    assert dispatching.row(operation, "phase, dispatch_no, accounting") == ("prepared", 2, "none")
    assert dispatching.row(operation, "not_before > relay.now() and next_action_at >= not_before") == (True,)
    assert dispatching.all("select outcome from relay.attempt") == [("unsent",)]


async def test_what_the_database_refuses_to_record_stops_new_claims_and_parks_nothing(
    dispatching: Dispatching,
) -> None:
    """The spool has the answer; the events of others must not be parked for it."""
    operation, other = dispatching.prepared(), dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    dispatching.connection.execute(
        "alter table relay.remote_job add constraint broken check (false) not valid"
    )
    for event_of in (operation, other):
        with pytest.raises(Unavailable, match=r"refuses the answer.*remote_job"):
            await dispatching.hand_over(dispatcher, event_of)
    assert dispatching.row(other, "phase") == ("prepared",)

    dispatching.connection.execute("alter table relay.remote_job drop constraint broken")
    await dispatching.hand_over(dispatcher, other)
    assert dispatching.row(operation, "phase") == dispatching.row(other, "phase") == ("accepted",)
    assert dispatching.posts(operation) == dispatching.posts(other) == 1


async def test_an_answer_that_fails_to_be_written_while_the_spool_is_read_is_not_forgotten(
    dispatching: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the spool skips what is in flight: what fails meanwhile must make it be read again."""
    left, operation, third = (dispatching.prepared() for _ in range(3))
    dispatcher = await dispatching.dispatcher()
    at_write, may_fail, failed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def apply_once_refused(*arguments: Any, operation_id: UUID, **more: Any) -> Applied:
        if operation_id == operation and not failed.is_set():
            at_write.set()
            await may_fail.wait()
            raise psycopg.errors.InternalError("refused, once")
        return await apply_submission(*arguments, operation_id=operation_id, **more)

    async def look_slowly(*arguments: Any) -> Any:
        may_fail.set()
        await failed.wait()
        return await attempted(*arguments)

    monkeypatch.setattr(dispatch, "apply_submission", apply_once_refused)
    monkeypatch.setattr(dispatch, "attempted", look_slowly)
    sending = asyncio.create_task(dispatching.hand_over(dispatcher, operation))
    sending.add_done_callback(lambda _: failed.set())
    async with asyncio.timeout(30):
        await at_write.wait()
        await _left_in_the_spool(dispatching, dispatcher, left)
        await dispatching.hand_over(dispatcher, third)
    assert isinstance(sending.exception(), Exception)
    assert dispatching.row(left, "phase") == ("uncertain",)

    await dispatching.hand_over(dispatcher, third)
    assert dispatching.row(operation, "phase, job_id is not null") == ("accepted", True)


async def test_what_is_written_while_the_spool_is_read_is_not_overwritten_by_what_was_read(
    dispatching: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, operation, third = (
        dispatching.prepared(),
        dispatching.prepared("bad_gateway"),
        dispatching.prepared(),
    )
    dispatcher = await dispatching.dispatcher()
    answered, may_return, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    submit = ProviderClient.submit

    async def submit_slowly(self: ProviderClient, *arguments: Any, **more: Any) -> Any:
        answer = await submit(self, *arguments, **more)
        answered.set()
        await may_return.wait()
        return answer

    async def look_slowly(*arguments: Any) -> Any:
        may_return.set()
        await done.wait()
        return await attempted(*arguments)

    monkeypatch.setattr(ProviderClient, "submit", submit_slowly)
    monkeypatch.setattr(dispatch, "attempted", look_slowly)
    token = await dispatching.begun(left)
    dispatcher._spool.sending(str(token), str(left))
    async with asyncio.timeout(30):
        sending = asyncio.create_task(dispatching.hand_over(dispatcher, operation))
        sending.add_done_callback(lambda _: done.set())
        await answered.wait()
        dispatcher._leftovers = True
        await dispatching.hand_over(dispatcher, third)
        await sending
    seen = dispatching.all(
        "select outcome_reason, evidence -> 'status' from relay.attempt where operation_id = %s", operation
    )
    assert seen == [("status_502", 502)]


async def test_a_request_that_was_never_sent_binds_nobody_to_its_url(dispatching: Dispatching) -> None:
    """A person mends the URL after it; held for another request's digest, it could never be sent."""
    operation = dispatching.prepared()
    attempt = await dispatching.begun(operation)
    await dispatching.answered(attempt, operation, "unsent")
    dispatching.dispatch_again(operation)
    await dispatching.hand_over(await dispatching.dispatcher(), operation)
    assert dispatching.row(operation, "phase") == ("accepted",)


async def test_after_a_person_released_it_the_unsent_are_counted_anew(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    dispatching.simulator.stop()
    for _ in range(dispatching.profile.max_unsent):
        dispatching.dispatch_again(operation)
        await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase") == ("held",)
    await dispatching.decided(operation, Resolution.RELEASE)
    await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase, not_before > relay.now()") == ("prepared", True)


async def test_a_profile_that_this_release_can_not_read_is_held_for_a_person(
    dispatching: Dispatching,
) -> None:
    """Claimed, failed, its lease run out and claimed again: nobody would ever be asked."""
    document = f"{dispatching.profile.text}\nof_a_later_release: true\n"
    digest = hashlib.sha256(document.encode()).hexdigest()
    dispatching.connection.execute(
        "insert into relay.provider_profile (provider, digest, document) values ('simulator', %s, %s)",
        [digest, document],
    )
    dispatching.connection.execute("update relay.provider_account set current_digest = %s", [digest])
    operation = dispatching.prepared()
    await dispatching.hand_over(await dispatching.dispatcher(), operation)
    assert dispatching.row(operation, "phase, phase_reason, open_reviews") == ("held", "configuration", 1)
    assert "of_a_later_release" in dispatching.one("select reason from relay.journal where to_phase = 'held'")
    assert dispatching.all("select state from relay.reservation") == [("released",)]


async def test_the_longest_id_of_the_longest_account_is_stored_and_observed(dispatching: Dispatching) -> None:
    name = "p" * 63
    document = dispatching.profile.text.replace("name: simulator", f"name: {name}").replace(
        "account: default", f"account: {name}"
    )
    profile = Profile.parse(document, source="test")
    providers.push(dispatching.connection, [profile])
    (operation,) = dispatching.all(
        "select operation_id from relay.prepare_operation(kind => 'generation', owner_id => 'studio/1',"
        " operation_key => 'k', payload => '{}', provider => %s, account => %s, max_cost => 1)",
        name,
        name,
    )[0]
    attempt = await dispatching.begun(operation)
    longest = "\N{GRINNING FACE}" * 512
    await dispatching.answered(attempt, operation, "accepted", job_id=longest)
    assert dispatching.row(operation, "phase, job_id") == ("accepted", longest)
    assert dispatching.last(operation, "collection.requested").payload["job_id"] == longest


def test_a_database_that_can_not_hold_every_id_is_refused_before_anything_is_sent(
    postgres: EmbeddedPostgres,
) -> None:
    with psycopg.connect(postgres.superuser_url, autocommit=True) as connection:
        connection.execute(
            "create database latin template template0 encoding 'LATIN1' locale 'C' locale_provider libc"
        )
        try:
            with psycopg.connect(postgres.url("latin"), autocommit=True) as latin:
                with pytest.raises(SchemaError, match=r"LATIN1.*UTF8"):
                    migrations.apply(latin)
                assert latin.execute("select to_regnamespace('relay')").fetchone() == (None,)
        finally:
            connection.execute("drop database latin with (force)")


async def _left_in_the_spool(
    dispatching: Dispatching, dispatcher: dispatch.Dispatch, operation: UUID
) -> UUID:
    """An entry that says `sending`, and that nobody is at work on."""
    token = await dispatching.begun(operation)
    dispatcher._spool.sending(str(token), str(operation))
    dispatcher._leftovers = True
    return token
