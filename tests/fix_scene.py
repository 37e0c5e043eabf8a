"""A scene for the consumers: a migrated database, a provider simulator, and the context that a handler gets.

Consumers run as the worker's login and are handed the very events that the triggers wrote. Time is the
database's and is moved, never waited for.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, LiteralString, Self
from uuid import UUID, uuid4

import psycopg
import psycopg_pool
import structlog

from consumers.dispatch import Dispatch
from consumers.operations import providers
from consumers.providers.profile import Profile
from consumers.providers.profiles_folder import load_profiles
from consumers.providers.simulator import Simulator
from consumers.providers.simulator_world import Fault, Plan
from consumers.runtime import Consumer, Context, Event
from consumers.schedule.process import Schedule
from consumers.schedule.round import Done
from fix_postgres import Database
from relay.outbox.intent import Intent, prepare
from relay.settings import Settings, load

OWNER: Final = "studio/1"
UNIT: Final = "credit"

MOVABLE_NOW: Final = """
    create table public.moved (by_interval interval not null);
    insert into public.moved values ('0');
    grant select on public.moved to public;
    create or replace function relay.now() returns timestamptz
      language sql volatile parallel safe
    as $$ select clock_timestamp() + (select by_interval from public.moved) $$;
"""

# What `relay run` writes once it has matched this server with Kafka's checkpoint: it opens dispatch.
_VERIFIED: Final = """
    insert into relay.source_identity (relay_id, slot_name, publication, outbox_table, epoch, state,
        system_identifier, timeline, consistent_point, verified_system_identifier, verified_timeline,
        verified_server_started_at, verified_at)
    select gen_random_uuid(), 'outbox_relay', 'outbox_relay', 'relay.outbox', 1, 'running',
           s.system_identifier::text, t.timeline, '0/1', s.system_identifier::text, t.timeline,
           pg_postmaster_start_time(), now()
      from pg_control_system() s,
           (select ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer)
             as t (timeline)
