"""A dispatcher against a real database and the real simulator, without Kafka: events are made by hand from
the outbox, as the relay would. The verification that opens the gate is written as the relay writes it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import psycopg_pool
import pytest
import structlog

from consumers.dispatch import Dispatch
from consumers.operations.providers import push
from consumers.providers.profiles_folder import load_profiles
from consumers.providers.simulator import Simulator
from consumers.runtime import Context, Event
from fix_postgres import Database
from relay.outbox.intent import Intent, Prepared, prepare
from relay.settings import ProviderSettings, Settings

OWNER = "studio"

_VERIFIED: LiteralString = """
    insert into relay.source_identity (relay_id, slot_name, publication, outbox_table, epoch, state,
        system_identifier, timeline, consistent_point, verified_system_identifier, verified_timeline,
        verified_server_started_at, verified_at)
    select gen_random_uuid(), 'outbox_relay', 'outbox_relay', 'relay.outbox', 1, 'running',
        system_identifier::text, 1, '0/1', system_identifier::text, 1, pg_postmaster_start_time(), relay.now()
      from pg_control_system()
"""


@dataclass
class Dispatching:
    """One database with an allowance and an open gate, one simulator, and what a dispatcher needs."""

    database: Database
    owner: psycopg.Connection[Any]
    simulator: Simulator
    settings: Settings
    pool: psycopg_pool.AsyncConnectionPool[Any]

    def context(self) -> Context:
        return Context(self.settings, structlog.get_logger(), asyncio.Event(), opened_pool=self.pool)

    async def dispatcher(self) -> Dispatch:
        """A new one, opened, as a new process would be."""
        made = Dispatch()
        await made.open(self.context())
        return made

    def prepare(
        self, *, fault: str | None = None, key: str | None = None, provider: str = "simulator"
    ) -> Prepared:
        payload: dict[str, Any] = {"prompt": "a lighthouse"}
        if fault:
            payload["simulate"] = {"fault": fault}
        intent = Intent("generation", OWNER, key or str(uuid4()), payload, provider, Decimal(5))
        return prepare(self.owner, intent)

    def events(self, operation_id: UUID) -> list[Event]:
        """Every generation.requested of the operation, oldest first."""
        rows = self.owner.execute(
            "select event_id, schema_version, version, payload, occurred_at, seq from relay.outbox"
            " where operation_id = %s and event_type = 'generation.requested' order by seq",
            [operation_id],
        ).fetchall()
        return [
            Event(
                event_id=event_id,
                type="generation.requested",
                schema_version=schema_version,
                key=str(operation_id),
                version=version,
                payload=payload,
                raw=b"",
                occurred_at=occurred_at,
                position=None,
                headers={},
                topic="relay.generation.requested",
                partition=0,
                offset=seq,
            )
            for event_id, schema_version, version, payload, occurred_at, seq in rows
        ]

    async def handle(self, dispatcher: Dispatch, operation_id: UUID) -> None:
        """Hand over the operation's newest event."""
        await dispatcher.handle(self.events(operation_id)[-1], self.context())

    def dispatch_again(self, operation_id: UUID) -> None:
        """What schedule does when `not_before` has passed."""
        self.owner.execute(
            "update relay.operation set not_before = null where operation_id = %s", [operation_id]
        )
        self.owner.execute("select relay.emit(%s)", [operation_id])

    def row(
        self, operation_id: UUID, columns: LiteralString = "phase, phase_reason, job_id"
    ) -> tuple[Any, ...]:
        query: LiteralString = "select " + columns + " from relay.operation where operation_id = %s"
        found: tuple[Any, ...] | None = self.owner.execute(query, [operation_id]).fetchone()
        assert found is not None
        return found

    def all(self, query: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
        return self.owner.execute(query, parameters).fetchall()

    def posts(self, operation_id: UUID) -> int:
        """How often the simulator saw a POST of this operation."""
        return sum(1 for post in self.simulator.truth()["posts"] if post["reference"] == str(operation_id))


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator(seed=1) as running:
        yield running


@pytest.fixture
async def dispatching(database: Database, simulator: Simulator, tmp_path: Path) -> AsyncIterator[Dispatching]:
    settings = Settings.model_validate(
        {
            "database_url": database.url_as("relay_worker"),
            "spool": tmp_path / "spool",
            "providers": {name: ProviderSettings(url=simulator.url) for name in ("simulator", "genace")},
        }
    )
    with database.connect() as owner:
        push(owner, load_profiles(()).values())
        owner.execute("select relay.set_allowance(%s, 'credit', 1000, 'test')", [OWNER])
        owner.execute(_VERIFIED)
        pool: psycopg_pool.AsyncConnectionPool[Any] = psycopg_pool.AsyncConnectionPool(
            settings.require_database(), min_size=1, max_size=8, open=False
        )
        async with pool:
            yield Dispatching(database, owner, simulator, settings, pool)
