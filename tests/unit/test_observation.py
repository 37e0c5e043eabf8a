"""What the answer to a GET says about a job."""

from decimal import Decimal

import pytest

from consumers.providers.observation import Observation, Output, classify_observation
from provider_samples import answered, profile

SIMULATOR = profile("simulator")
DIGEST = "ab" * 32


def seen(status: int | None, body: bytes = b"", *headers: tuple[str, str], whole: bool = True) -> Observation:
    return classify_observation(SIMULATOR, answered(status, body, *headers, whole=whole), job_id="job-1")


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("queued", "running"),
        ("running", "running"),
        ("succeeded", "succeeded"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
    ],
)
def test_a_word_of_the_profile_is_a_state(word: str, state: str) -> None:
    found = seen(200, f'{{"job_id": "job-1", "status": "{word}"}}'.encode())
    assert (found.state, found.word, found.outputs) == (state, word, ())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"status": "SUCCEEDED"}', "unknown_word"),
        (b'{"status": "done"}', "unknown_word"),
        (b'{"status": ""}', "unknown_word"),
        (b"{}", "no_status"),
        (b'{"status": null}', "no_status"),
        (b'{"status": 3}', "no_status"),
        (b'{"status": "failed", "status": "succeeded"}', "no_status"),
    ],
)
def test_anything_else_is_unrecognised_and_never_a_state(body: bytes, reason: str) -> None:
    found = seen(200, body)
    assert (found.state, found.reason) == ("unrecognised", reason)


@pytest.mark.parametrize("status", [404, 410])
def test_a_job_that_is_not_there_is_not_found(status: int) -> None:
    assert seen(status, b'{"status": "failed"}').state == "not_found"


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 429, 500, 502, 503])
def test_an_error_says_nothing_about_the_job(status: int) -> None:
    found = seen(status, b'{"status": "failed"}', ("Retry-After", "5"))
    assert (found.state, found.reason, found.retry_after_s) == ("error", f"status_{status}", 5.0)


def test_no_answer_or_half_an_answer_says_nothing() -> None:
    assert seen(None, whole=False).reason == "no_answer"
    assert seen(200, b'{"status": "fail', whole=False).reason == "answer_cut"
    assert seen(200, b"<html>").reason == "answer_not_json"


def test_an_answer_about_another_job_is_an_error() -> None:
    found = seen(200, b'{"job_id": "job-2", "status": "succeeded"}')
    assert (found.state, found.reason) == ("error", "another_job")
    assert (found.evidence["asked_for"], found.evidence["answered_for"]) == ("job-1", "job-2")


@pytest.mark.parametrize(
    ("said", "cost"),
    [
        ("12345678901234567890.10", Decimal("12345678901234567890.10")),
        ("0.1", Decimal("0.1")),
        ('"0.10"', Decimal("0.10")),
        ("1e2", Decimal("1e2")),
        ("0", Decimal(0)),
        ("null", None),
        ("-1", None),
        ("NaN", None),
        ("Infinity", None),
        ('"1,5"', None),
        ("1e99", None),
        ("true", None),
        ("[1]", None),
    ],
)
def test_a_cost_is_read_from_its_text_and_an_unreadable_one_is_no_cost(
    said: str, cost: Decimal | None
) -> None:
    found = seen(200, f'{{"status": "failed", "cost": {said}}}'.encode())
    assert found.state == "failed"
    assert (found.cost, str(found.cost)) == (cost, str(cost))
    assert ("cost_unreadable" in found.evidence) is (cost is None and said != "null")


def test_a_reserved_cost_is_never_read_from_the_answer() -> None:
    found = classify_observation(profile("genace"), answered(200, b'{"status": "failed", "cost": 1}'))
    assert (found.state, found.cost) == ("failed", None)


def succeeded(*outputs: str) -> bytes:
    return f'{{"status": "succeeded", "outputs": [{", ".join(outputs)}]}}'.encode()


def test_outputs_are_read_in_order_with_what_is_said_of_them() -> None:
    told = '"name": "x.png", "content_type": "image/png", "size": 5'
    body = succeeded(
        f'{{"url": "https://a/1", {told}, "sha256": "{DIGEST.upper()}"}}',
        '{"url": "https://a/b/clip%201.mp4?sig=x"}',
    )
    assert seen(200, body).outputs == (
        Output(url="https://a/1", name="x.png", content_type="image/png", size=5, sha256=DIGEST),
        Output(url="https://a/b/clip%201.mp4?sig=x", name="clip_1.mp4"),
    )


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("../../etc/passwd", "etc_passwd"),
        ("..", "output-1"),
        ("", "output-1"),
        ("/", "output-1"),
        (".hidden", "hidden"),
        ("a\\\\b", "a_b"),
        ("a\\u0000b", "a_b"),
        ("x" * 300 + ".png", "x" * 96 + ".png"),
    ],
)
def test_an_outputs_name_is_a_harmless_file_name(said: str, name: str) -> None:
    body = succeeded(f'{{"url": "https://a/", "name": "{said}"}}')
    assert [one.name for one in seen(200, body).outputs] == [name]


def test_two_outputs_never_have_one_name() -> None:
    body = succeeded('{"url": "https://a/1", "name": "x"}', '{"url": "https://b/1", "name": "X"}')
    assert [one.name for one in seen(200, body).outputs] == ["x", "2-X"]


@pytest.mark.parametrize(
    "element",
    [
        "{}",
        '"https://a/1"',
        '{"url": 5}',
        '{"url": ""}',
        '{"url": "https://a/\\n"}',
        '{"url": "https://a/\\ud800"}',
        '{"url": "https://a/1", "size": "many"}',
        '{"url": "https://a/1", "size": -5}',
        '{"url": "https://a/1", "sha256": "abc"}',
    ],
)
def test_a_part_of_a_result_is_never_taken_for_the_whole(element: str) -> None:
    found = seen(200, succeeded('{"url": "https://a/0"}', element))
    assert (found.state, found.reason, found.outputs) == ("unrecognised", "outputs_unreadable", ())


def test_succeeded_without_outputs_says_so() -> None:
    assert seen(200, b'{"status": "succeeded", "outputs": []}').outputs == ()
    assert seen(200, b'{"status": "succeeded"}').state == "succeeded"


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ((("Retry-After", "120"),), 120.0),
        ((("Retry-After", "99999999999999999999"),), 86400.0),
        ((("retry-after", "soon"),), None),
        ((("Retry-After", "-1"),), None),
        (
            (
                ("Retry-After", "Wed, 21 Oct 2026 07:28:30 GMT"),
                ("Date", "Wed, 21 Oct 2026 07:28:00 GMT"),
            ),
            30.0,
        ),
        ((("Retry-After", "Wed, 21 Oct 2026 07:28:30 GMT"),), None),
    ],
)
def test_retry_after_is_read_without_this_machines_clock(
    headers: tuple[tuple[str, str], ...], wait_s: float | None
) -> None:
    assert seen(503, b"", *headers).retry_after_s == wait_s
