"""A life is rebuilt from its transitions in whatever order and number they come, and a hole in it is seen."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.observe.history import History

PHASES = ("prepared", "claimed", "submitting", "accepted", "succeeded")


def life(operation_id: UUID, phases: tuple[str, ...] = PHASES) -> list[dict[str, Any]]:
    started = datetime(2026, 11, 29, tzinfo=UTC)
    return [
        {
            "operation_id": operation_id,
            "owner_id": "studio",
            "kind": "generation",
            "version": version,
            "from_phase": phases[version - 2] if version > 1 else None,
            "to_phase": phase,
            "cause": "cause",
            "reason": "",
            "actor": "test",
            "attempt_id": None,
            "review_id": None,
            "job_id": None,
            "dispatch_no": 1,
            "specification_hash": "00",
            "transitioned_at": started + timedelta(seconds=version),
        }
        for version, phase in enumerate(phases, 1)
    ]


@given(st.randoms(use_true_random=False), st.lists(st.integers(0, len(PHASES) - 1), max_size=6))
def test_duplicates_and_disorder_change_nothing(shuffle: random.Random, repeated: list[int]) -> None:
    operation_id = uuid4()
    told = life(operation_id)
    events = told + [told[index] for index in repeated]
    shuffle.shuffle(events)
    history = History()
    assert sum(history.add(event) for event in events) == len(PHASES)
    found = history.get(operation_id)
    assert found is not None
    assert found.complete
    assert found.phase == "succeeded"
    assert [each.to_phase for each in found.in_order()] == list(PHASES)


@pytest.mark.parametrize("lost", range(len(PHASES) - 1))
def test_a_lost_transition_is_a_missing_version(lost: int) -> None:
    operation_id = uuid4()
    history = History()
    for number, event in enumerate(life(operation_id)):
        if number != lost:
            history.add(event)
    (found,) = history
    assert found.missing_versions() == [lost + 1]
    assert not found.complete


def test_a_transition_that_does_not_follow_is_a_break() -> None:
    events = life(uuid4())
    events[2]["from_phase"] = "prepared"
    history = History()
    for event in events:
        history.add(event)
    (found,) = history
    assert found.breaks() == ["version 3 leaves prepared, and version 2 entered claimed"]
    events = life(uuid4())
    events[0]["from_phase"] = "held"
    history = History()
    history.add(events[0])
    assert [each.complete for each in history] == [False]


@pytest.mark.parametrize("change", [{"to_phase": "rejected"}, {"owner_id": "another"}])
def test_two_tellings_of_one_version_are_kept_as_a_contradiction(change: dict[str, str]) -> None:
    first, *_ = life(uuid4())
    history = History()
    assert history.add(first)
    assert not history.add(first | change)
    (found,) = history
    assert len(found.contradictions) == 1
    assert found.phase == "prepared"
