"""What a submission puts on the wire, against real sockets: at most one request, nothing before the hook."""

import asyncio
import contextlib
import dataclasses
import ssl
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from consumers.providers.answer import Answer
from consumers.providers.client import ProviderClient
from consumers.providers.outcome import Submission, classify_submission
from consumers.providers.profile import Profile
from consumers.providers.request import Request, require_settings
from provider_samples import OPERATION, PAYLOAD, profile, submission
from relay.errors import UsageError
from wire import CERTIFICATE, Talk, WireServer, listen, refused_port, tunnel

pytestmark = pytest.mark.anyio

GENACE = profile("genace")
LONG_S = 30.0


async def recorded() -> None:
    """A hook that has nothing against sending."""


async def submit(
    url: str,
    *,
    of: Profile = GENACE,
    hook: Callable[[], Awaitable[None]] = recorded,
    deadline_s: float = LONG_S,
    proxy: str | None = None,
    request: Request | None = None,
) -> tuple[Answer, Submission]:
    client = ProviderClient(of, base_url=url, secret="s3cret-Token", proxy=proxy)
    answer = await client.submit(
        request or submission(of, url), before_first_byte=hook, deadline=time.monotonic() + deadline_s
    )
    return answer, classify_submission(of, answer)


async def test_the_payload_reaches_the_provider_byte_for_byte_in_one_request() -> None:
    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(201, b'{"job_id": "job-1"}')

    with WireServer(script) as server:
        answer, outcome = await submit(server.url)
        server.wait_closed(1)
    head, _, body = server.received.partition(b"\r\n\r\n")
    assert body == PAYLOAD
    assert head.startswith(b"POST /v1/jobs HTTP/1.1\r\n")
    assert b"Authorization: Bearer s3cret-Token" in head
    assert server.received.count(b"POST ") == 1
    assert (answer.status, answer.body_complete, answer.error) == (201, True, None)
    assert (outcome.verdict, outcome.job_id) == ("accepted", "job-1")


async def test_the_simulator_is_told_which_operation_a_request_is_for() -> None:
    simulator = profile("simulator")
    with WireServer(lambda talk: talk.answer(201, b"{}") if talk.read_request() else None) as server:
        await submit(server.url, of=simulator)
    assert f"X-Client-Reference: {OPERATION}".encode() in server.received


@pytest.mark.parametrize("failure", [RuntimeError("no"), asyncio.CancelledError(), TimeoutError("lock")])
async def test_a_hook_that_raises_sends_no_byte(failure: BaseException) -> None:
    async def hook() -> None:
        raise failure

    with WireServer(listen) as server:
        answer, outcome = await submit(server.url, hook=hook)
        server.wait_closed(1)
        assert server.received == b""
    assert (answer.sent, answer.hook_returned) == (False, False)
    assert answer.hook_error is failure
    assert (outcome.verdict, outcome.reason, outcome.hold) == ("unsent", "not_recorded", None)


async def test_nothing_is_on_the_wire_while_the_hook_runs() -> None:
    in_hook: list[tuple[int, bytes]] = []

    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(201, b'{"job_id": "job-1"}')

    with WireServer(script) as server:

        async def hook() -> None:
            await asyncio.to_thread(server.wait_connected, 1)
            in_hook.append((server.connections, server.received))

        await submit(server.url, hook=hook)
    assert in_hook == [(1, b"")]


async def test_a_cancellation_in_the_hook_sends_no_byte() -> None:
    reached, never = asyncio.Event(), asyncio.Event()

    async def hook() -> None:
        reached.set()
        await never.wait()

    with WireServer(listen) as server:
        task = asyncio.create_task(submit(server.url, hook=hook))
        await asyncio.wait_for(reached.wait(), LONG_S)
        task.cancel()
        answer, outcome = await task
        server.wait_closed(1)
        assert server.received == b""
    assert (answer.cancelled, answer.sent, outcome.verdict) == (True, False, "unsent")


