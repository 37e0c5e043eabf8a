"""No order of finishing lets a commit pass unfinished work, and a drained partition commits its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.runtime.offsets import PartitionOffsets

HOLEY_OFFSETS = st.lists(st.integers(0, 200), unique=True, min_size=1, max_size=30).map(sorted)


@given(data=st.data(), offsets=HOLEY_OFFSETS)
def test_what_is_committable_never_passes_unfinished_work(data: st.DataObject, offsets: list[int]) -> None:
    tracker = PartitionOffsets()
    for offset in offsets:
        tracker.received(offset)
    unfinished = set(offsets)
    for offset in data.draw(st.permutations(offsets)):
        tracker.finished(offset)
        unfinished.remove(offset)
        prefix = [each for each in offsets if not unfinished or each < min(unfinished)]
        assert tracker.committable() == (prefix[-1] + 1 if prefix else None)
        assert tracker.outstanding == len(offsets) - len(prefix)


def test_finishing_out_of_order_commits_nothing_until_the_first_is_done() -> None:
    tracker = PartitionOffsets()
    for offset in (0, 1, 2):
        tracker.received(offset)
    tracker.finished(2)
    tracker.finished(1)
    assert tracker.committable() is None
    tracker.finished(0)
    assert tracker.committable() == 3


def test_a_drained_partition_commits_its_end_beyond_the_transaction_marker() -> None:
    tracker = PartitionOffsets()
    tracker.received(0)
    tracker.reached_end(2)
    assert tracker.committable() is None
    tracker.finished(0)
    assert tracker.committable() == 2


def test_an_end_that_was_overtaken_by_a_new_record_is_not_committed() -> None:
    tracker = PartitionOffsets()
    tracker.received(0)
    tracker.reached_end(2)
    tracker.received(2)
    tracker.finished(0)
    assert tracker.committable() == 1
    tracker.finished(2)
    assert tracker.committable() == 3


def test_an_empty_partition_commits_its_end_once() -> None:
    tracker = PartitionOffsets()
    tracker.reached_end(0)
    assert tracker.committable() is None
    tracker.reached_end(7)
    assert tracker.committable() == 7
    tracker.committed(7)
    assert tracker.committable() is None


def test_what_breaks_the_bookkeeping_is_said() -> None:
    tracker = PartitionOffsets()
    tracker.received(5)
    tracker.received(9)
    with pytest.raises(ValueError, match="5 was received after 9"):
        tracker.received(5)
    tracker.finished(9)
    for offset in (9, 3):
        with pytest.raises(ValueError, match="was not outstanding"):
            tracker.finished(offset)
