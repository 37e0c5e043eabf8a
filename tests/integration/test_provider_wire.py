"""Every signal of design-operations 5, from real sockets: what each comes to, and that nothing is lost,
leaked or sent twice on the way."""

import asyncio
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from consumers.providers.answer import Answer, from_record, to_record
from consumers.providers.client import ProviderClient
from consumers.providers.evidence import EVIDENCE_BYTES, bounded
from consumers.providers.outcome import Submission, classify_submission
from provider_samples import profile, submission
from wire import CERTIFICATE, EXPIRED, WireServer, refused_port, stalled_port
from wire_answers import ECHOES, answer_cases
from wire_network import network_cases
from wire_provider import SECRET, Case

pytestmark = pytest.mark.anyio

CASES = [*network_cases(), *answer_cases()]
PROFILES = {name: profile(name) for name in ("genace", "simulator")}
IMPATIENT = profile("genace", ("connect_timeout_s: 10", "connect_timeout_s: 0.3"))
HOST = "provider.example"


@dataclass(frozen=True, slots=True)
class Seen:
    answer: Answer
    outcome: Submission
    received: bytes
    hooks: int


@contextmanager
def _place(case: Case) -> Iterator[tuple[str, dict[str, Any], WireServer | None]]:
    """Where the client is sent for this case: its base URL, how it connects, and the server."""
    with ExitStack() as stack:
        if case.unreachable:
            port = {"refused": refused_port}.get(case.unreachable, lambda: 0)()
            if case.unreachable == "stalled":
                port = stack.enter_context(stalled_port())
            host = "no-such-host.invalid" if case.unreachable == "no_name" else f"127.0.0.1:{port}"
            yield f"http://{host}", {}, None
            return
        encrypted = case.tls not in {"", "not_tls"}
        certificate = EXPIRED if case.tls == "expired" else CERTIFICATE
        server = stack.enter_context(WireServer(case.script, tls=certificate if encrypted else False))
        how: dict[str, Any] = {}
        url = server.url.replace("http:", "https:") if case.tls else server.url
        if case.tls in {"trusted", "another_name", "expired"}:
            how["tls"] = ssl.create_default_context(cafile=str(certificate))
            if case.tls != "another_name":
                how["tls"] = _named(how["tls"])
        if case.proxied == "connect":
            how["proxy"], url = server.url, f"https://{HOST}"
        elif case.proxied == "socks":
            how["proxy"], url = server.url.replace("http:", "socks5:"), f"http://{HOST}"
        yield url, how, server


def _named(context: ssl.SSLContext) -> ssl.SSLContext:
    """The server is at an address; its certificate is for a name."""
    context.check_hostname = False
    return context


async def _run(case: Case) -> Seen:
    of = IMPATIENT if case.unreachable == "stalled" else PROFILES[case.profile]
    hooks = 0
    with _place(case) as (url, how, server):

        async def hook() -> None:
            nonlocal hooks
            hooks += 1
            if case.in_hook and server is not None:
                server.released.set()
                await asyncio.to_thread(server.wait_closed, 1)

        client = ProviderClient(of, base_url=url, secret=SECRET, **how)
        request = submission(of, url, payload=case.payload, secret=SECRET)
        answer = await client.submit(
            request, before_first_byte=hook, deadline=time.monotonic() + case.deadline_s
        )
        if server is not None:
            server.released.set()
            await asyncio.to_thread(server.wait_closed, 1)
            assert server.connections == 1
        received = b"" if server is None else server.received
    return Seen(answer, classify_submission(of, answer), received, hooks)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_each_signal_comes_to_what_the_table_says(case: Case) -> None:
    seen = await _run(case)
    outcome = seen.outcome

    assert (outcome.verdict, outcome.reason) == (case.verdict, case.reason), seen.answer.error
    assert (outcome.job_id, outcome.candidates) == (case.job_id, case.candidates)
    assert (outcome.after, outcome.charged, outcome.hold) == (case.after, case.charged, case.hold)
    assert outcome.accounting == ("unsettled" if case.unsettled else "reserved")
    assert outcome.generic_failure is case.generic
    assert outcome.retry_after_s == case.retry_after_s

    # One request at most; none, and not a byte of it, where it is called unsent.
    assert seen.received.count(b"POST /v1/jobs ") <= 1
    assert b"\r\nexpect:" not in seen.received.lower()
    assert seen.hooks == (0 if case.verdict == "unsent" else 1)
    if case.verdict == "unsent":
        assert b"POST" not in seen.received
        assert SECRET.encode() not in seen.received

    # Ids first, then what was said; bounded; and a row, a spool and a log without the credential.
    kept = bounded(outcome.evidence)
    assert len(json.dumps(kept)) <= EVIDENCE_BYTES
    first = next(iter(kept))
    assert first == ("job_id" if case.job_id else "candidates" if case.candidates else first)
    assert case.said.encode() in _texts(kept), kept
    spooled = json.dumps(to_record(seen.answer))
    for text in (json.dumps(kept), str(outcome), _opened(spooled)):
        assert not any(form in text for _, form in ECHOES.values()), text

    # A worker that finds the answer in the spool reads the same in it.
    again = classify_submission(PROFILES[case.profile], from_record(json.loads(spooled), secrets=(SECRET,)))
    assert (again.verdict, again.reason, again.job_id) == (case.verdict, case.reason, case.job_id)
    assert again.candidates == case.candidates


def _texts(evidence: dict[str, Any]) -> bytes:
    return json.dumps(evidence, ensure_ascii=False).replace('\\"', '"').replace("\\\\", "\\").encode()


def _opened(spooled: str) -> str:
    """The spool's record with its bytes beside it, as text."""
    answer = from_record(json.loads(spooled))
    return spooled + str(answer.headers) + (answer.body + answer.unread).decode("latin-1")


def test_the_table_has_each_case_once_and_every_way_to_end() -> None:
    assert len({case.name for case in CASES}) == len(CASES) > 400
    ends = {(case.phase, case.accounting) for case in CASES}
    assert ends == {
        ("accepted", "reserved"),
        ("accepted", "unsettled"),
        ("prepared", "released"),
        ("rejected", "released"),
        ("uncertain", "reserved"),
    }
