"""The page of lifecycles is drawn from the database: an edge that changes there changes the page too."""

from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from consumers.operations.lifecycle import Phase
from fix_postgres import Database
from lifecycle_diagram import Edge, draw

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "operation-lifecycle.md"


def drawn(connection: psycopg.Connection[Any], lifecycle: str) -> str:
    edges = connection.execute(
        "select from_phase, to_phase, cause from relay.lifecycle_edge where lifecycle = %s", [lifecycle]
    ).fetchall()
    known = dict(
        connection.execute(
            "select phase, is_final from relay.lifecycle_phase where lifecycle = %s", [lifecycle]
        ).fetchall()
    )
    phases = [phase.value for phase in Phase if phase in known]
    assert sorted(phases) == sorted(known)
    return draw((Edge(*row) for row in edges), phases, (phase for phase, final in known.items() if final))


@pytest.mark.parametrize("lifecycle", ["generation", "delivery"])
def test_the_page_shows_the_edges_that_the_database_has(database: Database, lifecycle: str) -> None:
    with database.connect() as connection:
        expected = drawn(connection, lifecycle)
    assert expected in PAGE.read_text(encoding="utf-8"), f"put this into {PAGE.name}:\n{expected}"


def test_a_new_edge_is_drawn(database: Database) -> None:
    with database.connect() as connection:
        before = drawn(connection, "delivery")
        connection.execute("insert into relay.lifecycle_edge values ('delivery', 'stored', 'held', 'hold')")
        after = drawn(connection, "delivery")
    assert set(after.splitlines()) - set(before.splitlines()) == {"  stored --> held: hold"}
