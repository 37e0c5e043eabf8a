"""A bucket that speaks S3. An object appears when its upload is complete, and never before; endpoint and
credentials come from the environment (``AWS_…``) and are in no message.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from consumers.providers.destination import DownloadError
from consumers.providers.download import Kept
from consumers.storage.contract import StorageError, Wanted
from consumers.storage.keys import operation_of
from consumers.storage.s3_uploads import Uploads
from relay import failpoints
from relay.errors import UsageError

_PART_BYTES: Final = 8 * 1024 * 1024
"""S3 takes parts from 5 MiB on, and 10,000 of them: files of up to 80 GB. Some three are held in memory."""
_ABORT_S: Final = 10.0
_SAID_CHARACTERS: Final = 500
_SECRETS: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_TOKEN", "AWS_ACCESS_KEY_ID")


class S3Storage:
    """A bucket, or what is below a prefix of it."""

    # An upload that a killed process left can't be gone on with: nobody but a live claim still needs one.
    kept_in = frozenset({"claimed"})
    knows_its_own = False

    def __init__(self, bucket: str, prefix: str, environ: Mapping[str, str] = os.environ) -> None:
        self.bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._environ = environ
        self._store = open_bucket(bucket, prefix, environ)
        self._uploads = Uploads.of(bucket, self._prefix, environ)

    @asynccontextmanager
    async def incoming(self, wanted: Wanted) -> AsyncIterator["S3Incoming"]:
        """See `Storage.incoming`. A retry begins the file anew: what was uploaded of it can't be read."""
        incoming = S3Incoming(self, self._store, wanted.key)
        try:
            yield incoming
        finally:
            await incoming.abandon()

    async def leftovers(self, older_than_s: float) -> dict[UUID, list[str]]:
        with self.failures("list unfinished uploads"):
            if self._uploads is None:
                return {}
            found: dict[UUID, list[str]] = {}
            for upload in await self._uploads.older_than(older_than_s):
                operation = operation_of(upload.key.removeprefix(self._prefix))
                if operation is not None:
                    found.setdefault(operation, []).append(f"{upload.upload_id} {upload.key}")
            return found

    async def sweep(self, leftovers: list[str]) -> None:
        with self.failures("abort unfinished uploads"):
            for leftover in leftovers if self._uploads is not None else ():
                upload_id, _, key = leftover.partition(" ")
                assert self._uploads is not None
                await self._uploads.abort(key, upload_id)

    @contextmanager
    def failures(self, doing: str) -> Iterator[None]:
        """Turns the store's errors into StorageError, without a credential in them."""
        try:
            yield
        except (BaseError, OSError, DownloadError) as error:
            raise StorageError(
                f"The bucket {self.bucket} could not {doing}: {said(error, self._environ)}.",
                meaning="Nothing has its final name that isn't whole; the delivery is tried again.",
                remedy=self._remedy(error),
            ) from None

    def _remedy(self, error: Exception) -> str:
        if isinstance(error, NotFoundError):
            return f"Is there a bucket {self.bucket} at AWS_ENDPOINT_URL, and in AWS_REGION?"
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return (
                "Look at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of this process; they need s3:PutObject,"
                " s3:GetObject, s3:AbortMultipartUpload and s3:ListBucketMultipartUploads"
                f" on {self.bucket}/{self._prefix}*."
            )
        return "Look at AWS_ENDPOINT_URL and AWS_REGION of this process, and at the storage itself."


