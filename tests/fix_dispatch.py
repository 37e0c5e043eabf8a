"""A dispatcher on the consumers' scene, opened as a process would open it and handed events one at a time."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import psycopg_pool
import pytest
import structlog

from consumers.dispatch import Dispatch
from consumers.operations import claims, reviews
from consumers.operations.answers import Applied, apply_submission
from consumers.operations.decisions import Decision
from consumers.operations.effects import Resolved
from consumers.operations.resolutions import Resolution
from consumers.providers.outcome import Submission
from consumers.providers.simulator_world import Fault
from consumers.runtime import Context
from fix_ledger import wrong_in_the_books
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

    async def begun(self, operation_id: UUID) -> UUID:
        """prepared → claimed → submitting, by a process whose spool is not ours; its attempt's id."""
        token = uuid4()
        (dispatch_no,) = self.row(operation_id, "dispatch_no")
        async with self.pool.connection() as connection:
            claimed = await claims.claim(
                connection,
                operation_id=operation_id,
                dispatch_no=dispatch_no,
                token=token,
                worker="another",
                lease_s=60,
            )
            assert isinstance(claimed, claims.Claim), claimed
            sending = claims.Sending(
                request_sha256="0" * 64,
                idempotency_key=None,
                spool="/spool/another",
                deadline_s=10,
                margin_s=5,
                late_delivery_s=20,
            )
            await claims.begin_submission(connection, claimed, sending, "another")
        return token

    async def answered(self, attempt_id: UUID, operation_id: UUID, verdict: Any, **more: Any) -> Applied:
        """Apply what this attempt came to."""
        told = {"reason": "told_by_a_test", "evidence": {"status": None, "told": str(verdict)}}
        async with self.pool.connection() as connection:
            return await apply_submission(
                connection,
                attempt_id=attempt_id,
                operation_id=operation_id,
                outcome=Submission(verdict=verdict, **(told | more)),
                profile=self.profile,
                actor="test",
            )

    async def decided(self, operation_id: UUID, resolution: Resolution, **more: Any) -> Resolved:
        """A person resolves the operation's oldest open review, at its present revision."""
        review_id, revision = self.one(
            "select review_id, revision from relay.review where operation_id = %s and state = 'open'"
            " order by opened_at limit 1",
            operation_id,
        )
        given = {"revision": revision, "reason": "I looked", "actor": "ann@desk"} | more
        operator = await psycopg.AsyncConnection.connect(
            self.database.url_as("relay_operator"), autocommit=True
        )
        async with operator:
            return await reviews.resolve(
                operator, Decision(review_id=review_id, resolution=resolution, **given)
            )

    async def resubmitted(self, operation_id: UUID) -> UUID:
        """prepared → … → uncertain → prepared by a person, the sender's spool unread; the attempt's id."""
        attempt_id = await self.begun(operation_id)
        await self.wake("1 hour")
        await self.decided(operation_id, Resolution.RESUBMIT, spool_lost=True)
        return attempt_id

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
        assert wrong_in_the_books(database) == []
