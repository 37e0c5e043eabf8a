"""The one place that talks HTTP to a provider, and the only module that imports httpx. It sends a submit
request at most once per call and never interprets an answer.

It uses httpx's transport rather than its client: a transport has no redirects, cookies, netrc or
authentication flow to switch off (httpx's DigestAuth sends two POSTs in one call). Each exchange has its own
connection, since a server that closes an idle one can't be told from one that processed the request.
"""

import asyncio
import hashlib
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import h11
import httpx

from consumers.providers import boundaries, destination
from consumers.providers.answer import Answer
from consumers.providers.destination import (
    OutputCut,
    OutputExpired,
    OutputForbidden,
    OutputRefused,
    OutputTooLarge,
)
from consumers.providers.profile import Limits, Profile
from consumers.providers.request import Request, base, download_headers
from relay.errors import UsageError

_HEADERS_STARTED: Final = "http11.send_request_headers.started"
_HEADERS_COMPLETE: Final = "http11.send_request_headers.complete"
_ERROR_CHARACTERS: Final = 500
"""Most of an exception's text that is kept: it may quote what the server sent."""
_STALL_S: Final = 60.0
"""A download that brings no byte for this long is cut; a connection that vanished says nothing."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_EXPIRED: Final = frozenset({403, 404, 410})
_CODINGS: Final = frozenset({"", "identity", "gzip", "deflate"})
_NEVER_SENT: Final = (
    httpx.LocalProtocolError,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
    h11.LocalProtocolError,
    UnicodeEncodeError,
)
"""Raised while the head of a request is put together: where it isn't complete, no byte of it was written."""


class SecondFiring(Exception):
    """The HTTP library was about to send the request of one attempt again."""


