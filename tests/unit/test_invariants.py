"""Each invariant holds over a whole, quiet system, and fails, alone or with those that it implies, when one
thing is wrong.
"""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from consumers.observe.invariants import INVARIANTS, check_all
from consumers.observe.snapshot import KeptFile, Snapshot, TopicRecord
from whole_system import (
    AGAIN,
    ASKED,
    DONE,
    KEY,
    LONG_AGO,
    NOW,
    REFUSED,
    UNSURE,
    attempt,
    job,
    named,
    post,
    whole,
)

Corrupt = Callable[[Snapshot], Snapshot]


# Ways to break it -------------------------------------------------------------------------------------------


def tables(**changes: Callable[[Any], Any]) -> Corrupt:
    """A snapshot whose table `name` is put through a function."""

    def corrupt(snapshot: Snapshot) -> Snapshot:
        now = {name: change(getattr(snapshot.tables, name)) for name, change in changes.items()}
        return replace(snapshot, tables=replace(snapshot.tables, **now))

    return corrupt


def truth(**changes: Callable[[Any], Any]) -> Corrupt:
    def corrupt(snapshot: Snapshot) -> Snapshot:
        now = {name: change(getattr(snapshot.truth, name)) for name, change in changes.items()}
        return replace(snapshot, truth=replace(snapshot.truth, **now))

    return corrupt


def records(change: Callable[[tuple[TopicRecord, ...]], Any]) -> Corrupt:
    return lambda snapshot: replace(snapshot, records=tuple(change(snapshot.records)))


def files(change: Callable[[tuple[KeptFile, ...]], Any]) -> Corrupt:
    return lambda snapshot: replace(snapshot, files=tuple(change(snapshot.files)))


def changed(where: Callable[[Any], bool], **fields: Any) -> Callable[[Any], Any]:
    """Rows with `fields` set in those that `where` picks; at least one must be picked."""

    def change(rows: Any) -> Any:
        assert any(where(row) for row in rows)
        return tuple(replace(row, **fields) if where(row) else row for row in rows)

    return change


