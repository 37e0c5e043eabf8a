"""The watermark: what may be confirmed, whatever the order in which things come and become durable."""

from hypothesis import given
from hypothesis import strategies as st

from relay.wal.watermark import Watermark


def test_a_commit_counts_only_once_it_is_durable() -> None:
    watermark = Watermark(100)
    ordinal = watermark.commit(200)
    assert watermark.lsn == 100
    watermark.durable(ordinal)
    assert watermark.lsn == 200


def test_a_keepalive_never_passes_a_commit_before_it_that_is_not_durable() -> None:
    watermark = Watermark(100)
    first = watermark.commit(200)
    second = watermark.commit(300)
    watermark.passed(400)
    watermark.durable(first)
    assert watermark.lsn == 200
    watermark.durable(second)
    assert watermark.lsn == 400


def test_a_keepalive_before_a_commit_does_not_wait_for_it() -> None:
    watermark = Watermark(100)
    watermark.passed(150)
    watermark.commit(200)
    assert watermark.lsn == 150


def test_an_idle_stream_moves_by_its_keepalives() -> None:
    watermark = Watermark(100)
    watermark.passed(150)
    watermark.passed(140)
    assert watermark.lsn == 150


def test_a_later_ordinal_covers_the_earlier_ones() -> None:
    watermark = Watermark(0)
    watermark.commit(10)
    second = watermark.commit(20)
    assert watermark.outstanding == 2
    watermark.durable(second)
    assert (watermark.lsn, watermark.outstanding) == (20, 0)


@given(st.lists(st.sampled_from(["commit", "keepalive", "durable"]), max_size=60))
def test_it_never_passes_a_commit_that_is_not_durable_and_never_goes_back(steps: list[str]) -> None:
    watermark = Watermark(0)
    lsn = 0
    open_commits: list[tuple[int, int]] = []  # (ordinal, end LSN)
    before = 0
    for step in steps:
        lsn += 10
        if step == "commit":
            open_commits.append((watermark.commit(lsn), lsn))
        elif step == "keepalive":
            watermark.passed(lsn)
        elif open_commits:
            watermark.durable(open_commits.pop(0)[0])
        assert watermark.lsn >= before
        before = watermark.lsn
        if open_commits:
            assert watermark.lsn < open_commits[0][1]
    for ordinal, _ in open_commits:
        watermark.durable(ordinal)
    if any(step != "durable" for step in steps):
        assert watermark.lsn == max(i * 10 for i, s in enumerate(steps, 1) if s != "durable")
