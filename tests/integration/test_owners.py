"""An application's login sees and touches what belongs to its owners, and nothing else is there for it:
every table that it may read and every function that it may call is tried on somebody else's.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from fix_operations import APPLICATION, OPERATOR, WORKER, Stage
from fix_postgres import Database
from relay.outbox.batch import BatchIntent, prepare_batch, seal_batch
from relay.outbox.intent import Intent, prepare

ANN: Final = "app_of_ann"
BOB: Final = "app_of_bob"
NOT_THERE: Final = "OR004"
NO_PRIVILEGE: Final = "42501"


class Bound:
    """Two applications' logins on one stage, each bound to its owner; something of everything for both."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        stage.connection.execute("delete from relay.app_owner")
        for login, owner in ((ANN, "ann"), (BOB, "bob")):
            if not stage.one("select 1 from pg_roles where rolname = %s", login):
                stage.connection.execute(
                    sql.SQL("create role {} login password {} in role relay_app").format(
                        sql.Identifier(login), sql.Literal(login)
                    )
                )
            stage.connection.execute(
                "insert into relay.app_owner (role, owner_id) values (%s, %s)", [login, owner]
            )
            stage.allow(owner, "100")
        self.batch = {login: self.batched(login) for login in (ANN, BOB)}
        self.operation = {login: self.succeeded(login) for login in (ANN, BOB)}

    def connect(self, login: str) -> psycopg.Connection[Any]:
        url = self.stage.database.server.url(self.stage.database.name, user=login, password=login)
        return psycopg.connect(url, autocommit=True)

    def intent(self, owner: str, key: str = "frame", **more: Any) -> Intent:
        return Intent("generation", owner, key, {"prompt": "a boat"}, "simulator", 5, **more)

    def batched(self, login: str) -> UUID:
        owner = login.removeprefix("app_of_")
        with self.connect(login) as connection:
            batch = prepare_batch(connection, BatchIntent(owner, "reel"))
            prepare(connection, self.intent(owner, "in the reel", batch_id=batch.batch_id))
        return batch.batch_id

    def succeeded(self, login: str) -> UUID:
        with self.connect(login) as connection:
            operation = prepare(connection, self.intent(login.removeprefix("app_of_"))).operation_id
        self.stage.succeeded(operation)
        with self.stage.acting(WORKER):
            self.stage.connection.execute(
                "insert into relay.output (operation_id, ordinal, name, url) values (%s, 0, 'a', 'https://a')",
                [operation],
            )
        return operation


@pytest.fixture
def bound(database: Database) -> Iterator[Bound]:
    stage = Stage(database)
    yield Bound(stage)
    stage.close()


READS: Final = {
    "operation": "owner_id = 'ann'",
    "allowance": "owner_id = 'ann'",
    "batch": "owner_id = 'ann'",
    "journal": "operation_id in (select operation_id from relay.operation where owner_id = 'ann')",
    "output": "operation_id in (select operation_id from relay.operation where owner_id = 'ann')",
}
"""Which rows are ann's, as the superuser sees them."""
OF_EVERYBODY: Final = {"operation_kind"}


def test_every_table_that_an_application_may_read_shows_its_own_rows_and_all_of_them(bound: Bound) -> None:
    readable = {
        table
        for (table,) in bound.stage.connection.execute(
            "select relname from pg_class where relnamespace = 'relay'::regnamespace"
            " and relkind in ('r', 'p', 'v', 'm') and has_any_column_privilege('relay_app', oid, 'select')"
        )
    }
    assert readable == set(READS) | OF_EVERYBODY
    with bound.connect(ANN) as ann:
        for table, own in READS.items():
            named = sql.Identifier("relay", table)
            mine = sql.SQL("select count(*) from {} where {}").format(named, sql.SQL(own))
            (expected,) = bound.stage.connection.execute(mine).fetchone() or (0,)
            everybodys = bound.stage.connection.execute(
                sql.SQL("select count(*) from {}").format(named)
            ).fetchone()
            seen = ann.execute(
                sql.SQL("select count(*), count(*) filter (where {}) from {}").format(sql.SQL(own), named)
            )
            assert seen.fetchone() == (expected, expected), table
            assert expected > 0, table
            assert everybodys is not None, table
            assert everybodys[0] > expected, table