class DeadlinePassed(Exception):
    """The hook took until the deadline: nothing may be sent any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloaded:
    """A file that arrived whole. `final_url` is the last one of its redirects."""

    sha256: str
    size: int
    content_type: str | None
    final_url: str


@dataclass(slots=True)
class _Wire:
    """Follows httpcore's trace of one submission, and is where the hook stands between us and the first
    byte."""

    method: bytes
    before_first_byte: Callable[[], Awaitable[None]]
    deadline: float
    fired: bool = False
    returned: bool = False
    headers_complete: bool = False
    hook_error: BaseException | None = None

    async def __call__(self, event: str, info: dict[str, Any]) -> None:
        # A proxy's CONNECT passes here too, and is not the request.
        if event == _HEADERS_STARTED and info["request"].method == self.method:
            await self._stand_before_first_byte()
        elif event == _HEADERS_COMPLETE and self.returned:
            self.headers_complete = True
        boundaries.passed(event, hook_returned=self.returned)

    async def _stand_before_first_byte(self) -> None:
        if self.fired:
            raise SecondFiring("the request of this attempt was about to be sent a second time")
        self.fired = True
        try:
            await self.before_first_byte()
        except BaseException as error:
            self.hook_error = error
            raise
        if time.monotonic() >= self.deadline:
            raise DeadlinePassed("the deadline passed while the submission was being recorded")
        self.returned = True


@dataclass(slots=True)
class _Received:
    """As much of an answer as arrived, whatever happens next."""

    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False
    truncated: bool = False


class ProviderClient:
    """HTTP to one provider. Holds no connection between calls; any number of calls may run at once.

    `proxy`: a SOCKS proxy, or an HTTP proxy for an https provider (CONNECT). Raises UsageError for any
    other: a plain-HTTP proxy's own 502 looks like the provider's.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        base_url: str,
        secret: str | None = None,
        proxy: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._profile = profile
        self._base_url = base(profile, base_url)
        self._own_origin = destination.origin(self._base_url)
        self._secret = secret
        self._tls = tls or _default_tls()
        self._proxy = proxy
        proxy_scheme = urlsplit(proxy).scheme if proxy is not None else None
        if proxy_scheme in {"http", "https"} and self._own_origin.startswith("http:"):
            raise UsageError(
                f"The provider {profile.name} is at {self._own_origin}, and its proxy would have to read the"
                " request.",
                remedy="Use https for the provider, or a SOCKS proxy.",
            )

    async def submit(
        self, request: Request, *, before_first_byte: Callable[[], Awaitable[None]], deadline: float
    ) -> Answer:
        """Send `request` at most once, until `deadline` (of `time.monotonic`). `before_first_byte` is
        awaited after the connection stands and before anything is written; if it raises, or returns after
        the deadline, no byte is sent. Whatever happens is an Answer, a cancellation of the calling task
        too."""
        started = time.monotonic()
        wire = _Wire(request.method.encode(), before_first_byte, deadline)
        received = _Received()
        failure: BaseException | None = None
        try:
            async with asyncio.timeout(max(0.0, deadline - started)):
                await self._exchange(request, received, trace=wire)
        # Every way to fail is evidence, and none may lose what had been read: the outcome is decided by how
        # far the exchange came, not by the exception's name.
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            failure = error
        malformed = isinstance(failure, _NEVER_SENT) and not wire.headers_complete
        return self._answer(
            request,
            received,
            failure,
            elapsed_s=time.monotonic() - started,
            hook_returned=wire.returned,
            sent=wire.returned and not malformed,
            malformed=malformed and wire.hook_error is None,
            hook_error=wire.hook_error,
        )

    async def observe(self, request: Request, deadline_s: float) -> Answer:
        """One GET, at most `deadline_s` long. Transport errors are Answers; a cancellation goes through."""
        started = time.monotonic()
        received = _Received()
        failure: Exception | None = None
        try:
            async with asyncio.timeout(deadline_s):
                await self._exchange(request, received, trace=None)
        except (
            httpx.TransportError,
            httpx.InvalidURL,
            h11.ProtocolError,
            OSError,
            UnicodeEncodeError,
        ) as error:
            failure = error
        elapsed_s = time.monotonic() - started
        return self._answer(request, received, failure, elapsed_s=elapsed_s, sent=True)

    async def download(
        self,
        url: str,
        *,
        sink: Callable[[bytes], Awaitable[None]],
        limits: Limits | None = None,
        allowed: tuple[str, ...] | None = None,
    ) -> Downloaded:
        """Fetch `url` into `sink`, following redirects by hand with each new URL checked. `limits` and
        `allowed` (origins, or `self`) default to the profile's. Raises DownloadError (see destination.py),
        and whatever `sink` raises; what `sink` was given is then not the file."""
        limits = limits or self._profile.limits
        named = self._profile.download.allowed_origins if allowed is None else allowed
        origins = {self._own_origin if one == "self" else destination.origin(one) for one in named}
        try:
            async with asyncio.timeout(limits.download_deadline_s):
                for _ in range(limits.redirects + 1):
                    response = await self._open_download(url, origins)
                    try:
                        if response.status_code not in _REDIRECTS:
                            return await _receive(response, url, sink, limits)
                        url = _next_url(url, response)
                    finally:
                        await response.aclose()
        except TimeoutError:
            raise OutputCut(f"The download took longer than {limits.download_deadline_s:g} s.") from None
        except (httpx.TransportError, httpx.DecodingError, h11.ProtocolError) as error:
            raise OutputCut(f"The download was cut: {_said(error)}.") from None
        except (httpx.InvalidURL, UnicodeError) as error:
            # A host that has no form in IDNA: httpx says so, or the system's resolver.
            raise OutputForbidden(f"The output URL is not a URL: {_said(error)}.") from None
        raise OutputRefused(f"The output URL redirects more than {limits.redirects} times.")

    async def _open_download(self, url: str, allowed: set[str]) -> httpx.Response:
        here = destination.origin(url)
        headers = [("Accept-Encoding", "identity"), ("Connection", "close"), ("User-Agent", "outbox-relay")]
        if here == self._own_origin:
            headers += download_headers(self._profile, self._secret)
        timeouts = {"connect": self._profile.submit.connect_timeout_s, "read": _STALL_S, "write": _STALL_S}
        if here in allowed:
            return await self._send(
                httpx.Request("GET", url, headers=headers, extensions={"timeout": timeouts})
            )
        destination.require_https(url)
        target = httpx.URL(url)
        addresses = await _resolve(target.host, target.port or 443)
        destination.require_public(url, addresses)
        # The address that was checked is the one that is connected to: a name may resolve to another next
        # time.
        headers.append(("Host", target.netloc.decode("ascii")))
        extensions = {"timeout": timeouts, "sni_hostname": target.host}
        for address in addresses[:-1]:
            try:
                pinned = target.copy_with(host=address)
                return await self._send(httpx.Request("GET", pinned, headers=headers, extensions=extensions))
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        pinned = target.copy_with(host=addresses[-1])
        return await self._send(httpx.Request("GET", pinned, headers=headers, extensions=extensions))

    async def _send(self, request: httpx.Request) -> httpx.Response:
        """The head of an answer, on a connection of its own, which closing the response closes."""
        transport = self._transport()
        try:
            return await transport.handle_async_request(request)
        except BaseException:
            await transport.aclose()
            raise

    async def _exchange(self, request: Request, received: _Received, *, trace: _Wire | None) -> None:
        extensions: dict[str, Any] = {"timeout": {"connect": self._profile.submit.connect_timeout_s}}
        if trace is not None:
            extensions["trace"] = trace
        headers = [(name.encode("ascii"), text.encode("ascii")) for name, text in request.headers]
        headers += [
            (name, text)
            for name, text in ((b"Accept-Encoding", b"identity"), (b"Connection", b"close"))
            if name.lower() not in {known.lower() for known, _ in headers}
        ]
        message = httpx.Request(
            request.method,
            request.url,
            headers=headers,
            content=request.body or None,
            extensions=extensions,
        )
        limit_bytes = self._profile.limits.answer_bytes
        async with self._transport() as transport:
            response = await transport.handle_async_request(message)
            received.status = response.status_code
            received.headers = tuple(
                (name.decode("latin-1"), text.decode("latin-1")) for name, text in response.headers.raw
            )
            # As a stream: a cut body must still give its status and the bytes before the cut.
            async with aclosing(response), _closing(response.aiter_raw()) as chunks:
                async for chunk in chunks:
                    room = limit_bytes - len(received.body)
                    received.body += chunk[:room]
                    if len(chunk) > room:
                        received.truncated = True
                        return
            received.complete = True

    def _transport(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(
            verify=self._tls,
            trust_env=False,
            http1=True,
            http2=False,
            retries=0,
            proxy=self._proxy,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def _answer(
        self,
        request: Request,
        received: _Received,
        failure: BaseException | None,
        **how: Any,
    ) -> Answer:
        return Answer(
            status=received.status,
            headers=received.headers,
            body=bytes(received.body),
            body_complete=received.complete,
            truncated=received.truncated,
            cancelled=isinstance(failure, asyncio.CancelledError),
            error=None if failure is None else _said(failure),
            secrets=request.secrets,
            **how,
        )


@cache
def _default_tls() -> ssl.SSLContext:
    """Public authorities, or those of SSL_CERT_FILE. Reading them takes some 15 ms: once per process."""
    return httpx.create_ssl_context()


async def _receive(
    response: httpx.Response, url: str, sink: Callable[[bytes], Awaitable[None]], limits: Limits
) -> Downloaded:
    status = response.status_code
    if status in _EXPIRED:
        raise OutputExpired(f"The output URL answers {status}: it has expired.")
    if status == 429 or status >= 500:
        raise OutputCut(f"The output's server answers {status}.")
    if status != 200:
        raise OutputRefused(f"The output URL answers {status}, which is not a file.")
    coding = response.headers.get("content-encoding", "").strip().lower()
    if coding not in _CODINGS:
        raise OutputRefused(f"The output comes in the coding {coding!r}, which was not asked for.")
    digest, size = hashlib.sha256(), 0
    async with _closing(response.aiter_bytes()) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            if size > limits.output_bytes:
                raise OutputTooLarge(f"The output has more than {limits.output_bytes} bytes.")
            digest.update(chunk)
            await sink(chunk)
    return Downloaded(
        sha256=digest.hexdigest(),
        size=size,
        content_type=response.headers.get("content-type"),
        final_url=url,
    )


def _closing(chunks: AsyncIterator[bytes]) -> aclosing[AsyncGenerator[bytes, None]]:
    """A body that isn't read to its end has to be closed; httpx types its generators as mere iterators."""
    if not isinstance(chunks, AsyncGenerator):
        raise TypeError("httpx no longer makes bodies of generators")
    return aclosing(chunks)


def _next_url(url: str, response: httpx.Response) -> str:
    location: str | None = response.headers.get("location")
    if not location:
        raise OutputRefused(f"The output URL answers {response.status_code} without saying where to.")
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise OutputForbidden(f"The output URL redirects to what is not a URL: {error}.") from None


async def _resolve(host: str, port: int) -> list[str]:
    """Every address of `host`, each once, in the system's order. Raises OutputCut when the name has none
    now."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OutputCut(f"The output's host can't be resolved: {error.strerror}.") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS].rstrip(": ")
