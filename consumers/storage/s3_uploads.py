"""Unfinished multipart uploads, which nobody sees and everybody pays for: lists and aborts them. The object
store library can do neither, so two requests are signed here (AWS Signature Version 4). It never touches an
object.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from consumers.providers.destination import OutputRefused
from consumers.providers.opened import opened

_CONNECT_S: Final = 10.0
_STALL_S: Final = 30.0
_ANSWER_BYTES: Final = 4 * 1024 * 1024
_PAGE: Final = 1000
"""Most uploads of one answer; S3 gives no more either."""
_NO_BODY: Final = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Upload:
    key: str
    upload_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploads:
    """Of one bucket. Requests go to the endpoint that the process is configured with, and nowhere else."""

    base: str
    prefix: str
    region: str
    access_key: str
    secret_key: str
    session_token: str | None

    @classmethod
    def of(cls, bucket: str, prefix: str, environ: Mapping[str, str]) -> Self | None:
        """None where the credentials are not in the environment (a machine's role): then a lifecycle rule of
        the bucket has to abort what a killed process left."""
        access_key, secret_key = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
        if not access_key or not secret_key:
            return None
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
        base = (endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/")
        if environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() not in ("true", "1") or not endpoint:
            base = f"{base}/{bucket}"
        return cls(
            base=base,
            prefix=prefix,
            region=region,
            access_key=access_key,
            secret_key=secret_key,
            session_token=environ.get("AWS_SESSION_TOKEN") or environ.get("AWS_TOKEN"),
        )

    async def older_than(self, age_s: float) -> list[Upload]:
        """Begun more than `age_s` ago. Raises DownloadError."""
        before = datetime.now(UTC) - timedelta(seconds=age_s)
        found: list[Upload] = []
        query = {"uploads": "", "prefix": self.prefix, "max-uploads": str(_PAGE)}
        while True:
            try:
                page = ElementTree.fromstring(await self._ask("GET", "", query))
                for upload in page.iterfind("{*}Upload"):
                    if datetime.fromisoformat(upload.findtext("{*}Initiated") or "") < before:
                        key, upload_id = upload.findtext("{*}Key"), upload.findtext("{*}UploadId")
                        found.append(Upload(key or "", upload_id or ""))
            except (ElementTree.ParseError, ValueError, TypeError) as error:
                raise OutputRefused(f"The bucket's list of uploads can't be read: {error}.") from None
            if page.findtext("{*}IsTruncated") != "true":
                return found
            query |= {
                "key-marker": page.findtext("{*}NextKeyMarker") or "",
                "upload-id-marker": page.findtext("{*}NextUploadIdMarker") or "",
            }

    async def abort(self, key: str, upload_id: str) -> None:
        """Its parts are gone after this. One that is gone already is fine. Raises DownloadError."""
        await self._ask("DELETE", key, {"uploadId": upload_id})

    async def _ask(self, method: str, key: str, query: Mapping[str, str]) -> bytes:
        url = f"{self.base}/{quote(key, safe='/-_.~')}".rstrip("/") if key else self.base
        asked = "&".join(f"{_quoted(name)}={_quoted(query[name])}" for name in sorted(query))
        headers = self.signed(method, url, asked, datetime.now(UTC))
        async with opened(
            method,
            f"{url}?{asked}",
            address=None,
            headers=headers,
            connect_s=_CONNECT_S,
            stall_s=_STALL_S,
        ) as answer:
            body = bytearray()
            async for chunk in answer.chunks:
                body += chunk
                if len(body) > _ANSWER_BYTES:
                    raise OutputRefused("The bucket's answer has no end.")
            if answer.status // 100 != 2 and not (method == "DELETE" and answer.status == 404):
                raise OutputRefused(f"The bucket answers {answer.status} to {method} of unfinished uploads.")
        return bytes(body)

    def signed(self, method: str, url: str, query: str, now: datetime) -> list[tuple[str, str]]:
        """The headers of a request without a body (AWS General Reference, Signature Version 4)."""
        parts = urlsplit(url)
        moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        sent = {"host": parts.netloc, "x-amz-content-sha256": _NO_BODY, "x-amz-date": moment}
        if self.session_token:
            sent["x-amz-security-token"] = self.session_token
        names = ";".join(sorted(sent))
        listed = "".join(f"{name}:{sent[name]}\n" for name in sorted(sent))
        canonical = "\n".join((method, parts.path or "/", query, listed, names, _NO_BODY))
        scope = f"{day}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
        key = f"AWS4{self.secret_key}".encode()
        for step in (day, self.region, "s3", "aws4_request"):
            key = hmac.digest(key, step.encode(), "sha256")
        signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
        sent["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.access_key}/{scope}, SignedHeaders={names},"
            f" Signature={signature}"
        )
        return [(name, text) for name, text in sent.items() if name != "host"]


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")