def _probes(bound: Bound) -> dict[str, tuple[Callable[[psycopg.Connection[Any]], object], str]]:
    """For each function that an application may call: an act on bob's, and how it is refused to ann."""
    operation, batch = bound.operation[BOB], bound.batch[BOB]
    return {
        "prepare_operation": (lambda ann: prepare(ann, bound.intent("bob")), NO_PRIVILEGE),
        "request_cancel": (
            lambda ann: ann.execute("select relay.request_cancel(%s, 'test')", [operation]),
            NOT_THERE,
        ),
        "prepare_batch": (lambda ann: prepare_batch(ann, BatchIntent("bob", "reel")), NO_PRIVILEGE),
        "in_batch": (
            lambda ann: prepare(ann, bound.intent("ann", "into his", batch_id=batch)),
            NOT_THERE,
        ),
        "seal_batch": (lambda ann: seal_batch(ann, batch), NOT_THERE),
    }


TOUCHES_NO_OWNER: Final = {"now", "context", "owners_of_login", "emit_event"}
"""emit_event writes no row: a message for a relay of the application's own."""


def test_every_function_that_an_application_may_call_refuses_what_is_somebody_elses(bound: Bound) -> None:
    callable_ = {
        name
        for (name,) in bound.stage.connection.execute(
            "select proname from pg_proc where pronamespace = 'relay'::regnamespace"
            " and has_function_privilege('relay_app', oid, 'execute')"
        )
    }
    probes = _probes(bound)
    assert callable_ == set(probes) | TOUCHES_NO_OWNER
    state = "select operation_id, phase, cancel_requested, batch_id from relay.operation order by 1"
    before = bound.stage.connection.execute(state).fetchall()
    with bound.connect(ANN) as ann:
        for name, (act, sqlstate) in probes.items():
            with pytest.raises(psycopg.Error) as refused:
                act(ann)
            assert refused.value.sqlstate == sqlstate, name
            assert "bob" not in str(refused.value) or sqlstate == NO_PRIVILEGE, name
    assert bound.stage.connection.execute(state).fetchall() == before


def test_a_row_of_somebody_elses_that_is_made_up_joins_no_batch_and_is_not_shown(bound: Bound) -> None:
    forged = (
        "select (relay.in_batch(%s, jsonb_populate_record(null::relay.operation,"
        " jsonb_build_object('operation_id', %s::text)))).payload"
    )
    of_bob = [bound.batch[BOB], str(bound.operation[BOB])]
    with bound.connect(ANN) as ann, pytest.raises(psycopg.Error) as refused:
        ann.execute(forged, of_bob)
    assert refused.value.sqlstate == NOT_THERE


def test_a_login_that_is_bound_to_nobody_sees_and_prepares_nothing(bound: Bound) -> None:
    bound.stage.connection.execute("delete from relay.app_owner where role = %s", [ANN])
    with bound.connect(ANN) as ann:
        assert ann.execute("select count(*) from relay.operation").fetchone() == (0,)
        with pytest.raises(psycopg.Error, match=r"may not act for the owner ann") as refused:
            prepare(ann, bound.intent("ann", "another"))
    assert refused.value.sqlstate == NO_PRIVILEGE
    assert "relay.app_owner" in (refused.value.diag.message_hint or "")


def test_a_group_binds_its_members_and_a_star_is_everybody(bound: Bound) -> None:
    stage = bound.stage
    stage.connection.execute("delete from relay.app_owner where role = %s", [ANN])
    stage.connection.execute("insert into relay.app_owner (role, owner_id) values ('relay_app', '*')")
    with bound.connect(ANN) as ann:
        assert ann.execute("select count(distinct owner_id) from relay.operation").fetchone() == (2,)
        assert prepare(ann, bound.intent("cyd")).phase == "prepared"


def test_a_role_that_is_set_widens_nothing(bound: Bound) -> None:
    with bound.connect(ANN) as ann:
        ann.execute("set role relay_app")
        assert ann.execute("select distinct owner_id from relay.operation").fetchall() == [("ann",)]
        with pytest.raises(psycopg.Error):
            prepare(ann, bound.intent("bob", "another"))


def test_services_and_people_see_everybodys(bound: Bound) -> None:
    for role in (WORKER, OPERATOR, "relay_reader"):
        with bound.stage.acting(role) as connection:
            seen = connection.execute("select count(distinct owner_id) from relay.operation").fetchone()
            assert seen == (2,), role


def test_until_somebody_binds_them_applications_act_for_everybody_as_before(database: Database) -> None:
    stage = Stage(database)
    assert stage.connection.execute("select role, owner_id from relay.app_owner").fetchall() == [
        ("relay_app", "*")
    ]
    operation = stage.prepare(str(uuid4()), owner="anybody")
    with stage.acting(APPLICATION):
        assert stage.one("select 1 from relay.operation where operation_id = %s", operation) == 1
    stage.close()
