"""One HTTP exchange: what is sent at most once, where the hook stands, and everything that came back however
it ended. It never interprets an answer and never tries again.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import h11
import httpcore
import httpx

from consumers.providers import boundaries
from consumers.providers.answer import Answer
from consumers.providers.request import Request
from consumers.providers.tap import Backend, Tap

# At debug level it writes down each answer's headers, and a server may echo the credential there.
logging.getLogger("httpcore").setLevel(logging.WARNING)

_HEADERS_STARTED: Final = "http11.send_request_headers.started"
_HEAD_COMPLETE: Final = "http11.receive_response_headers.complete"
_ANSWER_FAILED: Final = frozenset(
    {"http11.receive_response_headers.failed", "http11.receive_response_body.failed"}
)
_ERROR_CHARACTERS: Final = 500
"""Most of an exception's text that is kept: it may quote what the server sent."""
UNWRITABLE: Final = (
    httpcore.LocalProtocolError,
    httpcore.UnsupportedProtocol,
    httpx.InvalidURL,
    h11.LocalProtocolError,
    UnicodeEncodeError,
)
"""Raised while the head of a request is put together. Where nothing was written, no byte of it left."""

TRANSPORT: Final = (
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.UnsupportedProtocol,
    httpx.InvalidURL,
    h11.ProtocolError,
    OSError,
    UnicodeEncodeError,
)
"""Every way in which an exchange fails that isn't a fault of this program."""


class SecondFiring(Exception):
    """The HTTP library was about to send the request of one attempt again."""


