"""Whether a webhook is the provider's own, and which job it is about. Pure; what its body says of the job is
never believed: a webhook only says that it is time to look.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from consumers.providers import json_path
from consumers.providers.answer import Answer
from consumers.providers.document import job_id, read

SIGNATURES: Final = 8
"""Most signatures of one webhook: a provider that rotates its secret sends two."""
_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*)\}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FIELD: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_MILLISECONDS_FROM: Final = 10**11
"""A timestamp from here on is in milliseconds: as seconds it would be past the year 5000."""
_STANDARD_SECRET: Final = "whsec_"


class Webhooks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a provider signs its webhooks. Every scheme is an HMAC over a text that has the raw body in it."""

    job_id: str
    """Path of the job's id in the body."""
    signature_header: str
    signed: str = "${body}"
    """What is signed: a template of `${body}`, `${timestamp}` and `${id}`."""
    algorithm: Literal["sha256", "sha512"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    signature_field: str | None = None
    """The header is a list of `name=value`, and the signatures are those of this name (`v1`)."""
    signature_prefix: str = ""
    """What stands before each signature (`sha256=`, or `v1,` of Standard Webhooks)."""
    separator: Literal[",", " "] = ","
    """Between several signatures, or fields, of the header."""
    timestamp_header: str | None = None
    timestamp_field: str | None = None
    """The timestamp is this field of the signature's header (`t`)."""
    id_header: str | None = None
    """The header with the message's own id."""
    secret_encoding: Literal["text", "base64"] = "text"
    """base64: the key is the decoded secret, without a leading `whsec_`."""
    tolerance_s: Annotated[float, Meta(gt=0, le=3600)] = 300.0
    """A timestamp may differ from our clock by so much."""

    def __post_init__(self) -> None:
        for name in ("signature_header", "timestamp_header", "id_header"):
            header = getattr(self, name)
            if header is not None and not _HEADER.fullmatch(header):
                raise ValueError(f"{name} has {header!r}, which is not a header's name")
        for name in ("signature_field", "timestamp_field"):
            one = getattr(self, name)
            if one is not None and not _FIELD.fullmatch(one):
                raise ValueError(f"{name} has {one!r}; write a name such as v1")
        try:
            json_path.steps(self.job_id)
        except ValueError as error:
            raise ValueError(f"job_id: {error}") from None
        used = set(_PLACEHOLDER.findall(self.signed))
        if "body" not in used or used - {"body", "timestamp", "id"}:
            raise ValueError("signed must have ${body}, and may have ${timestamp} and ${id}")
        timed = (self.timestamp_header is not None) + (self.timestamp_field is not None)
        if timed > 1:
            raise ValueError("timestamp_header and timestamp_field exclude each other")
        if (timed == 1) != ("timestamp" in used):
            raise ValueError("a timestamp belongs into what is signed: otherwise anybody could renew it")
        if (self.id_header is not None) != ("id" in used):
            raise ValueError("id_header and ${id} in signed belong together")
        if self.timestamp_field is not None and self.signature_field is None:
            raise ValueError("timestamp_field needs signature_field: both are fields of one header")


@dataclass(frozen=True, slots=True)
class Genuine:
    """Signed by one of our secrets, and not stale. `signature` identifies it: a copy has the same."""

    signature: bytes


@dataclass(frozen=True, slots=True)
class Forged:
    """Not the provider's, or too old to tell. `why` is for our log, never for who sent it."""

    why: Literal["unsigned", "forged", "stale", "malformed"]


def verify(
    scheme: Webhooks, headers: Mapping[str, str], body: bytes, *, secrets: Iterable[str], now_s: float
) -> Genuine | Forged:
    """Hold the signature against each of `secrets` (during a rotation there are several).

    `headers` has lower-case names; `now_s` is Unix time. Raises ValueError for a secret that can't be a key.
    """
    header = headers.get(scheme.signature_header.lower())
    if not header:
        return Forged("unsigned")
    parts = [part.strip() for part in header.split(scheme.separator)]
    given = _signatures(scheme, header, parts)
    if not given or len(given) > SIGNATURES:
        return Forged("malformed")
    timestamp = _timestamp(scheme, headers, parts)
    message_id = headers.get(scheme.id_header.lower()) if scheme.id_header else ""
    if timestamp is None or message_id is None:
        return Forged("malformed")
    signed = _signed(scheme, body, timestamp, message_id)
    genuine: bytes | None = None
    for secret in secrets:
        expected = hmac.new(key(scheme, secret), signed, scheme.algorithm).digest()
        for one in given:
            # Every pair is compared: how long it takes tells nobody which secret is ours.
            if hmac.compare_digest(expected, one):
                genuine = expected
    if genuine is None:
        return Forged("forged")
    # Only now: what somebody else signed must not learn whether our clock agrees.
    if timestamp and abs(now_s - _seconds(timestamp)) > scheme.tolerance_s:
        return Forged("stale")
    return Genuine(genuine)


def key(scheme: Webhooks, secret: str) -> bytes:
    """The HMAC's key. Raises ValueError, without the secret in it, when it can't be decoded or is empty."""
    if scheme.secret_encoding == "text":
        made = secret.encode()
    else:
        try:
            made = base64.b64decode(secret.removeprefix(_STANDARD_SECRET), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("the secret is not base64") from None
    if not made:
        raise ValueError("the secret is empty")
    return made


def job_of(scheme: Webhooks, body: bytes) -> str | None:
    """The id that the webhook is about; None when it has none, several, or one that no job can have."""
    document = read(Answer(status=200, body=body, body_complete=True))
    if not document.valid:
        return None
    found = {job_id(one) for one in json_path.find(scheme.job_id, document.value)}
    return found.pop() if len(found) == 1 else None


def _signatures(scheme: Webhooks, header: str, parts: list[str]) -> list[bytes]:
    texts: list[str] = []
    if scheme.signature_field is not None:
        fields = (part.partition("=") for part in parts)
        texts = [text for name, _, text in fields if name == scheme.signature_field]
    elif scheme.separator in scheme.signature_prefix or scheme.separator not in header:
        texts = [header.strip()]
    else:
        texts = parts
    found: list[bytes] = []
    for one in texts:
        if not one.startswith(scheme.signature_prefix):
            continue  # another version of the scheme, beside ours
        bare = one.removeprefix(scheme.signature_prefix)
        try:
            decoded = (
                bytes.fromhex(bare) if scheme.encoding == "hex" else base64.b64decode(bare, validate=True)
            )
        except (binascii.Error, ValueError):
            continue
        if len(decoded) == hashlib.new(scheme.algorithm).digest_size:
            found.append(decoded)
    return found


def _timestamp(scheme: Webhooks, headers: Mapping[str, str], parts: list[str]) -> str | None:
    """Its digits as they came; "" where the scheme has none, None where it should and hasn't."""
    if scheme.timestamp_header is not None:
        said = headers.get(scheme.timestamp_header.lower(), "").strip()
    elif scheme.timestamp_field is not None:
        named = [
            v for name, _, v in (part.partition("=") for part in parts) if name == scheme.timestamp_field
        ]
        said = named[0] if len(named) == 1 else ""
    else:
        return ""
    return said if re.fullmatch(r"[0-9]{1,15}", said) else None


def _seconds(timestamp: str) -> float:
    number = int(timestamp)
    return number / 1000 if number >= _MILLISECONDS_FROM else float(number)


def _signed(scheme: Webhooks, body: bytes, timestamp: str, message_id: str) -> bytes:
    made = bytearray()
    at = 0
    for match in _PLACEHOLDER.finditer(scheme.signed):
        made += scheme.signed[at : match.start()].encode()
        put = {"body": body, "timestamp": timestamp.encode(), "id": message_id.encode()}
        made += put[match[1]]
        at = match.end()
    return bytes(made + scheme.signed[at:].encode())
