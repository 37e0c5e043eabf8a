"""The table of design-operations 5, row by row: what a submission's answer means."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.providers.answer import Answer
from consumers.providers.evidence import EVIDENCE_BYTES, bounded
from consumers.providers.outcome import Submission, classify_submission
from provider_samples import answered, profile

GENACE = profile("genace")
SIMULATOR = profile("simulator")
LONG = "a" * 512


def outcome(answer: Answer) -> Submission:
    return classify_submission(GENACE, answer)


@pytest.mark.parametrize(
    ("body", "job_id"),
    [
        (b'{"job_id": "job-1"}', "job-1"),
        (b'{"job_id": "job-1", "status": "failed"}', "job-1"),
        (b'\xef\xbb\xbf{"job_id": "with a byte order mark"}', "with a byte order mark"),
        (b'{"job_id": 12345678901234567890}', "12345678901234567890"),
        (b'{"job_id": -1}', "-1"),
        (b'{"job_id": "../../etc"}', "../../etc"),
        (f'{{"job_id": "{LONG}"}}'.encode(), LONG),
        ('{"job_id": "größe"}'.encode(), "größe"),
        (b'{"job_id": "a", "job_id": "a"}', "a"),
        (b'{"error": {"job_id": null}, "job_id": "job-1"}', "job-1"),
    ],
)
@pytest.mark.parametrize("status", [200, 201, 202, 299])
def test_a_2xx_with_an_id_at_its_path_is_accepted_whatever_else_it_says(
    status: int, body: bytes, job_id: str
) -> None:
    found = outcome(answered(status, body))
    assert (found.verdict, found.reason, found.job_id) == ("accepted", "accepted", job_id)
    assert (found.accounting, found.candidates, found.generic_failure) == ("reserved", (), False)


@pytest.mark.parametrize(
    ("body", "reason", "candidates"),
    [
        (b"", "answer_not_json", ()),
        (b"<html>ok</html>", "answer_not_json", ()),
        (b"{}", "no_job_id", ()),
        (b"[]", "no_job_id", ()),
        (b"null", "no_job_id", ()),
        (b'"job-1"', "no_job_id", ()),
        (b'{"job_id": null}', "no_job_id", ()),
        (b'{"job_id": ""}', "no_job_id", ()),
        (b'{"id": "job-1"}', "job_id_not_at_its_path", ("job-1",)),
        (b'{"data": {"jobId": "job-1"}}', "job_id_not_at_its_path", ("job-1",)),
        (b'[{"job_id": "job-1"}]', "job_id_not_at_its_path", ("job-1",)),
        (b'{"error": {"job_id": "job-1"}}', "job_id_not_at_its_path", ("job-1",)),
        (b'{"job_id": "a", "job_id": "b"}', "several_job_ids", ("a", "b")),
        (b'{"job_id": "job-1", "sta', "answer_not_json", ("job-1",)),
        (b'{"job_id": 17, "sta', "answer_not_json", ("17",)),
        # What the cut may have shortened is no id.
        (b'{"job_id": "job-1', "answer_not_json", ()),
        (b'{"job_id": 17', "answer_not_json", ()),
    ],
)
def test_a_2xx_without_an_id_at_its_path_is_unknown_and_what_was_seen_is_kept(
    body: bytes, reason: str, candidates: tuple[str, ...]
) -> None:
    found = outcome(answered(200, body))
    assert (found.verdict, found.reason, found.candidates) == ("unknown", reason, candidates)
    assert found.job_id is None
    assert found.evidence["body"] == body.decode()


@pytest.mark.parametrize(
    "said",
    [
        '"' + "a" * 513 + '"',
        '"' + "a" * 10_000 + '"',
        r'"a\u0000b"',
        r'"a\nb"',
        r'"\ud800"',
        '".."',
        "1.0",
        "1e3",
        "true",
        "[]",
        '{"id": null}',
        "9" * 513,
    ],
)
def test_an_id_of_a_wrong_form_is_unknown_and_its_raw_bytes_are_kept(said: str) -> None:
    body = f'{{"job_id": {said}}}'.encode()
    found = outcome(answered(201, body))
    assert (found.verdict, found.reason, found.job_id, found.candidates) == (
        "unknown",
        "job_id_malformed",
        None,
        (),
    )
    assert found.evidence["body"].encode() == body
    assert found.evidence["malformed_ids"]


def test_an_id_beside_one_of_a_wrong_form_is_a_candidate_only() -> None:
    found = outcome(answered(201, b'{"job_id": "a", "job_id": 1.5}'))
    assert (found.verdict, found.candidates) == ("unknown", ("a",))


def test_a_502_with_an_id_at_its_declared_path_is_accepted_and_unsettled() -> None:
    found = outcome(answered(502, b'{"error": {"code": "upstream", "job_id": "job-9"}}'))
    assert (found.verdict, found.reason, found.job_id) == ("accepted", "accepted_with_error", "job-9")
    assert (found.accounting, found.generic_failure) == ("unsettled", False)


@pytest.mark.parametrize("status", [400, 409, 422, 500, 503, 504])
@pytest.mark.parametrize("body", [b'{"error": {"job_id": "job-9"}}', b'{"job_id": "job-9"}'])
def test_an_id_with_a_status_it_is_not_declared_for_is_a_candidate(status: int, body: bytes) -> None:
    found = outcome(answered(status, body))
    assert (found.verdict, found.reason) == ("unknown", "job_id_with_error")
    assert (found.candidates, found.generic_failure) == (("job-9",), False)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 409, 418, 422, 429, 500, 502, 503, 599])
def test_genace_calls_no_error_a_refusal(status: int) -> None:
    found = outcome(answered(status, b'{"error": {"message": "no"}}', ("Retry-After", "7")))
    assert (found.verdict, found.reason, found.candidates) == ("unknown", f"status_{status}", ())
    assert found.generic_failure is (status in {401, 403} or status >= 500)
    assert found.retry_after_s == 7.0


@pytest.mark.parametrize(
    "said",
    [
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 01 Jan 2029 00:00:00 +99999999999999999999",
        "Mon, 01 Jan 2029 99999999999999999999:00:00 GMT",
        "9" * 5_000,
    ],
)
def test_a_wait_that_no_clock_can_hold_costs_no_id(said: str) -> None:
    found = outcome(answered(500, b'{"job_id": "job-9"}', ("Retry-After", said), ("Date", said)))
    assert (found.verdict, found.candidates) == ("unknown", ("job-9",))


def test_ids_of_an_error_itself_do_not_hide_a_generic_failure() -> None:
    found = outcome(answered(500, b'{"request_id": "req-1", "error": {"id": "err-1"}}'))
    assert (found.generic_failure, found.candidates) == (True, ("req-1", "err-1"))


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
def test_a_3xx_is_unknown(status: int) -> None:
    found = outcome(answered(status, b"", ("Location", "https://elsewhere.example/v1/jobs")))
    assert (found.verdict, found.reason, found.candidates) == ("unknown", "redirect", ())


def test_a_location_that_is_the_address_of_a_job_gives_a_candidate() -> None:
    found = outcome(answered(303, b"", ("Location", "/v1/jobs/job%2F1?x=y")))
    assert found.candidates == ("job/1",)


@pytest.mark.parametrize("status", [100, 101, 103])
def test_an_interim_answer_proves_nothing(status: int) -> None:
    assert outcome(answered(status)).verdict == "unknown"


def test_no_answer_after_the_hook_is_unknown() -> None:
    found = outcome(answered(None, whole=False))
    assert (found.verdict, found.reason, found.generic_failure) == ("unknown", "no_answer", False)


@pytest.mark.parametrize(
    ("answer", "reason", "hold"),
    [
        (Answer(error="ConnectError: refused"), "not_connected", None),
        (Answer(error="TimeoutError"), "not_connected", None),
        (Answer(cancelled=True), "cancelled", None),
        (Answer(hook_error=RuntimeError("no")), "not_recorded", None),
        (Answer(malformed=True, hook_returned=True), "request_malformed", "configuration"),
        # A proxy that cuts CONNECT gives the names of a lost answer.
        (Answer(error="RemoteProtocolError: Server disconnected"), "not_connected", None),
        (Answer(error="ReadTimeout"), "not_connected", None),
    ],
)
def test_what_provably_did_not_leave_is_unsent_whatever_the_exceptions_name(
    answer: Answer, reason: str, hold: str | None
) -> None:
    found = outcome(answer)
    assert (found.verdict, found.reason, found.hold) == ("unsent", reason, hold)


def test_a_body_in_a_coding_that_nobody_asked_for_still_gives_its_id() -> None:
    body = gzip.compress(b'{"job_id": "job-1"}')
    found = outcome(answered(200, body, ("Content-Encoding", "gzip")))
    assert found.job_id == "job-1"
    assert outcome(answered(200, body[:12], ("Content-Encoding", "gzip"), whole=False)).verdict == "unknown"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"n": ' + b"9" * 100_000 + b"}",
        b'{"job_id": NaN}',
        *(b'{"job_id": ' + b"[" * depth + b"]" * depth + b"}" for depth in (300, 900, 980, 995, 1000)),
        *(b'{"job_id": ' + b'{"id": ' * depth + b"1" + b"}" * depth + b"}" for depth in (300, 900, 980, 995)),
        b"\xff\xfe\x00",
        b'{"job_id": "' + b"\\" * 50_000,
    ],
)
def test_no_body_makes_classification_fail(body: bytes) -> None:
    assert outcome(answered(200, body)).verdict == "unknown"


# --- rules that refuse


def refusal(status: int, body: bytes = b"{}", *headers: tuple[str, str], whole: bool = True) -> Submission:
    return classify_submission(SIMULATOR, answered(status, body, *headers, whole=whole))


def test_a_reject_rule_says_what_comes_next_and_whether_it_was_charged() -> None:
    found = refusal(422, b'{"error": {"message": "bad prompt"}}')
    assert (found.verdict, found.reason, found.after, found.charged) == (
        "refused",
        "invalid_request",
        "final",
        False,
    )
    found = refusal(429)
    assert (found.verdict, found.after, found.charged, found.retry_after_s) == (
        "refused",
        "delay",
        False,
        1.0,
    )
    assert refusal(429, b"", ("Retry-After", "9")).retry_after_s == 9.0


@pytest.mark.parametrize(
    "body",
    [
        b'{"job_id": "j"}',
        b'{"error": {"job_id": "j"}}',
        b'{"taskId": "j"}',
        b'{"job_id": "j", "oth',
        b'"job_id":"j"',
    ],
)
def test_a_refusal_that_names_a_job_is_not_believed(body: bytes) -> None:
    found = refusal(422, body)
    assert (found.verdict, found.candidates) == ("unknown", ("j",))


def test_a_refusal_with_an_id_of_a_wrong_form_is_not_believed() -> None:
    assert refusal(422, b'{"job_id": 1.5}').reason == "job_id_malformed"


def test_a_refusal_that_lost_its_end_is_not_believed() -> None:
    found = refusal(422, b'{"error": "x"', whole=False)
    assert (found.verdict, found.reason) == ("unknown", "refusal_cut")


def test_the_errors_own_id_does_not_undo_a_refusal() -> None:
    found = refusal(422, b'{"request_id": "req-1"}')
    assert (found.verdict, found.candidates) == ("refused", ())
    assert found.evidence["other_ids"] == ["req-1"]


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (b'{"code": "quota"}', "refused"),
        (b'{"code": "other"}', "unknown"),
        (b'{"code": "quota", "code": "other"}', "unknown"),
        (b"{}", "unknown"),
        (b"quota", "unknown"),
    ],
)
def test_a_rule_with_a_body_condition_needs_that_body(body: bytes, verdict: str) -> None:
    strict = profile(
        "genace",
        ("reject: []", "reject: [{status: 402, after: fix, charged: false, path: $.code, equals: quota}]"),
    )
    found = classify_submission(strict, answered(402, body))
    assert found.verdict == verdict
    if verdict == "refused":
        assert (found.after, found.reason) == ("fix", "refused_402")


@pytest.mark.parametrize(
    ("equals", "body", "fits"),
    [
        ("true", b'{"code": true}', True),
        ("true", b'{"code": "true"}', False),
        ("true", b'{"code": 1}', False),
        ("'1'", b'{"code": 1}', False),
        ("'1'", b'{"code": "1"}', True),
        ("1", b'{"code": 1}', True),
        ("1", b'{"code": true}', False),
    ],
)
def test_a_body_condition_compares_json_values_not_their_text(equals: str, body: bytes, fits: bool) -> None:
    strict = profile(
        "genace",
        (
            "reject: []",
            f"reject: [{{status: 402, after: fix, charged: false, path: $.code, equals: {equals}}}]",
        ),
    )
    assert (classify_submission(strict, answered(402, body)).verdict == "refused") is fits


# --- evidence


def test_evidence_has_ids_first_and_no_secret() -> None:
    answer = answered(
        502,
        b'{"error": {"job_id": "job-9", "echo": "Bearer s3cret-Token"}}',
        ("Set-Cookie", "session=1"),
        ("Content-Type", "application/json"),
        ("Location", "/x?key=s3cret-Token"),
    )
    kept = outcome(answer).evidence
    assert next(iter(kept)) == "job_id"
    assert "s3cret-Token" not in json.dumps(kept)
    assert set(kept["headers"]) == {"content-type", "location"}


@pytest.mark.parametrize(
    "body", [b"\x00\x01\xff" * 30_000, b'{"a": "\x00"}', "ü".encode() * 50_000, b"x" * 1_000_000]
)
def test_evidence_is_bounded_and_can_be_stored_as_jsonb(body: bytes) -> None:
    kept = json.dumps(outcome(answered(200, body, ("Location", "\x00" + "l" * 9_000))).evidence)
    assert len(kept) < 64 * 1024
    assert "\\u0000" not in kept


def test_ids_that_take_all_the_room_are_kept_as_far_as_it_goes_and_the_others_are_counted() -> None:
    """The rest of the evidence stays: a row that can't be written would keep the answer out for ever."""
    ids = [f"{number:03}" + "\N{ROCKET}" * 509 for number in range(100)]
    body = json.dumps({"jobs": [{"id": one} for one in ids]}, ensure_ascii=False).encode()
    found = outcome(answered(200, body))
    assert found.candidates == tuple(ids[:32])
    kept = bounded(found.evidence)
    assert len(json.dumps(kept, ensure_ascii=False).encode()) <= EVIDENCE_BYTES
    for name, all_of_it in (("candidates", ids[:32]), ("other_ids", ids[32:])):
        assert kept[name] == all_of_it[: len(kept[name])]
        assert len(kept[name]) + kept[f"{name}_left_out"] == len(all_of_it)
        assert kept[name]
    assert (kept["status"], kept["body_bytes"]) == (200, len(body))


@given(
    status=st.one_of(st.none(), st.integers(100, 599)),
    body=st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=8)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.dictionaries(st.sampled_from(["job_id", "error", "id", "code"]), inner, max_size=3),
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    ),
    whole=st.booleans(),
)
def test_only_a_declared_status_and_path_accepts_and_no_answer_is_ever_refused_by_genace(
    status: int | None, body: bytes, whole: bool
) -> None:
    found = outcome(answered(status, body, whole=whole))
    assert found.verdict in {"accepted", "unknown"}
    if found.verdict == "accepted":
        assert status is not None
        assert 200 <= status < 300 or status == 502
        assert found.job_id is not None
        assert 1 <= len(found.job_id) <= 512
    stored = json.dumps(found.evidence)
    assert "\\u0000" not in stored
    assert "\\ud800" not in stored
