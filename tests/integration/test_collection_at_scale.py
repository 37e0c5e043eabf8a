"""Twenty thousand jobs in flight: one event of each is outstanding, polls are spread, and what each costs the
database doesn't grow.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg
import pytest
import structlog

from consumers.collect import Collect
from consumers.operations import providers
from consumers.operations.queries import Queries
from consumers.providers.profile import Profile
from consumers.providers.simulator_world import Plan
from consumers.registered import Providers
from consumers.schedule.allowance import Allowance
from consumers.schedule.process import Schedule
from consumers.schedule.round import BATCH, Round
from fix_postgres import Database
from fix_scene import Scene

pytestmark = pytest.mark.anyio

JOBS: Final = 20_000
COLLECTION: Final = "collection.requested"

_MANY: Final = """
    with made as (
      insert into relay.operation (kind, owner_id, operation_key, specification_hash, payload,
          payload_version, max_cost, cost_unit, provider, account, profile_digest, requested_by, phase,
          phase_reason, job_id, version, observed_at, observations, next_action_at)
      select 'generation', 'owner-' || n %% 100, 'many-' || n, encode(sha256(n::text::bytea), 'hex'), '{}',
             1, 1, 'credit', 'simulator', 'default', %(digest)s, 'test', 'accepted',
             'answer', 'many-' || n, 4, relay.now() - interval '10 minutes', 9,
             relay.now() - interval '9 minutes'
        from generate_series(1, %(jobs)s) n
      returning operation_id, job_id),
    journal as (
      insert into relay.journal (operation_id, version, from_phase, to_phase, cause, reason, actor,
          dispatch_no, at)
      select operation_id, 4, 'submitting', 'accepted', 'answer', 'r', 'a', 1,
             relay.now() - interval '20 minutes'
        from made)
    insert into relay.remote_job (provider_account, job_id, operation_id, role)
    select 'simulator/default', job_id, operation_id, 'primary' from made
