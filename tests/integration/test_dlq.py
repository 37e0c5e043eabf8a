"""What a group has parked is listed, shown, given back to that group alone, once, or given up by name."""

from collections.abc import Callable
from typing import LiteralString

import pytest
from confluent_kafka.admin import AdminClient

from fix_commands import Command, Finished
from fix_consumer import ProbeSite, StartProbe, Topic, headers_of, read_all
from fix_kafka import Kafka
from fix_postgres import Database
from fix_process import RunProcess
from relay.commands.who import who

pytestmark = pytest.mark.slow


def test_a_parked_event_is_given_back_to_its_group_alone_and_once(
    make_topic: Callable[..., Topic],
    start_probe: StartProbe,
    probe_site: ProbeSite,
    database: Database,
    run_process: RunProcess,
    real_kafka: Kafka,
    topic_prefix: str,
    command: Command,
) -> None:
    topic, group = make_topic(), f"{topic_prefix}.probe"
    env = {
        "RELAY_KAFKA_BOOTSTRAP": real_kafka.bootstrap,
        "RELAY_TOPIC_PREFIX": topic_prefix,
        "RELAY_DATABASE_URL": database.url_as("relay_operator"),
    }

    def dlq(*args: str) -> Finished:
        return command("dlq", *args, env=env)

    unknown = dlq("list", "nobody")
    assert (unknown.status, "There is no consumer group" in unknown.err) == (2, True), unknown.err
    topic.instruct("mended:gate", "permanent", "fine", "mended:later")
    probe = start_probe()
    raw = start_probe(name="raw")
    topic.wait_until_drained(group)
    raw.wait_for("^raw", times=4)

    listed = dlq("list", "probe", "--json")
    assert listed.status == 0, listed.err
    mended, permanent, later = listed.json
    assert [one["from_offset"] for one in (mended, permanent, later)] == [0, 1, 3]
    assert {one["reason_code"] for one in listed.json} == {"permanent"}
    assert mended["place"] == f"{topic.name}.{group}.dlq/0@0"
    shown = dlq("show", group, mended["event_id"], "--json").json[0]
    assert (shown["payload"]["job_id"], shown["from_place"]) == ("mended:gate", f"{topic.name}/0@0")
    absent = dlq("show", "probe", "00000000-0000-0000-0000-000000000000")
    assert (absent.status, "`relay dlq list" in absent.err) == (1, True), absent.err
    assert dlq("show", "probe", "neither").status == 2

    # Killed before and after the event is sent: the next one sends it, or finds it there.
    probe_site.open_gate("gate")
    for point in ("dlq.replay_requested", "dlq.replay_sent"):
        killed = run_process(
            ["dlq", "replay", "probe", mended["place"]],
            env | {"RELAY_FAILPOINTS": f"{point}=kill", "RELAY_ALLOW_FAILPOINTS": "1"},
        )
        assert killed.wait() == -9, killed.output()
    found = dlq("replay", "probe", mended["event_id"], "--json")
    assert (found.status, found.json["sent_before"]) == (0, [mended["place"]]), found.err
    probe.wait_for("^end mended:gate", times=1)
    twice = dlq("replay", "probe", mended["place"])
    assert (twice.status, "--again" in twice.out) == (1, True), twice.out
    (given_back,) = read_all(real_kafka, f"{topic.name}.{group}.retry", at_least=1)
    assert headers_of(given_back)["ce_id"] == mended["event_id"]
    assert "dlq_reason" not in headers_of(given_back)

    given_up = dlq("discard", "probe", permanent["event_id"], "--why", "a test's own")
    assert given_up.status == 0, given_up.err
    refused = dlq("discard", "probe", permanent["place"], "--why", "again")
    assert (refused.status, "decided about already" in refused.err) == (1, True)
    with database.connect() as connection:
        query: LiteralString = 'select state, who, why from relay.dead_letter_decision where "offset" = 1'
        assert connection.execute(query).fetchone() == ("discarded", who(), "a test's own")

    # What fails again is parked again, in the same topic, and still says where it was met first.
    again = dlq("replay", "probe", "--all", "--json")
    assert (again.status, again.json["sent"]) == (0, [later["place"]]), again.err
    read_all(real_kafka, f"{topic.name}.{group}.dlq", at_least=4)
    (open_now,) = dlq("list", "probe", "--json").json
    assert (open_now["event_id"], open_now["from_place"]) == (later["event_id"], later["from_place"])
    assert open_now["place"] != later["place"]
    admin = AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    names = [name for name in admin.list_topics(timeout=60).topics if name.startswith(f"{topic_prefix}.")]
    assert sorted(names) == [topic.name, f"{topic.name}.{group}.dlq", f"{topic.name}.{group}.retry"]
    assert raw.output().count("\nraw") + raw.output().startswith("raw") == 4

    # Offsets move only while nobody is there.
    groups = command("groups", "list", "--json", env=env).json
    assert {one["group"] for one in groups} >= {group, f"{topic_prefix}.raw"}
    seen = command("groups", "show", "probe", "--json", env=env).json
    assert {one["topic"]: one["lag"] for one in seen["partitions"]}[topic.name] == 0
    busy = command("groups", "reset", "probe", "--to", "start", "--apply", env=env)
    assert (busy.status, "Stop them" in busy.err) == (1, True)
    assert probe.stop() == 0
    looked = command("groups", "reset", "probe", "--to", "start", "--topic", topic.name, env=env)
    assert (looked.status, topic.committed(group)) == (0, topic.ends()), looked.err
    moved = command("groups", "reset", "probe", "--to", "start", "--topic", topic.name, "--apply", env=env)
    assert (moved.status, topic.committed(group)) == (0, {0: 0}), moved.err
    assert command("groups", "show", "nobody", env=env).status == 2
