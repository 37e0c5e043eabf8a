"""Where delivered files are kept: a folder, or a bucket that speaks S3. A file has its final name only when
it is whole.
"""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from consumers.storage.contract import Incoming, Storage, StorageError, Wanted
from consumers.storage.keys import output_key
from consumers.storage.local import LocalStorage
from consumers.storage.s3 import S3Storage
from relay.errors import UsageError

__all__ = ["Incoming", "Storage", "StorageError", "Wanted", "open_storage", "output_key"]


def open_storage(url: str) -> Storage:
    """The storage at `url`, ``file:///…`` or ``s3://bucket/prefix``. Raises UsageError with one sentence."""
    if not url:
        raise UsageError(
            "RELAY_OUTPUTS_URL is not set: there is nowhere to deliver files to.",
            remedy="Set it to a folder, for example file:///var/lib/relay/outputs, or to s3://bucket/prefix.",
        )
    parts = urlsplit(url)
    if parts.scheme == "s3":
        if not parts.hostname or parts.username or parts.password or parts.query or parts.fragment:
            raise UsageError(
                "RELAY_OUTPUTS_URL is an s3:// URL that is not s3://bucket/prefix.",
                remedy="Endpoint and credentials go to AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY.",
            )
        return S3Storage(parts.hostname, unquote(parts.path).strip("/"))
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise UsageError(
            f"RELAY_OUTPUTS_URL is {url.partition('?')[0]!r}; write file:/// and an absolute folder, or s3://"
            " and a bucket."
        )
    return LocalStorage(Path(unquote(parts.path)))
