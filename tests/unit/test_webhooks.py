"""Signatures of webhooks as providers make them, and what is refused, as a pure function."""

import base64
import hmac
from typing import Any, Final

import pytest

from consumers.providers.webhooks import Forged, Genuine, Webhooks, job_of, key, verify

NOW_S: Final = 1_800_000_000
BODY: Final = b'{"id": "job-1", "status": "succeeded"}'
PLAIN: Final = Webhooks(job_id="$.id", signature_header="X-Signature", signature_prefix="sha256=")
FIELDS: Final = Webhooks(
    job_id="$.id",
    signature_header="Sync-Signature",
    signature_field="v1",
    timestamp_field="t",
    signed="${timestamp}.${body}",
)
STANDARD: Final = Webhooks(
    job_id="$.id",
    signature_header="webhook-signature",
    signature_prefix="v1,",
    separator=" ",
    encoding="base64",
    secret_encoding="base64",
    timestamp_header="webhook-timestamp",
    id_header="webhook-id",
    signed="${id}.${timestamp}.${body}",
)
STANDARD_SECRET: Final = "whsec_" + base64.b64encode(b"a key of some length").decode()


def mac(secret: bytes, text: bytes, algorithm: str = "sha256") -> bytes:
    return hmac.new(secret, text, algorithm).digest()


def plain(secret: str = "s", body: bytes = BODY) -> dict[str, str]:
    return {"x-signature": "sha256=" + mac(secret.encode(), body).hex()}


def fields(at_s: int = NOW_S, secret: str = "s", **more: str) -> dict[str, str]:
    made = {"t": str(at_s), "v1": mac(secret.encode(), f"{at_s}.".encode() + BODY).hex()} | more
    return {"sync-signature": ", ".join(f"{name}={text}" for name, text in made.items())}


def standard(at_s: int = NOW_S, secret: str = STANDARD_SECRET) -> dict[str, str]:
    made = mac(base64.b64decode(secret[6:]), f"msg_1.{at_s}.".encode() + BODY)
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(at_s),
        "webhook-signature": f"v1a,{'A' * 88} v1,{base64.b64encode(made).decode()}",
    }


def judged(scheme: Webhooks, headers: dict[str, str], *secrets: str, body: bytes = BODY) -> str:
    verdict = verify(scheme, headers, body, secrets=secrets, now_s=NOW_S)
    return "genuine" if isinstance(verdict, Genuine) else verdict.why


def test_each_scheme_takes_its_own_and_with_any_of_our_secrets() -> None:
    assert judged(PLAIN, plain(), "s") == "genuine"
    assert judged(PLAIN, plain("new"), "old", "new") == "genuine"
    assert judged(FIELDS, fields(), "s") == "genuine"
    assert judged(FIELDS, fields(v0="ff"), "s") == "genuine"
    assert judged(STANDARD, standard(), STANDARD_SECRET) == "genuine"
    long = Webhooks(job_id="$.id", signature_header="S", algorithm="sha512")
    assert judged(long, {"s": mac(b"s", BODY, "sha512").hex()}, "s") == "genuine"


@pytest.mark.parametrize("off_s", [301, -301])
def test_a_timestamp_is_as_good_as_its_tolerance(off_s: int) -> None:
    for scheme, made, secret in ((FIELDS, fields, "s"), (STANDARD, standard, STANDARD_SECRET)):
        assert judged(scheme, made(NOW_S + off_s), secret) == "stale"
        assert judged(scheme, made(NOW_S + off_s - (1 if off_s > 0 else -1)), secret) == "genuine"
    milliseconds = {"sync-signature": f"t={NOW_S}000,v1={mac(b's', f'{NOW_S}000.'.encode() + BODY).hex()}"}
    assert judged(FIELDS, milliseconds, "s") == "genuine"


@pytest.mark.parametrize(
    ("scheme", "headers", "why"),
    [
        (PLAIN, {}, "unsigned"),
        (PLAIN, {"x-signature": "sha256="}, "malformed"),
        (PLAIN, {"x-signature": "sha256=00ff"}, "malformed"),
        (PLAIN, {"x-signature": mac(b"s", BODY).hex()}, "malformed"),
        (PLAIN, plain(body=b"{}"), "forged"),
        (PLAIN, plain("other"), "forged"),
        (PLAIN, {"x-signature": ",".join(["sha256=" + "00" * 32] * 9)}, "malformed"),
        (FIELDS, fields(secret="other"), "forged"),
        (FIELDS, {"sync-signature": f"v1={mac(b's', BODY).hex()}"}, "malformed"),
        (FIELDS, {"sync-signature": fields()["sync-signature"] + f", t={NOW_S}"}, "malformed"),
        (FIELDS, {"sync-signature": fields()["sync-signature"].replace(str(NOW_S), "1e9")}, "malformed"),
        # Somebody who renews the timestamp of a webhook that he has seen.
        (FIELDS, {"sync-signature": fields(NOW_S - 99)["sync-signature"].replace(str(NOW_S - 99), "1")},
         "forged"),
        (STANDARD, standard() | {"webhook-id": "msg_2"}, "forged"),
        (STANDARD, {k: v for k, v in standard().items() if k != "webhook-id"}, "malformed"),
    ],
)  # fmt: skip
def test_what_is_not_the_providers_is_refused(scheme: Webhooks, headers: dict[str, str], why: str) -> None:
    secret = STANDARD_SECRET if scheme is STANDARD else "s"
    assert verify(scheme, headers, BODY, secrets=[secret], now_s=NOW_S) == Forged(why)  # type: ignore[arg-type]


def test_without_a_secret_nothing_is_genuine_and_an_empty_one_is_none() -> None:
    assert judged(PLAIN, plain("")) == "forged"
    for secret, scheme in (("", PLAIN), ("whsec_", STANDARD), ("not base64!", STANDARD)):
        with pytest.raises(ValueError, match="secret") as told:
            key(scheme, secret)
        assert "not base64!" not in str(told.value)


def test_every_secret_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr("consumers.providers.webhooks.hmac.compare_digest", compare)
    assert judged(PLAIN, plain("first"), "first", "second", "third") == "genuine"
    assert len(compared) == 3


@pytest.mark.parametrize(
    ("body", "job"),
    [
        (BODY, "job-1"),
        (b'{"id": 12345678901234567890}', "12345678901234567890"),
        (b'{"id": "a", "id": "b"}', None),
        (b'{"id": {"id": "x"}}', None),
        (b'{"id": "\\u0000"}', None),
        (b"", None),
        (b"[" * 100_000, None),
    ],
)
def test_a_body_names_one_job_or_none(body: bytes, job: str | None) -> None:
    assert job_of(PLAIN, body) == job


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"signed": "${timestamp}"}, "must have"),
        ({"signed": "${body}${secret}"}, "must have"),
        ({"timestamp_header": "X-Time"}, "belongs into what is signed"),
        ({"signed": "${timestamp}${body}"}, "belongs into what is signed"),
        ({"id_header": "X-Id"}, "belong together"),
        ({"timestamp_field": "t", "signed": "${timestamp}${body}"}, "needs signature_field"),
        ({"signature_header": "X Signature"}, "not a header's name"),
        ({"job_id": "id"}, "job_id"),
    ],
)
def test_a_scheme_that_could_be_renewed_or_never_fits_is_refused(changed: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"job_id": "$.id", "signature_header": "X-Signature"} | changed
    with pytest.raises(ValueError, match=words):
        Webhooks(**given)
