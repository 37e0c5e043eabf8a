"""The specification hash, over the very bytes that were stored. It never parses or writes JSON.

The encoding is that of `relay.specification_hash` and `relay.reference_hash` in schemas/postgres: fields in a
fixed order, each with four bytes of length, big-endian, before its UTF-8 bytes; an absent field is ffffffff.
"""

import hashlib
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

ENCODING: Final = "outbox-relay/specification/1"
_ABSENT: Final = b"\xff\xff\xff\xff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A payload that is elsewhere. What was approved is the bytes, so `url` is no part of the hash; it may
    have a signature in it, so it is not printed."""

    url: str = field(repr=False)
    sha256: str
    size: int


def content_of(
    payload: str | None, payload_ref: str | None, sha256: str | None, size: int | None
) -> str | Reference:
    """A row's payload, or what stands for it."""
    if sha256 is None or size is None:
        return payload or ""
    return Reference(url=payload_ref or "", sha256=sha256, size=size)


def _named(reference: Reference) -> list[str]:
    return ["payload_ref", reference.sha256, str(reference.size)]


def _field(text: str | None) -> bytes:
    if text is None:
        return _ABSENT
    data = text.encode()
    return len(data).to_bytes(4, "big") + data


def amount_text(amount: Decimal) -> str:
    """As Postgres renders ``trim_scale(amount)``: no exponent, no trailing zero after the point."""
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def specification_hash(
    *,
    kind: str,
    provider: str | None,
    profile_digest: str | None,
    payload_version: int,
    max_cost: Decimal,
    cost_unit: str,
    payload: str | Reference,
) -> str:
    """Lowercase hexadecimal SHA-256. `max_cost` is an amount of `cost_unit`, `payload` the stored text, or
    what stands for it."""
    content = ["payload", payload] if isinstance(payload, str) else _named(payload)
    digest = hashlib.sha256()
    for text in (
        ENCODING,
        kind,
        provider,
        profile_digest,
        str(payload_version),
        amount_text(max_cost),
        cost_unit,
        *content,
    ):
        digest.update(_field(text))
    return digest.hexdigest()
