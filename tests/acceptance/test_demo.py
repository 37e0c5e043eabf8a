"""`relay demo` shows everything that it is there to show, and leaves nothing behind, however it ends."""

import hashlib
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from consumers.providers.simulator_world import Fault
from fix_process import Process, RunProcess

WHOLE_S = 240.0
"""For a demo that takes half a minute on an idle machine."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where Postgres can run as another account, as it must for root: not below pytest's own."""
    parent = Path(tempfile.mkdtemp(prefix="relay-test-demo-"))
    parent.chmod(0o711)
    yield parent / "kept"
    shutil.rmtree(parent)


def test_the_demo_holds_with_every_fault_and_both_crashes(run_process: RunProcess, folder: Path) -> None:
    demo = run_process(["demo", "--operations", "40", "--seed", "20", "--keep", str(folder), "--json"])
    assert demo.wait(WHOLE_S) == 0, demo.output()

    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["holds"] is True
    assert summary["failures"] == []
    assert [one["number"] for one in summary["invariants"] if one["holds"] and one["checked"]] == [
        *range(1, 8)
    ]
    assert set(summary["faults"]) == set(Fault) - {Fault.SAME_JOB}
    assert all(one["struck"] >= one["planned"] > 0 for one in summary["faults"].values())
    assert {one["process"]: one["in_flight"] > 0 for one in summary["crashes"]} == {
        "dispatch": True,
        "relay": True,
    }
    assert summary["uncertain"]
    assert all(
        re.fullmatch(r"relay review show [0-9a-f-]{36}", one["command"]) for one in summary["uncertain"]
    )
    assert summary["replay"]["posts_before"] == summary["replay"]["posts_after"]
    assert summary["delivery"] == "at_least_once"
    assert '"holds": true' in demo.output()
    _files_are_what_the_provider_served(folder, summary)
    _the_kept_database_can_be_looked_at(run_process, folder, summary)


def _files_are_what_the_provider_served(folder: Path, summary: dict[str, Any]) -> None:
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    served = {file["sha256"] for job in truth["jobs"] for file in job["files"]}
    stored = [path for path in (folder / "outputs").rglob("*") if path.is_file()]
    assert len(stored) == summary["files"]["delivered"] == summary["files"]["verified"]
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() in served for path in stored)


def _the_kept_database_can_be_looked_at(
    run_process: RunProcess, folder: Path, summary: dict[str, Any]
) -> None:
    looking = run_process(["demo", "--look", str(folder)], wait_for="runs until Ctrl-C")
    url = re.search(r"RELAY_DATABASE_URL='([^']+)'", looking.output())
    assert url is not None
    with psycopg.connect(url[1]) as connection:
        row = connection.execute("select count(*) from relay.operation where phase = 'uncertain'").fetchone()
    assert row == (len(summary["uncertain"]),)
    told = summary["uncertain"][0]
    shown = run_process(told["command"].split()[1:], {"RELAY_DATABASE_URL": url[1]})
    assert shown.wait() == 0, shown.output()
    assert told["operation_id"] in shown.output()
    audited = run_process(["ops", "audit"], {"RELAY_DATABASE_URL": url[1]})
    assert audited.wait() == 0, audited.output()
    assert looking.stop() == 0


def test_an_interrupted_demo_ends_its_children_and_leaves_nothing(run_process: RunProcess) -> None:
    demo = run_process(["demo", "--seed", "21"], wait_for="SIGKILL to dispatch")
    demo.signal(signal.SIGINT)
    assert demo.wait() == 130
    assert _all_ended(demo)
    assert not _its_folder(demo).exists()


def test_a_child_that_dies_is_reported_with_the_end_of_its_log(run_process: RunProcess) -> None:
    demo = run_process(["demo", "--seed", "22"], wait_for="waiting until every operation is final")
    collect = re.search(r"collect \((\d+)\)", demo.output())
    assert collect is not None
    os.kill(int(collect[1]), signal.SIGKILL)
    assert demo.wait() == 1
    try:
        assert "collect" in demo.output()
        assert "ended with status -9" in demo.output()
        assert '"event": "consumer started"' in demo.output()
        assert f"Everything is kept in {_its_folder(demo)}" in demo.output()
        assert _all_ended(demo)
    finally:
        shutil.rmtree(_its_folder(demo))


def test_a_folder_that_is_in_use_is_refused(run_process: RunProcess, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious", encoding="utf-8")
    demo = run_process(["demo", "--keep", str(tmp_path)])
    assert demo.wait() == 2
    assert "isn't empty" in demo.output()
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "precious"


def _its_folder(demo: Process) -> Path:
    found = re.search(r"everything is in (\S+)", demo.output())
    assert found is not None
    return Path(found[1])


def _all_ended(demo: Process) -> bool:
    """Whether every child that the demo named has ended, restarted ones included."""
    started = "\n".join(re.findall(r"started .*", demo.output()))
    pids = [int(pid) for pid in re.findall(r"\((\d+)\)", started)]
    assert len(pids) >= len(("relay", "dispatch", "collect", "deliver", "schedule"))
    return not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
