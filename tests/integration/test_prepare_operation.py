"""`relay.prepare_operation` commits the operation and its event with the application's own rows, or nothing,
and one key stays one operation however often and by whatever client it is asked for.
"""

import json
from decimal import Decimal
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest

from consumers.operations.specification import specification_hash
from fix_operations import APPLICATION, PROVIDER, Stage, register_provider
from fix_postgres import Database
from relay.outbox.intent import Intent, Prepared, prepare, prepare_async

PAYLOAD: Final = '{"prompt": "a boat at dawn"}'


def _intent(key: str | None = None, **changes: Any) -> Intent:
    arguments: dict[str, Any] = {
        "kind": "generation",
        "owner_id": "studio",
        "operation_key": key or str(uuid4()),
        "payload": PAYLOAD,
        "provider": PROVIDER,
        "max_cost": Decimal("5"),
    }
    return Intent(**{**arguments, **changes})


@pytest.fixture
def application(committing_stage: Stage) -> Database:
    """The shared database, for connections of an application's own."""
    return committing_stage.database


def _connect(application: Database) -> psycopg.Connection[Any]:
    return application.connect(application.url_as(APPLICATION), autocommit=False)


def _counts(stage: Stage) -> tuple[Any, ...] | None:
    return stage.connection.execute(
        "select (select count(*) from relay.operation), (select count(*) from relay.outbox),"
        " (select count(*) from relay.journal)"
    ).fetchone()


def test_the_row_says_what_was_approved_and_the_events_what_is_to_be_done(
    application: Database, committing_stage: Stage
) -> None:
    with _connect(application) as connection:
        made = prepare(
            connection, _intent(source_ref="frame 7, revision 3", requested_by="ann", traceparent="00-a-b-01")
        )
    row = committing_stage.connection.execute(
        "select kind, owner_id, payload, payload_version, max_cost, cost_unit, provider, account, source_ref,"
        " requested_by, phase, version, dispatch_no, next_action_at > created_at from relay.operation"
        " where operation_id = %s",
        [made.operation_id],
    ).fetchone()
    assert row == (
        "generation", "studio", PAYLOAD, 1, 5, "credit", PROVIDER, "default", "frame 7, revision 3", "ann",
        "prepared", 1, 1, True,
    )  # fmt: skip
    events = committing_stage.connection.execute(
        "select event_type, schema_version, version, payload, headers from relay.outbox"
        " where operation_id = %s order by seq",
        [made.operation_id],
    ).fetchall()
    assert [(event[0], event[1], event[2]) for event in events] == [
        ("operation.transitioned", 1, 1),
        ("generation.requested", 2, 1),
    ]
    transitioned, requested = (event[3] for event in events)
    assert (transitioned["from_phase"], transitioned["to_phase"], transitioned["actor"]) == (
        None,
        "prepared",
        "ann",
    )
    assert requested["specification_hash"] == made.specification_hash
    assert all(event[4] == {"traceparent": "00-a-b-01"} for event in events)
    assert "boat" not in json.dumps([event[3] for event in events])


def test_a_rollback_leaves_nothing_of_the_operation_and_nothing_of_the_applications_own_row(
    application: Database, committing_stage: Stage
) -> None:
    committing_stage.connection.execute("create table if not exists frame_revision (id int primary key)")
    committing_stage.connection.execute("grant insert on frame_revision to relay_app")
    before = _counts(committing_stage)
    with _connect(application) as connection:
        connection.execute("insert into frame_revision values (1)")
        prepare(connection, _intent())
        connection.rollback()
    assert _counts(committing_stage) == before
    assert committing_stage.one("select count(*) from frame_revision") == 0
    with _connect(application) as connection:
        connection.execute("insert into frame_revision values (1)")
        prepare(connection, _intent())
    assert committing_stage.one("select count(*) from frame_revision") == 1
    assert _counts(committing_stage) != before


@pytest.mark.parametrize(
    "phase",
    ["prepared", "claimed", "submitting", "uncertain", "held", "accepted", "succeeded", "failed", "rejected",
     "cancelled", "abandoned", "lost"],
)  # fmt: skip
def test_the_same_specification_is_the_same_operation_whatever_its_phase(stage: Stage, phase: str) -> None:
    operation = stage.in_phase("generation", phase)
    before = _counts(stage)
    again = stage.connection.execute(
        "select p.operation_id, p.phase, p.version from relay.operation o, relay.prepare_operation("
        "kind => o.kind, owner_id => o.owner_id, operation_key => o.operation_key,"
        " payload => o.payload::jsonb,"
        " provider => o.provider, max_cost => o.max_cost) p where o.operation_id = %s",
        [operation],
    ).fetchone()
    version = stage.one("select version from relay.operation where operation_id = %s", operation)
    assert again == (operation, phase, version)
    assert _counts(stage) == before


