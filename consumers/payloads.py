"""Fetches a payload that was approved by reference, and lets nothing else through: the bytes are those whose
digest and length were approved, or there are none. It sends no credential of a provider anywhere.
"""

import asyncio
import hashlib
import os
import ssl
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError

from consumers.operations.specification import Reference
from consumers.providers import destination
from consumers.providers.destination import DownloadError, OutputForbidden, OutputTooLarge, Rules
from consumers.providers.download import InMemory, download
from consumers.storage.s3 import open_bucket, said
from relay.errors import RelayError, UsageError

_CONNECT_S: Final = 10.0
_REDIRECTS: Final = 5
_LEASES: Final = 0.5
"""Most of the claim's lease that a fetch may take: the rest is for what comes before and after it."""
_LONGEST_S: Final = 30.0
_SETTING: Final = "RELAY_PAYLOAD_SOURCES"


class PayloadUnreachable(RelayError):
    """The bytes can't be had now. Nothing is known of them."""


class PayloadChanged(RelayError):
    """What is there is not what was approved."""

    def __init__(self, message: str, *, evidence: Mapping[str, Any]) -> None:
        super().__init__(message, meaning="Nothing is sent.")
        self.evidence = dict(evidence)


class Payloads:
    """From `sources`, the prefixes of RELAY_PAYLOAD_SOURCES, and from public https. Raises UsageError for
    what is no prefix."""

    def __init__(self, sources: Sequence[str], *, lease_s: float, tls: ssl.SSLContext | None = None) -> None:
        self._folders: list[Path] = []
        self._buckets: list[tuple[str, str]] = []
        origins: set[str] = set()
        for source in sources:
            parts = urlsplit(source)
            if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
                self._folders.append(Path(unquote(parts.path)))
            elif parts.scheme == "s3" and parts.netloc and "@" not in parts.netloc:
                folder = parts.path.strip("/")
                self._buckets.append((parts.netloc, f"{folder}/" if folder else ""))
            elif parts.scheme == "https" and parts.path in ("", "/"):
                origins.add(destination.origin(source))
            else:
                raise UsageError(
                    f"{_SETTING} has {source!r}.",
                    remedy="Write file:///folder, s3://bucket/prefix or https://host, several with commas.",
                )
        self._deadline_s = min(_LONGEST_S, lease_s * _LEASES)
        self._origins = frozenset(origins)
        self._tls = tls

    async def fetch(self, reference: Reference) -> bytes:
        """The approved bytes. Raises PayloadUnreachable (try again), PayloadChanged (a person is needed), and
        UsageError where this process may not fetch them."""
        try:
            async with asyncio.timeout(self._deadline_s):
                content = await self._read(reference)
        except TimeoutError:
            raise _unreachable(reference, f"it took longer than {self._deadline_s:g} s") from None
        found = hashlib.sha256(content).hexdigest()
        if len(content) != reference.size or found != reference.sha256:
            raise _changed(reference, found_bytes=len(content), found_sha256=found)
        return content

    async def _read(self, reference: Reference) -> bytes:
        match urlsplit(reference.url).scheme:
            case "file":
                return await asyncio.to_thread(self._from_file, reference)
            case "s3":
                return await self._from_bucket(reference)
            case "https":
                return await self._from_https(reference)
        raise UsageError("The payload's reference is no file, https or s3 URL.")

    def _from_file(self, reference: Reference) -> bytes:
        path = Path(unquote(urlsplit(reference.url).path))
        try:
            # As links and `..` lead: what is listed is a folder, not a way out of it.
            true = path.resolve(strict=True)
            if not any(true.is_relative_to(folder.resolve()) for folder in self._folders):
                raise _not_listed(reference, f"file://{path.parent}")
            # Without waiting: somebody may have put a pipe there.
            handle = os.open(true, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                held = os.fstat(handle)
                if not stat.S_ISREG(held.st_mode):
                    raise _changed(reference, found="no regular file")
                if held.st_size != reference.size:
                    raise _changed(reference, found_bytes=held.st_size)
                return file.read(reference.size + 1)
        except OSError as error:
            raise _unreachable(reference, error.strerror or str(error)) from error

    async def _from_bucket(self, reference: Reference) -> bytes:
        bucket, _, key = reference.url.removeprefix("s3://").partition("/")
        if not any(bucket == name and key.startswith(prefix) for name, prefix in self._buckets):
            raise _not_listed(reference, f"s3://{bucket}/")
        try:
            found = await obstore.get_async(open_bucket(bucket), key)
            if found.meta["size"] != reference.size:
                raise _changed(reference, found_bytes=found.meta["size"])
            return bytes(await found.bytes_async())
        except (BaseError, OSError) as error:
            raise _unreachable(reference, said(error)) from None

    async def _from_https(self, reference: Reference) -> bytes:
        target = InMemory()
        rules = Rules(
            allowed=self._origins,
            limit_bytes=reference.size,
            deadline_s=self._deadline_s,
            redirects=_REDIRECTS,
            connect_s=_CONNECT_S,
            tls=self._tls,
        )
        try:
            found = await download(reference.url, target=target, rules=rules)
        except OutputTooLarge:
            raise _changed(reference, found=f"more than {reference.size} bytes") from None
        except OutputForbidden as error:
            raise UsageError(
                f"The payload may not be fetched: {error.message}",
                remedy=f"If it is meant, add its origin to {_SETTING} of every dispatcher, and release it.",
            ) from None
        except DownloadError as error:
            raise _unreachable(reference, error.message) from None
        if not found.framed and found.size < reference.size:
            raise _unreachable(reference, "it was cut, or ends without saying so")
        return bytes(target.content)


def _where(reference: Reference) -> str:
    """What may be said of where it is: an address may have a signature in it."""
    parts = urlsplit(reference.url)
    return f"{parts.scheme}://{parts.netloc}{parts.path if parts.scheme != 'https' else ''}"


def _unreachable(reference: Reference, why: str) -> PayloadUnreachable:
    return PayloadUnreachable(
        f"The payload at {_where(reference)} can't be read now: {why.rstrip('.')}.",
        meaning="Nothing was sent; the operation is tried again.",
        remedy="Is it there, and may this process read it?",
    )


def _changed(reference: Reference, **found: Any) -> PayloadChanged:
    listed = ", ".join(f"{name.removeprefix('found_')} {value}" for name, value in found.items())
    return PayloadChanged(
        f"The payload at {_where(reference)} is not what was approved: it is {listed}; approved were"
        f" {reference.size} bytes with the SHA-256 {reference.sha256}.",
        evidence={
            "approved_bytes": reference.size,
            "approved_sha256": reference.sha256,
            "where": _where(reference),
            **found,
        },
    )


def _not_listed(reference: Reference, prefix: str) -> UsageError:
    return UsageError(
        f"The payload at {_where(reference)} is not below any prefix of {_SETTING}.",
        remedy=f"If it is meant, add {prefix} to {_SETTING} of every dispatcher, and release the operation.",
    )