class S3Incoming:
    """A file on its way to `key`: in one PUT when it is small, as a multipart upload when it isn't. See
    `Incoming`."""

    def __init__(self, storage: S3Storage, store: S3Store, key: str) -> None:
        self._storage = storage
        self._store = store
        self._key = key
        self._buffer = bytearray()
        self._hash = hashlib.sha256()
        self._size = 0
        self._kept: Kept | None = None
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._upload: asyncio.Future[Any] | None = None
        self._abandoned = asyncio.Event()

    @property
    def size(self) -> int:
        return self._size

    @property
    def kept(self) -> Kept | None:
        return self._kept

    def sha256(self) -> str:
        return self._hash.hexdigest()

    async def restart(self, kept: Kept | None) -> None:
        await self.abandon()
        self._buffer.clear()
        self._hash = hashlib.sha256()
        self._size = 0
        self._kept = kept

    async def write(self, chunk: bytes) -> None:
        failpoints.hit(failpoints.DELIVER_RECEIVING)
        self._buffer += chunk
        self._hash.update(chunk)
        self._size += len(chunk)
        if len(self._buffer) >= _PART_BYTES:
            with self._storage.failures(f"take {self._key}"):
                await self._hand_over()

    async def place(self) -> None:
        with self._storage.failures(f"take {self._key}"):
            if self._upload is None:
                await obstore.put_async(self._store, self._key, bytes(self._buffer), use_multipart=False)
            else:
                await self._hand_over()
                await self._put(None)
                await self._upload
                self._upload = None
            found = await obstore.head_async(self._store, self._key)
            if found["size"] != self._size:
                raise OSError(f"it has {found['size']} bytes of {self._key}, and {self._size} were sent")

    async def abandon(self) -> None:
        """End an upload that isn't complete, so that no part of it stays. Raises nothing: what can't be ended
        now is swept."""
        if self._upload is None:
            return
        upload, self._upload = self._upload, None
        # Not by a cancel: that would leave the parts. An iterator that fails makes the store abort.
        self._abandoned.set()
        with suppress(Exception):
            async with asyncio.timeout(_ABORT_S):
                await asyncio.shield(upload)
        if upload.done() and not upload.cancelled():
            upload.exception()
        self._abandoned = asyncio.Event()
        self._parts = asyncio.Queue(1)

    async def _hand_over(self) -> None:
        if self._upload is None:
            self._upload = asyncio.ensure_future(
                obstore.put_async(
                    self._store,
                    self._key,
                    _fed(self._parts, self._abandoned),
                    use_multipart=True,
                    chunk_size=_PART_BYTES,
                    max_concurrency=2,
                )
            )
        part = bytes(self._buffer)
        self._buffer.clear()
        if part:
            await self._put(part)

    async def _put(self, part: bytes | None) -> None:
        """Wait until the upload takes `part`, or has failed, and raise then what it failed with."""
        assert self._upload is not None
        waiting = asyncio.ensure_future(self._parts.put(part))
        try:
            await asyncio.wait((waiting, self._upload), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._upload.done() and (error := self._upload.exception()) is not None:
            self._upload = None
            raise error


class _Abandoned(Exception):
    """Makes the store abort an upload."""


async def _fed(parts: asyncio.Queue[bytes | None], abandoned: asyncio.Event) -> AsyncIterator[bytes]:
    while True:
        following = asyncio.ensure_future(parts.get())
        ended = asyncio.ensure_future(abandoned.wait())
        try:
            await asyncio.wait((following, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            following.cancel()
            ended.cancel()
        if abandoned.is_set():
            raise _Abandoned
        part = following.result()
        if part is None:
            return
        yield part


def open_bucket(bucket: str, prefix: str = "", environ: Mapping[str, str] = os.environ) -> S3Store:
    """The bucket at the environment's endpoint, with its credentials. Raises UsageError."""
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
    try:
        return S3Store(
            bucket,
            prefix=prefix or None,
            # Who names an http endpoint means it; a bare s3:// goes to https.
            client_options={"allow_http": endpoint.startswith("http://"), "timeout": timedelta(seconds=120)},
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=60)},
        )
    except (BaseError, OSError, ValueError) as error:
        raise UsageError(
            f"The bucket {bucket} can't be used: {said(error, environ)}.",
            remedy="Look at the AWS_… variables of this process.",
        ) from None


def said(error: Exception, environ: Mapping[str, str] = os.environ) -> str:
    """The first line of `error`, bounded, without any of the environment's credentials."""
    text = str(error).partition("\n")[0]
    for name in _SECRETS:
        if secret := environ.get(name):
            text = text.replace(secret, "***")
    return text[:_SAID_CHARACTERS].rstrip(". ") or type(error).__name__
