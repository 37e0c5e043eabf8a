"""The specification hash, over the very bytes that were stored. It never parses or writes JSON.

The encoding is that of `relay.specification_hash` in schemas/postgres/0006_interface.sql: fields in a fixed
order, each with four bytes of length, big-endian, before its UTF-8 bytes; an absent field is ffffffff.
"""

import hashlib
from decimal import Decimal
from typing import Final

ENCODING: Final = "outbox-relay/specification/1"
_ABSENT: Final = b"\xff\xff\xff\xff"


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
    payload: str,
) -> str:
    """Lowercase hexadecimal SHA-256. `max_cost` is an amount of `cost_unit`, `payload` the stored text."""
    digest = hashlib.sha256()
    for field in (
        ENCODING,
        kind,
        provider,
        profile_digest,
        str(payload_version),
        amount_text(max_cost),
        cost_unit,
        "payload",
        payload,
    ):
        digest.update(_field(field))
    return digest.hexdigest()