async def test_a_cancellation_after_the_first_byte_is_unknown() -> None:
    read = asyncio.Event()
    loop = asyncio.get_running_loop()

    def script(talk: Talk) -> None:
        talk.read_request()
        loop.call_soon_threadsafe(read.set)
        talk.read_to_the_end()

    with WireServer(script) as server:
        task = asyncio.create_task(submit(server.url))
        await asyncio.wait_for(read.wait(), LONG_S)
        task.cancel()
        answer, outcome = await task
    assert (answer.cancelled, answer.sent) == (True, True)
    assert (outcome.verdict, outcome.reason) == ("unknown", "cancelled")


async def test_a_hook_that_returns_after_the_deadline_sends_no_byte() -> None:
    async def hook() -> None:
        # As a hook would whose library eats cancellations: the deadline's own is lost.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    with WireServer(listen) as server:
        answer, outcome = await submit(server.url, hook=hook, deadline_s=0.2)
        server.wait_closed(1)
        assert server.received == b""
    assert (answer.hook_returned, answer.sent, outcome.verdict) == (False, False, "unsent")


async def test_a_refused_connection_never_reaches_the_hook() -> None:
    called: list[bool] = []

    async def hook() -> None:
        called.append(True)

    answer, outcome = await submit(f"http://127.0.0.1:{refused_port()}", hook=hook)
    assert called == []
    assert (outcome.verdict, outcome.reason, answer.status) == ("unsent", "not_connected", None)
    # For whoever finds it held as unreachable: why.
    assert "ConnectionRefusedError" in outcome.evidence["error"]


async def test_a_name_that_does_not_resolve_is_unsent() -> None:
    _, outcome = await submit("http://no-such-host.invalid")
    assert outcome.verdict == "unsent"


async def test_tls_that_fails_is_unsent() -> None:
    def script(talk: Talk) -> None:
        talk.send(b"this is not TLS\r\n\r\n")
        talk.reset()

    with WireServer(script) as server:
        url = server.url.replace("http:", "https:")
        _, outcome = await submit(url)
        server.wait_closed(1)
    assert outcome.verdict == "unsent"
    assert b"POST" not in server.received


@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_a_connection_cut_before_the_request_was_read_is_unknown(how: str) -> None:
    in_hook = threading.Event()

    def script(talk: Talk) -> None:
        in_hook.wait(LONG_S)
        if how == "reset":
            talk.reset()

    with WireServer(script) as server:

        async def hook() -> None:
            in_hook.set()
            await asyncio.to_thread(server.wait_closed, 1)

        answer, outcome = await submit(server.url, hook=hook)
    assert (answer.hook_returned, outcome.verdict) == (True, "unknown")


@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_a_connection_cut_after_the_whole_request_was_read_is_unknown(how: str) -> None:
    def script(talk: Talk) -> None:
        talk.read_request()
        if how == "reset":
            talk.reset()

    with WireServer(script) as server:
        answer, outcome = await submit(server.url)
    assert (outcome.verdict, outcome.reason) == ("unknown", "no_answer")
    assert answer.error


async def test_a_body_that_is_cut_keeps_its_status_and_its_bytes() -> None:
    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(201, b'{"job_id": "job-7", "sta', announce=80)

    with WireServer(script) as server:
        answer, outcome = await submit(server.url)
    assert (answer.status, answer.body, answer.body_complete) == (201, b'{"job_id": "job-7", "sta', False)
    assert (outcome.verdict, outcome.reason, outcome.candidates) == ("unknown", "answer_cut", ("job-7",))
    assert outcome.evidence["body"] == '{"job_id": "job-7", "sta'


async def test_a_body_that_drips_past_the_deadline_keeps_what_had_come() -> None:
    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(201, b'{"job_id": "job-8",', announce=10_000)
        while True:
            talk.send(b" ")
            if talk.peer.recv(1) == b"":
                return

    with WireServer(script) as server:
        answer, outcome = await submit(server.url, deadline_s=0.5)
    assert (answer.status, outcome.verdict, outcome.candidates) == (201, "unknown", ("job-8",))
    assert "TimeoutError" in (answer.error or "")


async def test_a_server_that_never_answers_is_unknown_at_the_deadline() -> None:
    with WireServer(listen) as server:
        answer, outcome = await submit(server.url, deadline_s=0.3)
    assert (outcome.verdict, outcome.reason, answer.sent) == ("unknown", "no_answer", True)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_never_followed(status: int) -> None:
    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(status, b"", f"Location: {server.url}/elsewhere")

    with WireServer(script) as server:
        _, outcome = await submit(server.url)
        server.wait_closed(1)
        assert server.connections == 1
    assert (outcome.verdict, outcome.reason) == ("unknown", "redirect")


