"""Column mappings: the presets, a user's own, and names as SQL reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import UsageError
from relay.outbox.mapping import parse, parse_table


def test_native_maps_each_part_of_an_event() -> None:
    mapping = parse("relay.outbox", "native")
    assert list(mapping.columns.mapped().values()) == [
        "event_id",
        "seq",
        "event_type",
        "schema_version",
        "operation_id",
        "version",
        "payload",
        "headers",
        "occurred_at",
    ]
    assert (mapping.payload, mapping.rows_kept, mapping.name) == ("avro", True, "relay.outbox")


def test_debezium_maps_the_event_routers_table_and_declares_its_rows_deleted() -> None:
    mapping = parse("outboxevent", "debezium")
    assert mapping.columns.mapped() == {
        "event_id": "id",
        "event_type": "type",
        "route": "aggregatetype",
        "operation_id": "aggregateid",
        "payload": "payload",
    }
    assert (mapping.schema, mapping.table) == ("public", "outboxevent")
    assert (mapping.payload, mapping.rows_kept) == ("unchanged", False)
    assert parse("outboxevent", "debezium", "kept").rows_kept


def test_a_mapping_of_ones_own_names_the_columns_that_there_are() -> None:
    text = '{"event_id": "Id", "event_type": "t", "operation_id": "k", "payload": "p", "seq": "n"}'
    mapping = parse("app.events", text)
    assert mapping.columns.mapped() == {
        "event_id": "Id",
        "seq": "n",
        "event_type": "t",
        "operation_id": "k",
        "payload": "p",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("natve", "neither native nor debezium"),
        ("[1]", "not a JSON object"),
        ('{"event": "x"}', "'event', which is not a part"),
        ('{"event_id": 3}', "gives event_id no column name"),
        ('{"event_id": ""}', "gives event_id no column name"),
        ('{"event_id": "a", "event_type": "b", "operation_id": "c"}', "no column for payload"),
        ('{"event_id": "a", "event_type": "a", "operation_id": "c", "payload": "d"}', "two meanings"),
    ],
)
def test_a_wrong_mapping_is_one_sentence_that_names_the_setting(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse("relay.outbox", text)
    assert "outbox_columns" in caught.value.message


@pytest.mark.parametrize(
    ("text", "schema", "table"),
    [
        ("relay.outbox", "relay", "outbox"),
        ("Relay.Outbox", "relay", "outbox"),
        ('"Relay"."Out.box"', "Relay", "Out.box"),
        ('"a""b".c', 'a"b', "c"),
        ("outbox", "public", "outbox"),
    ],
)
def test_a_table_is_read_as_sql_reads_it(text: str, schema: str, table: str) -> None:
    assert parse_table(text) == (schema, table)


@pytest.mark.parametrize("text", ["a.b.c", "a.", ".b", 'a."b', "a b", "", f"{'x' * 64}.t"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="outbox_table"):
        parse_table(text)


_NAMES = st.text(
    st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=15
)


@given(_NAMES, _NAMES)
def test_any_name_survives_quoting(schema: str, table: str) -> None:
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, table))
    mapping = parse(quoted, "native")
    assert (mapping.schema, mapping.table) == (schema, table)
    assert parse_table(mapping.name) == (schema, table)
    assert mapping.qualified_name == quoted