def without(where: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def change(rows: Any) -> Any:
        kept = tuple(row for row in rows if not where(row))
        assert len(kept) < len(rows)
        return kept

    return change


def of(identity: UUID) -> Callable[[Any], bool]:
    return lambda row: row.operation_id == identity


def first_of(event_type: str, identity: UUID = DONE) -> Callable[[Any], bool]:
    return lambda one: one.event_type == event_type and one.key == str(identity) and one.version == 1


REQUESTED = first_of("generation.requested")
FIRST_TRANSITION = first_of("operation.transitioned")


def swap(rows: tuple[TopicRecord, ...]) -> tuple[TopicRecord, ...]:
    """The first two transitions of an operation arrive in the wrong order."""
    pair = {1: 2, 2: 1}
    offsets = {one.version: one.offset for one in rows if _transition_of_done(one)}
    return tuple(
        replace(one, offset=offsets[pair[one.version]])
        if _transition_of_done(one) and one.version in pair
        else one
        for one in rows
    )


def _transition_of_done(one: TopicRecord) -> bool:
    return one.event_type == "operation.transitioned" and one.key == str(DONE)


CORRUPTIONS: dict[str, tuple[set[int], Corrupt]] = {
    "a row that never arrived": ({1}, records(without(REQUESTED))),
    "a row that arrived twice": ({1}, records(lambda rows: (*rows, replace(rows[0], offset=999)))),
    "a row that arrived with another payload": (
        {1},
        records(changed(REQUESTED, payload={"operation_id": DONE, "at": NOW, "note": "more"})),
    ),
    "a row that arrived with another key": ({1}, records(changed(REQUESTED, key=str(named("nobody"))))),
    "a row that arrived as another version of its type": ({1}, records(changed(REQUESTED, schema_version=2))),
    "a row in another type's topic": ({1}, records(changed(REQUESTED, topic="demo.collection.requested"))),
    "a value that can't be read": ({1}, records(changed(REQUESTED, defect="rubbish", payload=None))),
    "a record that was never committed": ({1, 2}, tables(outbox=without(lambda row: row.seq == 2))),
    "a record of a rolled-back transaction": (
        {1},
        lambda whole: replace(whole, rolled_back=frozenset({DONE})),
    ),
    "a record without an event id": ({1, 2}, records(changed(REQUESTED, event_id=None))),
    "a parked event without its dead letter": (
        {1},
        lambda whole: tables(parked=lambda _: frozenset({named(f"{DONE} 1 generation.requested")}))(
            records(without(REQUESTED))(whole)
        ),
    ),
    "two partitions for one operation": (
        {2},
        records(changed(lambda one: _transition_of_done(one) and one.version == 1, partition=9)),
    ),
    "two events that changed places": ({2}, records(swap)),
    "a WAL position that falls": ({2}, records(changed(FIRST_TRANSITION, position=(1, 99_999, 0)))),
    "a hole in the transitions": ({1, 2}, records(without(FIRST_TRANSITION))),
    "a hole in the journal": (
        {2},
        tables(journal=without(lambda row: row.operation_id == DONE and row.version == 2)),
    ),
    "a transition that no table has": ({2}, tables(operations=changed(of(REFUSED), version=3))),
    "a second POST": ({3}, truth(posts=lambda posts: (*posts, post(str(DONE))))),
    "a second POST after an unknown attempt": ({3}, truth(posts=lambda posts: (*posts, post(str(UNSURE))))),
    "a second POST with an attempt of its own": (
        {3, 5},
        lambda whole: truth(posts=lambda posts: (*posts, post(str(UNSURE))))(
            tables(attempts=lambda rows: (*rows, attempt("unsure-2", UNSURE, "unknown")))(whole)
        ),
    ),
    "a resubmission that no review decided": (
        {3},
        tables(attempts=changed(lambda row: row.released, released=False)),
    ),
    "a POST for no operation": ({3}, truth(posts=lambda posts: (*posts, post("nobody")))),
    "a job that is forgotten": ({4}, tables(remote_jobs=without(of(DONE)))),
    "a second job that is forgotten": ({4}, truth(jobs=lambda jobs: (*jobs, job("job-extra", DONE, "0")))),
    "a job under another operation's name": ({4}, tables(remote_jobs=changed(of(DONE), operation_id=ASKED))),
    "an unknown attempt that is called refused": (
        {4},
        tables(attempts=changed(of(UNSURE), outcome="refused")),
    ),
    "a job that was never made": (
        {4, 7},
        tables(operations=changed(of(DONE), job_id="job-dreamt")),
    ),
    "a charge that is not booked": (
        {5},
        truth(jobs=changed(lambda one: one.job_id == "job-done", charged=Decimal(2))),
    ),
    "an unknown attempt whose money was given back": (
        {5},
        tables(reservations=changed(of(UNSURE), state="released")),
    ),
    "an attempt that never reserved": ({5}, tables(reservations=without(of(UNSURE)))),
    "more booked than was declared": ({5}, tables(operations=changed(of(DONE), max_cost=Decimal("0.5")))),
    "a limit that was passed": ({5}, tables(allowances=changed(lambda _: True, limit_amount=Decimal(3)))),
    "an allowance that lost count": ({5}, tables(allowances=changed(lambda _: True, reserved=Decimal(1)))),
    "an operation without a waker": ({6}, tables(operations=changed(of(AGAIN), next_action_at=None))),
    "an operation that is overdue": ({6}, tables(operations=changed(of(AGAIN), next_action_at=LONG_AGO))),
    "a lease that nobody ended": ({6}, tables(operations=changed(of(AGAIN), lease_expires_at=LONG_AGO))),
    "an uncertain operation without a review": ({6}, tables(reviews=without(of(UNSURE)))),
    "a delivered file that is gone": ({7}, files(without(lambda file: file.key == KEY))),
    "a delivered file of other bytes": ({7}, files(changed(lambda file: file.key == KEY, sha256="ee" * 32))),
    "a delivered file that is too short": ({7}, files(changed(lambda file: file.key == KEY, size=3))),
    "a digest in the table that is not the file's": (
        {7},
        tables(outputs=changed(lambda _: True, stored_sha256="ee" * 32)),
    ),
    "a half-written file under a final name": (
        {7},
        files(lambda kept: (*kept, KeptFile(key="studio/x/0-frame-1.bin", size=3, sha256="cd" * 32))),
    ),
    "a delivery that is called stored and isn't": (
        {7},
        tables(outputs=changed(lambda _: True, stored_key=None)),
    ),
    "a file that the provider never served": (
        {7},
        truth(jobs=changed(lambda one: one.job_id == "job-done", files=())),
    ),
}


def test_a_whole_system_keeps_every_invariant() -> None:
    verdicts = check_all(whole())
    assert [verdict.offending for verdict in verdicts] == [()] * 7
    assert [verdict.number for verdict in verdicts] == [1, 2, 3, 4, 5, 6, 7]
    assert all(verdict.checked for verdict in verdicts)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_each_corruption_is_seen_by_the_invariant_that_forbids_it(corruption: str) -> None:
    broken, corrupt = CORRUPTIONS[corruption]
    found = {
        verdict.number: verdict.offending for verdict in check_all(corrupt(whole())) if not verdict.holds
    }
    assert set(found) == broken, found


def test_every_invariant_has_a_corruption_of_its_own() -> None:
    alone = {next(iter(broken)) for broken, _ in CORRUPTIONS.values() if len(broken) == 1}
    assert alone == set(range(1, len(INVARIANTS) + 1))


def test_duplicates_are_allowed_where_only_at_least_once_is_promised() -> None:
    twice = records(lambda rows: (*rows, replace(rows[0], offset=999)))(whole())
    assert all(verdict.holds for verdict in check_all(replace(twice, delivery="at_least_once")))


def test_a_dead_letter_stands_for_a_parked_event() -> None:
    parked = named(f"{DONE} 1 generation.requested")
    snapshot = tables(parked=lambda _: frozenset({parked}))(records(without(REQUESTED))(whole()))
    assert all(verdict.holds for verdict in check_all(replace(snapshot, dead_letters=frozenset({parked}))))


def test_a_republished_event_may_come_late() -> None:
    late = records(changed(FIRST_TRANSITION, position=(1, 99_999, 0), offset=99_999))(whole())
    assert not check_all(late)[1].holds
    assert check_all(records(changed(FIRST_TRANSITION, origin="republish"))(late))[1].holds


def test_a_stopped_owner_may_have_passed_the_limit() -> None:
    over = tables(allowances=changed(lambda _: True, limit_amount=Decimal(3), overrun=True))(whole())
    assert check_all(over)[4].holds
