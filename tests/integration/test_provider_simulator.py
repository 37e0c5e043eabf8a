"""The simulator tells the truth about what it did, and each fault does what its name says."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from consumers.providers.client import ProviderClient
from consumers.providers.destination import OutputCut, OutputExpired
from consumers.providers.download import InMemory
from consumers.providers.download import download as download_file
from consumers.providers.observation import Observation, classify_observation
from consumers.providers.outcome import Submission, classify_submission
from consumers.providers.request import render_observe, render_submit
from consumers.providers.simulator import Simulator
from consumers.providers.simulator_world import Fault, Plan
from provider_samples import profile
from relay.errors import UsageError

pytestmark = pytest.mark.anyio

SIMULATOR = profile("simulator")
LONG_S = 30.0


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator(seed=7, plan=Plan(drip_s=0.2, late_s=0.2)) as running:
        yield running


async def recorded() -> None:
    """A hook that has nothing against sending."""


async def submit(
    simulator: Simulator,
    operation: str,
    *faults: Fault,
    deadline_s: float = LONG_S,
    secret: str | None = None,
) -> Submission:
    client = ProviderClient(SIMULATOR, base_url=simulator.url, secret=secret)
    request = render_submit(
        SIMULATOR,
        simulator.url,
        operation_id=operation,
        payload=json.dumps({"prompt": operation, "simulate": {"fault": list(faults)}}).encode(),
        secret=secret,
        idempotency_key=None,
    )
    answer = await client.submit(request, before_first_byte=recorded, deadline=time.monotonic() + deadline_s)
    return classify_submission(SIMULATOR, answer)


async def observe(simulator: Simulator, job_id: str) -> Observation:
    client = ProviderClient(SIMULATOR, base_url=simulator.url)
    answer = await client.observe(render_observe(SIMULATOR, simulator.url, job_id, None), LONG_S)
    return classify_observation(SIMULATOR, answer, job_id=job_id)


async def finished(simulator: Simulator, job_id: str) -> Observation:
    for _ in range(4):
        found = await observe(simulator, job_id)
        if found.state != "running":
            return found
    raise AssertionError("the job never ended")


async def download(simulator: Simulator, url: str) -> bytes:
    target = InMemory()
    rules = ProviderClient(SIMULATOR, base_url=simulator.url).download_rules()
    await download_file(url, target=target, rules=rules)
    return bytes(target.content)


def truth_over_http(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/_truth", timeout=LONG_S) as answer:
        truth: dict[str, Any] = json.load(answer)
    return truth


def replanned(url: str, plan: dict[str, Any]) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/_faults", data=json.dumps(plan).encode(), timeout=LONG_S) as answer:
        accepted: dict[str, Any] = json.load(answer)["plan"]
    return accepted


async def test_an_accepted_operation_becomes_files_whose_digests_the_truth_knows(
    simulator: Simulator,
) -> None:
    accepted = await submit(simulator, "op-1")
    assert accepted.verdict == "accepted"
    assert accepted.job_id is not None
    done = await finished(simulator, accepted.job_id)
    assert done.state == "succeeded"
    (job,) = simulator.truth()["jobs"]
    assert (job["job_id"], job["reference"], job["state"]) == (accepted.job_id, "op-1", "succeeded")
    assert done.cost == Decimal(job["charged"])
    assert [output.sha256 for output in done.outputs] == [one["sha256"] for one in job["outputs"]]
    for output in done.outputs:
        content = await download(simulator, output.url)
        assert hashlib.sha256(content).hexdigest() == output.sha256
        assert len(content) == output.size


async def test_the_truth_names_each_post_with_its_body(simulator: Simulator) -> None:
    await submit(simulator, "op-1")
    await submit(simulator, "op-1")
    truth = truth_over_http(simulator.url)
    payload = json.dumps({"prompt": "op-1", "simulate": {"fault": []}}).encode()
    assert [(post["reference"], post["body_sha256"]) for post in truth["posts"]] == [
        ("op-1", hashlib.sha256(payload).hexdigest())
    ] * 2
    assert [job["post"] for job in truth["jobs"]] == [1, 2]
    assert truth == simulator.truth()


@pytest.mark.parametrize(
    ("fault", "verdict", "reason", "makes_a_job"),
    [
        (Fault.CUT_BEFORE_READING, "unknown", "no_answer", False),
        (Fault.CUT_BEFORE_ANSWER, "unknown", "no_answer", True),
        (Fault.BAD_GATEWAY, "unknown", "status_502", False),
        (Fault.BAD_GATEWAY_WITH_JOB, "accepted", "accepted_with_error", True),
        (Fault.RATE_LIMITED, "refused", "rate_limited", False),
        (Fault.UNPROCESSABLE, "refused", "invalid_request", False),
        (Fault.ERROR_AFTER_CREATION, "unknown", "status_500", True),
        (Fault.TRUNCATED_ANSWER, "unknown", "answer_cut", True),
        (Fault.SLOW_DRIP, "unknown", "answer_cut", True),
        (Fault.REDIRECT, "unknown", "redirect", False),
        (Fault.LATE_ACCEPTANCE, "accepted", "accepted", True),
        (Fault.ID_ELSEWHERE, "unknown", "job_id_not_at_its_path", True),
    ],
)
async def test_each_fault_of_a_submission_is_what_its_name_says_and_strikes_once(
    simulator: Simulator, fault: Fault, verdict: str, reason: str, makes_a_job: bool
) -> None:
    deadline_s = 1.0 if fault is Fault.SLOW_DRIP else LONG_S
    found = await submit(simulator, "op-1", fault, deadline_s=deadline_s)
    assert (found.verdict, found.reason) == (verdict, reason)
    truth = simulator.truth()
    assert (len(truth["posts"]), len(truth["jobs"])) == (1, int(makes_a_job))
    assert truth["faults"] == {fault: 1}
    assert truth["posts"][0]["fault"] == fault
    assert (await submit(simulator, "op-1", fault)).verdict == "accepted"


async def test_the_last_job_is_given_to_another_request_and_charged_once(simulator: Simulator) -> None:
    first = await submit(simulator, "op-1")
    again = await submit(simulator, "op-2", Fault.SAME_JOB)
    assert again.verdict == "accepted"
    assert again.job_id == first.job_id
    truth = simulator.truth()
    assert [job["reference"] for job in truth["jobs"]] == ["op-1"]
    assert [post["job_id"] for post in truth["posts"]] == [first.job_id] * 2


async def test_a_client_that_gave_up_still_gets_a_job_from_a_late_acceptance() -> None:
    with Simulator(plan=Plan(late_s=0.5)) as simulator:
        found = await submit(simulator, "op-1", Fault.LATE_ACCEPTANCE, deadline_s=0.2)
        assert found.verdict == "unknown"
        end = time.monotonic() + LONG_S
        while not simulator.truth()["jobs"] and time.monotonic() < end:
            await observe(simulator, "nobody")
        assert [job["reference"] for job in simulator.truth()["jobs"]] == ["op-1"]


async def test_a_failed_job_fails_and_a_stuck_one_never_ends(simulator: Simulator) -> None:
    failed = await submit(simulator, "op-1", Fault.JOB_FAILED)
    assert failed.job_id is not None
    done = await finished(simulator, failed.job_id)
    assert (done.state, done.outputs) == ("failed", ())
    assert done.cost is not None
    stuck = await submit(simulator, "op-2", Fault.JOB_STUCK)
    assert stuck.job_id is not None
    assert {(await observe(simulator, stuck.job_id)).state for _ in range(10)} == {"running"}


async def test_expired_urls_are_mended_by_another_observation_or_by_none(simulator: Simulator) -> None:
    once = await submit(simulator, "op-1", Fault.OUTPUT_EXPIRED_ONCE)
    never = await submit(simulator, "op-2", Fault.OUTPUT_EXPIRED)
    for accepted, mended in ((once, True), (never, False)):
        assert accepted.job_id is not None
        first = await finished(simulator, accepted.job_id)
        with pytest.raises(OutputExpired):
            await download(simulator, first.outputs[0].url)
        second = await observe(simulator, accepted.job_id)
        with contextlib.nullcontext() if mended else pytest.raises(OutputExpired):
            content = await download(simulator, second.outputs[0].url)
            assert hashlib.sha256(content).hexdigest() == second.outputs[0].sha256
    assert set(simulator.truth()["faults"]) == {Fault.OUTPUT_EXPIRED_ONCE, Fault.OUTPUT_EXPIRED}


async def test_a_cut_download_is_whole_the_second_time(simulator: Simulator) -> None:
    accepted = await submit(simulator, "op-1", Fault.OUTPUT_CUT)
    assert accepted.job_id is not None
    url = (await finished(simulator, accepted.job_id)).outputs[0].url
    with pytest.raises(OutputCut):
        await download(simulator, url)
    assert await download(simulator, url)
    assert [one["whole"] for one in simulator.truth()["downloads"]] == [False, True]


async def test_a_wrong_credential_makes_no_job() -> None:
    with Simulator(secret="right") as simulator:
        assert (await submit(simulator, "op-1", secret="wrong")).reason == "status_401"
        assert (await submit(simulator, "op-1", secret="right")).verdict == "accepted"
        assert len(simulator.truth()["jobs"]) == 1


async def test_the_same_seed_and_operations_meet_the_same_faults() -> None:
    plan = Plan(faults={Fault.CUT_BEFORE_READING: 0.2, Fault.BAD_GATEWAY: 0.2, Fault.JOB_FAILED: 0.2})
    seen: list[tuple[dict[str, str], dict[str, int]]] = []
    for seed in (1, 1, 2):
        with Simulator(seed=seed, plan=plan) as simulator:
            # The order of arrival must not matter: consumers are many.
            order = range(20) if not seen else reversed(range(20))
            found = {f"op-{n}": (await submit_plain(simulator, f"op-{n}")).reason for n in order}
            faults = simulator.truth()["faults"]
            seen.append((found, faults))
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]
    assert set(seen[0][1]) == set(plan.faults)


async def submit_plain(simulator: Simulator, operation: str) -> Submission:
    request = render_submit(
        SIMULATOR, simulator.url, operation_id=operation, payload=b"{}", secret=None, idempotency_key=None
    )
    client = ProviderClient(SIMULATOR, base_url=simulator.url)
    answer = await client.submit(request, before_first_byte=recorded, deadline=time.monotonic() + LONG_S)
    return classify_submission(SIMULATOR, answer)


async def test_the_plan_can_be_changed_while_it_runs(simulator: Simulator) -> None:
    assert replanned(simulator.url, {"faults": {"unprocessable": 1.0}})["faults"] == {"unprocessable": 1.0}
    assert (await submit_plain(simulator, "op-1")).reason == "invalid_request"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"faults": {"no_such": 1}}',
        '{"faults": {"redirect": 2}}',
        '{"nonsense": 1}',
        '{"faults": {"redirect": 0.6, "bad_gateway": 0.6}}',
    ],
)
def test_a_wrong_plan_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"^The plan p\.json "):
        Plan.parse(text, source="p.json")


def test_the_command_serves_with_a_plan_until_sigterm(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"faults": {"unprocessable": 1.0}}')
    command = ["simulate-provider", "--seed", "3", "--plan", str(plan)]
    with subprocess.Popen(
        [sys.executable, "-m", "relay", *command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("listening on http://127.0.0.1:")
            url = line.split()[-1]
            assert truth_over_http(url)["seed"] == 3
            process.send_signal(signal.SIGTERM)
            assert process.wait(LONG_S) == 0
        finally:
            process.kill()


async def test_a_plan_can_assign_faults_to_one_operation_alone(simulator: Simulator) -> None:
    replanned(simulator.url, {"assigned": {"op-1": ["cut_before_reading"], "op-2": ["job_failed"]}})
    client = ProviderClient(SIMULATOR, base_url=simulator.url)

    async def plain(operation: str) -> Submission:
        request = render_submit(
            SIMULATOR,
            simulator.url,
            operation_id=operation,
            payload=b'{"prompt": "a boat"}',
            secret=None,
            idempotency_key=None,
        )
        answer = await client.submit(request, before_first_byte=recorded, deadline=time.monotonic() + LONG_S)
        return classify_submission(SIMULATOR, answer)

    assert (await plain("op-1")).verdict == "unknown"
    failing = await plain("op-2")
    assert failing.job_id is not None
    assert (await finished(simulator, failing.job_id)).state == "failed"
    assert (await plain("op-3")).verdict == "accepted"
    truth = simulator.truth()
    assert truth["faults"] == {"cut_before_reading": 1, "job_failed": 1}
    assert [post["body_sha256"] is None for post in truth["posts"]] == [True, False, False]