"""


def fill(scene: Scene, jobs: int = JOBS) -> None:
    """`jobs` accepted operations that were asked ten minutes ago and are all due, written past the guards."""
    tables: tuple[LiteralString, ...] = ("operation", "journal", "remote_job")
    for table in tables:
        scene.connection.execute(f"alter table relay.{table} disable trigger user")
    scene.connection.execute(_MANY, {"digest": scene.profile.digest, "jobs": jobs})
    rows = scene.all(
        "select tgrelid::regclass::text, quote_ident(tgname) from pg_trigger"
        " where tgrelid in ('relay.operation'::regclass, 'relay.journal'::regclass,"
        " 'relay.remote_job'::regclass) and not tgisinternal"
    )
    for table, trigger in rows:
        scene.connection.execute(f"alter table {table} enable always trigger {trigger}")
    scene.connection.execute("analyze relay.operation, relay.journal, relay.remote_job")


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path, plan=Plan(polls=(10_000, 10_000))) as running:
        # A pace that a slow machine doesn't overtake.
        paced = re.sub(r"(?m)^poll:.*$", "poll: {min_s: 300, max_s: 600}", running.profile.text)
        running.profile = Profile.parse(paced, source="paced")
        providers.push(running.connection, [running.profile])
        yield running


def plan_of(scene: Scene, query: LiteralString, **parameters: Any) -> str:
    row = scene.connection.execute(f"explain (format json) {query}", parameters).fetchone()
    assert row is not None
    return json.dumps(row[0])


async def test_what_is_asked_again_and_again_is_on_an_index(scene: Scene) -> None:
    fill(scene)
    operation = scene.one("select operation_id from relay.operation limit 1")
    named = {
        "limit": BATCH, "bound_s": 60.0, "owner_id": "owner-1", "unit": "credit", "room": 5,
        "forget_s": 86_400.0, "most": 5, "batch_id": operation, "reason": "paused", "operation_id": operation,
        "operation_ids": [operation], "job_id": "many-7", "provider": "simulator", "account": "default",
        "min_s": 1.0,
    }  # fmt: skip
    due, looking, nudges = Queries("due"), Queries("observations"), Queries("nudges")
    asked = [
        (name, due[name], named | {"phase": phase}) for name in ("due",) for phase in ("prepared", "accepted")
    ]
    asked += [
        (name, due[name], named)
        for name in ("leases_run_out", "emit_due", "unpaused", "wallets", "batches", "held_for_batch",
                     "held_for_allowance", "postpone_held", "abandoned", "escalate", "overdue")
    ]  # fmt: skip
    asked += [
        ("load", looking["load"], named),
        ("find", nudges["find"], named),
        ("nudge", nudges["nudge"], named),
    ]
    for name, query, parameters in asked:
        plan = plan_of(scene, query, **parameters)
        for node in _nodes(json.loads(plan)[0]["Plan"]):
            if node["Node Type"] == "Seq Scan":
                assert node["Relation Name"] not in ("operation", "journal", "remote_job"), (name, plan)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


@pytest.mark.slow
async def test_all_due_at_once_are_spread_and_each_has_one_event_outstanding(scene: Scene) -> None:
    """Schedule, or the database, was away: everything is due in the moment when it is back."""
    fill(scene)
    clock = [0.0]
    async with scene.context() as ctx, ctx.pool.connection() as connection:
        await connection.set_autocommit(True)
        allowed = Allowance(500.0, lambda: clock[0])
        round_ = Round(
            connection,
            actor="test",
            providers=Providers(ctx.settings),
            log=structlog.get_logger(),
            polls=allowed,
        )
        written = Counter[int]()
        # What is approved now doesn't stand behind all that: it is written first.
        approved = scene.prepare()
        scene.connection.execute(
            "update relay.operation set next_action_at = relay.now() where operation_id = %s", [approved]
        )
        while sum(written.values()) < JOBS + 1:
            done = await round_.run()
            written[int(clock[0])] += done.actions["event"]
            if not done.more:
                clock[0] += 1.0
            assert clock[0] < 200
        assert len(scene.events(approved, "generation.requested")) == 2
    assert max(written.values()) <= 500 + 500 + 1  # a second's worth at once, and what comes during it
    assert len(written) >= JOBS / 500 - 1
    outstanding = scene.all(
        "select unanswered, count(*) from relay.operation where phase = 'accepted' group by unanswered"
    )
    assert outstanding == [(1, JOBS)]
    events = scene.one("select count(*) from relay.outbox where event_type = %s", COLLECTION)
    assert events == JOBS
    # Until they are answered nothing is written again, and nobody is overdue.
    done = await Schedule(scene.settings()).once()
    assert (done.actions["event"], done.overdue) == (0, 0)


async def test_a_collect_that_is_away_for_hours_finds_a_few_events_of_each_job(scene: Scene) -> None:
    fill(scene, 5)
    seen = []
    for _ in range(30):
        await scene.wake("10 minutes")
        seen.append(scene.one("select count(*) from relay.outbox where event_type = %s", COLLECTION))
    assert seen[5] <= 5 * 6  # after an hour
    assert seen[-1] <= 5 * 10
    assert seen[-1] > seen[-13]  # and one that was lost is written again all the same
    operation_id = scene.one("select operation_id from relay.operation limit 1")
    job_id = scene.operation(operation_id, "job_id")
    async with scene.context() as ctx:
        consumer = Collect()
        await consumer.open(ctx)
        for event in scene.events(operation_id, COLLECTION):
            await consumer.handle(event, ctx)
    # Together they ask once: the others find that it was observed just now.
    assert scene.simulator.truth()["gets"][job_id] == 1
    assert scene.operation(operation_id, "unanswered") == 0


async def test_a_poll_costs_the_same_statements_the_first_time_and_the_thousandth(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation_id = await scene.accepted()
    statements: list[str] = []
    execute = psycopg.AsyncCursor.execute

    async def counted(cursor: Any, query: Any, *args: Any, **named: Any) -> Any:
        statements.append(str(query))
        return await execute(cursor, query, *args, **named)

    async def poll(ctx: Any, consumer: Collect) -> int:
        scene.advance("1 hour")
        before = len(statements)
        await consumer.handle(scene.last(operation_id, COLLECTION), ctx)
        return len(statements) - before

    async with scene.context() as ctx:
        consumer = Collect()
        await consumer.open(ctx)
        monkeypatch.setattr(psycopg.AsyncCursor, "execute", counted)
        await poll(ctx, consumer)  # reads the profile, once
        early = await poll(ctx, consumer)
        _observed(scene, operation_id, 1000)
        late = await poll(ctx, consumer)
    assert early == late <= 8, statements[-late:]
    assert scene.operation(operation_id, "observations") == 3
    # None of them reads the thousand attempts: when the job was last seen stands beside it.
    plan = json.dumps(
        scene.connection.execute(
            f"explain (analyze, format json) {Queries('observations')['load']}",
            {"operation_id": operation_id},
        ).fetchall()
    )
    attempts = [n for n in _nodes(json.loads(plan)[0][0][0]["Plan"]) if n.get("Relation Name") == "attempt"]
    assert all(node["Actual Loops"] == 0 for node in attempts)


def _observed(scene: Scene, operation_id: UUID, times: int) -> None:
    scene.connection.execute(
        "insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker)"
        " select gen_random_uuid(), %s, 'observe', 1, 'w' from generate_series(1, %s)",
        [operation_id, times],
    )
    scene.connection.execute("update relay.attempt set outcome = 'unknown' where outcome = 'open'")


def test_an_allowance_is_a_seconds_worth_and_keeps_its_rate() -> None:
    clock = [0.0]
    allowed = Allowance(10.0, lambda: clock[0])
    spent = 0
    for _ in range(1000):
        clock[0] += 0.05
        number = min(3, allowed.left())
        allowed.spend(number)
        spent += number
    assert 500 <= spent <= 511
    clock[0] += 3600
    assert allowed.left() == 10
    slow = Allowance(0.1, lambda: clock[0])
    slow.spend(slow.left())
    clock[0] += 11
    assert slow.left() == 1
    assert Allowance(None).left() > JOBS
