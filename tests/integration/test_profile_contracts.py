"""Every shipped profile is run against a provider of its vendor's shape, which was written from the vendor's
documentation and not from the profile: submit, observe, outputs, refusals, the list, cancel.
"""

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest

from consumers.providers.contract import Contract, Finding
from consumers.providers.outcome import Submission
from consumers.providers.profile import Profile
from consumers.providers.profiles_folder import SHIPPED, load_profiles
from consumers.providers.simulator import Simulator
from consumers.providers.simulator_http import Reply
from provider_samples import profile
from provider_shapes import KEY, SHAPES, Shape, reply


def contract(of: Profile, shape: Shape, payload: dict[str, Any]) -> Contract:
    return Contract(
        profile=of,
        base_url=shape.url,
        secret=KEY,
        payload=json.dumps(payload).encode(),
        patience_s=60,
        pause_s=0.01,
    )


def said(findings: list[Finding]) -> dict[str, str]:
    return {one.field: one.said for one in findings}


@pytest.mark.parametrize("name", SHAPES)
def test_a_profile_drives_a_provider_of_its_shape_from_the_post_to_the_outputs(name: str) -> None:
    routes, prefix, payload = SHAPES[name]
    of = profile(name)
    with Shape(routes, prefix=prefix) as shape:
        run = contract(of, shape, payload)
        findings = asyncio.run(run.run(cancel=True))
        wrong = [one for one in findings if one.said == "contradicted"]
        if name == "fal-queue":
            # Its cancelled request ends as COMPLETED with an error: a failure, as far as a status tells.
            assert [one.field for one in wrong] == ["cancel"]
            wrong = []
        assert wrong == []
        confirmed = {field for field, how in said(findings).items() if how == "confirmed"}
        assert {"submit.path", "accept.0.job_id", "observe.status", "observe.outputs"} <= confirmed
        assert set(run.jobs) == set(shape.jobs)
        if of.cost != "reserved":
            assert "cost" in confirmed
        if of.listing is not None:
            assert "listing" in confirmed
        if of.idempotency != "none":
            assert "idempotency.mode" in confirmed
            assert len(shape.jobs) == 1


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_provider_says_of_a_failure_a_loss_or_a_refusal_is_read_by_its_profile(name: str) -> None:
    routes, prefix, payload = SHAPES[name]
    of = profile(name)

    async def story(shape: Shape) -> None:
        run = contract(of, shape, payload)
        shape.lose_answers = 1
        _, lost = await run.post(str(uuid4()))
        assert (lost.verdict, len(shape.jobs)) == ("unknown", 1)

        _, made = await run.post(str(uuid4()))
        assert made.job_id is not None
        shape.fails, shape.polls = True, 1
        failed = await run.observe_once(made.job_id)
        assert failed.state == "failed", failed
        missing = await run.observe_once("00000000-no-such-job")
        assert missing.state == "not_found"

        before = len(shape.jobs)
        for refusal, expected in REFUSALS[name]:
            shape.refuse = refusal
            _, outcome = await run.post(str(uuid4()))
            assert (outcome.verdict, outcome.after, outcome.charged) == expected, outcome.reason
        assert len(shape.jobs) == before
        for number, rule in enumerate(of.reject):
            hit = [said for said, _ in REFUSALS[name] if rule.covers(said.status)]
            assert hit, f"nobody tried reject.{number} of {name}"

    with Shape(routes, prefix=prefix) as shape:
        asyncio.run(story(shape))


UNKNOWN = ("unknown", None, None)
DELAY = ("refused", "delay", False)
FIX = ("refused", "fix", False)
FINAL = ("refused", "final", False)


def _kling(code: int) -> dict[str, Any]:
    return {"code": code, "message": "no", "request_id": "9984d27b-a408-4073-ae28-17ca6a13622d"}