async def test_a_proxy_that_refuses_connect_leaves_the_request_unsent_and_the_hook_uncalled() -> None:
    called: list[bool] = []

    async def hook() -> None:
        called.append(True)

    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(407, b"no")

    with WireServer(script) as proxy:
        _, outcome = await submit("https://provider.invalid", hook=hook, proxy=proxy.url)
        proxy.wait_closed(1)
        assert proxy.received.startswith(b"CONNECT provider.invalid:443")
    assert b"POST" not in proxy.received
    assert called == []
    assert outcome.verdict == "unsent"


@pytest.mark.parametrize("how", ["fin", "reset", "silent"])
async def test_a_proxy_that_cuts_or_stalls_connect_leaves_the_request_unsent(how: str) -> None:
    def script(talk: Talk) -> None:
        talk.read_request()
        if how == "reset":
            talk.reset()
        if how == "silent":
            talk.read_to_the_end()

    with WireServer(script) as proxy:
        _, outcome = await submit("https://provider.invalid", proxy=proxy.url, deadline_s=0.5)
    assert outcome.verdict == "unsent"


def trusting_the_test() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


async def test_through_a_tunnel_the_hook_stands_before_the_post_and_not_before_connect() -> None:
    in_hook: list[tuple[bytes, bytes]] = []

    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(201, b'{"job_id": "job-1"}')

    with WireServer(script, tls=True) as provider, WireServer(tunnel(provider.port)) as proxy:

        async def hook() -> None:
            in_hook.append((proxy.received[:32], provider.received))

        url = "https://provider.example"
        client = ProviderClient(
            GENACE, base_url=url, secret="s3cret-Token", proxy=proxy.url, tls=trusting_the_test()
        )
        answer = await client.submit(
            submission(GENACE, url), before_first_byte=hook, deadline=time.monotonic() + LONG_S
        )
        provider.wait_closed(1)
    assert in_hook == [(b"CONNECT provider.example:443 HTT", b"")]
    assert provider.received.count(b"POST ") == 1
    assert b"s3cret" not in proxy.received
    assert classify_submission(GENACE, answer).job_id == "job-1"


async def test_a_certificate_of_another_name_or_authority_leaves_the_request_unsent() -> None:
    with WireServer(listen, tls=True) as provider:
        for tls in (None, trusting_the_test()):
            url = f"https://127.0.0.1:{provider.port}"
            client = ProviderClient(GENACE, base_url=url, secret="s3cret-Token", tls=tls)
            answer = await client.submit(
                submission(GENACE, url), before_first_byte=recorded, deadline=time.monotonic() + LONG_S
            )
            assert classify_submission(GENACE, answer).verdict == "unsent"
            assert "certificate" in (answer.error or "")
        assert provider.received == b""


async def test_an_http_proxy_that_would_read_the_request_is_refused() -> None:
    with pytest.raises(UsageError, match="would have to read"):
        ProviderClient(GENACE, base_url="http://127.0.0.1:1", proxy="http://127.0.0.1:2")


@pytest.mark.parametrize("value", ["line\r\nX-Injected: yes", "trailing\n", "ünlesbar", "nul\x00"])
async def test_an_illegal_header_sends_no_byte_and_holds_for_configuration(value: str) -> None:
    with WireServer(listen) as server:
        request = submission(GENACE, server.url)
        illegal = dataclasses.replace(request, headers=(*request.headers, ("X-Odd", value)), secrets=(value,))
        answer, outcome = await submit(server.url, request=illegal)
        assert server.received == b""
    assert (outcome.verdict, outcome.hold) == ("unsent", "configuration")
    # The library quotes the whole header.
    assert value[:6] not in (answer.error or "")


async def test_a_request_that_can_not_be_written_to_its_end_is_unknown_once_its_head_has_left() -> None:
    """The same exception as for an illegal header; only what was written tells them apart."""
    with WireServer(listen) as server:
        request = submission(GENACE, server.url)
        headers = (*request.headers, ("Content-Length", "1"))
        answer, outcome = await submit(server.url, request=dataclasses.replace(request, headers=headers))
        server.wait_closed(1)
        assert server.received.startswith(b"POST ")
    assert "LocalProtocolError" in (answer.error or "")
    assert (answer.sent, outcome.verdict, outcome.hold) == (True, "unknown", None)


