"""What Kafka's history covers: where an operation's events are, and were."""

from uuid import uuid4

from consumers.reconcile.history import History
from relay.kafka.partitioner import partition_of


def test_a_topic_that_grew_is_asked_for_its_older_events_too() -> None:
    """With three partitions the operation's events went elsewhere than they go with six."""
    moved = next(
        one
        for one in iter(uuid4, None)
        if partition_of(str(one).encode(), 3) != partition_of(str(one).encode(), 6)
    )
    was = partition_of(str(moved).encode(), 3)
    history = History(partitions=6, reaches_back=True, incomplete={was})
    history.note_place(moved, partition_of(str(moved).encode(), 6))
    assert history.covers(moved)
    history.note_place(moved, was)
    assert not history.covers(moved)
    assert not History(partitions=6).covers(moved)
    assert History(partitions=6, reaches_back=True).covers(moved)
