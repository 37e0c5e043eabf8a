"""Every incident names the boundary that it crossed, its evidence and what was decided about it, by whom."""

import asyncio
import re
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from consumers.operations import incidents, reviews
from consumers.operations.boundaries import CROSSED, Boundary
from consumers.operations.decisions import Refused
from consumers.operations.incidents import Happened
from consumers.operations.refusals import in_words
from consumers.operations.resolutions import Resolution
from fix_commands import Command
from fix_operations import OPERATOR, WORKER, Stage
from fix_reviews import LATER, connect_as, decision, uncertain

pytestmark = pytest.mark.anyio

ROOT: Final = Path(__file__).resolve().parents[2]


def opened(stage: Stage, operation: UUID, attempt: UUID | None = None, boundary: str = "network") -> UUID:
    with stage.acting(WORKER):
        made: UUID = stage.one(
            "insert into relay.incident (operation_id, attempt_id, boundary, what, evidence)"
            " values (%s, %s, %s, 'it was noticed', %s) returning incident_id",
            operation,
            attempt,
            boundary,
            Jsonb({"job_id": "job-7"}),
        )
    return made


async def test_code_database_and_architecture_have_the_same_boundaries(stage: Stage) -> None:
    operation = stage.prepare()
    for boundary in Boundary:
        opened(stage, operation, boundary=boundary)
    with pytest.raises(psycopg.errors.CheckViolation):
        opened(stage, operation, boundary="moon")
    check = stage.one(
        "select pg_get_constraintdef(oid) from pg_constraint"
        " where conrelid = 'relay.incident'::regclass and contype = 'c' and conname like '%%boundary%%'"
    )
    assert set(re.findall(r"'(\w+)'", check)) == set(Boundary)
    drawn = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = drawn[drawn.index("## Boundaries") : drawn.index("## Rooms")]
    assert re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE) == [
        (str(boundary), CROSSED[boundary]) for boundary in Boundary
    ]


async def test_a_decision_about_an_incident_is_taken_once_and_kept(committing_stage: Stage) -> None:
    stage = committing_stage
    incident = opened(stage, stage.prepare())
    connections = [await connect_as(stage, OPERATOR) for _ in range(6)]

    async def close(number: int, connection: psycopg.AsyncConnection[Any]) -> Happened | Refused:
        try:
            return await incidents.close(connection, incident, decision=f"no {number}", actor=f"r{number}")
        except Refused as error:
            return error

    results = await asyncio.gather(*(close(*pair) for pair in enumerate(connections)))
    for connection in connections:
        await connection.close()
    (won,) = [one for one in results if isinstance(one, Happened)]
    kept = stage.connection.execute(
        "select decision, decided_by from relay.incident_decision where incident_id = %s", [incident]
    ).fetchall()
    assert kept == [(won.decision, won.decided_by)]
    told = [str(one) for one in results if isinstance(one, Refused)]
    assert len(told) == 5
    assert all(f"was closed by {won.decided_by} already: {won.decision}" in one for one in told)
    for statement in (
        "update relay.incident_decision set decision = 'other' where incident_id = %s",
        "delete from relay.incident_decision where incident_id = %s",
    ):
        assert stage.refused_to(None, statement, incident) == "OR010"


async def test_only_an_operator_closes_an_incident(committing_stage: Stage) -> None:
    incident = opened(committing_stage, committing_stage.prepare())
    async with await connect_as(committing_stage, WORKER) as worker:
        with pytest.raises(Refused, match="relay_operator"), in_words():
            await incidents.close(worker, incident, decision="mine", actor="w")
    committing_stage.connection.execute(
        "grant insert (incident_id, decision, decided_by) on relay.incident_decision to relay_worker"
    )
    async with await connect_as(committing_stage, WORKER) as worker:
        with pytest.raises(Refused, match="is not an operator"), in_words():
            await incidents.close(worker, incident, decision="mine", actor="w")


async def test_the_review_that_answers_a_request_decides_its_incidents(
    committing_stage: Stage, operator: psycopg.AsyncConnection[Any]
) -> None:
    stage = committing_stage
    operation, attempt, review = uncertain(stage)
    about_it, about_nothing = opened(stage, operation, attempt), opened(stage, operation)
    await reviews.resolve(operator, decision(review, Resolution.ABANDON))
    seen = await incidents.incident(operator, about_it)
    assert (seen.decision, seen.decided_by, seen.decided_by_review) == (
        "abandon: I looked",
        "ann@desk",
        review,
    )
    assert (await incidents.incident(operator, about_nothing)).decision is None
    left = await incidents.incidents(operator, operation_id=operation, limit=10)
    assert [one.incident_id for one in left] == [about_nothing]


async def test_what_the_decision_itself_opens_is_still_to_be_decided(committing_stage: Stage) -> None:
    stage = committing_stage
    other = stage.prepare()
    stage.accepted(other)
    job = stage.one("select job_id from relay.operation where operation_id = %s", other)
    _, _, review = uncertain(stage)
    async with await connect_as(stage, OPERATOR, LATER) as operator:
        await reviews.resolve(
            operator, decision(review, Resolution.ACCEPTED, job_id=job, override="they were swapped")
        )
        (made,) = await incidents.incidents(operator, operation_id=other, limit=10)
    assert (made.boundary, made.decision) == ("id_commit", None)


def test_an_incident_is_listed_shown_and_closed_by_commands(
    committing_stage: Stage, command: Command
) -> None:
    stage = committing_stage
    env = {"RELAY_DATABASE_URL": stage.database.url_as(OPERATOR)}
    operation = stage.prepare()
    incident = opened(stage, operation, boundary="id_commit")
    listed = command("incident", "list", "--operation", str(operation), "--json", env=env)
    assert [one["incident_id"] for one in listed.json] == [str(incident)]
    for words in (str(incident), "id_commit", "it was noticed", "relay incident show INCIDENT"):
        assert words in command("incident", "list", "--boundary", "id_commit", env=env).out
    shown = command("incident", "show", str(incident), env=env).out
    for words in (
        "id_commit: the job's id reaches the operation",
        "job-7",
        "nobody has decided yet",
        f"relay incident close {incident} --decision '…'",
    ):
        assert words in shown
    empty = command("incident", "close", str(incident), "--decision", "…", env=env)
    assert (empty.status, "--decision is empty" in empty.err) == (2, True)
    assert command("incident", "close", str(incident), "--decision", "refunded", env=env).status == 0
    closed = command("incident", "show", str(incident), "--json", env=env).json
    assert closed["decision"] == "refunded"
    assert "refunded" in command("incident", "show", str(incident), env=env).out
    assert command("incident", "list", "--operation", str(operation), env=env).out == (
        "No incident is without a decision.\n"
    )
    again = command("incident", "close", str(incident), "--decision", "lost", env=env)
    assert (again.status, "already: refunded" in again.err) == (1, True)
    missing = command("incident", "show", str(uuid4()), env=env)
    assert (missing.status, "There is no incident" in missing.err) == (1, True)
