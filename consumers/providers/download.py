"""Downloads one file: where it may come from, how a cut one goes on, and when it is whole. It never gives
bytes of two versions to one file, and sends a credential to the provider's own origin alone.
"""

import asyncio
import hashlib
import re
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final, Protocol
from urllib.parse import urljoin, urlsplit

from consumers.providers import destination
from consumers.providers.destination import (
    OutputCut,
    OutputExpired,
    OutputForbidden,
    OutputRefused,
    OutputTooLarge,
    OutputUnconnected,
    Rules,
)
from consumers.providers.opened import Opened, ascii_host, opened

_STALL_S: Final = 60.0
"""A download that brings no byte for this long is cut; a connection that vanished says nothing."""
_RESUMPTIONS: Final = 20
"""Most times that one call goes on after a cut; each of them must have brought bytes."""
_RESUME_AFTER_S: Final = 0.05
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_EXPIRED: Final = frozenset({403, 404, 410})
_CODINGS: Final = frozenset({"", "identity", "gzip", "deflate"})
_ETAG: Final = re.compile(r'"[\x21\x23-\x7e\x80-\xff]*"')
"""A strong entity tag (RFC 9110, 8.8.3); `W/"…"` is a weak one, which says nothing of single bytes."""
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Which version of a file the bytes at hand are of. `resource` is a digest of the URL that they came
    from, without its query: a signature may change, and a tag means nothing for another resource (RFC 9110,
    8.8.3)."""

    resource: str
    etag: str | None
    last_modified: str | None
    total: int | None
    """Bytes of the whole, where it was said."""
    content_type: str | None

    @property
    def validator(self) -> str:
        """For If-Range: an entity tag, or else a date (RFC 9110, 13.1.5)."""
        return self.etag or self.last_modified or ""


class Target(Protocol):
    """Where the bytes go. `kept` is None where what is there can't be gone on with."""

    @property
    def size(self) -> int: ...

    @property
    def kept(self) -> Kept | None: ...

    async def restart(self, kept: Kept | None) -> None:
        """Forget every byte; what comes now is of the version `kept`."""

    async def write(self, chunk: bytes) -> None: ...

    def sha256(self) -> str:
        """Lowercase hexadecimal, over all bytes that are there."""


class InMemory:
    """A target for what is small."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.kept: Kept | None = None

    @property
    def size(self) -> int:
        return len(self.content)

    async def restart(self, kept: Kept | None) -> None:
        self.content.clear()
        self.kept = kept

    async def write(self, chunk: bytes) -> None:
        self.content += chunk

    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloaded:
    """A file that arrived. `final_url` is the last one of its redirects. Where not `framed`, nothing said how
    long it is, and a cut looks like the end (RFC 9112, 8)."""

    sha256: str
    size: int
    content_type: str | None
    final_url: str
    framed: bool = True


class _StartAnew(Exception):
    """What is at hand is of another version; the request is made once more, for the whole."""


async def download(url: str, *, target: Target, rules: Rules) -> Downloaded:
    """Fetch `url` into `target`, going on where `target` and the server allow it, following redirects by hand
    with each new URL checked. Raises DownloadError (see destination.py), and whatever `target` raises; what
    `target` then has is the beginning of the file where its `kept` says so, and nothing otherwise.
    """
    kept = target.kept
    if kept is not None and target.size == kept.total:
        # All of it came, and whoever fetched it was killed before it had its name.
        return Downloaded(
            sha256=target.sha256(), size=target.size, content_type=kept.content_type, final_url=url
        )
    try:
        async with asyncio.timeout(rules.deadline_s):
            for _ in range(_RESUMPTIONS):
                before = target.size
                try:
                    return await _follow(url, target, rules)
                except _StartAnew:
                    await target.restart(None)
                except OutputCut:
                    if target.kept is None or target.size <= before:
                        raise
                    await asyncio.sleep(_RESUME_AFTER_S)
            return await _follow(url, target, rules)
    except TimeoutError:
        raise OutputCut(f"The download took longer than {rules.deadline_s:g} s.") from None
    except _StartAnew:
        raise OutputCut("The file changed again and again while it was downloaded.") from None


async def _follow(url: str, target: Target, rules: Rules) -> Downloaded:
    for _ in range(rules.redirects + 1):
        asked = _resumed(url, target)
        async with _answer(url, asked, target.size, rules) as answer:
            if answer.status not in _REDIRECTS:
                return await _receive(answer, url, asked, target, rules)
            url = _next_url(url, answer)
    raise OutputRefused(f"The output URL redirects more than {rules.redirects} times.")


def _resumed(url: str, target: Target) -> Kept | None:
    kept = target.kept
    return kept if kept is not None and target.size > 0 and kept.resource == resource_of(url) else None


def resource_of(url: str) -> str:
    """For `Kept.resource`. Raises OutputForbidden for what is no URL."""
    parts = urlsplit(url)
    return hashlib.sha256(f"{destination.origin(url)}{parts.path}".encode("utf-8", "replace")).hexdigest()


# Where it may go ------------------------------------------------------------------------------------------


@asynccontextmanager
async def _answer(url: str, asked: Kept | None, start: int, rules: Rules) -> AsyncIterator[Opened]:
    here = destination.origin(url)
    headers = [("Accept-Encoding", "identity"), ("User-Agent", "outbox-relay")]
    if asked is not None:
        headers += [("Range", f"bytes={start}-"), ("If-Range", asked.validator)]
    if here == rules.own_origin:
        headers += rules.own_headers
    addresses: Sequence[str | None] = [None]
    if here not in rules.allowed:
        destination.require_https(url)
        addresses = found = await _resolve(ascii_host(url), urlsplit(url).port or 443)
        destination.require_public(url, found)
    # The address that was checked is the one that is connected to: a name may resolve to another next time.
    for number, address in enumerate(addresses, start=1):
        connected = False
        try:
            async with opened(
                "GET",
                url,
                address=address,
                headers=headers,
                connect_s=rules.connect_s,
                stall_s=_STALL_S,
                tls=rules.tls,
            ) as answer:
                connected = True
                yield answer
                return
        except OutputUnconnected:
            if connected or number == len(addresses):
                raise


async def _resolve(host: str, port: int) -> list[str]:
    """Every address of `host`, each once, in the system's order. Raises OutputCut when the name has none
    now."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OutputCut(f"The output's host can't be resolved: {error.strerror}.") from None
    except UnicodeError as error:
        raise OutputForbidden(f"The output URL is not a URL: {error}.") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _next_url(url: str, answer: Opened) -> str:
    location = answer.headers.get("location")
    if not location:
        raise OutputRefused(f"The output URL answers {answer.status} without saying where to.")
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise OutputForbidden(f"The output URL redirects to what is not a URL: {error}.") from None


