"""A provider's limits, kept by all processes together, and a provider that is away: nobody is forgotten and
nobody storms.
"""

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest

from consumers.collect import Collect
from consumers.dispatch import Dispatch
from consumers.operations import limits, providers
from consumers.operations.limits import Limit
from consumers.operations.polling import AWAY_AFTER
from consumers.providers.profile import Profile
from consumers.providers.simulator_http import Reply
from consumers.providers.simulator_world import Fault, Plan
from fix_postgres import Database
from fix_scene import Scene

_WORK: Final = "select count(*) from generate_series(1, 30000)"
"""Some milliseconds of what a permit is for."""

pytestmark = pytest.mark.anyio

COLLECTION: Final = "collection.requested"
GENERATION: Final = "generation.requested"


PACED: Final = "poll: {min_s: 30, max_s: 60, factor: 1.5}"
"""A pace that a slow machine doesn't overtake."""


def limited(scene: Scene, **declared: float) -> None:
    """Push the simulator's profile with these limits; operations from now on have it."""
    text = re.sub(r"(?m)^poll:.*$", PACED, scene.profile.text).replace(
        "limits:\n", "limits:\n" + "".join(f"  {name}: {value}\n" for name, value in declared.items())
    )
    scene.profile = Profile.parse(text, source="limited")
    providers.push(scene.connection, [scene.profile])


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path, plan=Plan(polls=(100, 100))) as running:
        yield running


# Permits ----------------------------------------------------------------------------------------------------


def taken(connection: psycopg.Connection[Any], *, waited: bool = False, **more: Any) -> tuple[bool, float]:
    """Ask for a permit to poll. `more`: at_once, per_s, permit, lease_s."""
    wanted = {"permit": uuid4(), "at_once": None, "per_s": None, "lease_s": 60.0, "waited": waited} | more
    row = connection.execute(
        "select granted, wait_s from relay.take_permit('simulator', 'default', 'poll', %(permit)s, 'test',"
        " %(lease_s)s, %(at_once)s, %(per_s)s, %(waited)s, 2)",
        wanted,
    ).fetchone()
    assert row is not None
    return bool(row[0]), float(row[1])


async def test_permits_are_so_many_at_once_and_a_killed_holders_come_back(scene: Scene) -> None:
    ask = scene.connection
    permits = [uuid4() for _ in range(3)]
    assert [taken(ask, at_once=3, permit=one)[0] for one in permits] == [True] * 3
    assert not taken(ask, at_once=3)[0]
    ask.execute("select relay.give_permit_back(%s)", [permits[0]])
    # Whoever was told to come again has the place; a newcomer goes to the end of the line.
    scene.advance("10 seconds")
    assert taken(ask, at_once=3, waited=True)[0]
    assert not taken(ask, at_once=3)[0]
    # The others' holders never say a word again.
    scene.advance("1 minute")
    assert [taken(ask, at_once=3)[0] for _ in range(4)] == [True, True, True, False]


async def test_a_rate_is_kept_and_who_waits_longest_comes_first(scene: Scene) -> None:
    ask = scene.connection
    answers = [taken(ask, per_s=2.0) for _ in range(12)]
    # Two seconds of patience are five places, half a second apart; the others stand in line behind them.
    assert [granted for granted, _ in answers] == [True] * 5 + [False] * 7
    waits = [wait_s for _, wait_s in answers]
    assert waits == sorted(waits)
    apart = [later - earlier for earlier, later in pairwise(waits[5:])]
    assert all(0.3 < gap <= 0.51 for gap in apart), apart
    # While a line stands no newcomer overtakes it, and who stood in it passes.
    scene.advance("3 seconds")
    assert not taken(ask, per_s=2.0)[0]
    assert taken(ask, per_s=2.0, waited=True)[0]


