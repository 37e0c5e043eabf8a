"""HTTP to one provider: submissions and observations. It sends a submit request at most once per
call and never interprets an answer.

It uses transports rather than httpx's client: a transport has no redirects, cookies, netrc or authentication
flow to switch off (httpx's DigestAuth sends two POSTs in one call).
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from consumers.providers import destination
from consumers.providers.answer import Answer
from consumers.providers.destination import Rules
from consumers.providers.exchange import TRANSPORT, Exchange
from consumers.providers.opened import default_tls
from consumers.providers.profile import Profile
from consumers.providers.request import Request, base, download_headers
from relay.errors import UsageError


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
        self._tls = tls or default_tls()
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

    def download_rules(self) -> Rules:
        """How this provider's files are fetched (see download.py). Raises UsageError without the credential
        that they need."""
        named = self._profile.download.allowed_origins
        return Rules(
            allowed=frozenset(
                self._own_origin if one == "self" else destination.origin(one) for one in named
            ),
            own_origin=self._own_origin,
            own_headers=download_headers(self._profile, self._secret),
            limit_bytes=self._profile.limits.output_bytes,
            deadline_s=self._profile.limits.download_deadline_s,
            redirects=self._profile.limits.redirects,
            connect_s=self._profile.submit.connect_timeout_s,
            tls=self._tls,
        )

    def _exchange(self, request: Request) -> Exchange:
        return Exchange(
            request=request,
            limit_bytes=self._profile.limits.answer_bytes,
            connect_timeout_s=self._profile.submit.connect_timeout_s,
        )

    async def _run(self, exchange: Exchange) -> None:
        await exchange.run(tls=self._tls, proxy=self._proxy)
