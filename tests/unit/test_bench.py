"""The benchmark's arithmetic: a wrong figure must not look like a right one, and a lost row has no figure."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.curve import MACHINE, Point, drained, visible
from bench.latency import delays
from bench.plan import plan, too_slow
from bench.receiver import Latencies
from bench.report import drain_table, failings
from bench.shape import BYTES, NATIVE, SCHEMAS, Mark
from bench.spread import Spread, percentile
from bench.tally import Broken, Tally
from relay.avro.catalog import Catalog


def tally(*marks: tuple[bytes, int]) -> Tally:
    counted = Tally()
    for key, n in marks:
        counted.take(key, n)
    return counted


# Losses, doubles, order


def test_rows_that_came_once_in_order_by_key_are_accepted() -> None:
    tally((b"a", 0), (b"b", 1), (b"b", 3), (b"a", 2)).require(4, "somebody")


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ([(b"a", 0), (b"a", 2)], "1 were lost"),
        ([(b"a", 0), (b"a", 1), (b"a", 2), (b"a", 2)], "1 came twice"),
        ([(b"a", 1), (b"a", 0), (b"a", 2)], "1 came out of order"),
        ([(b"a", 0), (b"a", 1), (b"a", 2), (b"a", 7)], "1 were never committed"),
        ([], "3 were lost"),
    ],
)
def test_a_row_lost_doubled_disordered_or_invented_is_refused(
    marks: list[tuple[bytes, int]], said: str
) -> None:
    with pytest.raises(Broken, match=said):
        tally(*marks).require(3, "somebody")


@given(st.permutations(range(40)), st.integers(1, 5))
def test_only_the_order_within_a_key_counts(order: list[int], keys: int) -> None:
    counted = tally(*((b"%d" % (n % keys), n) for n in order))
    broken = any(
        earlier > later
        for place, earlier in enumerate(order)
        for later in order[place:]
        if earlier % keys == later % keys
    )
    assert (counted.misordered > 0) == broken
    assert counted.distinct == len(order)


# Figures


def test_what_is_visible_leaves_out_offsets_that_hold_no_record() -> None:
    offsets = [[0, 1, 3, 4, 6], [0, 2]]
    assert visible(offsets, [0, 0]) == 0
    assert visible(offsets, [3, 1]) == 3
    assert visible(offsets, [7, 3]) == 7


def test_a_drain_is_counted_from_the_start_and_its_second_half_from_the_middle() -> None:
    curve = [
        Point(0.5, 0, {"subject": 0.4}),
        Point(1.0, 10, {"subject": 1.0}),
        Point(2.0, 90, {"subject": 2.0}),
        Point(2.5, 100, {"subject": 2.5}),
        Point(9.0, 100, {"subject": 9.0}),
    ]
    measured = drained(curve, 100, peak_bytes=7, processors=2)
    assert measured.first_s == 1.0
    assert measured.done_s == 2.5
    assert measured.whole_per_s == 40.0
    assert measured.second_half_per_s == pytest.approx(50 / (2.5 - 1.5))
    assert measured.cpu_s_per_million["subject"] == 25_000
    assert measured.second_half_cpu_s_per_million["subject"] == pytest.approx(20_000)


def test_what_others_took_is_what_the_run_did_not_use() -> None:
    used = {"subject": 1.0, "broker": 0.5, "bench": 0.5, MACHINE: 3.0}
    assert drained([Point(2.0, 10, used)], 10, peak_bytes=0, processors=2).others_share == 0.25


def test_a_drain_that_did_not_end_has_no_figures() -> None:
    with pytest.raises(ValueError, match="ends at 99 of 100"):
        drained([Point(1.0, 99, {})], 100, peak_bytes=0, processors=1)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_a_value_that_was_measured(values: list[float], fraction: float) -> None:
    ascending = sorted(values)
    found = percentile(ascending, fraction)
    assert found in ascending
    assert sum(value <= found for value in ascending) >= fraction * len(ascending)


def test_nothing_measured_is_an_error_and_no_zero() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 0.5)
    with pytest.raises(ValueError, match="nothing was measured"):
        Spread.of([])


def test_the_first_record_and_the_warm_up_are_no_latencies() -> None:
    taken = Latencies()
    for stamped_at_us, took_us in [(0, 9_000_000), (10_000_000, 8_000), (11_000_000, 1_000), (12_500_000, 3)]:
        taken.stamped_at_us.append(stamped_at_us)
        taken.took_us.append(took_us)
    measured = delays(taken, seconds=1.0, warm_up_s=1.0)
    assert measured.count == 1
    assert measured.most_ms == 1.0
    assert measured.reached_per_s == 1.0


# What is read out of a row


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_a_mark_is_read_from_bytes(n: int, stamp: int) -> None:
    assert BYTES.mark(struct.pack(">qq", n, stamp) + b"bench") == Mark(n, stamp)


@given(st.integers(0, 2**40))
def test_a_mark_is_read_from_avro_as_the_relay_writes_it(n: int) -> None:
    encode = Catalog.load([SCHEMAS]).encoder("bench.event", 1)
    value = encode(
        b'{"n": %d, "cost": 1.25, "note": "", "phase": "submitted", "urgent": false, "attempt": 3, '
        b'"frame_id": "00000000-0000-0000-0000-000000000001", '
        b'"stamped_at": "2026-01-02T03:04:05.000006+00:00"}' % n
    )
    assert NATIVE.mark(value) == Mark(n, 1767323045000006)


# The plan and the check


def test_rows_given_by_hand_replace_those_of_the_plan() -> None:
    chosen = plan(quick=False, part="drain", rows=5_000, repetitions=1)
    assert {drain.rows for drain in chosen.drains} == {5_000}
    assert len(set(chosen.drains)) == len(chosen.drains)
    assert chosen.latencies == ()


@pytest.mark.parametrize(("ratio", "fails"), [(0.01, True), (0.9, False)])
def test_the_check_compares_with_the_floor_of_the_same_run(ratio: float, fails: bool) -> None:
    from bench.drain import DrainResult

    rows = 1_000
    floor = drained([Point(1.0, rows, {"subject": 0.1})], rows, peak_bytes=1, processors=2)
    slower = drained([Point(1.0 / ratio, rows, {"subject": 0.1})], rows, peak_bytes=1, processors=2)
    result = DrainResult(
        plan(quick=True).drains[0],
        {"pg_recvlogical": [floor], "relay, exactly once": [slower]},
        {"pg_recvlogical": "floor", "relay, exactly once": "exactly_once"},
    )
    assert bool(failings([result])) is fails
    assert f"{ratio:.2f}" in drain_table(result)


def test_a_peer_has_no_bound() -> None:
    assert too_slow("bytes", "floor", 0.0) is None