async def test_a_hundred_workers_at_once_never_have_more_than_the_limit(scene: Scene) -> None:
    limit = Limit(provider="simulator", account="default", action="poll", at_once=4, per_s=None)
    under_way, most, granted = 0, 0, Counter[int]()
    async with scene.context() as ctx:

        async def worker(number: int) -> None:
            nonlocal under_way, most
            waited = False
            while not granted[number]:
                permit = uuid4()
                async with ctx.pool.connection() as connection:
                    said = await limits.take(connection, limit, permit, holder="w", lease_s=60, waited=waited)
                if said.granted:
                    under_way += 1
                    most = max(most, under_way)
                    async with ctx.pool.connection() as connection:
                        await connection.execute(_WORK)
                    granted[number] += 1
                    under_way -= 1
                    async with ctx.pool.connection() as connection:
                        await limits.give_back(connection, permit)
                waited = True

        await asyncio.gather(*(worker(number) for number in range(40)))
    assert len(granted) == 40
    assert 2 <= most <= 4
    assert scene.one("select count(*) from relay.permit") == 0


# Dispatch and collect under them ----------------------------------------------------------------------------


async def test_submissions_keep_the_limit_and_every_one_gets_its_turn(scene: Scene) -> None:
    limited(scene, submits_at_once=2)
    most = watch_requests(scene, 0.2)
    waiting = [scene.prepare(max_cost="1") for _ in range(8)]
    async with scene.context(RELAY_SPOOL=str(scene.folder / "a")) as first, scene.context() as second:
        workers = []
        for ctx in (first, second):
            worker = Dispatch()
            await worker.open(ctx)
            workers.append((worker, ctx))
        rounds = 0
        while left := [one for one in waiting if scene.phase(one) == "prepared"]:
            events = [scene.last(one, GENERATION) for one in left]
            # Each event comes to one of the two, and all at once.
            await asyncio.gather(
                *(workers[n % 2][0].handle(event, workers[n % 2][1]) for n, event in enumerate(events))
            )
            assert (await scene.wake("5 seconds")).healthy
            rounds += 1
            assert rounds < 20
        for worker, _ in workers:
            await worker.close()
    assert [scene.phase(one) for one in waiting] == ["accepted"] * 8
    assert most() == 2
    assert len(scene.simulator.truth()["posts"]) == 8
    assert scene.one("select count(*) from relay.permit") == 0
    assert rounds > 1  # the limit did make some of them wait


async def test_an_operation_in_line_is_not_claimed_before_its_turn(scene: Scene) -> None:
    limited(scene, submits_per_s=0.1)
    first, second = scene.prepare(), scene.prepare()
    assert await scene.dispatch(first) == "accepted"
    event = scene.last(second, GENERATION)
    for _ in range(3):  # the event again, from wherever
        await scene.handle(Dispatch(), event)
        assert scene.phase(second) == "prepared"
    assert scene.operation(second, "waits_until = next_action_at and waits_until > relay.now()")
    await scene.wake("30 seconds")
    assert await scene.dispatch(second) == "accepted"
    assert scene.operation(second, "waits_until") is None


async def test_polls_keep_the_rate_by_waiting_in_line_without_a_get(scene: Scene) -> None:
    limited(scene, polls_per_s=0.2)
    operations = [await scene.accepted(max_cost="1") for _ in range(4)]
    for operation_id in operations:
        await scene.handle(Collect(), scene.last(operation_id, COLLECTION))
    assert sum(scene.simulator.truth()["gets"].values()) == 1
    due_in = scene.all(
        "select extract(epoch from next_action_at - relay.now())::float8 from relay.operation"
        " where waits_until is not null order by 1"
    )
    assert len(due_in) == 3
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(due_in)]
    assert all(gap > 4 for gap in gaps), due_in
    for operation_id in operations[1:]:
        await scene.wake("6 seconds")
        await scene.handle(Collect(), scene.last(operation_id, COLLECTION))
    assert sum(scene.simulator.truth()["gets"].values()) == 4


# A provider that is away ------------------------------------------------------------------------------------


def gets(scene: Scene) -> int:
    return sum(scene.simulator.truth()["gets"].values())


async def asked_until_quiet(scene: Scene, operations: list[UUID]) -> None:
    """Schedule looks, and collect gets the newest event of each."""
    async with scene.context() as ctx:
        consumer = Collect()
        await consumer.open(ctx)
        seen: set[UUID] = set()
        await scene.wake()
        for operation_id in operations:
            event = scene.last(operation_id, COLLECTION)
            if event.event_id not in seen:
                seen.add(event.event_id)
                await consumer.handle(event, ctx)


