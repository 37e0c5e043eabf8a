"""Fifty workers and people fight over the same operations at every edge: one wins, the others see it and do
no harm; nothing is lost, nothing is doubled, nobody waits for ever.
"""

import asyncio
import os
from pathlib import Path
from typing import Final

import psycopg
import pytest

from fix_postgres import Database
from fix_scene import Scene
from fix_versions import measured
from life import HARMLESS, Life

FIGHTERS: Final = 50
OPERATIONS: Final = int(os.environ.get("FIGHT_OPERATIONS", "500"))
"""5,000 take some minutes."""
AT_ONCE: Final = 25
"""Operations that are fought over at a time: two fighters for each."""

pytestmark = pytest.mark.anyio


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_fifty_fight_over_every_edge_and_each_transition_has_one_winner(
    database: Database, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    with Scene(database, tmp_path) as scene:
        scene.allow(str(10 * OPERATIONS))
        life = Life(scene, seed=OPERATIONS)
        try:
            await _fight(life)
            assert await life.settle() == []
            assert await life.wrong() == []
            tried = dict(sorted(life.world.tried.items()))
            figures = f"{_edges_taken(scene)} edges taken; {tried}"
            measured(pytestconfig, f"{FIGHTERS} fight over {OPERATIONS} operations", figures)
        finally:
            await life.close()
    for action in ("claim", "hold", "answer accepted", "decide"):
        assert tried.get(f"{action}: won"), f"nobody ever won: {action}"
        assert tried.get(f"{action}: lost"), f"nobody ever lost: {action}"
    assert sum(tried.values()) > 3 * OPERATIONS


async def _fight(life: Life) -> None:
    """Each fighter does one thing after another to operations of the same few, until all have been there."""
    turns = 0

    async def fighter() -> None:
        nonlocal turns
        while turns < OPERATIONS * 12:
            turns += 1
            if turns % 12 == 0 and len(life.world.operations) < OPERATIONS:
                life.approve()
            if turns % 200 == 0:
                life.time_passes("20 seconds")
            try:
                await _something(life)
            except HARMLESS:
                life.world.tried["gave up waiting"] += 1
            except psycopg.errors.DeadlockDetected as error:
                raise AssertionError("two workers waited for each other") from error

    for _ in range(AT_ONCE):
        life.approve()
    async with asyncio.TaskGroup() as fighters:
        for _ in range(FIGHTERS):
            fighters.create_task(fighter())


async def _something(life: Life) -> None:
    draw, world = life.draw, life.world
    operation = draw.choice(world.operations[-AT_ONCE:])
    dice = draw.random()
    if dice < 0.35:
        await life.claim(operation, stale=draw.random() < 0.1)
    elif dice < 0.55 and world.claimed:
        await life.begin(draw.choice(world.claimed[-AT_ONCE:]))
    elif dice < 0.58 and world.claimed:
        await life.hold(draw.choice(world.claimed[-AT_ONCE:]))
    elif dice < 0.75 and world.posts:
        await life.answer(draw.choice(world.posts[-AT_ONCE:]))
    elif dice < 0.85:
        await life.observe(operation)
    elif dice < 0.93:
        await life.decide()
    elif dice < 0.96:
        await life.schedule()
    else:
        await life.cancel(operation)


def _edges_taken(scene: Scene) -> int:
    return int(
        scene.one(
            "select count(distinct (from_phase, to_phase, cause)) from relay.journal"
            " where from_phase is not null"
        )
    )
