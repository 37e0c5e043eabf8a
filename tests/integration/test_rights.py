"""Every role against every table, by every act: what the catalog grants is what is declared here, and what a
login tries is what the catalog says. Then every act that a guard forbids, by the owner, and with the
ordinary triggers off.
"""

from typing import Final
from uuid import uuid4

import pytest
from psycopg import sql

from fix_batches import make_batch
from fix_operations import APPLICATION, OPERATOR, ROLES, WORKER, Stage

NO_PRIVILEGE: Final = "42501"
FORBIDDEN: Final = "OR010"
ACTS: Final = {"s": "select", "i": "insert", "u": "update", "d": "delete", "t": "truncate"}

# A new table is for nobody until it is declared here: app, replicator, worker, operator, reader.
RIGHTS: Final = """
    account_pace        -    -    s    s    s
    allowance           s    -    s    s    s
    app_owner           -    -    s    s    s
    attempt             -    -    siu  su   s
    batch               s    -    s    s    s
    dead_letter_decision -   -    s    siu  s
    event_delivery      -    s    siu  s    s
    incident            -    -    si   si   s
    incident_decision   -    -    s    si   s
    journal             s    -    s    s    s
    known_topic         -    siu  s    siu  s
    ledger              -    -    s    s    s
    lifecycle_edge      -    -    s    s    s
    lifecycle_phase     -    -    s    s    s
    operation           s    -    su   su   s
    operation_kind      s    -    s    s    s
    outbox              i    s    s    s    s
    output              s    -    siu  s    s
    parked_event        -    siu  s    s    s
    provider_account    -    -    su   su   s
    provider_profile    -    -    s    s    s
    permit              -    -    s    s    s
    prune_batch         -    s    s    s    s
    pruning             -    s    s    s    s
    remote_job          -    -    siu  siu  s
    reservation         -    -    s    s    s
    review              -    -    siu  siu  s
    review_deadline     -    -    s    s    s
    review_option       -    -    s    s    s
    schema_migration    -    -    s    s    s
    source_identity     -    siu  s    s    s
"""


def declared() -> dict[tuple[str, str], str]:
    """Table and role to the letters of what the role may do there."""
    lines = (line.split() for line in RIGHTS.strip().splitlines())
    return {(table, role): may for table, *row in lines for role, may in zip(ROLES, row, strict=True)}


def test_the_catalog_grants_what_is_declared_and_nothing_else(stage: Stage) -> None:
    rows = stage.connection.execute(
        "select c.relname, r, has_any_column_privilege(r, c.oid, 'select'),"
        " has_any_column_privilege(r, c.oid, 'insert'), has_any_column_privilege(r, c.oid, 'update'),"
        " has_table_privilege(r, c.oid, 'delete'), has_table_privilege(r, c.oid, 'truncate')"
        " from pg_class c cross join unnest(%s::text[]) r"
        " where c.relnamespace = 'relay'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f')",
        [list(ROLES)],
    )
    granted = {
        (table, role): "".join(act for act, may in zip(ACTS, row, strict=True) if may) or "-"
        for table, role, *row in rows
    }
    assert granted == declared()


@pytest.mark.parametrize("role", ROLES)
def test_what_a_login_tries_is_refused_wherever_it_has_no_right(stage: Stage, role: str) -> None:
    tried = 0
    for (table, of), may in declared().items():
        if of != role:
            continue
        for act, statement in _attempts(stage, role, table).items():
            try:
                refused = stage.refused_to(role, statement)
            except AssertionError:
                refused = ""
            assert refused == ("" if act in may else NO_PRIVILEGE), (role, table, ACTS[act], refused)
            tried += 1
    assert tried > 100


