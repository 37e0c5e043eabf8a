"""Anybody's package adds a consumer by an entry point, and what is wrong with one is said in a sentence."""

import socket
import tomllib
import uuid
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from fix_consumer import ProbeSite, Topic, entry_points, transitions
from fix_process import ROOT, RunProcess
from fix_waiting import eventually

EXAMPLE = ROOT / "examples" / "notify"


def test_the_example_package_runs_as_it_stands(
    make_topic: Callable[..., Topic],
    probe_site: ProbeSite,
    run_process: RunProcess,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    declared = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    site = entry_points(tmp_path / "example", "notify", declared)
    topic = make_topic("operation.transitioned")
    operation_id = uuid.uuid4()
    topic.produce(transitions(topic, operation_id, range(1, 6)))
    child = run_process(["consume", "notify"], {**probe_site.environment, "PYTHONPATH": f"{site}:{EXAMPLE}"})
    child.wait_for(f"operation={operation_id} .*phase=succeeded")
    topic.wait_until_drained(f"{topic_prefix}.notify")
    assert child.stop() == 0


def test_an_unknown_name_is_answered_with_what_exists(probe_site: ProbeSite, run_process: RunProcess) -> None:
    child = run_process(["consume", "prob"], probe_site.environment)
    assert child.wait() == 2
    assert (
        "There is no consumer 'prob'; installed are collect, deliver, dispatch, probe, raw." in child.output()
    )


HEAD = "from consumers.runtime import Consumer\nclass Mine(Consumer):\n "


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import nothing_like_it", "can't be imported: No module named 'nothing_like_it'"),
        ("class Mine: pass", "is no subclass of consumers.runtime.Consumer"),
        (
            HEAD + "name = 'other'\n topics = ('x',)",
            "calls itself 'other', and its entry point calls it 'mine'",
        ),
        (
            HEAD + "name = 'mine'\n topics = ('x.y',)",
            "names the event type 'x.y', which has no schema",
        ),
        (
            HEAD + "name = 'mine'\n topics = ()",
            "names no event type",
        ),
    ],
)
def test_what_is_wrong_with_a_consumer_is_said_in_a_sentence(
    probe_site: ProbeSite, run_process: RunProcess, tmp_path: Path, source: str, words: str
) -> None:
    site = entry_points(tmp_path / "wrong", "mine", {"relay.consumers": {"mine": "mine_module:Mine"}})
    (site / "mine_module.py").write_text(source)
    child = run_process(["consume", "mine"], {**probe_site.environment, "PYTHONPATH": str(site)})
    assert child.wait() == 2
    assert words in child.output()
    assert "Traceback" not in child.output()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RELAY_KAFKA_ENABLE_AUTO_COMMIT": "true"}, "RELAY_KAFKA_ENABLE_AUTO_COMMIT is set to true"),
        ({"RELAY_KAFKA_ISOLATION_LEVEL": "read_uncommitted"}, "rely on isolation.level = read_committed"),
        ({"RELAY_KAFKA_NO_SUCH_THING": "1"}, 'No such configuration property: "no.such.thing"'),
    ],
)
def test_a_kafka_setting_that_breaks_a_promise_stops_at_start(
    probe_site: ProbeSite, run_process: RunProcess, environment: dict[str, str], words: str
) -> None:
    child = run_process(["consume", "probe"], {**probe_site.environment, **environment})
    assert child.wait() == 2
    assert words in child.output()


def test_metrics_count_what_became_of_records(
    make_topic: Callable[..., Topic], probe_site: ProbeSite, run_process: RunProcess, topic_prefix: str
) -> None:
    topic = make_topic()
    topic.instruct("one", "two", "permanent")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    child = run_process(["consume", "probe"], {**probe_site.environment, "RELAY_METRICS_PORT": str(port)})
    child.wait_for("partitions assigned")
    topic.wait_until_drained(f"{topic_prefix}.probe")

    def counted() -> bool:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        return all(
            line in text
            for line in (
                'relay_consumer_records_total{consumer="probe",outcome="handled"} 2.0',
                'relay_consumer_records_total{consumer="probe",outcome="parked"} 1.0',
                'relay_consumer_outstanding_records{consumer="probe"} 0.0',
            )
        )

    eventually(counted, "the metrics tell of two handled and one parked")
    second = run_process(["consume", "probe"], {**probe_site.environment, "RELAY_METRICS_PORT": str(port)})
    assert second.wait() == 2
    assert f"The metrics port {port} can't be used" in second.output()