"""


class Scene:
    """`with Scene(database, folder) as scene:` runs the simulator until it ends."""

    def __init__(self, database: Database, folder: Path, *, plan: Plan | None = None) -> None:
        self.database = database
        self.folder = folder
        self.outputs = folder / "outputs"
        self.simulator = Simulator(seed=1, plan=plan or Plan(polls=(1, 1)), secret="s3cret")
        self.profile: Profile = load_profiles(())["simulator"]
        self.connection: psycopg.Connection[Any] = database.connect()

    def __enter__(self) -> Self:
        self.simulator.__enter__()
        self.connection.execute(MOVABLE_NOW)
        self.connection.execute(_VERIFIED)
        providers.push(self.connection, [self.profile])
        self.allow("1000")
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        self.simulator.stop()

    # Settings and context ----------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        """For a child process that runs as the worker."""
        return {
            "RELAY_DATABASE_URL": self.database.url_as("relay_worker"),
            "RELAY_PROVIDER_SIMULATOR_URL": self.simulator.url,
            "RELAY_PROVIDER_SIMULATOR_SECRET": "s3cret",
            "RELAY_OUTPUTS_URL": self.outputs.as_uri(),
            "RELAY_SPOOL": str(self.folder / "spool"),
        }

    def settings(self, **changed: str) -> Settings:
        return load(environ=self.environment | changed).settings

    def context(self, **changed: str) -> AbstractAsyncContextManager[Context]:
        """What `relay consume` hands to a handler. `changed` are RELAY_… variables."""
        return context(self.settings(**changed))

    # What is written and read ------------------------------------------------------------------------

    def allow(self, limit: str, owner: str = OWNER) -> None:
        self.connection.execute(
            "select relay.set_allowance(%s, %s, %s, 'test')", [owner, UNIT, Decimal(limit)]
        )

    def advance(self, interval: str) -> None:
        """Move the database's clock forward."""
        self.connection.execute(
            "update public.moved set by_interval = by_interval + %s::interval", [interval]
        )

    def prepare(self, *faults: Fault, max_cost: str = "2", owner: str = OWNER) -> UUID:
        """An approved operation whose job will have `faults`."""
        intent = Intent(
            kind="generation",
            owner_id=owner,
            operation_key=str(uuid4()),
            payload={"prompt": "a boat", "simulate": {"fault": [str(fault) for fault in faults]}},
            provider="simulator",
            max_cost=Decimal(max_cost),
            cost_unit=UNIT,
        )
        return prepare(self.connection, intent).operation_id

    def events(self, operation_id: UUID, event_type: str) -> list[Event]:
        return events(self.connection, operation_id, event_type)

    def last(self, operation_id: UUID, event_type: str) -> Event:
        return self.events(operation_id, event_type)[-1]

    def one(self, query: LiteralString, *parameters: object) -> Any:
        """The only column of the first row, or the row."""
        row = self.connection.execute(query, parameters or None).fetchone()
        return row[0] if row is not None and len(row) == 1 else row

    def all(self, query: LiteralString, *parameters: object, **named: object) -> list[tuple[Any, ...]]:
        return self.connection.execute(query, named or parameters or None).fetchall()

    def operation(self, operation_id: UUID, column: LiteralString) -> Any:
        return self.one(f"select {column} from relay.operation where operation_id = %s", operation_id)

    def phase(self, operation_id: UUID) -> str:
        return str(self.operation(operation_id, "phase"))

    def reviews(self, operation_id: UUID) -> list[str]:
        """The kinds of its open reviews."""
        rows = self.all(
            "select kind from relay.review where operation_id = %s and state = 'open' order by kind",
            operation_id,
        )
        return [kind for (kind,) in rows]

    def delivery_of(self, parent: UUID) -> UUID:
        found: UUID = self.one(
            "select operation_id from relay.operation where parent_operation_id = %s", parent
        )
        return found

    # What is done ------------------------------------------------------------------------------------

    async def handle(self, consumer: Consumer, event: Event, **changed: str) -> None:
        """Open `consumer`, hand it `event`, close it."""
        async with self.context(**changed) as ctx:
            await consumer.open(ctx)
            try:
                await consumer.handle(event, ctx)
            finally:
                await consumer.close()

    async def accepted(self, *faults: Fault, max_cost: str = "2") -> UUID:
        """prepared → … → accepted, by the dispatcher and its one POST."""
        operation_id = self.prepare(*faults, max_cost=max_cost)
        assert await self.dispatch(operation_id) == "accepted"
        return operation_id

    async def dispatch(self, operation_id: UUID) -> str:
        """Hand the operation's newest event to a dispatcher; returns the phase after it."""
        await self.handle(Dispatch(), self.last(operation_id, "generation.requested"))
        return self.phase(operation_id)

    async def wake(self, after: str = "0") -> Done:
        """Time passes, and schedule looks."""
        self.advance(after)
        return await Schedule(self.settings()).once()

    def claim(self, operation_id: UUID, *, submitting: bool = False) -> UUID:
        """What a dispatcher has written when it is killed: a claim of a minute, or a submission of a minute
        whose request may arrive for ten. Returns the token."""
        token = uuid4()
        with psycopg.connect(self.database.url_as("relay_worker")) as worker:
            worker.execute(
                "select set_config('relay.actor', 'w', true), set_config('relay.cause', 'claim', true)"
            )
            worker.execute("select set_config('relay.reason', 'r', true)")
            worker.execute(
                "update relay.operation set phase = 'claimed', phase_reason = 'claim', claim_token = %s,"
                " claimed_by = 'w', lease_expires_at = relay.now() + '1 minute' where operation_id = %s",
                [token, operation_id],
            )
            worker.execute("select relay.reserve(%s, %s)", [operation_id, token])
            if submitting:
                worker.execute(
                    "insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker,"
                    " late_delivery_until) values (%s, %s, 'submit', 1, 'w', relay.now() + '10 minutes')",
                    [token, operation_id],
                )
                worker.execute(
                    "select set_config('relay.cause', 'submit', true),"
                    " set_config('relay.attempt_id', %s, true)",
                    [str(token)],
                )
                worker.execute(
                    "update relay.operation set phase = 'submitting', phase_reason = 'sending',"
                    " lease_expires_at = relay.now() + '1 minute' where operation_id = %s",
                    [operation_id],
                )
        return token


@asynccontextmanager
async def context(settings: Settings) -> AsyncIterator[Context]:
    """What `relay consume` hands to a handler, its pool open."""
    async with psycopg_pool.AsyncConnectionPool(
        settings.require_database(), min_size=1, max_size=8, open=False
    ) as pool:
        log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
        yield Context(settings, log, asyncio.Event(), opened_pool=pool)


def events(connection: psycopg.Connection[Any], operation_id: UUID, event_type: str) -> list[Event]:
    """The events of this type that the operation's transitions wrote, in their order."""
    rows = connection.execute(
        "select event_id, schema_version, version, payload, occurred_at, seq from relay.outbox"
        " where operation_id = %s and event_type = %s order by seq",
        [operation_id, event_type],
    ).fetchall()
    return [
        Event(
            event_id=event_id,
            type=event_type,
            schema_version=schema_version,
            key=str(operation_id),
            version=version,
            payload=payload,
            raw=b"",
            occurred_at=occurred_at,
            position=None,
            headers={},
            topic=f"relay.{event_type}",
            partition=0,
            offset=seq,
        )
        for event_id, schema_version, version, payload, occurred_at, seq in rows
    ]
