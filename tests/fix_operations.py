"""Brings operations into any phase by the SQL that workers and operators use, acting as their logins.

It never writes what a guard would refuse: what a test wants refused, the test says itself.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from fix_postgres import Database, clone
from relay.embedded_postgres import EmbeddedPostgres

WORKER: Final = "relay_worker"
OPERATOR: Final = "relay_operator"
APPLICATION: Final = "relay_app"
ROLES: Final = (APPLICATION, "relay_replicator", WORKER, OPERATOR, "relay_reader")

PROVIDER: Final = "simulator"
DOCUMENT: Final = "name: simulator\n"
OWNER: Final = "studio"
UNIT: Final = "credit"
LEASE: Final = "60 seconds"
AFTER_THE_LEASE: Final = "2 minutes"
AFTER_LATE_DELIVERY: Final = "1 hour"

Statement = LiteralString | sql.SQL | sql.Composed

_SHIFTED_NOW: Final = """
    create or replace function relay.now() returns timestamptz
      language sql volatile parallel safe
    as $$
      select clock_timestamp() + coalesce(nullif(current_setting('test.shift', true), ''), '0')::interval
    $$
"""


class Stage:
    """One database, seen by a superuser's `connection` that acts as any login by session authorization."""

    def __init__(self, database: Database) -> None:
        self.database = database
        for role in ROLES:
            database.url_as(role)
        self.connection: psycopg.Connection[Any] = database.connect()
        # The only clock of operations is there to be replaced; `later` moves it for one transaction.
        self.connection.execute(_SHIFTED_NOW)
        register_provider(self.connection)
        self.allow(OWNER, "1000000")

    def close(self) -> None:
        self.connection.close()

    # Who and when -----------------------------------------------------------------------------------------

    @contextmanager
    def acting(self, role: str) -> Iterator[psycopg.Connection[Any]]:
        """As a login that is a member of `role` alone, in a transaction (or a savepoint of the open one)."""
        with self.connection.transaction():
            login = sql.Identifier(f"login_{role}")
            self.connection.execute(sql.SQL("set local session authorization {}").format(login))
            yield self.connection
            self.connection.execute("set local session authorization default")

    def later(self, interval: str) -> None:
        """Move this transaction's clock to now + `interval`."""
        self.connection.execute("select set_config('test.shift', %s, true)", [interval])

    def say(
        self,
        cause: str,
        *,
        attempt: UUID | None = None,
        review: UUID | None = None,
        reason: str = "test",
        actor: str = "tester",
    ) -> None:
        self.connection.execute(
            "select set_config('relay.actor', %s, true), set_config('relay.cause', %s, true),"
            " set_config('relay.reason', %s, true), set_config('relay.attempt_id', %s, true),"
            " set_config('relay.review_id', %s, true)",
            [actor, cause, reason, str(attempt or ""), str(review or "")],
        )

    def one(self, query: LiteralString, *parameters: object) -> Any:
        """The first column of the first row, or None."""
        row = self.connection.execute(query, parameters).fetchone()
        return None if row is None else row[0]

    def refused(self, act: Callable[[], object]) -> str:
        """SQLSTATE with which the database refuses `act`, which is undone. Raises when it doesn't refuse."""
        try:
            with self.connection.transaction():
                act()
        except psycopg.Error as error:
            return error.sqlstate or ""
        raise AssertionError("the database let it happen")

    def move_refused(self, operation: UUID, phase: str, /, **columns: object) -> str:
        """SQLSTATE with which this transition is refused."""
        return self.refused(lambda: self.move(operation, phase, **columns))

    def refused_to(self, role: str | None, statement: Statement, *parameters: object) -> str:
        """SQLSTATE with which `role`, or the owner (None), is refused this statement."""
        if role is None:
            return self.refused(lambda: self.connection.execute(statement, parameters))
        with self.acting(role):
            return self.refused(lambda: self.connection.execute(statement, parameters))

    # What workers and operators do --------------------------------------------------------------------------

    def allow(self, owner: str, limit: str, unit: str = UNIT) -> None:
        self.connection.execute(
            "select relay.set_allowance(%s, %s, %s, 'test')", [owner, unit, Decimal(limit)]
        )

    def prepare(self, key: str | None = None, *, owner: str = OWNER, max_cost: str = "5") -> UUID:
        """A new operation of `owner`; its key is new unless given."""
        with self.acting(APPLICATION):
            made: UUID = self.one(
                "select operation_id from relay.prepare_operation(kind => 'generation', owner_id => %s,"
                ' operation_key => %s, payload => \'{"prompt": "a boat"}\', provider => %s, max_cost => %s)',
                owner,
                key or str(uuid4()),
                PROVIDER,
                Decimal(max_cost),
            )
        return made

    def move(self, operation: UUID, phase: str, reason: str = "test", /, **columns: object) -> int:
        """The conditional update that a transition is. Returns how many rows moved."""
        assignments = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in columns
        )
        statement = sql.SQL(
            "update relay.operation set phase = %(phase)s, phase_reason = %(phase_reason)s{}{}"
            " where operation_id = %(operation_id)s"
        ).format(sql.SQL(", " if columns else ""), assignments)
        done = self.connection.execute(
            statement, {"phase": phase, "phase_reason": reason, "operation_id": operation, **columns}
        )
        return done.rowcount

    def claim(self, operation: UUID, *, reserve: bool = True) -> UUID:
        """prepared → claimed with a lease of a minute; returns the token."""
        token = uuid4()
        with self.acting(WORKER):
            self.say("claim")
            moved = self.move(
                operation, "claimed", claim_token=token, claimed_by="w", lease_expires_at=self.lease()
            )
            assert moved == 1
            if reserve:
                assert self.one("select relay.reserve(%s, %s)", operation, token)
        return token

    def lease(self) -> object:
        return self.one("select relay.now() + %s::interval", LEASE)

    def insert_attempt(
        self, operation: UUID, token: UUID, action: str = "submit", outcome: str = "open"
    ) -> UUID:
        self.connection.execute(
            "insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker, outcome,"
            " spool, late_delivery_until) select %s, operation_id, %s, dispatch_no, 'w', %s, '/spool/a',"
            " relay.now() + '15 minutes' from relay.operation where operation_id = %s",
            [token, action, outcome, operation],
        )
        return token

    def submit(self, operation: UUID) -> UUID:
        """prepared → claimed → submitting; returns the attempt."""
        token = self.claim(operation)
        with self.acting(WORKER):
            self.insert_attempt(operation, token)
            self.say("submit", attempt=token)
            assert self.move(operation, "submitting", "sending") == 1
        return token

    def finish(self, attempt: UUID, outcome: str, *, charged: bool | None = None) -> None:
        self.connection.execute(
            "update relay.attempt set outcome = %s, charged = %s, finished_at = relay.now()"
            " where attempt_id = %s",
            [outcome, charged, attempt],
        )

    def uncertain(self, operation: UUID) -> UUID:
        """prepared → … → uncertain; returns the attempt."""
        attempt = self.submit(operation)
        with self.acting(WORKER):
            self.finish(attempt, "unknown")
            self.say("unknown", attempt=attempt)
            assert self.move(operation, "uncertain", "timeout") == 1
        return attempt

    def remote_job(self, operation: UUID, attempt: UUID | None, job: str, role: str = "primary") -> str:
        self.connection.execute(
            "insert into relay.remote_job (provider_account, job_id, operation_id, attempt_id, role)"
            " values (%s, %s, %s, %s, %s)",
            [f"{PROVIDER}/default", job, operation, attempt, role],
        )
        return job

    def accepted(self, operation: UUID) -> UUID:
        """prepared → … → accepted; returns the attempt."""
        attempt = self.submit(operation)
        with self.acting(WORKER):
            self.finish(attempt, "accepted")
            job = self.remote_job(operation, attempt, f"job-{uuid4()}")
            self.say("answer", attempt=attempt)
            assert self.move(operation, "accepted", "answer", job_id=job) == 1
        return attempt

    def observed(self, operation: UUID, outcome: str = "accepted") -> UUID:
        """A finished observe attempt."""
        attempt = self.insert_attempt(operation, uuid4(), "observe")
        self.finish(attempt, outcome)
        return attempt

    def open_review(self, operation: UUID) -> UUID:
        found: UUID = self.one(
            "select review_id from relay.review where operation_id = %s and state = 'open'", operation
        )
        return found

    def raise_review(self, operation: UUID, kind: str = "second_id") -> UUID:
        made: UUID = self.one(
            "insert into relay.review (operation_id, kind, deadline) values (%s, %s, relay.now() + '1 day')"
            " returning review_id",
            operation,
            kind,
        )
        return made

    def resolve(self, review: UUID, resolution: str) -> None:
        self.connection.execute(
            "update relay.review set state = 'resolved', resolution = %s, resolution_reason = 'test',"
            " resolved_by = 'tester' where review_id = %s",
            [resolution, review],
        )

    def resubmitted(self, operation: UUID) -> UUID:
        """prepared → … → uncertain → prepared, by review; returns the attempt that the review released."""
        attempt = self.uncertain(operation)
        with self.acting(OPERATOR):
            self.later(AFTER_LATE_DELIVERY)
            review = self.open_review(operation)
            self.resolve(review, "not-accepted:resubmit")
            self.connection.execute(
                "update relay.attempt set released_by_review = %s where attempt_id = %s", [review, attempt]
            )
            self.connection.execute("select relay.dispute(%s, 'resubmitted')", [attempt])
            self.say("review", review=review)
            assert self.move(operation, "prepared", "resubmit") == 1
            self.later("0")
        return attempt

    def succeeded(self, operation: UUID) -> None:
        self.accepted(operation)
        with self.acting(WORKER):
            self.say("observation", attempt=self.observed(operation))
            assert self.move(operation, "succeeded", "observation") == 1

    def delivery(self) -> UUID:
        """A delivery in prepared, of a parent that succeeded."""
        parent = self.prepare()
        self.succeeded(parent)
        with self.acting(WORKER):
            made: UUID = self.one("select relay.prepare_delivery(%s)", parent)
        return made

    def claimed_delivery(self, *, attempt: bool = True) -> tuple[UUID, UUID]:
        delivery = self.delivery()
        token = self.claim(delivery, reserve=False)
        if attempt:
            with self.acting(WORKER):
                self.insert_attempt(delivery, token, "download")
        return delivery, token

    def in_phase(self, lifecycle: str, phase: str, *, held_for: str = "configuration") -> UUID:
        """A new operation of `lifecycle` in `phase`. Raises KeyError for a phase that it can't stage yet."""
        return {"generation": self._generation, "delivery": self._delivery}[lifecycle](phase, held_for)

    def _generation(self, phase: str, held_for: str) -> UUID:
        operation = self.prepare()
        if phase == "prepared":
            pass
        elif phase == "claimed":
            self.claim(operation)
        elif phase == "submitting":
            self.submit(operation)
        elif phase == "uncertain":
            self.uncertain(operation)
        elif phase == "held":
            self._hold(operation, held_for)
        elif phase == "accepted":
            self.accepted(operation)
        elif phase == "succeeded":
            self.succeeded(operation)
        elif phase in ("failed", "cancelled"):
            self.accepted(operation)
            with self.acting(WORKER):
                self.say("observation", attempt=self.observed(operation))
                assert self.move(operation, phase, "observation") == 1
        elif phase == "rejected":
            attempt = self.submit(operation)
            with self.acting(WORKER):
                self.finish(attempt, "refused", charged=False)
                self.say("rule", attempt=attempt)
                assert self.move(operation, "rejected", "rule") == 1
        elif phase == "abandoned":
            self.uncertain(operation)
            with self.acting(OPERATOR):
                review = self.open_review(operation)
                self.resolve(review, "abandon")
                self.say("review", review=review)
                assert self.move(operation, "abandoned", "abandon") == 1
        elif phase == "lost":
            self.accepted(operation)
            with self.acting(OPERATOR):
                review = self.raise_review(operation, "job_unknown")
                self.resolve(review, "lost")
                self.say("review", review=review)
                assert self.move(operation, "lost", "lost") == 1
        else:
            raise KeyError(f"the stage can't bring a generation into {phase}")
        return operation

    def _delivery(self, phase: str, held_for: str) -> UUID:
        if phase == "prepared":
            return self.delivery()
        if phase == "cancelled":
            operation = self.delivery()
            with self.acting(OPERATOR):
                self.connection.execute("select relay.request_cancel(%s, 'test')", [operation])
            return operation
        if phase == "claimed":
            return self.claimed_delivery()[0]
        if phase == "held":
            operation, _ = self.claimed_delivery(attempt=False)
            self._hold(operation, held_for)
            return operation
        operation, token = self.claimed_delivery()
        with self.acting(WORKER):
            self.finish(token, {"stored": "accepted", "failed": "refused"}[phase])
            self.say("download", attempt=token)
            assert self.move(operation, phase, "download") == 1
        return operation

    def _hold(self, operation: UUID, reason: str) -> None:
        with self.acting(WORKER):
            self.say("hold")
            assert self.move(operation, "held", reason) == 1


