"""Takes the content codings off a body that came in one although none was asked for. Pure, bounded, and what
can't be taken off is said.
"""

import json
import zlib
from dataclasses import dataclass
from typing import Final

from consumers.providers.answer import Answer

INFLATED_BYTES: Final = 1024 * 1024
"""Most that a compressed answer may become, as one that isn't compressed: as a document it may take a hundred
times that in memory."""
_STEP_BYTES: Final = 256
"""Inflated at once: what a damaged stream gave before its fault is lost for this many bytes only."""
_GZIP: Final = b"\x1f\x8b"
_PLAIN: Final = frozenset({"", "identity"})
_INFLATABLE: Final = frozenset({"gzip", "x-gzip", "deflate"})


@dataclass(frozen=True, slots=True)
class Decoded:
    """`body` as far as it could be read; `readable`: that is all of what came. `coding` is what was taken
    off, or couldn't be."""

    body: bytes
    readable: bool
    coding: str = ""


def decoded(answer: Answer) -> Decoded:
    """The body of `answer` without its codings (RFC 9110, 8.4), as UTF-8 where it is UTF-16 or UTF-32.
    Raises nothing."""
    said = ",".join(answer.header_values("content-encoding")).lower()
    codings = [one.strip() for one in said.split(",") if one.strip() not in _PLAIN]
    if not codings and answer.body.startswith(_GZIP):
        codings = ["gzip"]
    body, readable = answer.body, True
    # The last one was applied last.
    for coding in reversed(codings):
        if coding not in _INFLATABLE:
            return Decoded(body, readable=False, coding=", ".join(codings))
        body, whole = _inflated(body)
        readable = readable and whole
    return Decoded(_utf8(body), readable, ", ".join(codings))


def _inflated(body: bytes) -> tuple[bytes, bool]:
    """Inflated, and whether that is all. As it came where it isn't compressed at all: a coding may be said in
    error."""
    # gzip and zlib by their headers; then raw deflate, which many call deflate.
    for window_bits in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):
        inflated, whole = _inflate(body, window_bits)
        if inflated or whole:
            return inflated, whole
    return body, False


def _inflate(body: bytes, window_bits: int) -> tuple[bytes, bool]:
    inflater = zlib.decompressobj(window_bits)
    inflated = bytearray()
    for start in range(0, len(body), _STEP_BYTES):
        room = INFLATED_BYTES - len(inflated)
        if room <= 0:
            return bytes(inflated), False
        try:
            inflated += inflater.decompress(body[start : start + _STEP_BYTES], room)
        except zlib.error:
            return bytes(inflated), False
        if inflater.unconsumed_tail:
            return bytes(inflated), False
        if inflater.eof:
            rest = inflater.unused_data + body[start + _STEP_BYTES :]
            if not rest.startswith(_GZIP) or window_bits < 0:
                return bytes(inflated), not rest
            # A gzip file may have several members; they are read to the same bound.
            more, whole = _inflate(rest, window_bits)
            return bytes(inflated + more)[:INFLATED_BYTES], whole
    return bytes(inflated), inflater.eof


def _utf8(body: bytes) -> bytes:
    """JSON in another of Unicode's encodings (RFC 4627, 3) in the one that is searched for ids."""
    encoding = json.detect_encoding(body)
    if encoding.startswith("utf-8"):
        return body
    try:
        return body.decode(encoding).encode()
    except UnicodeError:
        return body
