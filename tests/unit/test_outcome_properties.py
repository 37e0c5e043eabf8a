"""What classification promises of every answer there can be, not of those that somebody thought of."""

import base64
import gzip
import html
import json
import string
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, quote_plus

from hypothesis import assume, given
from hypothesis import strategies as st

from consumers.providers import secrecy
from consumers.providers.answer import Answer, from_record, to_record
from consumers.providers.evidence import EVIDENCE_BYTES, bounded
from consumers.providers.outcome import Submission, classify_submission
from consumers.providers.profile import Profile
from provider_samples import profile

GENACE: Final = profile("genace")
SIMULATOR: Final = profile("simulator")
STRICT: Final = profile(
    "genace",
    (
        "reject: []",
        "reject: [{status: 4xx, after: final, charged: false}, {status: 5xx, after: fix, charged: true}]",
    ),
)
PROFILES: Final = st.sampled_from([GENACE, SIMULATOR, STRICT])

STATUSES: Final = st.one_of(st.integers(200, 599), st.sampled_from([200, 201, 422, 429, 502]))
JOB_IDS: Final = st.one_of(
    st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True),
    st.text(
        st.characters(exclude_categories=["Cc", "Cs"]),
        min_size=1,
        max_size=512,
    ),
    st.integers(-(10**30), 10**30).map(str),
).filter(lambda one: one not in {".", ".."} and not one.isspace())
VALUES: Final = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["job_id", "error", "id", "code", "job", "x"]), inner, max_size=3),
    ),
    max_leaves=8,
)
BODIES: Final = st.one_of(
    st.binary(max_size=300),
    VALUES.map(lambda value: json.dumps(value).encode()),
    VALUES.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    st.tuples(VALUES, st.integers(0, 40)).map(lambda cut: json.dumps(cut[0]).encode()[: -cut[1] or None]),
    VALUES.map(lambda value: gzip.compress(json.dumps(value).encode())),
)
HEADERS: Final = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "Content-Length",
                "Transfer-Encoding",
                "Content-Encoding",
                "Retry-After",
                "Date",
                "Location",
                "X-Job-Id",
            ]
        ),
        st.one_of(
            st.sampled_from(["gzip", "br", "deflate", "3", "chunked", "/v1/jobs/a"]), st.text(max_size=20)
        ),
    ),
    max_size=4,
).map(tuple)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    """Anything that an exchange may report, consistent or not."""
    return Answer(
        status=draw(st.one_of(st.none(), st.integers(100, 999))),
        headers=draw(HEADERS),
        body=draw(BODIES),
        body_complete=draw(st.booleans()),
        truncated=draw(st.booleans()),
        unread=draw(st.one_of(st.just(b""), BODIES)),
        sent=draw(st.booleans()),
        hook_returned=draw(st.booleans()),
        malformed=draw(st.booleans()),
        cancelled=draw(st.booleans()),
        error=draw(st.one_of(st.none(), st.text(max_size=30))),
        elapsed_s=1.0,
    )


@given(of=PROFILES, answer=answers())
def test_whatever_came_has_one_outcome_that_can_be_stored(of: Profile, answer: Answer) -> None:
    found = classify_submission(of, answer)
    assert (found.verdict == "accepted") == (found.job_id is not None)
    assert (found.verdict == "refused") == (found.after is not None) == (found.charged is not None)
    assert found.hold is None or found.verdict == "unsent"
    for one in (found.job_id, *found.candidates):
        assert one is None or 1 <= len(one.encode()) <= 4 * 512
        assert one is None or not any(unicodedata.category(character) in {"Cc", "Cs"} for character in one)
    kept = bounded(found.evidence)
    stored = json.dumps(kept)
    assert len(json.dumps(kept, ensure_ascii=False).encode()) <= EVIDENCE_BYTES * 1.1
    assert "\\u0000" not in stored.replace("\\\\", "")
    json.dumps(kept, ensure_ascii=False).encode("utf-8")
    again = from_record(json.loads(json.dumps(to_record(answer))))
    assert again == answer
    assert classify_submission(of, again) == found


@given(of=PROFILES, answer=answers())
def test_once_the_hook_returned_only_a_request_that_can_not_be_written_is_unsent(
    of: Profile, answer: Answer
) -> None:
    returned = replace(answer, hook_returned=True, malformed=False)
    assert classify_submission(of, returned).verdict != "unsent"
    assert classify_submission(of, replace(answer, sent=True)).verdict != "unsent"
    assert classify_submission(of, replace(answer, sent=False, hook_returned=False)).verdict == "unsent"


