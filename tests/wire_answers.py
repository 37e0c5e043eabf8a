"""Cases of what an answer says: statuses, rules, ids of every form, waits, and echoes of our credential."""

import gzip
import json
from collections.abc import Iterator
from typing import Final

from wire_provider import (
    ERROR_JOB,
    JOB,
    LARGE_PAYLOAD,
    LONG,
    PLAIN_ERROR,
    SECRET,
    Case,
    Script,
    accepted,
    response,
    says,
    says_early,
    unknown,
)


def answer_cases() -> Iterator[Case]:
    """All of them."""
    yield from _statuses()
    yield from _refusals()
    yield from _ids()
    yield from _waits()
    yield from _echoes()


STATUSES: Final = (
    *(300, 301, 302, 303, 304, 305, 307, 308),
    *(
        400,
        401,
        402,
        403,
        404,
        405,
        406,
        408,
        409,
        410,
        411,
        413,
        415,
        417,
        418,
        422,
        423,
        425,
        426,
        428,
        429,
    ),
    *(
        431,
        451,
        499,
        500,
        501,
        502,
        503,
        504,
        505,
        507,
        511,
        520,
        521,
        522,
        523,
        524,
        525,
        526,
        530,
        598,
        599,
    ),
)


def _statuses() -> Iterator[Case]:
    """Every status that isn't a success, without a rule: nothing is proven, and no id is lost."""
    for status in STATUSES:
        redirect = status // 100 == 3
        reason = "redirect" if redirect else f"status_{status}"
        generic = status in {401, 403} or status >= 500
        bodies = {
            "nothing": b"",
            "an error": PLAIN_ERROR,
            "a page": b"<html><body>no</body></html>",
            "its request's id": b'{"error": {"id": "err-1"}, "request_id": "req-1"}',
        }
        for what, body in bodies.items():
            if status == 304 and body:
                continue
            ids = ("err-1", "req-1") if "id" in what else ()
            yield unknown(
                f"{status} with {what}",
                says(response(status, body)),
                reason,
                *(reversed(ids) if ids else ()),
                generic=generic,
            )
        if status == 304:
            continue
        named = "redirect" if redirect else "job_id_with_error"
        yield unknown(f"{status} with an id", says(response(status, JOB)), named, "job-1")
        if status != 502:
            yield unknown(
                f"{status} with an id in its error", says(response(status, ERROR_JOB)), named, "job-1"
            )
    for status in (301, 302, 303, 307, 308):
        for what, location, seen in (
            ("elsewhere", "https://elsewhere.example/v1/jobs", ()),
            ("here again", "/v1/jobs", ()),
            ("a job's own address", "/v1/jobs/job%2F1?x=y", ("job/1",)),
            ("a job's own address, in whole", "https://provider.example/v1/jobs/job-1#top", ("job-1",)),
            ("an address that is no UTF-8", "/v1/jobs/job%FF", ()),
        ):
            script = says(response(status, b"", f"Location: {location}"))
            yield unknown(f"{status} to {what}", script, "redirect", *seen)
    yield Case(
        name="502 with an id at the path that is declared for it",
        script=says(response(502, ERROR_JOB)),
        verdict="accepted",
        reason="accepted_with_error",
        job_id="job-1",
        unsettled=True,
    )
    for status in (200, 201, 202, 203, 206, 299):
        yield accepted(f"{status} with an id", says(response(status, JOB)))
        yield unknown(f"{status} without one", says(response(status, b"{}")), "no_job_id")
    yield unknown("204", says(b"HTTP/1.1 204 No Content\r\n\r\n"), "answer_not_json")
    yield unknown(
        "101", says(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"), "no_answer", said="101 Switching"
    )


WAITS: Final = (
    ("", None),
    ("7", 7.0),
    ("0", 0.0),
    ("Tue, 01 Dec 2026 12:00:09 GMT", 9.0),
    ("Tuesday, 01-Dec-26 12:00:09 GMT", 9.0),
    ("Tue Dec  1 12:00:09 2026", 9.0),
    ("Tue, 01 Dec 2026 11:00:00 GMT", 0.0),
    ("Tue, 01 Dec 2036 12:00:00 GMT", 86400.0),
    ("99999999999999999999", 86400.0),
    ("9" * 40, 86400.0),
    ("-5", None),
    ("1.5", None),
    ("soon", None),
    ("Mon, 32 Foo 2026 99:00:00 GMT", None),
)


def _refusals() -> Iterator[Case]:
    """The simulator's profile has rules: 422 is final, 429 is sent again later, and neither is charged."""

    def refused(name: str, status: int, script: Script, **more: object) -> Case:
        rule = ("invalid_request", "final") if status == 422 else ("rate_limited", "delay")
        return Case(
            name=f"rule: {name}",
            script=script,
            verdict="refused",
            reason=rule[0],
            after=rule[1],
            charged=False,
            profile="simulator",
            **more,  # type: ignore[arg-type]
        )

    def doubted(name: str, script: Script, reason: str, *ids: str) -> Case:
        return unknown(f"rule: {name}", script, reason, *ids, profile="simulator")

    yield refused("422", 422, says(response(422, PLAIN_ERROR)))
    yield refused("422 without a body", 422, says(response(422)))
    yield refused("422 in chunks", 422, says(response(422, PLAIN_ERROR, framing="chunked")))
    yield refused("422 with a page", 422, says(response(422, b"<html>Your job is invalid</html>")))
    yield refused("422 to the connection's end", 422, says(response(422, PLAIN_ERROR, framing="close")))
    yield refused("422 with its error's id", 422, says(response(422, b'{"error": {"id": "err-1"}}')))
    packed = gzip.compress(PLAIN_ERROR)
    yield refused("422 in gzip", 422, says(response(422, packed, "Content-Encoding: gzip")))
    yield refused(
        "422 while the body is being sent", 422, says_early(response(422), "reset"), payload=LARGE_PAYLOAD
    )
    for said, wait_s in WAITS:
        headers = ["Date: Tue, 01 Dec 2026 12:00:00 GMT", *([f"Retry-After: {said}"] if said else [])]
        script = says(response(429, b"", *headers))
        yield refused(f"429, Retry-After {said or 'absent'!r}", 429, script, retry_after_s=wait_s or 1.0)
    for what, body in (
        ("an id", b'{"job_id": "j"}'),
        ("an id in its error", b'{"error": {"job_id": "j"}}'),
        ("an id by another name", b'{"taskId": "j"}'),
        ("an id in a list", b'{"job_ids": ["j"]}'),
        ("a job's own id", b'{"job": {"id": "j"}}'),
        ("an id in broken JSON", b'{"job_id": "j", "oth'),
        ("an id in a form", b"status=bad&job_id=j&x=y"),
        ("an id in XML", b"<error><job_id>j</job_id></error>"),
    ):
        yield doubted(f"422 with {what}", says(response(422, body)), "job_id_with_error", "j")
    yield doubted(
        "422 with an id in a header", says(response(422, b"", "X-Job-Id: j")), "job_id_with_error", "j"
    )
    yield doubted("422 with two ids in headers", says(response(422, b"", "X-Job-Id: j", "X-Task-Id: k")),
                  "job_id_with_error", "j", "k")  # fmt: skip
    for what, body in (
        ("an id of a wrong form", b'{"job_id": 1.5}'),
        ("a blank id", b'{"job_id": "  "}'),
        ("an id of a wrong form elsewhere", b'{"data": {"task_id": 1.5}}'),
        ("an id that is no UTF-8", b'{"job_id": "a\xff"}'),
    ):
        yield doubted(f"422 with {what}", says(response(422, body)), "job_id_malformed")
    yield doubted(
        "422 with a too long id in broken JSON",
        says(response(422, b'{"job_id": "' + b"j" * 10_000)),
        "refusal_unreadable",
    )
    cut = response(422, PLAIN_ERROR[:-1], announce=80)
    yield doubted("422 cut", says(cut), "refusal_cut")
    yield doubted(
        "422 cut in chunks", says(response(422, PLAIN_ERROR, framing="chunked")[:-9]), "refusal_cut"
    )
    yield doubted(
        "422 to the connection's end, and no JSON",
        says(response(422, PLAIN_ERROR[:-1], framing="close")),
        "refusal_unreadable",
    )
    yield doubted(
        "422 in a coding that we can't read", says(response(422, b"\x0b\x02\x80", "Content-Encoding: br")),
        "refusal_unreadable",
    )  # fmt: skip
    yield doubted(
        "422 in gzip that was cut", says(response(422, packed[:-12], "Content-Encoding: gzip")),
        "refusal_unreadable",
    )  # fmt: skip


def _waits() -> Iterator[Case]:
    for status in (408, 425, 429, 503):
        for said, wait_s in WAITS:
            headers = ["Date: Tue, 01 Dec 2026 12:00:00 GMT", *([f"Retry-After: {said}"] if said else [])]
            yield unknown(
                f"{status}, Retry-After {said or 'absent'!r}",
                says(response(status, PLAIN_ERROR, *headers)),
                f"status_{status}",
                generic=status == 503,
                retry_after_s=wait_s,
            )
    yield unknown(
        "429, a date to wait for and no date of its own",
        says(response(429, b"", "Retry-After: Tue, 01 Dec 2026 12:00:09 GMT")),
        "status_429",
    )


BODIES: Final[tuple[tuple[str, bytes, str, tuple[str, ...]], ...]] = (
    ("no UTF-8 beside the id", b'{"job_id": "job-1", "by": "gr\xf6\xdfe"}', "", ("job-1",)),
    ("a key twice", b'{"job_id": "a", "job_id": "b"}', "several_job_ids", ("a", "b")),
    ("a key twice, one text", b'{"job_id": "job-1", "job_id": "job-1"}', "", ("job-1",)),
    ("a key twice, one of a wrong form", b'{"job_id": "a", "job_id": 1.5}', "job_id_malformed", ("a",)),
    ("a key twice, one null", b'{"job_id": null, "job_id": "job-1"}', "", ("job-1",)),
    ("an id in a list", b'[{"job_id": "a"}]', "job_id_not_at_its_path", ("a",)),
    ("an id deeper", b'{"data": {"job_id": "a"}}', "job_id_not_at_its_path", ("a",)),
    ("an id by another name", b'{"id": "a"}', "job_id_not_at_its_path", ("a",)),
    ("three ids by other names", b'{"id": "a", "task_id": "b", "run": {"id": "c"}}', "several_job_ids",
     ("b", "c", "a")),
    ("a byte order mark", b"\xef\xbb\xbf" + JOB, "", ("job-1",)),
    ("white space around", b" \r\n\t" + JOB + b"\n\n", "", ("job-1",)),
    ("UTF-16", '{"job_id": "job-1"}'.encode("utf-16"), "", ("job-1",)),
    ("UTF-32", '{"job_id": "job-1"}'.encode("utf-32"), "", ("job-1",)),
    ("a status that failed", b'{"job_id": "job-1", "status": "failed", "error": "x"}', "", ("job-1",)),
    ("nothing", b"", "answer_not_json", ()),
    ("a page", b"<html>ok</html>", "answer_not_json", ()),
    ("text", b"accepted: job-1", "answer_not_json", ()),
    ("a form", b"job_id=a&status=queued", "answer_not_json", ("a",)),
    ("XML", b"<job><job_id>a</job_id></job>", "answer_not_json", ("a",)),
    ("a repr", b"{'job_id': 'a', 'x': None}", "answer_not_json", ("a",)),
    ("events", b'event: job\ndata: {"job_id": "a"}\n\n', "answer_not_json", ("a",)),
    ("lines", b'{"job_id": "a"}\n{"job_id": "b"}\n', "answer_not_json", ("a", "b")),
    ("a guard before JSON", b")]}'\n" + JOB, "answer_not_json", ("job-1",)),
    ("JSON that ends early", b'{"job_id": "a", "st', "answer_not_json", ("a",)),
    ("an id that ends early", b'{"job_id": "job-1', "answer_not_json", ()),
    ("a number that ends early", b'{"job_id": 17', "answer_not_json", ()),
    ("a control in a text", b'{"job_id": "a", "m": "x\ny"}', "answer_not_json", ("a",)),
    ("deep nesting", b'{"job_id": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "answer_not_json", ()),
    ("no object", b'"job-1"', "no_job_id", ()),
    ("two ids that are declared", b'{"job_id": "job-1", "error": {"job_id": "b"}}', "", ("job-1", "b")),
)  # fmt: skip
"""Bodies of a 201, why each is uncertain (or not), and the ids in it."""


def _ids() -> Iterator[Case]:
    """What stands at the declared path of a 201."""
    for said, job_id in (
        ('"job-1"', "job-1"),
        ("17", "17"),
        ("0", "0"),
        ("-1", "-1"),
        ("9007199254740993", "9007199254740993"),
        ("12345678901234567890123", "12345678901234567890123"),
        ('"1e2"', "1e2"),
        ('"a/b?c#d%"', "a/b?c#d%"),
        ('"../../etc"', "../../etc"),
        (r'"gr\u00f6\u00dfe"', "größe"),
        ('"größe"', "größe"),
        (r'"\ud83d\ude80"', "\N{ROCKET}"),
        ('" a "', " a "),
        (f'"{LONG}"', LONG),
        ('"true"', "true"),
    ):
        name = said if len(said) < 40 else f"{len(said)} characters"
        yield accepted(f"the id {name}", says(response(201, f'{{"job_id": {said}}}'.encode())), job_id)
    for said in (
        f'"{LONG}j"', '"' + "j" * 10_000 + '"', "1e2", "1.0", "1.5", "NaN", "Infinity", "true", "false", "[]",
        "{}", '["job-1"]', '{"value": "job-1"}', '" "', r'"\t"', r'"a\u0000b"', r'"a\nb"', r'"a\u007f"',
        r'"\ud800"', r'"a\udfff"', '"."', '".."', "9" * 513,
    ):  # fmt: skip
        # A list of one text may be an id all the same.
        ids = ("job-1",) if said == '["job-1"]' else ()
        name = said if len(said) < 40 else f"{said[:2]}… of {len(said)} characters"
        body = f'{{"job_id": {said}}}'
        script = says(response(201, body.encode()))
        yield unknown(
            f"the id {name}", script, "job_id_malformed", *ids, said=body if len(said) < 40 else said[:500]
        )
    for said in ("null", '""'):
        yield unknown(f"the id {said}", says(response(201, f'{{"job_id": {said}}}'.encode())), "no_job_id")
    bad = b'{"job_id": "a\xffb"}'
    yield unknown("an id that is no UTF-8", says(response(201, bad)), "job_id_malformed")
    for what, raw, reason, seen in BODIES:
        script = says(response(201, raw))
        if reason:
            yield unknown(f"201, {what}", script, reason, *seen)
        else:
            yield accepted(f"201, {what}", script, candidates=seen[1:])
    many = json.dumps({"jobs": [{"id": f"j-{number}"} for number in range(40)]}).encode()
    forty = [f"j-{number}" for number in range(40)]
    yield unknown("201, forty ids", says(response(201, many)), "several_job_ids", *forty[:32], said="j-39")
    header = says(response(202, b"{}", "X-Prediction-Id: a", "Location: /v1/jobs/b"))
    yield unknown("202, ids in headers alone", header, "several_job_ids", "a", "b")


ECHOES: Final[dict[str, tuple[str, str]]] = {
    "as it is": ('{"you": "Bearer %s"}', SECRET),
    "percent-encoded": ("q=%s&x=y", "s3cret%2DToken"),
    "percent-encoded in whole": ("q=%s", "".join(f"%{ord(one):02X}" for one in SECRET)),
    "percent-encoded twice": ("q=%s", "s3cret%252dToken"),
    "in base64 behind a user": ("Basic %s==", "c2VjOnMzY3JldC1Ub2tlbg"),
    "in base64 behind its scheme": ("you said %s==", "QmVhcmVyIHMzY3JldC1Ub2tlbg"),
    "in base64": ('{"token": "%s"}', "czNjcmV0LVRva2Vu"),
    "escaped": ('{"you": "%s"}', r"s3cret\u002dToken"),
    "escaped twice": (r'{"you": "{\"authorization\": \"%s\"}"}', r"s3cret\\u002DToken"),
    "in HTML": ("<p>%s</p>", "s3cret&#45;Token"),
    "in hexadecimal": ("%s", "7333637265742d546f6b656e"),
}
"""How servers echo a credential: what stands around, and the form itself."""


def _echoes() -> Iterator[Case]:
    """A server that sends our credential back, wherever it can."""
    for name, (around, form) in ECHOES.items():
        text = around.replace("%s", form)
        body = text.encode()
        yield unknown(
            f"the credential {name}, echoed", says(response(400, body)), "status_400", said="removed"
        )
        script = says(response(400, gzip.compress(body), "Content-Encoding: gzip"))
        yield unknown(f"the credential {name}, echoed in gzip", script, "status_400", said="removed")
        script = says(response(302, b"", f"Location: /login?from={text}"))
        yield unknown(f"the credential {name}, echoed in a header", script, "redirect", said="removed")
        yield unknown(
            f"the credential {name}, echoed without HTTP", says(b"!" + body), "no_answer", said="removed"
        )
    yield unknown(
        "the credential as a job's id",
        says(response(201, f'{{"job_id": "{SECRET}"}}'.encode())),
        "job_id_malformed",
        said="removed",
    )
    yield unknown(
        "the credential within an id elsewhere",
        says(response(400, f'{{"task_id": "of-{SECRET}"}}'.encode())),
        "job_id_malformed",
        said="removed",
    )
    half = says(response(400, b'{"you": "' + SECRET[:-2].encode(), announce=999))
    yield unknown("the credential cut within", half, "status_400", said="removed")