@pytest.mark.parametrize("secret", ["line\r\nX-Injected: yes", "trailing\n", "ünlesbar", "nul\x00", " "])
def test_a_credential_that_no_header_may_have_is_refused_before_anything_is_claimed(secret: str) -> None:
    with pytest.raises(UsageError, match="RELAY_PROVIDER_GENACE_SECRET") as refused:
        require_settings(GENACE, "https://provider.example", secret)
    assert secret.rstrip("\n\x00")[:8] not in str(refused.value) or secret.isspace()
    with pytest.raises(UsageError, match="RELAY_PROVIDER_GENACE_SECRET"):
        submission(GENACE, "https://provider.example", secret=secret)


async def test_a_second_firing_of_the_hook_in_one_attempt_sends_nothing() -> None:
    calls: list[int] = []

    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(201, b'{"job_id": "job-1"}')

    with WireServer(script) as server:
        client = ProviderClient(GENACE, base_url=server.url, secret="s3cret-Token")

        async def hook() -> None:
            calls.append(1)

        run = client._run

        async def twice(*args: object, **kwargs: object) -> None:
            # As httpx's own DigestAuth would: two requests in one call.
            await run(*args, **kwargs)  # type: ignore[arg-type]
            await run(*args, **kwargs)  # type: ignore[arg-type]

        client._run = twice  # type: ignore[method-assign]
        answer = await client.submit(
            submission(GENACE, server.url), before_first_byte=hook, deadline=time.monotonic() + LONG_S
        )
        server.wait_closed(1)
    assert calls == [1]
    assert server.received.count(b"POST ") == 1
    assert "SecondFiring" in (answer.error or "")
    # What the first request brought is not lost by the second's refusal.
    assert classify_submission(GENACE, answer).job_id == "job-1"


async def test_an_answer_is_bounded_in_bytes() -> None:
    small = profile("genace", ("unverified:", "limits: {answer_bytes: 1000}\nunverified:"))

    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(201, b'{"job_id": "job-1", "noise": "' + b"x" * 5_000_000 + b'"}')

    with WireServer(script) as server:
        answer, outcome = await submit(server.url, of=small)
    assert (len(answer.body), answer.truncated, answer.body_complete) == (1000, True, False)
    assert (outcome.verdict, outcome.candidates) == ("unknown", ("job-1",))


async def test_an_answer_before_the_request_was_read_is_still_an_answer() -> None:
    def script(talk: Talk) -> None:
        talk.read()
        talk.answer(502, b'{"error": {"job_id": "job-5"}}')
        talk.read_to_the_end()

    with WireServer(script) as server:
        _, outcome = await submit(server.url)
    assert (outcome.verdict, outcome.job_id, outcome.accounting) == ("accepted", "job-5", "unsettled")


async def test_a_hundred_continue_is_not_taken_for_the_answer() -> None:
    def script(talk: Talk) -> None:
        talk.read_request()
        talk.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\n\r\n")
        talk.answer(200, b'{"job_id": "job-6"}')

    with WireServer(script) as server:
        _, outcome = await submit(server.url)
    assert outcome.job_id == "job-6"


async def test_something_that_is_not_http_is_unknown() -> None:
    def script(talk: Talk) -> None:
        talk.read_request()
        talk.send(b"220 mail.example ESMTP\r\n")

    with WireServer(script) as server:
        _, outcome = await submit(server.url)
    assert (outcome.verdict, outcome.reason) == ("unknown", "no_answer")


async def test_cookies_and_redirects_of_one_answer_reach_no_later_request() -> None:
    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(201, b'{"job_id": "job-1"}', "Set-Cookie: session=1; Path=/")

    with WireServer(script) as server:
        client = ProviderClient(GENACE, base_url=server.url, secret="s3cret-Token")
        for _ in range(2):
            await client.submit(
                submission(GENACE, server.url), before_first_byte=recorded, deadline=time.monotonic() + LONG_S
            )
        assert server.connections == 2
    assert b"ookie" not in server.received