Expected = tuple[str, str | None, bool | None]
REFUSALS: dict[str, list[tuple[Reply, Expected]]] = {
    "replicate": [
        (reply(429, {"detail": "Request was throttled. Your rate limit resets in ~30s."}), DELAY),
        (reply(422, {"detail": "Input validation failed"}), UNKNOWN),
        (reply(500, {"detail": "Internal server error"}), UNKNOWN),
    ],
    "fal-queue": [
        (reply(429, {"detail": "too many requests"}), UNKNOWN),
        (reply(504, {"detail": "Request timed out"}), UNKNOWN),
    ],
    "runway": [
        (reply(400, {"error": "Validation of body failed", "issues": []}), FINAL),
        (reply(401, {"error": "The API key you provided is not valid."}), FIX),
        (reply(429, {"error": "You have reached your limit"}), DELAY),
        (reply(503, {"error": "shedding load"}), UNKNOWN),
    ],
    "luma": [(reply(400, {"detail": "Invalid prompt"}), UNKNOWN), (reply(429, {"detail": "slow"}), UNKNOWN)],
    "sync-so": [
        (reply(401, {"statusCode": 401, "message": "Unauthorized"}), FIX),
        (reply(402, {"statusCode": 402, "message": "Payment Required"}), FIX),
        (reply(429, {"statusCode": 429, "errorCode": "concurrency_limit_reached"}), DELAY),
        (reply(409, {"statusCode": 409, "errorCode": "IDEMPOTENCY_KEY_CONFLICT"}), UNKNOWN),
        (reply(422, {"statusCode": 422, "message": "key was used"}), UNKNOWN),
    ],
    "kling": [
        (reply(401, _kling(1004)), FIX),
        (reply(429, _kling(1303)), DELAY),
        (reply(429, _kling(1101)), FIX),
        (reply(429, _kling(1102)), FIX),
        (reply(429, _kling(1302)), UNKNOWN),
        (reply(400, _kling(1201)), UNKNOWN),
    ],
}


def test_the_simulator_is_a_provider_of_its_own_profile() -> None:
    with Simulator(seed=5, secret=KEY) as simulator:
        run = Contract(
            profile=profile("simulator"),
            base_url=simulator.url,
            secret=KEY,
            payload=b'{"prompt": "a heron"}',
            patience_s=60,
            pause_s=0.01,
        )
        findings = asyncio.run(run.run(cancel=True))
    assert [one for one in findings if one.said == "contradicted"] == []
    assert said(findings)["cancel"] == "confirmed"


def test_a_reference_that_the_provider_keeps_unique_makes_one_task_of_two_requests() -> None:
    routes, prefix, payload = SHAPES["kling"]

    async def twice(shape: Shape) -> tuple[Submission, Submission]:
        run = contract(profile("kling"), shape, payload)
        operation = str(uuid4())
        (_, first), (_, second) = await run.post(operation), await run.post(operation)
        return first, second

    with Shape(routes, prefix=prefix) as shape:
        first, second = asyncio.run(twice(shape))
        sent = [body for _, body in shape.posts]
        assert (first.verdict, second.verdict, len(shape.jobs)) == ("accepted", "unknown", 1)
        # What was approved stands behind the reference, byte for byte.
        assert all(body.endswith(json.dumps(payload).encode()[1:]) for body in sent)


WRONG: dict[str, tuple[str, str, str]] = {
    "a word": ("succeeded: succeeded", "success: succeeded", "observe.words.succeeded"),
    "a route": ("path: /v1/predictions\n", "path: /v2/predictions\n", "submit"),
    "an id's place": ("job_id: $.id\n\nreject", "job_id: $.prediction.id\n\nreject", "submit"),
    "an output's place": ('["$.output[*]", $.output]', '"$.outputs[*]"', "observe.outputs"),
    "a cancel": ("/cancel\n", "/stop\n", "cancel"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_profile_that_is_wrong_about_its_provider_is_contradicted(what: str) -> None:
    routes, prefix, payload = SHAPES["replicate"]
    old, new, field = WRONG[what]
    with Shape(routes, prefix=prefix) as shape:
        run = contract(profile("replicate", (old, new)), shape, payload)
        findings = asyncio.run(run.run(cancel=True))
    assert field in {one.field for one in findings if one.said == "contradicted"}


def test_every_shipped_profile_names_its_sources_and_has_a_shape_that_tries_it() -> None:
    shipped = load_profiles([])
    assert set(shipped) == {*SHAPES, "genace", "simulator"}
    for name in SHAPES:
        assert shipped[name].sources, f"{name} doesn't say where it is known from"
        assert "late_delivery_s" in shipped[name].unverified
        assert (SHIPPED / f"{name}.yaml").read_text().startswith("#")
