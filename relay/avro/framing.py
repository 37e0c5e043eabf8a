"""Avro single-object encoding: the marker, the schema's fingerprint, the body. It holds no schema.

Source: Avro 1.12 specification, "Single-object encoding": two bytes C3 01, the CRC-64-AVRO (Rabin)
fingerprint of the schema's Parsing Canonical Form in eight little-endian bytes, then the datum in Avro
binary.
"""

from collections.abc import Mapping
from typing import Any, Final

from fastavro.schema import fingerprint, to_parsing_canonical_form

from relay.errors import DecodeError

MARKER: Final = b"\xc3\x01"
FINGERPRINT_BYTES: Final = 8
HEADER_BYTES: Final = len(MARKER) + FINGERPRINT_BYTES


def fingerprint_of(schema: Mapping[str, Any]) -> bytes:
    """The eight bytes that name `schema` on the wire.

    Parsing Canonical Form leaves out logical types, defaults, docs and aliases: two schemas that differ in
    nothing else have one fingerprint. `relay.avro.catalog` refuses such a pair.
    """
    # fastavro answers in hexadecimal, in the wire's byte order.
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(dict(schema)), "CRC-64-AVRO"))


def header(fingerprint: bytes) -> bytes:
    """What precedes every body of the schema with this fingerprint."""
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise ValueError(f"an Avro fingerprint has {FINGERPRINT_BYTES} bytes, not {len(fingerprint)}")
    return MARKER + fingerprint


def unframe(data: bytes) -> bytes:
    """The fingerprint; the body starts at `HEADER_BYTES`. Raises DecodeError when `data` isn't framed so."""
    if len(data) < HEADER_BYTES or data[:2] != MARKER:
        raise DecodeError(
            f"A value of {len(data)} bytes is no Avro single-object encoding: it doesn't begin with C3 01.",
            remedy="Somebody else writes to this topic, or it was written with another RELAY_FRAMING.",
        )
    return data[2:HEADER_BYTES]
