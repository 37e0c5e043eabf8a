"""A request is the approved bytes in the profile's template, and nothing can be smuggled in."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.providers.request import (
    Request,
    render_cancel,
    render_observe,
    render_submit,
    require_settings,
)
from provider_samples import OPERATION, profile
from relay.errors import UsageError

GENACE = profile("genace")
SIMULATOR = profile("simulator")
URL = "https://api.example.com"


def rendered(
    payload: bytes = b"{}", *, url: str = URL, secret: str | None = "s1", operation: str = OPERATION
) -> Request:
    return render_submit(
        GENACE, url, operation_id=operation, payload=payload, secret=secret, idempotency_key=None
    )


@given(st.binary(max_size=200))
def test_the_payloads_bytes_are_never_changed(payload: bytes) -> None:
    assert rendered(payload).body == payload


@given(st.binary(max_size=200))
def test_a_template_surrounds_the_payload_and_is_never_searched_within_it(payload: bytes) -> None:
    wrapped = profile(
        "genace", ("body: ${payload}", 'body: \'{"ref": "${operation_id}", "in": ${payload}}\'')
    )
    request = render_submit(
        wrapped, URL, operation_id=OPERATION, payload=payload, secret="s1", idempotency_key=None
    )
    assert request.body == b'{"ref": "' + OPERATION.encode() + b'", "in": ' + payload + b"}"


def test_a_placeholder_in_the_payload_stays_text() -> None:
    payload = b'{"prompt": "${secret} ${payload} ${operation_id}"}'
    assert rendered(payload).body == payload


def test_the_hash_covers_everything_but_the_secret() -> None:
    same = rendered(b"a")
    assert rendered(b"a", secret="s2").sha256 == same.sha256
    assert rendered(b"b").sha256 != same.sha256
    assert rendered(b"a", url=URL + "/v2").sha256 != same.sha256
    other = profile("genace", ("Accept: application/json", "Accept: '*/*'"))
    assert (
        render_submit(
            other, URL, operation_id=OPERATION, payload=b"a", secret="s1", idempotency_key=None
        ).sha256
        != same.sha256
    )


def test_the_hash_of_a_request_does_not_depend_on_where_its_parts_meet() -> None:
    digests = set()
    for headers in ('A: "b"\n    C: "d"', 'A: "b\\0c"\n    D: ""', 'A: "bc"\n    D: ""'):
        odd = profile("simulator", ("X-Client-Reference: ${operation_id}", headers))
        digests.add(
            render_submit(
                odd, URL, operation_id=OPERATION, payload=b"", secret=None, idempotency_key=None
            ).sha256
        )
    assert len(digests) == 3


def test_no_secret_shows_in_a_requests_repr() -> None:
    assert "s3cret" not in repr(rendered(b"private", secret="s3cret"))
    assert "private" not in repr(rendered(b"private"))


def test_a_missing_credential_is_named_by_its_setting() -> None:
    with pytest.raises(UsageError, match="RELAY_PROVIDER_GENACE_SECRET"):
        rendered(secret=None)
    with pytest.raises(UsageError, match="RELAY_PROVIDER_GENACE_SECRET"):
        rendered(secret="")


def test_what_a_process_lacks_is_known_before_anything_is_rendered() -> None:
    require_settings(GENACE, URL, "s3cret")
    require_settings(SIMULATOR, URL, None)
    for url, secret in ((URL, None), (URL, ""), ("ftp://x", "s3cret"), ("", "s3cret")):
        with pytest.raises(UsageError, match="RELAY_PROVIDER_GENACE_"):
            require_settings(GENACE, url, secret)


def test_an_optional_credential_may_be_missing() -> None:
    request = render_submit(
        SIMULATOR, URL, operation_id=OPERATION, payload=b"", secret=None, idempotency_key=None
    )
    assert "authorization" not in {name.lower() for name, _ in request.headers}
    assert ("X-Client-Reference", OPERATION) in request.headers


@pytest.mark.parametrize("operation", ["", "a b", 'a"b', "a\r\nX: y", "a" * 256, "ä"])
def test_an_operation_id_that_could_end_a_header_or_a_string_is_refused(operation: str) -> None:
    with pytest.raises(UsageError):
        rendered(operation=operation)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.example.com",
        "ftp://api.example.com",
        "https://",
        "https://user:password@api.example.com",
        "https://user@api.example.com",
        "https://api.example.com?key=1",
        "https://api.example.com#x",
        "https://api.example.com:port",
        "https://[::1",
    ],
)
def test_a_base_url_that_is_more_or_less_than_a_place_is_refused_by_its_setting(url: str) -> None:
    with pytest.raises(UsageError, match="RELAY_PROVIDER_GENACE_URL"):
        rendered(url=url)


def test_a_refused_url_with_a_password_does_not_show_it() -> None:
    with pytest.raises(UsageError) as caught:
        rendered(url="https://user:hunter2@api.example.com")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("base", "url"), [(URL, URL), (URL + "/", URL), (URL + "/base/", URL + "/base")])
def test_the_path_follows_the_base_url(base: str, url: str) -> None:
    assert rendered(url=base).url == url + "/v1/jobs"


@pytest.mark.parametrize(
    ("job_id", "segment"),
    [
        ("job-1", "job-1"),
        ("../../admin", "..%2F..%2Fadmin"),
        ("a?b#c", "a%3Fb%23c"),
        ("a b%2F", "a%20b%252F"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("${secret}", "%24%7Bsecret%7D"),
    ],
)
def test_a_job_id_never_becomes_another_path(job_id: str, segment: str) -> None:
    request = render_observe(GENACE, URL, job_id, "s1")
    assert request.url == f"{URL}/v1/jobs/{segment}"
    assert (request.method, request.body) == ("GET", b"")


@pytest.mark.parametrize("job_id", ["", ".", ".."])
def test_a_job_id_that_is_a_step_in_a_path_is_refused(job_id: str) -> None:
    with pytest.raises(ValueError, match="path segment"):
        render_observe(GENACE, URL, job_id, "s1")


def test_the_hash_is_stable_across_releases() -> None:
    """A held resubmission is compared with what an older release sent."""
    plain = profile("simulator", ("X-Client-Reference: ${operation_id}", "X-A: b"))
    request = render_submit(
        plain, URL, operation_id=OPERATION, payload=b"{}", secret=None, idempotency_key=None
    )
    parts = [
        b"outbox-relay request 1",
        b"POST",
        b"https://api.example.com/v1/jobs",
        b"authorization",
        b"Bearer ${secret}",
        b"content-type",
        b"application/json",
        b"accept",
        b"application/json",
        b"x-a",
        b"b",
        b"{}",
    ]
    expected = hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()
    assert request.sha256 == expected


def test_a_cancel_is_rendered_for_its_job_alone_and_never_with_the_secret_in_its_hash() -> None:
    one = render_cancel(SIMULATOR, "http://127.0.0.1:8080/", "a/b", "s3cret")
    assert (one.method, one.url, one.body) == ("DELETE", "http://127.0.0.1:8080/v1/jobs/a%2Fb", b"")
    assert ("Authorization", "Bearer s3cret") in one.headers
    assert one.sha256 == render_cancel(SIMULATOR, "http://127.0.0.1:8080", "a/b", "another").sha256
    with pytest.raises(ValueError, match="genace has no cancel"):
        render_cancel(GENACE, "http://127.0.0.1:8080", "a", "s")