async def test_an_outage_slows_polls_down_and_its_end_is_found_without_a_person(scene: Scene) -> None:
    limited(scene)
    operations = [await scene.accepted(max_cost="1") for _ in range(12)]
    replies = scene.simulator._answer
    asked = Counter[str]()

    async def away(call: Any, body: bytes) -> Any:
        if call.method == "GET" and call.path[:2] == ("v1", "jobs"):
            asked["gets"] += 1
            return Reply(status=503, body=b"{}")
        return await replies(call, body)

    scene.simulator._answer = away  # type: ignore[method-assign]
    await asked_until_quiet(scene, operations)
    # Three ask in vain; the others are put off without a GET.
    assert asked["gets"] == AWAY_AFTER
    assert scene.one("select polls_failed from relay.provider_account where provider = 'simulator'") == 3
    for _ in range(6):
        scene.advance("10 minutes")
        before = asked["gets"]
        await asked_until_quiet(scene, operations)
        assert asked["gets"] - before == 1  # one asks whether it is back
    assert {scene.phase(one) for one in operations} == {"accepted"}
    spread = scene.one(
        "select extract(epoch from max(next_action_at) - min(next_action_at))::float8 from relay.operation"
    )
    assert spread > scene.profile.poll.max_s
    scene.simulator._answer = replies  # type: ignore[method-assign]
    scene.advance("10 minutes")
    await asked_until_quiet(scene, operations)
    assert gets(scene) == 12  # the first found it back, and nobody waits any more
    assert scene.one(
        "select polls_failed = 0 and poll_not_before is null from relay.provider_account"
        " where provider = 'simulator'"
    )


async def test_a_time_that_the_provider_names_holds_for_all_of_the_account(scene: Scene) -> None:
    operations = [await scene.accepted(max_cost="1") for _ in range(3)]
    replies = scene.simulator._answer
    asked = Counter[str]()

    async def busy(call: Any, body: bytes) -> Any:
        asked["gets"] += 1
        return Reply(status=429, headers=(("Retry-After", "120"),), body=b"{}")

    scene.simulator._answer = busy  # type: ignore[method-assign]
    await asked_until_quiet(scene, operations)
    assert asked["gets"] == 1
    scene.simulator._answer = replies  # type: ignore[method-assign]
    scene.advance("1 minute")
    await asked_until_quiet(scene, operations)
    assert gets(scene) == 0
    scene.advance("10 minutes")
    await asked_until_quiet(scene, operations)
    assert gets(scene) == 3


async def test_three_equal_generic_failures_pause_the_account_and_a_person_lifts_it(scene: Scene) -> None:
    refused = [scene.prepare(Fault.BAD_GATEWAY, max_cost="1") for _ in range(3)]
    for operation_id in refused:
        assert await scene.dispatch(operation_id) == "uncertain"
    waits = scene.prepare(max_cost="1")
    assert await scene.dispatch(waits) == "held"
    assert scene.operation(waits, "phase_reason") == "paused"
    await scene.wake("10 minutes")
    assert scene.phase(waits) == "held"
    scene.connection.execute("update relay.provider_account set paused_at = null, paused_reason = null")
    await scene.wake("2 minutes")
    assert await scene.dispatch(waits) == "accepted"


def watch_requests(scene: Scene, seconds: float) -> Any:
    """Make each request take `seconds`; returns what says how many were under way at once, at most."""
    replies = scene.simulator._answer
    seen = {"now": 0, "most": 0}

    async def slowly(call: Any, body: bytes) -> Any:
        if call.path[:1] == ("v1",):
            seen["now"] += 1
            seen["most"] = max(seen["most"], seen["now"])
            # Long enough for whoever else is let in to be seen.
            await asyncio.to_thread(threading.Event().wait, seconds)
            seen["now"] -= 1
        return await replies(call, body)

    scene.simulator._answer = slowly  # type: ignore[method-assign]
    return lambda: seen["most"]
