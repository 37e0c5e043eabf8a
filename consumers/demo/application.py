"""The demo's application: a studio that approves storyboard frames in a table of its own. Of the relay it
knows only how to prepare an operation, in its own transaction.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import psycopg

from consumers.demo.plan import Frame
from relay.outbox.intent import Intent, Prepared, prepare

OWNER: Final = "studio"
UNIT: Final = "credit"
PROVIDER: Final = "simulator"
MAX_COST: Final = Decimal(1)

SCHEMA: Final = """
create table frame_revision (
  frame text not null,
  revision integer not null,
  prompt text not null,
  approved_by text not null,
  approved_at timestamptz not null default now(),
  primary key (frame, revision)
);
grant select, insert on frame_revision to relay_app;
"""

_REVISION: Final = 1


class ChangedTheirMind(Exception):
    """Raised inside an approval, so that its transaction is rolled back."""


def approve(
    connection: psycopg.Connection[Any], frame: Frame, before_commit: Callable[[UUID], None] = lambda _: None
) -> Prepared:
    """Approve `frame`: its revision's row and its operation, in one transaction or not at all.

    Approving the same revision again changes nothing and returns the same operation. `before_commit` hears of
    the operation's id while nobody else can see it.
    """
    with connection.transaction():
        connection.execute(
            "insert into frame_revision (frame, revision, prompt, approved_by)"
            " values (%s, %s, %s, 'director') on conflict do nothing",
            [frame.name, _REVISION, frame.prompt],
        )
        prepared = prepare(
            connection,
            Intent(
                kind="generation",
                owner_id=OWNER,
                operation_key=f"{frame.name}/{_REVISION}",
                payload={"frame": frame.name, "revision": _REVISION, "prompt": frame.prompt},
                provider=PROVIDER,
                max_cost=MAX_COST,
                cost_unit=UNIT,
                source_ref=f"frame_revision/{frame.name}/{_REVISION}",
                requested_by="director",
            ),
        )
        before_commit(prepared.operation_id)
    return prepared


def approve_and_roll_back(connection: psycopg.Connection[Any], frame: Frame) -> UUID:
    """Approve `frame` in a transaction that fails at its end. Returns the operation that never was."""
    seen: list[UUID] = []

    def change_their_mind(operation_id: UUID) -> None:
        seen.append(operation_id)
        raise ChangedTheirMind

    try:
        approve(connection, frame, change_their_mind)
    except ChangedTheirMind:
        pass
    return seen[0]


def approved_frames(connection: psycopg.Connection[Any]) -> int:
    """How many revisions the application's own table has."""
    row = connection.execute("select count(*) from frame_revision").fetchone()
    return int(row[0]) if row else 0