def _attempts(stage: Stage, role: str, table: str) -> dict[str, sql.Composed]:
    """Statements that do nothing, by act: EXPLAIN checks the rights (Postgres 18, ExecCheckPermissions). The
    column is one that the role has the right on, if there is any."""
    named = sql.Identifier("relay", table)

    def column(act: str) -> sql.Identifier:
        return sql.Identifier(
            stage.one(
                "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
                " and not attisdropped"
                " order by has_column_privilege(%s, attrelid, attnum, %s) desc, attnum limit 1",
                f"relay.{table}",
                role,
                act,
            )
        )

    return {
        "s": sql.SQL("explain select {} from {}").format(column("select"), named),
        "i": sql.SQL("explain insert into {} ({}) values (default)").format(named, column("insert")),
        "u": sql.SQL("explain update {} set {} = default").format(named, column("update")),
        "d": sql.SQL("explain delete from {}").format(named),
        "t": sql.SQL("truncate {}").format(named),
    }


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "statement",
    [
        "set session_replication_role = replica",
        "alter table relay.journal disable trigger all",
        "drop trigger a_forbidden on relay.journal",
        "alter table relay.operation disable row level security",
        "drop policy own on relay.operation",
        "create policy mine on relay.operation using (true)",
        "insert into relay.app_owner (role, owner_id) values (current_user, '*')",
        "insert into relay.lifecycle_edge values ('generation', 'uncertain', 'prepared', 'claim')",
        "create or replace function relay.now() returns timestamptz language sql as 'select now()'",
        "create table relay.mine (a int)",
        "grant relay_operator to current_user",
        "set role postgres",
    ],
)
def test_no_service_role_switches_a_guard_off(stage: Stage, role: str, statement: str) -> None:
    refused = stage.refused_to(role, sql.SQL(statement))
    assert refused == NO_PRIVILEGE, (role, statement)


# Guards -----------------------------------------------------------------------------------------------------


def _a_row_in_every_table(stage: Stage) -> None:
    operation = stage.prepare()
    attempt = stage.accepted(operation)
    make_batch(stage, 1)
    with stage.acting(WORKER):
        stage.connection.execute(
            "insert into relay.output (operation_id, ordinal, name, url) values (%s, 0, 'a', 'https://a')",
            [operation],
        )
        stage.raise_review(operation, "second_id")
    with stage.acting(OPERATOR):
        incident = stage.one(
            "insert into relay.incident (operation_id, attempt_id, boundary, what)"
            " values (%s, %s, 'network', 'x') returning incident_id",
            operation,
            attempt,
        )
        stage.connection.execute(
            "insert into relay.incident_decision (incident_id, decision, decided_by)"
            " values (%s, 'seen', 'ann')",
            [incident],
        )
    stage.connection.execute(
        "insert into relay.review_deadline select provider, digest, 'default', 60 from relay.provider_profile"
        " on conflict do nothing"
    )
    with stage.acting(OPERATOR):
        stage.connection.execute(
            'insert into relay.dead_letter_decision (group_id, topic, partition, "offset", state, who)'
            " values ('relay.dispatch', 't', 0, 0, 'requested', 'ann')"
        )
    with stage.acting(APPLICATION):
        stage.connection.execute(
            "insert into relay.outbox (event_id, event_type, schema_version, operation_id, payload)"
            " values (%s, 'order.paid', 1, gen_random_uuid(), '{}')",
            [uuid4()],
        )


@pytest.mark.parametrize("triggers", ["origin", "replica", "local"])
def test_what_a_guard_forbids_is_forbidden_to_the_owner_whatever_triggers_are_on(
    stage: Stage, triggers: str
) -> None:
    """Each act that a `forbid` covers is tried on a row: bits of tgtype (pg_trigger.h) say which acts."""
    _a_row_in_every_table(stage)
    rows = stage.connection.execute(
        "select c.relname, t.tgtype & 8 <> 0, t.tgtype & 16 <> 0, t.tgtype & 32 <> 0,"
        " (select quote_ident(attname) from pg_attribute where attrelid = c.oid and attnum > 0"
        "   and attidentity = '' order by attnum limit 1)"
        " from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        " where c.relnamespace = 'relay'::regnamespace and t.tgfoid = 'relay.refuse()'::regprocedure"
    ).fetchall()
    stage.connection.execute("set constraints all immediate")
    stage.connection.execute(
        sql.SQL("set local session_replication_role = {}").format(sql.Identifier(triggers))
    )
    tried = 0
    for table, deletes, updates, truncates, column in rows:
        named = sql.Identifier("relay", table)
        assert stage.connection.execute(sql.SQL("select 1 from {}").format(named)).fetchone(), table
        same = sql.SQL(column)
        acts = (
            (sql.SQL("delete from {}").format(named), deletes),
            (sql.SQL("update {} set {} = {}").format(named, same, same), updates),
            (sql.SQL("truncate {} cascade").format(named), truncates),
        )
        for statement, covered in acts:
            if covered:
                assert stage.refused_to(None, statement) == FORBIDDEN, (table, statement)
                tried += 1
    assert tried > 30
