"""The one place that talks HTTP to a provider, and the only module that imports httpx. It sends a submit
request at most once per call and never interprets an answer.
"""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from consumers.providers.answer import Answer
from consumers.providers.profile import Limits, Profile
from consumers.providers.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloaded:
    """A file that arrived whole. `final_url` is the last one of its redirects."""

    sha256: str
    size: int
    content_type: str | None
    final_url: str


class ProviderClient:
    """HTTP to one provider. Holds no connection between calls."""

    def __init__(
        self,
        profile: Profile,
        *,
        base_url: str,
        secret: str | None = None,
        proxy: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        raise NotImplementedError

    async def submit(
        self, request: Request, *, before_first_byte: Callable[[], Awaitable[None]], deadline: float
    ) -> Answer:
        """Send `request` at most once, until `deadline` (of `time.monotonic`)."""
        raise NotImplementedError

    async def observe(self, request: Request, deadline_s: float) -> Answer:
        """One GET."""
        raise NotImplementedError

    async def download(
        self,
        url: str,
        *,
        sink: Callable[[bytes], Awaitable[None]],
        limits: Limits | None = None,
        allowed: tuple[str, ...] | None = None,
    ) -> Downloaded:
        """Fetch `url` into `sink`. Raises DownloadError (see destination.py)."""
        raise NotImplementedError