# What comes back ------------------------------------------------------------------------------------------


async def _receive(answer: Opened, url: str, asked: Kept | None, target: Target, rules: Rules) -> Downloaded:
    status = answer.status
    if status in _EXPIRED:
        raise OutputExpired(f"The output URL answers {status}: it has expired.")
    if status == 429 or status >= 500:
        raise OutputCut(f"The output's server answers {status}.")
    if status == 416 and asked is not None:
        raise _StartAnew
    coding = answer.headers.get("content-encoding", "").strip().lower()
    if coding not in _CODINGS:
        raise OutputRefused(f"The output comes in the coding {coding!r}, which was not asked for.")
    end: int | None
    total: int | None
    if status == 206 and asked is not None:
        end, total = _part(answer, asked, target.size)
        content_type = answer.headers.get("content-type", asked.content_type)
    elif status == 200:
        # Also to a Range: the server has another version, or no ranges (RFC 9110, 13.1.5 and 14.2).
        version = _version(answer, url)
        content_type = version.content_type
        end = total = version.total
        _require_fits(total, rules)
        await target.restart(version if version.validator else None)
    else:
        raise OutputRefused(f"The output URL answers {status}, which is not a file.")
    async for chunk in answer.chunks:
        _require_fits(target.size + len(chunk), rules)
        if end is not None and target.size + len(chunk) > end:
            await target.restart(None)
            raise OutputCut(f"The output's server sends more than the {end} bytes that it announced.")
        await target.write(chunk)
    if total is not None and target.size < total:
        raise OutputCut(f"The download was cut: {target.size} of {total} bytes came.")
    return Downloaded(
        sha256=target.sha256(),
        size=target.size,
        content_type=content_type,
        final_url=url,
        framed=not {"content-length", "transfer-encoding"}.isdisjoint(answer.headers),
    )


def _part(answer: Opened, asked: Kept, start: int) -> tuple[int, int]:
    """Where a 206's bytes end, and the whole file (RFC 9110, 14.4 and 15.3.7). Raises _StartAnew where they
    are not the part that was asked for, or not provably of the version at hand."""
    headers = answer.headers
    if asked.etag is not None:
        same = headers.get("etag") == asked.etag
    else:
        same = headers.get("last-modified") == asked.last_modified
    # A part with a coding is a part of the coded bytes, and ours are the decoded ones.
    same = same and headers.get("content-encoding", "").strip().lower() in ("", "identity")
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    if not same or found is None or int(found[1]) != start:
        raise _StartAnew
    end = int(found[2]) + 1
    total = asked.total if found[3] == "*" else int(found[3])
    if total is None or total != (asked.total or total) or not start < end <= total:
        raise _StartAnew
    return end, total


def _version(answer: Opened, url: str) -> Kept:
    """What a 200 says of itself; its validator is empty where a later range of it can't be trusted."""
    headers = answer.headers
    length = headers.get("content-length", "")
    coded = headers.get("content-encoding", "").strip().lower() not in ("", "identity")
    etag = headers.get("etag", "")
    usable = not coded and headers.get("accept-ranges", "").strip().lower() != "none"
    return Kept(
        resource=resource_of(url),
        etag=etag if usable and _ETAG.fullmatch(etag) else None,
        last_modified=_strong_date(headers) if usable and not etag else None,
        total=int(length) if length.isascii() and length.isdigit() and not coded else None,
        content_type=headers.get("content-type"),
    )


def _strong_date(headers: Mapping[str, str]) -> str | None:
    """Last-Modified where it can stand for one version: a second or more before Date (RFC 9110, 8.8.2.2)."""
    modified = headers.get("last-modified")
    try:
        age = parsedate_to_datetime(headers["date"]) - parsedate_to_datetime(modified or "")
    except (KeyError, ValueError, TypeError):
        return None
    return modified if age.total_seconds() >= 1.0 else None


def _require_fits(size: int | None, rules: Rules) -> None:
    if size is not None and size > rules.limit_bytes:
        raise OutputTooLarge(f"The output has more than {rules.limit_bytes} bytes.")