@given(of=PROFILES, answer=answers())
def test_only_an_id_at_a_path_that_is_declared_for_the_status_accepts(of: Profile, answer: Answer) -> None:
    found = classify_submission(of, replace(answer, sent=True))
    if found.verdict != "accepted":
        return
    assert answer.status is not None
    assert answer.status // 100 == 2 or answer.status == 502
    declared = [_at(rule.job_id, _opened(answer)) for rule in of.accept if rule.covers(answer.status)]
    assert found.job_id in declared


def _opened(answer: Answer) -> Any:
    """The body as Python's own JSON reads it."""
    body = answer.body
    return json.loads(gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body, parse_int=str)


def _at(path: str, document: Any) -> str | None:
    for key in path.removeprefix("$.").split("."):
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, str) else None


def _broken(job_id: str) -> bytes:
    return json.dumps({"job_id": job_id, "rest": "of it"}).encode()[:-9]


# By where the id stands: what an answer adds to a whole one, given the id.
PLACES: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "at its path": lambda job: {"body": json.dumps({"a": 1, "job_id": job, "z": [2]}).encode()},
    "at the error's path": lambda job: {"body": json.dumps({"error": {"job_id": job}}).encode()},
    "by another name": lambda job: {"body": json.dumps({"data": [{"taskId": job}]}).encode()},
    "in a job": lambda job: {"body": json.dumps({"jobs": [{"id": job}]}).encode()},
    "in a list": lambda job: {"body": json.dumps({"job_ids": [job]}).encode()},
    "twice": lambda job: {"body": b'{"job_id": null, "job_id": ' + json.dumps(job).encode() + b"}"},
    "in UTF-16": lambda job: {"body": json.dumps({"job_id": job}).encode("utf-16")},
    "in gzip": lambda job: {
        "body": gzip.compress(json.dumps({"job_id": job}).encode()),
        "headers": (("Content-Encoding", "gzip"), ("Content-Length", "1")),
    },
    "in a body that was cut": lambda job: {"body": _broken(job), "body_complete": False},
    "in broken JSON": lambda job: {"body": _broken(job)},
    "behind what isn't HTTP": lambda job: {
        "status": None,
        "body": b"",
        "unread": b"HTTP/1.1 201 Created\r\nBad Header: x\r\n\r\n" + json.dumps({"job_id": job}).encode(),
    },
    "in a Location": lambda job: {
        "body": b"{}",
        "headers": (("Location", f"/v1/jobs/{quote(job, safe='')}?a=b"), ("Content-Length", "2")),
    },
}


@given(
    of=PROFILES, status=STATUSES, job=JOB_IDS, place=st.sampled_from(sorted(PLACES)), cancelled=st.booleans()
)
def test_an_id_is_never_dropped_and_never_beside_a_refusal(
    of: Profile, status: int, job: str, place: str, cancelled: bool
) -> None:
    # Salvage can't tell a text that is longer in JSON from one that was cut.
    assume(len(json.dumps(job)) <= 512 or place not in {"in a body that was cut", "in broken JSON"})
    assume(len(json.dumps(job)) <= 512 or place != "behind what isn't HTTP")
    parts: dict[str, Any] = {
        "status": status,
        "headers": (("Content-Length", "1"),),
        "body_complete": True,
        "cancelled": cancelled,
    }
    answer = Answer(sent=True, hook_returned=True, **(parts | PLACES[place](job)))
    found = classify_submission(of, answer)
    assert found.verdict in {"accepted", "unknown"}
    assert job in (found.job_id, *found.candidates)
    assert job in json.dumps(bounded(found.evidence), ensure_ascii=False).replace('\\"', '"').replace(
        "\\\\", "\\"
    )


@given(of=PROFILES, answer=answers())
def test_a_refusal_is_whole_and_by_a_rule(of: Profile, answer: Answer) -> None:
    found = classify_submission(of, replace(answer, sent=True))
    if found.verdict != "refused":
        return
    assert answer.status is not None
    assert any(rule.covers(answer.status) for rule in of.reject)
    assert answer.body_complete
    assert not found.candidates
    assert not list(_said(_opened(answer) if _is_json(answer) else None))


def _is_json(answer: Answer) -> bool:
    try:
        _opened(answer)
    except (ValueError, OSError, EOFError):
        return False
    return True


def _said(document: Any) -> Iterator[Any]:
    """What stands under job_id, anywhere; nothing, and a list of nothing, are no id."""
    if isinstance(document, list):
        for one in document:
            yield from _said(one)
    elif isinstance(document, dict):
        for key, value in document.items():
            if key == "job_id" and not isinstance(value, (dict, list)) and value not in (None, ""):
                yield value
            yield from _said(value)