@pytest.mark.parametrize(
    "change",
    [
        {"payload": '{"prompt": "two boats"}'},
        {"max_cost": Decimal("6")},
        {"cost_unit": "gold"},
        {"payload_version": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_specification_under_the_key_is_a_conflict_that_names_both_hashes(
    application: Database, change: dict[str, Any]
) -> None:
    key = str(uuid4())
    with _connect(application) as connection:
        made = prepare(connection, _intent(key))
    with _connect(application) as connection:
        other = prepare(connection, _intent(**change)).specification_hash
        with pytest.raises(psycopg.Error) as conflict:
            prepare(connection, _intent(key, **change))
        connection.rollback()
    assert conflict.value.sqlstate == "OR001"
    assert made.specification_hash in str(conflict.value)
    assert other in str(conflict.value)
    assert str(made.operation_id) in str(conflict.value)


def test_another_owner_or_kind_has_keys_of_its_own(application: Database) -> None:
    key = str(uuid4())
    with _connect(application) as connection:
        made = {prepare(connection, _intent(key, owner_id=owner)).operation_id for owner in ("ann", "bob")}
    assert len(made) == 2


def test_a_profile_pushed_in_between_does_not_turn_a_repeat_into_a_conflict(stage: Stage) -> None:
    operation = stage.prepare("the key")
    register_provider(stage.connection, document="name: simulator\n# pushed later\n")
    assert stage.prepare("the key") == operation
    # A new operation takes the new one.
    digests = stage.one(
        "select count(distinct profile_digest) from relay.operation where operation_id in (%s, %s)",
        operation,
        stage.prepare(),
    )
    assert digests == 2


def test_an_unknown_provider_account_and_kind_are_refused_in_words(application: Database) -> None:
    with _connect(application) as connection:
        for sqlstate, words, change in (
            ("OR002", "nowhere", {"provider": "nowhere"}),
            ("OR002", "second", {"account": "second"}),
            ("OR003", "painting", {"kind": "painting"}),
            ("OR003", "delivery", {"kind": "delivery"}),
        ):
            with pytest.raises(psycopg.Error, match=words) as refused, connection.transaction():
                prepare(connection, _intent(**change))
            assert refused.value.sqlstate == sqlstate


@pytest.mark.parametrize("max_cost", ["-1", "0.0000001", "NaN", "1e20"])
def test_a_maximum_cost_is_an_amount_with_at_most_six_decimals(application: Database, max_cost: str) -> None:
    with _connect(application) as connection, pytest.raises(psycopg.Error) as refused:
        prepare(connection, _intent(max_cost=Decimal(max_cost)))
    assert refused.value.sqlstate == "22003"


@pytest.mark.parametrize("missing", ["owner_id", "operation_key", "max_cost"])
def test_what_is_missing_is_refused(application: Database, missing: str) -> None:
    with _connect(application) as connection, pytest.raises(psycopg.errors.NullValueNotAllowed):
        prepare(connection, _intent(**{missing: None}))


# The canonical text -----------------------------------------------------------------------------------------

CANONICAL: Final = {
    '{"b": 1, "a": 2}': '{"a": 2, "b": 1}',
    '{"bb": 1, "a": 2, "ccc": 3}': '{"a": 2, "bb": 1, "ccc": 3}',
    '{"n": 1e2}': '{"n": 100}',
    '{"n": 1.00}': '{"n": 1.00}',
    '{"n": 12345678901234567890.10}': '{"n": 12345678901234567890.10}',
    '{"n": -0.0}': '{"n": 0.0}',
    '{"a": 1, "a": 2}': '{"a": 2}',
    '{"t": "\\u00e9\\u2028"}': '{"t": "é\u2028"}',
    '{\n  "t" :  [ ]\n}': '{"t": []}',
}


@pytest.mark.parametrize("written", CANONICAL)
def test_the_stored_payload_is_postgres_canonical_text_and_keeps_its_digits(
    stage: Stage, written: str
) -> None:
    made = prepare(stage.connection, _intent(payload=written))
    row = stage.connection.execute(
        "select payload, profile_digest from relay.operation where operation_id = %s", [made.operation_id]
    ).fetchone()
    assert row is not None
    assert row[0] == CANONICAL[written]
    assert made.specification_hash == specification_hash(
        kind="generation",
        provider=PROVIDER,
        profile_digest=row[1],
        payload_version=1,
        max_cost=Decimal("5.000000"),
        cost_unit="credit",
        payload=row[0],
    )


def test_two_ways_to_write_the_same_payload_are_one_operation(stage: Stage) -> None:
    key = str(uuid4())
    one = prepare(stage.connection, _intent(key, payload='{"a": 1e2, "b": [true]}'))
    two = prepare(stage.connection, _intent(key, payload='{ "b":[true],"a":100 }'))
    assert one.operation_id == two.operation_id


def test_a_decimal_in_a_python_payload_keeps_its_digits(stage: Stage) -> None:
    made = prepare(stage.connection, _intent(payload={"n": Decimal("12345678901234567890.10")}))
    stored = stage.one("select payload from relay.operation where operation_id = %s", made.operation_id)
    assert stored == '{"n": 12345678901234567890.10}'


# Every client ----------------------------------------------------------------------------------------------


def test_a_plain_cursor_prepares_in_its_own_transaction(
    application: Database, committing_stage: Stage
) -> None:
    with _connect(application) as connection:
        with connection.cursor() as cursor:
            made = prepare(cursor, _intent())
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS
        connection.rollback()
    assert isinstance(made, Prepared)
    assert _exists(committing_stage, made.operation_id) is False


@pytest.mark.anyio
async def test_an_asynchronous_connection_prepares_in_its_own_transaction(
    application: Database, committing_stage: Stage
) -> None:
    connection = await psycopg.AsyncConnection.connect(application.url_as(APPLICATION))
    async with connection:
        rolled_back = await prepare_async(connection, _intent())
        await connection.rollback()
        kept = await prepare_async(connection, _intent())
    assert _exists(committing_stage, rolled_back.operation_id) is False
    assert _exists(committing_stage, kept.operation_id) is True


def test_a_connection_whose_rows_are_dictionaries_is_served_too(application: Database) -> None:
    with psycopg.connect(application.url_as(APPLICATION), row_factory=psycopg.rows.dict_row) as connection:
        assert prepare(connection, _intent()).phase == "prepared"
        with connection.cursor() as cursor, pytest.raises(TypeError, match="tuples"):
            prepare(cursor, _intent())


def _exists(stage: Stage, operation: UUID) -> bool:
    found: bool = stage.one("select exists (select from relay.operation where operation_id = %s)", operation)
    return found
