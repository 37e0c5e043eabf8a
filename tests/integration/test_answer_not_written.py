"""The database is away when the provider's answer is there: the write alone is tried again, for as long as it
takes; nothing is sent meanwhile, and a commit whose own answer was lost is not made twice.
"""

import asyncio
from typing import Any, Final

import psycopg
import pytest

from consumers import dispatch
from consumers.operations.answers import Applied, apply_submission
from fix_dispatch import Dispatching
from relay.errors import Unavailable

pytestmark = pytest.mark.anyio

REFUSALS: Final = 1_000
"""At the longest wait between two tries they take more than an hour."""


async def test_the_write_alone_is_tried_for_longer_than_an_hour_and_nothing_is_claimed_meanwhile(
    dispatching: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert REFUSALS * dispatch.APPLY_BACKOFF_S[1] > 3600
    operation, other = dispatching.prepared(), dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    tries = 0
    away = asyncio.Event()
    looked = asyncio.Event()

    async def apply_at_last(*arguments: Any, **more: Any) -> Applied:
        nonlocal tries
        tries += 1
        if tries == REFUSALS // 2:
            away.set()
            await looked.wait()
        if tries <= REFUSALS:
            raise psycopg.OperationalError("the connection is lost")
        return await apply_submission(*arguments, **more)

    monkeypatch.setattr(dispatch, "apply_submission", apply_at_last)
    monkeypatch.setattr(dispatch, "APPLY_BACKOFF_S", (0.0, 0.0))
    async with asyncio.timeout(120):
        sending = asyncio.create_task(dispatching.hand_over(dispatcher, operation))
        await away.wait()
        with pytest.raises(Unavailable, match="is not written yet"):
            await dispatching.hand_over(dispatcher, other)
        assert dispatching.row(other, "phase, version") == ("prepared", 1)
        assert dispatching.posts(other) == 0
        looked.set()
        await sending

    assert dispatching.row(operation, "phase, job_id is not null") == ("accepted", True)
    assert dispatching.posts(operation) == 1
    await dispatching.hand_over(dispatcher, other)
    assert dispatching.row(other, "phase") == ("accepted",)


async def test_after_a_write_that_the_database_refused_in_the_end_the_spool_is_read_again(
    dispatching: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away first, and then it refuses: the worker must not wait for a write that nobody tries any more."""
    operation, other = dispatching.prepared(), dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    errors = [psycopg.OperationalError("away"), psycopg.errors.InternalError("refused, once")]

    async def apply_at_last(*arguments: Any, **more: Any) -> Applied:
        if errors:
            raise errors.pop(0)
        return await apply_submission(*arguments, **more)

    monkeypatch.setattr(dispatch, "apply_submission", apply_at_last)
    monkeypatch.setattr(dispatch, "APPLY_BACKOFF_S", (0.0, 0.0))
    with pytest.raises(Unavailable, match="refuses the answer"):
        await dispatching.hand_over(dispatcher, operation)
    await dispatching.hand_over(dispatcher, other)
    assert dispatching.row(operation, "phase") == dispatching.row(other, "phase") == ("accepted",)
    assert dispatching.posts(operation) == dispatching.posts(other) == 1


async def test_a_commit_whose_answer_was_lost_is_not_made_twice(
    dispatching: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = dispatching.prepared("bad_gateway_with_job")
    dispatcher = await dispatching.dispatcher()
    landed: list[Applied] = []

    async def apply_and_lose(*arguments: Any, **more: Any) -> Applied:
        landed.append(await apply_submission(*arguments, **more))
        if len(landed) == 1:
            raise psycopg.OperationalError("the connection was lost while COMMIT was on its way")
        return landed[-1]

    monkeypatch.setattr(dispatch, "apply_submission", apply_and_lose)
    await dispatching.hand_over(dispatcher, operation)
    assert landed == [Applied.MOVED, Applied.RECORDED]
    assert dispatching.row(operation, "phase, version, open_reviews") == ("accepted", 4, 1)
    assert dispatching.all("select revision from relay.review") == [(1,)]
    assert dispatching.posts(operation) == 1


async def test_the_answer_is_committed_durably_before_the_spool_forgets_it(
    dispatching: Dispatching,
) -> None:
    """A database set to asynchronous commits must not lose an id that is nowhere else any more."""
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
        "create trigger look before insert on relay.remote_job for each row execute function public.look()"
    )
    operation = dispatching.prepared()
    await dispatching.hand_over(await dispatching.dispatcher(), operation)
    assert dispatching.row(operation, "phase") == ("accepted",)
    assert dispatching.all("select synchronous_commit from public.seen") == [("on",)]
