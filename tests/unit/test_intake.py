"""The intake: positions, what Kafka has already, whole transactions, and what the watermark is told."""

import pytest

from relay.errors import DecodeError, UsageError
from relay.intake import Part
from stream_scene import Scene, begin, commit, keepalive, relation, row


def indexes(part: Part) -> list[int]:
    return [int(dict(record[3])["relay_index"]) for record in part.records]


def test_a_transaction_is_one_part_and_its_rows_count_from_zero() -> None:
    scene = Scene()
    scene.transaction(10, 1, 2, 3)
    scene.transaction(20, 4)
    first, second = scene.parts()
    assert indexes(first) == [0, 1, 2]
    assert (first.last, first.end_lsn, first.seq) == ((10, 2), 11, 3)
    assert (indexes(second), second.last) == ([0], (20, 0))


def test_events_up_to_the_checkpoint_are_not_made_again() -> None:
    scene = Scene(after=(20, 1))
    scene.transaction(10, 1, 2)
    scene.transaction(20, 3, 4, 5)
    scene.transaction(30, 6)
    within, later = scene.parts()
    assert (indexes(within), within.last) == ([2], (20, 2))
    assert later.last == (30, 0)
    assert scene.intake.skipped == 4


def test_a_transaction_that_kafka_has_whole_moves_the_watermark() -> None:
    scene = Scene(after=(20, 1))
    scene.transaction(20, 1, 2)
    assert scene.parts() == []
    assert scene.watermark.lsn == 21


def test_an_empty_transaction_moves_the_watermark_and_makes_no_part() -> None:
    scene = Scene()
    scene.transaction(10)
    assert scene.parts() == []
    assert scene.watermark.lsn == 11


def test_nothing_moves_past_a_transaction_whose_events_are_not_durable() -> None:
    scene = Scene()
    scene.transaction(10, 1)
    scene.transaction(20)
    scene.intake.feed(keepalive(90))
    assert scene.watermark.lsn == 0
    (part,) = scene.parts()
    scene.watermark.durable(part.ordinal)
    assert scene.watermark.lsn == 90


def test_skipped_rows_count_for_the_highest_seq() -> None:
    scene = Scene(after=(20, 5))
    scene.transaction(10, 7, 8)
    assert scene.intake.seq == 8


def test_parked_and_routed_rows_alike_take_an_index() -> None:
    scene = Scene()
    scene.intake.feed(begin(10))
    for seq, event_type in enumerate(["collection.requested", "no.such", "collection.requested"]):
        scene.intake.feed(row(seq, event_type))
    scene.intake.feed(commit(10, 11))
    (part,) = scene.parts()
    assert indexes(part) == [0, 1, 2]
    assert list(part.parked) == [1]
    assert part.parked[1].reason_code == "unknown_schema"
    assert [record[0] for record in part.records] == [
        "app.collection.requested",
        "app.relay-dlq",
        "app.collection.requested",
    ]


def test_a_transaction_larger_than_the_bound_comes_in_parts_and_only_the_last_one_ends_it() -> None:
    scene = Scene(cut_bytes=20_000)
    scene.transaction(10, *range(50))
    parts = scene.parts()
    assert len(parts) > 1
    assert [index for part in parts for index in indexes(part)] == list(range(50))
    assert [part.ordinal > 0 for part in parts] == [False] * (len(parts) - 1) + [True]
    assert {part.end_lsn for part in parts[:-1]} == {0}


def test_a_cut_just_before_the_commit_still_ends_the_transaction() -> None:
    scene = Scene(cut_bytes=1)
    scene.transaction(10, 1)
    rows, end = scene.parts()
    assert (len(rows.records), rows.ordinal) == (1, 0)
    assert (len(end.records), end.end_lsn) == (0, 11)
    scene.watermark.durable(end.ordinal)
    assert scene.watermark.lsn == 11


def test_what_is_held_is_counted_and_released() -> None:
    scene = Scene()
    scene.intake.feed(begin(10))
    scene.intake.feed(row(1, padding=5_000))
    assert scene.intake.held_bytes > 5_000
    scene.intake.feed(commit(10, 11))
    scene.parts()
    assert scene.intake.held_bytes == 0


def test_a_refused_record_is_parked_and_events_before_it_come_one_by_one() -> None:
    scene = Scene(one_by_one_until=(10, 2), refused={(10, 1): "too odd"})
    scene.transaction(10, 1, 2, 3)
    parts = [part for part in scene.parts() if part.records]
    assert [indexes(part) for part in parts] == [[0], [1], [2]]
    assert parts[1].parked[0].reason_code == "refused_by_broker"
    assert parts[1].parked[0].reason == "too odd"


def test_a_stream_position_is_passed_by_a_later_begin_commit_or_keepalive() -> None:
    scene = Scene()
    scene.intake.feed(begin(10))
    assert scene.intake.streamed_to == 10
    scene.intake.feed(commit(10, 12))
    assert scene.intake.streamed_to == 12
    scene.intake.feed(keepalive(15))
    assert scene.intake.streamed_to == 15


def test_a_seq_that_is_no_integer_stops_at_the_relation() -> None:
    scene = Scene()
    with pytest.raises(UsageError, match="not an integer"):
        scene.intake.feed(relation(seq_oid=25))


@pytest.mark.parametrize(
    "stream",
    [
        [row(1)],
        [begin(10), commit(10, 12), row(1)],
        [begin(10), begin(20)],
        [commit(10, 12)],
        [begin(10), row(1), commit(20, 22)],
        [begin(10), commit(10, 12), commit(10, 12)],
    ],
)
def test_messages_out_of_order_are_no_events_of_another_transaction(stream: list[bytes]) -> None:
    scene = Scene()
    scene.intake.feed(relation())
    for data in stream[:-1]:
        scene.intake.feed(data)
    with pytest.raises(DecodeError, match="out of order"):
        scene.intake.feed(stream[-1])
