"""A spool is replayed on any host: what its process was told is stored, nothing is sent, and what doesn't
belong here stays where it is.
"""

import asyncio
import json
import shutil
import signal
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from consumers.operations.resolutions import Resolution
from consumers.providers.answer import Answer, to_record
from consumers.providers.spool import Spool
from fix_commands import Command
from fix_dispatch import Dispatching
from fix_process import RunProcess
from fix_proxy import TcpProxy
from fix_system import System

ACCEPTED = json.dumps({"job_id": "job-of-the-spool"}).encode()


def answer() -> dict[str, object]:
    """What the provider said to the process that is gone."""
    headers = (("content-type", "application/json"), ("content-length", str(len(ACCEPTED))))
    told = Answer(
        sent=True, hook_returned=True, status=200, headers=headers, body=ACCEPTED, body_complete=True
    )
    return dict(to_record(told))


@pytest.mark.anyio
async def test_each_entry_is_applied_once_and_what_does_not_belong_here_stays(
    dispatching: Dispatching, command: Command, tmp_path: Path
) -> None:
    scene, folder = dispatching, tmp_path / "copied"
    answered, silent, damaged, other = [scene.prepared() for _ in range(4)]
    attempts = {one: str(await scene.begun(one)) for one in (answered, silent, damaged, other)}
    stranger = str(uuid4())

    spool = Spool.open(folder)
    spool.sending(attempts[answered], str(answered))
    spool.answer(attempts[answered], answer())
    spool.sending(attempts[silent], str(silent))
    spool.sending(attempts[damaged], str(damaged))
    with (spool.folder / f"{attempts[damaged]}.jsonl").open("ab") as file:
        file.write(b'{"kind": "answer", "answer": {"job_id": \xff\xff\n')
    spool.sending(attempts[other], str(answered))  # another operation's, by its own words
    spool.sending(stranger, str(uuid4()))

    env = scene.environment
    # As long as its process lives, it is that process's.
    in_use = await asyncio.to_thread(lambda: command("spool", "import", str(folder), "--json", env=env))
    assert (in_use.status, in_use.json["in_use"], in_use.json["applied"]) == (0, [str(spool.folder)], [])
    spool.close()

    listed = await asyncio.to_thread(lambda: command("spool", "list", str(folder), "--json", env={}))
    by_attempt = {one["attempt_id"]: one for one in listed.json}
    assert set(by_attempt) == {*attempts.values(), stranger}
    assert by_attempt[attempts[answered]]["answered"]
    assert by_attempt[attempts[damaged]]["damaged"]
    assert not any(one["process_runs"] for one in listed.json)

    again = tmp_path / "copied-again"
    shutil.copytree(folder, again)
    kept = {attempts[damaged], attempts[other], stranger}
    for copy in (folder, folder, again):
        done = await asyncio.to_thread(partial(command, "spool", "import", str(copy), "--json", env=env))
        assert done.status == 1, done.err
        assert {one["attempt_id"] for one in done.json["kept"]} == kept
        assert {path.stem for path in copy.glob("*/*.jsonl")} == kept
    assert scene.row(answered, "phase, job_id") == ("accepted", "job-of-the-spool")
    assert scene.phase(silent) == "uncertain"
    assert {scene.phase(one) for one in (damaged, other)} == {"submitting"}
    assert scene.one("select count(*) from relay.remote_job") == 1
    assert scene.simulator.truth()["posts"] == []
    reasons = " ".join(one["why"] for one in done.json["kept"])
    assert "doesn't know the attempt" in reasons
    assert "can't be read" in reasons
    assert str(other) in reasons

    await scene.wake("1 hour")
    # The sender has reported: a person may decide without its spool.
    await scene.decided(silent, Resolution.RESUBMIT)
    nowhere = await asyncio.to_thread(lambda: command("spool", "list", str(tmp_path / "no"), env={}))
    assert (nowhere.status, "RELAY_SPOOL" in nowhere.err) == (1, True)


@pytest.mark.slow
def test_a_worker_that_died_while_postgres_was_away_is_heard_on_another_host(
    system: System, tcp_proxy: object, command: Command, run_process: RunProcess, tmp_path: Path
) -> None:
    server = system.database.server
    proxy: TcpProxy = tcp_proxy(server.host, server.port)  # type: ignore[operator]
    url = system.database.url_as("relay_worker").replace(
        f"{server.host}:{server.port}", f"{proxy.host}:{proxy.port}"
    )
    system.start("run")
    system.start("dispatch", failpoints="dispatch.answer_received=stop", RELAY_DATABASE_URL=url)
    operation_id: UUID = system.approve()
    worker = system.processes.pop("dispatch")
    worker.wait_for("failpoint dispatch.answer_received stop")
    worker.wait_until_stopped()
    # The provider has accepted; from here on the worker reaches no database.
    proxy.close()
    worker.signal(signal.SIGCONT)
    worker.wait_for("the answer is not written yet")
    worker.kill()
    assert system.phase(operation_id) == "submitting"

    elsewhere = tmp_path / "another-host"
    shutil.copytree(system.folder / "spool", elsewhere)
    importer = system.environment("relay_worker")
    killed = run_process(
        ["spool", "import", str(elsewhere)],
        importer | {"RELAY_FAILPOINTS": "spool_import.applied=kill", "RELAY_ALLOW_FAILPOINTS": "1"},
    )
    assert killed.wait() == -9, killed.output()
    imported = command("spool", "import", str(elsewhere), env=importer)
    assert (imported.status, "1 applied" in imported.out) == (0, True), imported.err
    (job,) = [one["job_id"] for one in system.truth()["jobs"]]
    assert system.one("select phase, job_id from relay.operation") == ("accepted", job)

    # The host comes back with its own copy: nothing changes, and nothing is sent.
    system.start("dispatch", "collect", "deliver", "schedule")
    system.wait_for_phase(operation_id, "succeeded")
    assert system.posts(operation_id) == 1
