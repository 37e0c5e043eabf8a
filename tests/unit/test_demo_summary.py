"""The demo's summary holds only when everything that it is there to show was shown."""

from dataclasses import replace
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from consumers.demo import summary as summaries
from consumers.demo.summary import (
    Approvals,
    Crash,
    Files,
    Invariant,
    Replay,
    Summary,
    ToReview,
    text,
)
from consumers.observe.invariants import check_all
from consumers.providers.simulator_world import Fault
from whole_system import UNSURE, whole

REVIEW = str(uuid4())
CRASH = Crash(process="relay", pid=7, in_flight=2, of_what="committed rows were not in Kafka yet")
HELD = Invariant(number=1, says="it holds", holds=True, checked=1, offending=[])
GOOD = Summary(
    operations=40,
    seed=1,
    seconds=26.3,
    postgres="18.6",
    kafka="embedded",
    delivery="at_least_once",
    delivery_note=summaries.AT_LEAST_ONCE,
    approvals=Approvals(
        frames=40, revisions=40, rolled_back=1, rolled_back_found=0, approved_twice_same_operation=True
    ),
    phases={"generation": {"succeeded": 39, "uncertain": 1}},
    posts=41,
    jobs=40,
    files=Files(delivered=3, verified=3, bytes=30),
    faults={"slow_drip": {"planned": 1, "struck": 2}},
    crashes=[CRASH],
    replay=Replay(events=44, posts_before=41, posts_after=41),
    duplicates=3,
    parked=0,
    paused={},
    uncertain=[
        ToReview(
            operation_id=str(UNSURE),
            source="frame_revision/frame-0001/1",
            phase="uncertain",
            kind="uncertain_submission",
            reason="no_answer",
            command=f"relay review show {REVIEW}",
        )
    ],
    other_reviews=[],
    invariants=[HELD],
)


def test_a_good_run_holds_and_names_the_command_of_each_review() -> None:
    assert GOOD.failures == []
    assert GOOD.holds
    said = text(GOOD)
    assert f"relay review show {REVIEW}" in said
    assert "All of it holds." in said
    assert "can't show exactly-once" in said


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_the_summary_fits_the_terminal_and_breaks_no_command(columns: int) -> None:
    said = text(GOOD, columns=columns)
    assert max(map(len, said.splitlines())) <= columns
    assert f"relay review show {REVIEW}" in said


def test_without_a_folder_that_stays_no_command_is_named_that_could_not_work() -> None:
    said = text(GOOD, kept=False)
    assert "relay review show" not in said
    assert "--keep FOLDER" in said


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"invariants": [msgspec.structs.replace(HELD, holds=False, offending=["x"])]},
            "invariant 1 is broken",
        ),
        (
            {"faults": {"slow_drip": {"planned": 2, "struck": 1}}},
            "slow_drip struck 1 times, and 2 were planned",
        ),
        ({"crashes": [msgspec.structs.replace(CRASH, in_flight=0)]}, "SIGKILL of relay hit nothing"),
        ({"uncertain": []}, "no operation is uncertain"),
        ({"replay": Replay(events=44, posts_before=41, posts_after=42)}, "the replay made 1 POSTs"),
        ({"replay": Replay(events=0, posts_before=41, posts_after=41)}, "the replay delivered nothing"),
        ({"files": Files(delivered=3, verified=2, bytes=20)}, "2 of 3 delivered files are verified"),
        ({"files": Files(delivered=0, verified=0, bytes=0)}, "0 of 0 delivered files"),
        (
            {"approvals": msgspec.structs.replace(GOOD.approvals, revisions=39)},
            "the application's table and its operations disagree",
        ),
        (
            {"approvals": msgspec.structs.replace(GOOD.approvals, rolled_back_found=1)},
            "the application's table and its operations disagree",
        ),
        (
            {"approvals": msgspec.structs.replace(GOOD.approvals, approved_twice_same_operation=False)},
            "approved twice has two operations",
        ),
        ({"parked": 1}, "1 events were parked"),
    ],
)
def test_what_was_not_shown_fails_the_demo_and_is_said(change: dict[str, Any], why: str) -> None:
    summary = msgspec.structs.replace(GOOD, **change)
    assert not summary.holds
    assert any(why in failure for failure in summary.failures)
    assert why in text(summary)


def test_the_json_is_one_document_with_the_verdict_in_it() -> None:
    document = msgspec.json.decode(GOOD.json())
    assert document["holds"] is True
    assert document["failures"] == []
    assert document["uncertain"][0]["command"] == f"relay review show {REVIEW}"
    assert document["replay"] == {"events": 44, "posts_before": 41, "posts_after": 41}


def test_facts_are_counted_from_the_snapshot() -> None:
    snapshot = whole()
    assert summaries.files(snapshot) == Files(delivered=1, verified=1, bytes=10)
    assert summaries.duplicates(snapshot) == 0
    assert summaries.phases(snapshot)["delivery"] == {"stored": 1}
    uncertain, others = summaries.reviews(snapshot)
    assert [review.operation_id for review in uncertain] == [str(UNSURE)]
    assert others == []
    assert all(one.holds for one in summaries.invariants(check_all(snapshot)))


def test_a_delivered_file_with_other_bytes_is_not_verified() -> None:
    snapshot = whole()
    other = replace(snapshot.files[0], sha256="ee" * 32)
    assert summaries.files(replace(snapshot, files=(other,))) == Files(delivered=1, verified=0, bytes=0)
    assert summaries.files(replace(snapshot, files=())) == Files(delivered=1, verified=0, bytes=0)


def test_a_fault_that_never_struck_counts_zero() -> None:
    assert summaries.faults({Fault.REDIRECT: 1}, {}) == {"redirect": {"planned": 1, "struck": 0}}
