"""One request whose answer is read while it comes. It follows nothing, adds no credential and judges nothing;
with an address it connects there and nowhere else.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import h11
import httpx

from consumers.providers.destination import OutputCut, OutputForbidden, OutputUnconnected
from consumers.providers.exchange import said


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The head of an answer, whose body is still to come. Names in `headers` are lower case."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    """The body, its content coding (gzip or deflate) undone. Raises OutputCut when it is cut."""


@asynccontextmanager
async def opened(
    method: str,
    url: str,
    *,
    address: str | None,
    headers: Sequence[tuple[str, str]],
    connect_s: float,
    stall_s: float,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Opened]:
    """Ask for `url` on a connection of its own, which is closed at the end. It follows nothing and adds no
    credential. With `address` that is what it connects to, under the name that `url` has (RFC 6066, 3).
    Raises OutputUnconnected, OutputCut and OutputForbidden; what the block itself raises goes through.
    """
    try:
        target = httpx.URL(url)
        sent = [("Connection", "close"), *headers]
        extensions: dict[str, Any] = {"timeout": {"connect": connect_s, "read": stall_s, "write": stall_s}}
        if address is not None:
            sent.append(("Host", target.netloc.decode("ascii")))
            extensions["sni_hostname"] = target.raw_host.decode("ascii")
            target = target.copy_with(host=address)
        request = httpx.Request(method, target, headers=sent, extensions=extensions)
        async with _transport(tls or default_tls()) as transport:
            response = await transport.handle_async_request(request)
            async with aclosing(response), _closing(response.aiter_bytes()) as chunks:
                yield Opened(
                    status=response.status_code,
                    headers={name.lower(): text for name, text in response.headers.items()},
                    chunks=chunks,
                )
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise OutputUnconnected(f"The server can't be reached: {said(error)}.") from None
    except (httpx.TransportError, httpx.DecodingError, h11.ProtocolError) as error:
        raise OutputCut(f"The answer was cut: {said(error)}.") from None
    except (httpx.InvalidURL, UnicodeError) as error:
        # A host that has no form in IDNA: httpx says so.
        raise OutputForbidden(f"The URL is not a URL: {said(error)}.") from None


def ascii_host(url: str) -> str:
    """The host of `url` as it is resolved and asked for, in one encoding (RFC 5891). Raises OutputForbidden
    where it has none."""
    try:
        return httpx.URL(url).raw_host.decode("ascii")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise OutputForbidden(f"The URL is not a URL: {said(error)}.") from None


def _transport(tls: ssl.SSLContext) -> httpx.AsyncHTTPTransport:
    return httpx.AsyncHTTPTransport(
        verify=tls,
        trust_env=False,
        http1=True,
        http2=False,
        retries=0,
        limits=httpx.Limits(max_keepalive_connections=0),
    )


@cache
def default_tls() -> ssl.SSLContext:
    """Public authorities, or those of SSL_CERT_FILE. Reading them takes some 15 ms: once per process."""
    return httpx.create_ssl_context()


def _closing(chunks: AsyncIterator[bytes]) -> aclosing[AsyncGenerator[bytes, None]]:
    """A body that isn't read to its end has to be closed; httpx types its generators as mere iterators."""
    if not isinstance(chunks, AsyncGenerator):
        raise TypeError("httpx no longer makes bodies of generators")
    return aclosing(chunks)
