"""HTTP to one provider: submissions, observations and downloads. It sends a submit request at most once per
call and never interprets an answer.

It uses transports rather than httpx's client: a transport has no redirects, cookies, netrc or authentication
flow to switch off (httpx's DigestAuth sends two POSTs in one call).
"""

import asyncio
import hashlib
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from typing import Final
from urllib.parse import urljoin, urlsplit

import h11
import httpx

from consumers.providers import destination
from consumers.providers.answer import Answer
from consumers.providers.destination import (
    OutputCut,
    OutputExpired,
    OutputForbidden,
    OutputRefused,
    OutputTooLarge,
)
from consumers.providers.exchange import TRANSPORT, Exchange, said
from consumers.providers.profile import Limits, Profile
from consumers.providers.request import Request, base, download_headers
from relay.errors import UsageError

_STALL_S: Final = 60.0
"""A download that brings no byte for this long is cut; a connection that vanished says nothing."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_EXPIRED: Final = frozenset({403, 404, 410})
_CODINGS: Final = frozenset({"", "identity", "gzip", "deflate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloaded:
    """A file that arrived whole. `final_url` is the last one of its redirects."""

    sha256: str
    size: int
    content_type: str | None
    final_url: str


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
        exchange = self._exchange(request)
        exchange.before_first_byte, exchange.deadline = before_first_byte, deadline
        failure: BaseException | None = None
        try:
            async with asyncio.timeout(max(0.0, deadline - started)):
                await self._run(exchange)
        # Every way to fail is evidence, and none may lose what had been read: the outcome is decided by how
        # far the exchange came, not by the exception's name.
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            failure = error
        return exchange.answer(failure, elapsed_s=time.monotonic() - started)

    async def observe(self, request: Request, deadline_s: float) -> Answer:
        """One GET, at most `deadline_s` long. Transport errors are Answers; a cancellation goes through."""
        started = time.monotonic()
        exchange = self._exchange(request)
        failure: Exception | None = None
        try:
            async with asyncio.timeout(deadline_s):
                await self._run(exchange)
        except TRANSPORT as error:
            failure = error
        return exchange.answer(failure, elapsed_s=time.monotonic() - started)

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
            raise OutputCut(f"The download was cut: {said(error)}.") from None
        except (httpx.InvalidURL, UnicodeError) as error:
            # A host that has no form in IDNA: httpx says so, or the system's resolver.
            raise OutputForbidden(f"The output URL is not a URL: {said(error)}.") from None
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

    def _exchange(self, request: Request) -> Exchange:
        return Exchange(
            request=request,
            limit_bytes=self._profile.limits.answer_bytes,
            connect_timeout_s=self._profile.submit.connect_timeout_s,
        )

    async def _run(self, exchange: Exchange) -> None:
        await exchange.run(tls=self._tls, proxy=self._proxy)

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