class DeadlinePassed(Exception):
    """The hook took until the deadline: nothing may be sent any more."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request and as much of its answer as arrived, whatever happens next.

    `limit_bytes` bounds the body that is kept. With `before_first_byte` it is a submission: the hook is
    awaited once, after the connection stands and before anything is written, until `deadline` (of
    `time.monotonic`).
    """

    request: Request
    limit_bytes: int
    connect_timeout_s: float
    before_first_byte: Callable[[], Awaitable[None]] | None = None
    deadline: float = float("inf")
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False
    truncated: bool = False
    hook_fired: bool = False
    hook_returned: bool = False
    hook_error: BaseException | None = None
    _tap: Tap = field(init=False)
    _broke_http: bool = False

    def __post_init__(self) -> None:
        self._tap = Tap(body_bytes=self.limit_bytes)

    async def run(self, *, tls: ssl.SSLContext, proxy: str | None) -> None:
        """Send the request and read the answer. Raises whatever cuts it short."""
        extensions: dict[str, Any] = {"timeout": {"connect": self.connect_timeout_s}}
        if self.before_first_byte is not None:
            extensions["trace"] = self._trace
        # It makes Host and Content-Length, and puts a host's name into IDNA.
        message = httpx.Request(
            self.request.method,
            self.request.url,
            headers=_headers(self.request),
            content=self.request.body or None,
        )
        url = httpcore.URL(
            scheme=message.url.raw_scheme,
            host=message.url.raw_host,
            port=message.url.port,
            target=message.url.raw_path,
        )
        async with aclosing(self._tap), self._pool(tls, proxy) as pool:
            response = await pool.handle_async_request(
                httpcore.Request(
                    message.method,
                    url,
                    headers=message.headers.raw,
                    content=self.request.body or None,
                    extensions=extensions,
                )
            )
            self.status = response.status
            self.headers = tuple(
                (name.decode("latin-1"), held.decode("latin-1")) for name, held in response.headers
            )
            try:
                await self._read(response)
            finally:
                await response.aclose()

    async def _read(self, response: httpcore.Response) -> None:
        # As a stream: a cut body must still give its status and the bytes before the cut.
        async with _closing(response.aiter_stream()) as chunks:
            async for chunk in chunks:
                room = self.limit_bytes - len(self.body)
                self.body += chunk[:room]
                if len(chunk) > room:
                    self.truncated = True
                    return
        self.complete = True

    def _pool(self, tls: ssl.SSLContext, proxy: str | None) -> httpcore.AsyncConnectionPool:
        """One connection, for one request: a server that closes an idle one can't be told from one that
        processed the request. HTTP/1.1 alone: HTTP/2 is silently repeated after some GOAWAYs."""
        through = None if proxy is None else httpx.Proxy(proxy)
        return httpcore.AsyncConnectionPool(
            ssl_context=tls,
            proxy=None
            if through is None
            else httpcore.Proxy(
                url=str(through.url), auth=through.raw_auth, headers=through.headers.raw, ssl_context=None
            ),
            max_keepalive_connections=0,
            http1=True,
            http2=False,
            retries=0,
            network_backend=Backend(self._tap),
        )

    async def _trace(self, event: str, info: dict[str, Any]) -> None:
        # A proxy's CONNECT passes here too, and is not the request.
        if event == _HEADERS_STARTED and info["request"].method == self.request.method.encode():
            await self._stand_before_first_byte()
        elif event == _HEAD_COMPLETE:
            self._tap.head_over = True
        elif event in _ANSWER_FAILED and isinstance(info["exception"], httpcore.RemoteProtocolError):
            self._broke_http = not self._tap.ended
            self._tap.head_over = True
            await self._tap.drain()
        boundaries.passed(event, hook_returned=self.hook_returned)

    async def _stand_before_first_byte(self) -> None:
        if self.hook_fired:
            raise SecondFiring("the request of this attempt was about to be sent a second time")
        self.hook_fired = True
        if self.before_first_byte is not None:
            try:
                await self.before_first_byte()
            except BaseException as error:
                self.hook_error = error
                raise
        if time.monotonic() >= self.deadline:
            raise DeadlinePassed("the deadline passed while the submission was being recorded")
        self.hook_returned = True
        self._tap.open = True

    def answer(self, failure: BaseException | None, *, elapsed_s: float) -> Answer:
        """What came of it, `failure` being what `run` raised."""
        submission = self.before_first_byte is not None
        unwritten = isinstance(failure, UNWRITABLE) and not self._tap.written
        malformed = unwritten and self.hook_error is None
        return Answer(
            status=self.status,
            headers=self.headers,
            body=bytes(self.body),
            body_complete=self.complete,
            truncated=self.truncated,
            unread=self._unread(),
            sent=not unwritten and (self.hook_returned or not submission),
            hook_returned=self.hook_returned,
            malformed=malformed,
            cancelled=isinstance(failure, asyncio.CancelledError),
            error=None if failure is None else said(failure, unwritten=unwritten),
            hook_error=self.hook_error,
            elapsed_s=elapsed_s,
            secrets=self.request.secrets,
        )

    def _unread(self) -> bytes:
        """What came and isn't in `body`, or not as it was meant."""
        chunks_cut = not (self.complete or self.truncated) and any(
            name.lower() == "transfer-encoding" for name, _ in self.headers
        )
        return self._tap.received if self.status is None or self._broke_http or chunks_cut else b""


def said(error: BaseException, *, unwritten: bool = False) -> str:
    """An exception and what caused it first, for people, bounded. One about the request's own head
    (`unwritten`) quotes it, with the credential: of that only the class is told."""
    if unwritten:
        return f"{type(error).__name__}: the head of the request can't be written"
    told = f"{type(error).__name__}: {error}".rstrip(": ")
    first = _first_cause(error)
    if isinstance(first, OSError) and str(first) not in told:
        # "All connection attempts failed" doesn't say whether anybody listens there.
        told += f" ({type(first).__name__}: {first})"
    return told[:_ERROR_CHARACTERS]


def _first_cause(error: BaseException) -> BaseException:
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        else:
            error = error.__cause__ or error.__context__ or error
    return error


def _headers(request: Request) -> list[tuple[bytes, bytes]]:
    headers = [(name.encode("ascii"), text.encode("ascii")) for name, text in request.headers]
    own = {name.lower() for name, _ in headers}
    return headers + [
        (name, text)
        for name, text in ((b"Accept-Encoding", b"identity"), (b"Connection", b"close"))
        if name.lower() not in own
    ]


def _closing(chunks: AsyncIterator[bytes]) -> aclosing[AsyncGenerator[bytes, None]]:
    """A body that isn't read to its end has to be closed; httpcore types its generators as mere iterators."""
    if not isinstance(chunks, AsyncGenerator):
        raise TypeError("httpcore no longer makes bodies of generators")
    return aclosing(chunks)
