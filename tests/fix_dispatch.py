"""A dispatcher on the consumers' scene, opened as a process would open it and handed events one at a time."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID

import psycopg_pool
import pytest
import structlog

from consumers.dispatch import Dispatch
from consumers.providers.simulator_world import Fault
from consumers.runtime import Context
from fix_postgres import Database
from fix_scene import Scene


class Dispatching(Scene):
    """A scene with one pool for its whole life, as a dispatcher's process has."""

    pool: psycopg_pool.AsyncConnectionPool[Any]

    def own_context(self) -> Context:
        return Context(self.settings(), structlog.get_logger(), asyncio.Event(), opened_pool=self.pool)

    async def dispatcher(self) -> Dispatch:
        """A new one, opened, as a new process would be."""
        made = Dispatch()
        await made.open(self.own_context())
        return made

    def prepared(self, fault: str | None = None) -> UUID:
        """An approved operation of five credits."""
        return self.prepare(*([Fault(fault)] if fault else []), max_cost="5")

    async def hand_over(self, dispatcher: Dispatch, operation_id: UUID, *, which: int = -1) -> None:
        """Hand over one of the operation's events: the newest, or number `which`."""
        event = self.events(operation_id, "generation.requested")[which]
        await dispatcher.handle(event, self.own_context())

    def dispatch_again(self, operation_id: UUID) -> None:
        """What schedule does when `not_before` has passed."""
        statement = "update relay.operation set not_before = null where operation_id = %s"
        self.connection.execute(statement, [operation_id])
        self.connection.execute("select relay.emit(%s)", [operation_id])

    def row(self, operation_id: UUID, columns: LiteralString) -> tuple[Any, ...]:
        query: LiteralString = "select " + columns + " from relay.operation where operation_id = %s"
        (found,) = self.all(query, operation_id)
        return found

    def posts(self, operation_id: UUID) -> int:
        """How often the simulator saw a POST of this operation."""
        return sum(post["reference"] == str(operation_id) for post in self.simulator.truth()["posts"])


@pytest.fixture
async def dispatching(database: Database, tmp_path: Path) -> AsyncIterator[Dispatching]:
    with Dispatching(database, tmp_path) as scene:
        scene.pool = psycopg_pool.AsyncConnectionPool(
            scene.settings().require_database(), min_size=1, max_size=8, open=False
        )
        async with scene.pool:
            yield scene