def register_provider(
    connection: psycopg.Connection[Any], name: str = PROVIDER, document: str = DOCUMENT
) -> str:
    """Register a profile's document as `name`'s current one; returns its digest."""
    digest = hashlib.sha256(document.encode()).hexdigest()
    connection.execute(
        "insert into relay.provider_profile (provider, digest, document) values (%s, %s, %s)"
        " on conflict do nothing",
        [name, digest, document],
    )
    connection.execute(
        "insert into relay.provider_account (provider, current_digest) values (%s, %s)"
        " on conflict (provider, account) do update set current_digest = excluded.current_digest",
        [name, digest],
    )
    return digest


@pytest.fixture(scope="module")
def shared_stage(postgres: EmbeddedPostgres, migrated_template: str) -> Iterator[Stage]:
    """One database for the tests of a module, each of which makes operations of its own."""
    database = clone(postgres, migrated_template, "stage")
    stage = Stage(database)
    yield stage
    stage.close()
    database.drop()


@pytest.fixture
def stage(shared_stage: Stage) -> Iterator[Stage]:
    """`shared_stage` in a transaction that is rolled back after the test."""
    with shared_stage.connection.transaction(force_rollback=True):
        yield shared_stage


@pytest.fixture
def committing_stage(shared_stage: Stage) -> Stage:
    """`shared_stage` without a transaction around the test: what it does is committed."""
    return shared_stage