# Secrets ---------------------------------------------------------------------------------------------------

SECRETS: Final = st.text(
    string.ascii_letters + string.digits + "!#$%&'()*+,-./:;<=>?@[]^_`{|}~\"\\", min_size=12, max_size=60
)
FORMS: Final[dict[str, Callable[[str], str]]] = {
    "itself": str,
    "percent": lambda secret: quote(secret, safe=""),
    "a form's": quote_plus,
    "percent in lower case": lambda secret: "".join(f"%{ord(one):02x}" for one in secret),
    "percent twice": lambda secret: quote(quote(secret, safe=""), safe=""),
    "JSON": lambda secret: json.dumps(secret)[1:-1],
    "JSON twice": lambda secret: json.dumps(json.dumps(secret))[3:-3],
    "JSON with slashes": lambda secret: json.dumps(secret)[1:-1].replace("/", r"\/"),
    "JSON in numbers": lambda secret: "".join(f"\\u{ord(one):04X}" for one in secret),
    "HTML": html.escape,
    "HTML in numbers": lambda secret: "".join(f"&#x{ord(one):X};" for one in secret),
    "Python": lambda secret: repr(secret.encode())[2:-1],
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "base64 for URLs": lambda secret: base64.urlsafe_b64encode(secret.encode()).decode(),
    "base64 behind one": lambda secret: base64.b64encode(b"u" + secret.encode()).decode(),
    "base64 behind a scheme": lambda secret: base64.b64encode(b"Bearer " + secret.encode() + b"!").decode(),
    "hexadecimal": lambda secret: secret.encode().hex(),
    "HEXADECIMAL": lambda secret: secret.encode().hex().upper(),
}
ECHOED: Final[dict[str, Callable[[bytes], dict[str, Any]]]] = {
    "a body": lambda said: {"body": b'{"you": "' + said + b'"}'},
    "a body in gzip": lambda said: {"body": gzip.compress(said), "headers": (("Content-Encoding", "gzip"),)},
    "a long body": lambda said: {"body": b"x" * 16_380 + said + b"y" * 60_000},
    "a header": lambda said: {"headers": (("Location", said.decode("latin-1")),)},
    "an id": lambda said: {"body": b'{"job_id": ' + json.dumps(said.decode()).encode() + b"}"},
    "no HTTP": lambda said: {"status": None, "unread": b"!" + said},
    "an error": lambda said: {"error": f"RemoteProtocolError: {said!r}"},
}


@given(
    secret=SECRETS,
    form=st.sampled_from(sorted(FORMS)),
    where=st.sampled_from(sorted(ECHOED)),
    status=STATUSES,
)
def test_a_credential_that_comes_back_in_any_form_is_kept_nowhere(
    secret: str, form: str, where: str, status: int
) -> None:
    said = FORMS[form](secret)
    parts: dict[str, Any] = {"status": status, "body_complete": True}
    parts |= ECHOED[where](said.encode())
    answer = Answer(sent=True, hook_returned=True, secrets=(secret,), **parts)
    found = classify_submission(STRICT, answer)
    # The ends of base64 share bits with what stands beside the secret.
    core = said[2:-4]
    for kept in (_texts(found), json.dumps(to_record(answer)), _opened_record(answer)):
        assert core not in kept
        assert json.dumps(core)[1:-1] not in kept


@given(secret=SECRETS, kept=st.integers(4, 60))
def test_a_credential_that_was_cut_is_kept_nowhere(secret: str, kept: int) -> None:
    begun = secret[: min(kept, len(secret) - 1)]
    body = b'{"you": "' + begun.encode()
    answer = Answer(status=400, body=body, sent=True, hook_returned=True, secrets=(secret,))
    assert begun not in _texts(classify_submission(STRICT, answer)).replace(secrecy.REMOVED, "")


def _texts(found: Submission) -> str:
    kept = json.dumps(bounded(found.evidence), ensure_ascii=False)
    return "\n".join(
        [kept, kept.replace('\\"', '"').replace("\\\\", "\\"), str(found.job_id), *found.candidates]
    )


def _opened_record(answer: Answer) -> str:
    if answer.body.startswith(b"\x1f\x8b"):
        return ""
    record = to_record(answer)
    raw = base64.b64decode(record["body"]) + base64.b64decode(record["unread"])
    return raw.decode("latin-1") + str(record["headers"]) + str(record["error"])
