"""Partitions change hands, by consent, by crash and by sleep: nothing is lost, and a key's order holds."""

import re
import signal
import uuid
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import pytest

from fix_consumer import ProbeSite, StartProbe, Topic, offsets_of
from fix_kafka import Kafka

GIVEN = r"partitions assigned.*\[\d+\]"
"""A member that gets partitions names them; one that gets none says so too."""


@pytest.fixture
def group(topic_prefix: str) -> str:
    return f"{topic_prefix}.probe"


def test_a_partition_changes_hands_only_when_its_work_in_flight_is_done_and_committed(
    make_topic: Callable[..., Topic],
    start_probe: StartProbe,
    probe_site: ProbeSite,
    group: str,
    real_kafka: Kafka,
) -> None:
    topic = make_topic(partitions=2)
    topic.instruct(*["hold:gate"] * 12)
    giver = start_probe()
    giver.wait_for("^begin hold", times=12)
    taker = start_probe(wait_for="consumer started")
    giver.wait_for("partitions revoked")
    assert not re.search(GIVEN, taker.output())
    probe_site.open_gate("gate")
    taker.wait_for(GIVEN)
    topic.wait_until_drained(group)
    assert len(offsets_of(giver.output(), "end")) == 12
    assert "begin" not in taker.output()


def test_after_the_grace_of_a_revoke_the_work_is_cancelled_and_the_next_owner_does_it(
    make_topic: Callable[..., Topic],
    start_probe: StartProbe,
    probe_site: ProbeSite,
    group: str,
    real_kafka: Kafka,
) -> None:
    topic = make_topic(partitions=2)
    topic.instruct(*["hold:gate"] * 12)
    giver = start_probe({"RELAY_GRACE_S": "0.5"})
    giver.wait_for("^begin hold", times=12)
    taker = start_probe(wait_for=GIVEN)
    taker.wait_for("^begin hold")
    giver.wait_for("^cancelled hold")
    probe_site.open_gate("gate")
    topic.wait_until_drained(group)
    done = offsets_of(giver.output(), "end") + offsets_of(taker.output(), "end")
    assert len(done) == len(set(done)) == 12


def test_members_that_come_go_and_crash_lose_nothing_and_keep_every_keys_order(
    make_topic: Callable[..., Topic], start_probe: StartProbe, group: str, real_kafka: Kafka
) -> None:
    topic = make_topic(partitions=6)
    keys = [uuid.uuid4() for _ in range(30)]
    told: dict[uuid.UUID, list[str]] = defaultdict(list)

    def tell(round_: int) -> None:
        records = []
        for number in range(10):
            for key in keys:
                what = f"r{round_}n{number}"
                told[key].append(what)
                records.append(topic.record({"operation_id": str(key), "job_id": what}))
        topic.produce(records)

    tell(0)
    first = start_probe()
    first.wait_for("^end", times=20)
    second = start_probe(wait_for=GIVEN)
    tell(1)
    second.wait_for("^end", times=20)
    first.kill()
    tell(2)
    third = start_probe(wait_for=GIVEN)
    tell(3)
    third.wait_for("^end", times=20)
    assert second.stop() == 0
    topic.wait_until_drained(group)
    for key in keys:
        handled = set()
        for child in (first, second, third):
            said = re.findall(rf"^(begin|end) (\S+) key={key}", child.output(), re.MULTILINE)
            ended = [what for word, what in said if word == "end"]
            handled.update(ended)
            begun = [what for word, what in said if word == "begin"]
            places = [told[key].index(what) for what in begun]
            # A partition that left and came back is read again from its commit; within a stay, order holds.
            assert all(later > earlier for earlier, later in pairwise(places)), begun
            assert begun[: len(ended)] == ended
        assert handled == set(told[key])
    # What a stopped member had in flight was finished and committed: only the crash repeats anything.
    second_ended, third_ended = (set(offsets_of(child.output(), "end")) for child in (second, third))
    assert not second_ended & third_ended


def test_a_member_that_slept_through_its_session_commits_nothing_of_what_it_lost(
    make_topic: Callable[..., Topic],
    start_probe: StartProbe,
    probe_site: ProbeSite,
    group: str,
    real_kafka: Kafka,
) -> None:
    topic = make_topic()
    topic.instruct("hold:gate", "n1", "n2")
    sleeper = start_probe()
    sleeper.wait_for("^end n2")
    sleeper.signal(signal.SIGSTOP)
    probe_site.open_gate("gate")
    heir = start_probe(wait_for=GIVEN)
    topic.wait_until_drained(group)
    assert sorted(offsets_of(heir.output(), "end")) == [(0, 0), (0, 1), (0, 2)]
    sleeper.signal(signal.SIGCONT)
    sleeper.wait_for("partitions lost: nothing of them is committed")
    sleeper.wait_for("^end hold:gate")
    assert heir.stop() == 0
    # It is a member again, and goes on where the heir has stopped.
    topic.instruct("n3")
    sleeper.wait_for("^end n3")
    topic.wait_until_drained(group)
    assert "n3" not in heir.output()
