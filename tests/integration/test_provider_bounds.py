"""What a server may do to this process: bounded in memory and in time, with every connection closed and
nothing of the credential in a log."""

import asyncio
import gzip
import logging
import time
import tracemalloc
from collections.abc import Callable

import pytest

from consumers.providers import coding
from consumers.providers.answer import Answer
from consumers.providers.client import ProviderClient
from consumers.providers.outcome import classify_submission
from consumers.providers.request import render_observe
from provider_samples import answered, profile, submission
from wire import Talk, WireServer
from wire_provider import JOB, SECRET, response, says

pytestmark = pytest.mark.anyio

GENACE = profile("genace")
MIB = 1024 * 1024
LONG_S = 30.0


async def recorded() -> None:
    """A hook that has nothing against sending."""


async def submit(url: str) -> Answer:
    client = ProviderClient(GENACE, base_url=url, secret=SECRET)
    request = submission(GENACE, url, secret=SECRET)
    return await client.submit(request, before_first_byte=recorded, deadline=time.monotonic() + LONG_S)


class Peak:
    """`with Peak() as peak:` `peak.bytes`, allocated by Python since it began."""

    bytes = 0

    def __enter__(self) -> "Peak":
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def endless(head: bytes, chunk: bytes, total: int, sent: list[int]) -> Callable[[Talk], None]:
    """Say `chunk` again and again, `total` bytes, for as long as anybody takes it."""

    def script(talk: Talk) -> None:
        talk.read_request()
        talk.send(head)
        while sum(sent) < total:
            talk.send(chunk)
            sent.append(len(chunk))

    return script


@pytest.mark.parametrize(
    ("head", "chunk"),
    [
        (response(201, b'{"job_id": "job-1", "noise": "', announce=100 * MIB), b"x" * 65_536),
        (
            b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"10000\r\n" + b'{"job_id": "job-1",' + b"x" * (65_536 - 19) + b"\r\n",
        ),
        (b"HTTP/1.1 201 Created\r\n\r\n", b'{"job_id": "job-1",' + b"x" * 65_536),
        (b"HTTP/1.1 201 Created\r\nBad Header: x\r\n\r\n", b'{"job_id": "job-1",' + b"x" * 65_536),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 500),
        (b"HTTP/1.1 201 Created\r\n", b"X-Header: " + b"y" * 60_000 + b"\r\n"),
    ],
    ids=["of its length", "in chunks", "to the end", "after an illegal header", "interim answers", "a head"],
)
async def test_an_answer_of_100_mib_costs_a_few(head: bytes, chunk: bytes) -> None:
    sent: list[int] = []
    with WireServer(endless(head, chunk, 100 * MIB, sent)) as server:
        with Peak() as peak:
            answer = await submit(server.url)
            outcome = classify_submission(GENACE, answer)
        server.wait_closed(1)
    assert len(answer.body) <= GENACE.limits.answer_bytes
    assert peak.bytes < 16 * MIB
    assert outcome.verdict == "unknown"
    assert "TimeoutError" not in (answer.error or ""), "it ends by what came, not by the deadline"
    assert outcome.candidates == (("job-1",) if b"job-1" in head + chunk else ())


async def test_an_observation_is_bounded_too() -> None:
    sent: list[int] = []
    head, chunk = response(200, b'{"status": "', announce=100 * MIB), b"x" * 65_536
    with WireServer(endless(head, chunk, 100 * MIB, sent)) as server:
        client = ProviderClient(GENACE, base_url=server.url, secret=SECRET)
        with Peak() as peak:
            answer = await client.observe(render_observe(GENACE, server.url, "job-1", SECRET), LONG_S)
        server.wait_closed(1)
    assert (answer.status, answer.truncated) == (200, True)
    assert peak.bytes < 16 * MIB
    assert sum(sent) < 100 * MIB


@pytest.mark.parametrize("inside", [b"0" * 100 * MIB, b"[" + b"{}," * (4 * MIB), b'{"id":' * (20 * MIB)])
def test_a_bomb_is_inflated_to_a_bound_and_no_further(inside: bytes) -> None:
    bomb = gzip.compress(inside, 1)
    answer = answered(201, bomb, ("Content-Encoding", "gzip"), ("Content-Length", str(len(bomb))))
    with Peak() as peak:
        found = coding.decoded(answer)
        outcome = classify_submission(GENACE, answer)
    assert (len(found.body), found.readable) == (coding.INFLATED_BYTES, False)
    assert outcome.verdict == "unknown"
    assert peak.bytes < 256 * MIB


async def test_a_cancelled_handshake_leaves_no_connection_open() -> None:
    """httpcore closes it for an Exception, which a cancellation is not."""
    shaking = asyncio.Event()
    loop = asyncio.get_running_loop()

    def script(talk: Talk) -> None:
        talk.read()
        loop.call_soon_threadsafe(shaking.set)
        talk.read_to_the_end()

    with WireServer(script) as server:
        task = asyncio.create_task(submit(server.url.replace("http:", "https:")))
        await asyncio.wait_for(shaking.wait(), LONG_S)
        task.cancel()
        answer = await task
        await asyncio.to_thread(server.wait_closed, 1)
    assert (answer.cancelled, answer.sent) == (True, False)
    assert classify_submission(GENACE, answer).verdict == "unsent"


async def test_at_debug_level_no_header_of_an_answer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), WireServer(says(response(201, JOB, f"X-Echo: {SECRET}"))) as server:
        answer = await submit(server.url)
    assert SECRET in str(answer.headers)
    assert SECRET not in caplog.text
