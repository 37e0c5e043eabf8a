"""Takes a credential out of what a server said, in every form in which servers echo one. Pure.

Each character may stand as itself or escaped: percent, JSON, HTML, the escapes of a programming language's
string, any of them twice. Base64 has its three alignments, hexadecimal both cases.
"""

import base64
import binascii
import html.entities
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

REMOVED: Final = "[secret removed]"
_SHORTEST_PART: Final = 4
"""Fewest characters that are recognised as the beginning of a credential that was cut."""
_SHORTEST_CORE: Final = 6
"""Fewest characters of base64 that are taken for a part of a credential rather than for chance."""


def without(secrets: Iterable[str], text: str, *, cut: bool = False) -> str:
    """`text` without the secrets. `cut`: it was ended somewhere, so its end may be a secret's beginning."""
    for secret in filter(None, secrets):
        text = _pattern(secret).sub(REMOVED, text)
        if cut:
            text = _without_a_beginning(secret, text)
    return text


def without_bytes(secrets: Iterable[str], data: bytes, *, cut: bool = False) -> bytes:
    """`data` without the secrets, whatever else is in it."""
    return without(secrets, data.decode("latin-1"), cut=cut).encode("latin-1")


def has(secrets: Iterable[str], text: str) -> bool:
    """Whether `text` has one of the secrets in any form, or had one."""
    return REMOVED in text or any(
        _pattern(secret).search(text) is not None for secret in filter(None, secrets)
    )


@lru_cache(maxsize=64)
def _pattern(secret: str) -> re.Pattern[str]:
    forms = ["".join(_one(character) for character in known) for known in _known(secret)]
    for known in _known(secret):
        raw = known.encode("utf-8", "surrogateescape")
        forms += [_either_alphabet(core) for core in _base64_cores(raw)]
        forms.append("(?i:" + raw.hex() + ")")
    # The longest first: a secret's own tail must not stay because a shorter form fitted.
    return re.compile("|".join(f"(?:{form})" for form in sorted(set(forms), key=len, reverse=True)))


@lru_cache(maxsize=64)
def _known(secret: str) -> tuple[str, ...]:
    """The secret, as it is and without the white space around it; and what it encodes, where it is the
    base64 of a user and a password (RFC 7617)."""
    found = [secret, secret.strip()]
    try:
        decoded = base64.b64decode(secret.strip(), validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        decoded = ""
    if ":" in decoded and decoded.isprintable():
        found += [decoded, decoded.partition(":")[2]]
    return tuple(dict.fromkeys(filter(None, found)))


def _one(character: str) -> str:
    """A pattern of `character`, however it was escaped."""
    code = ord(character)
    utf8 = "".join(f"%(?:25){{0,3}}{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
    escaped = [
        re.escape(character),
        f"(?i:{utf8})",
        rf"(?i:\\{{1,8}}u{code:04x})",
        rf"(?i:\\{{1,8}}x{code:02x})",
        rf"(?i:&(?:amp;){{0,3}}#0{{0,6}}{code};)",
        rf"(?i:&(?:amp;){{0,3}}#x0{{0,6}}{code:x};)",
    ]
    if not character.isalnum():
        escaped.append(r"\\{1,8}" + re.escape(character))
    if character == " ":
        escaped.append(r"\+")
    if character in "\r\n\t":
        escaped.append(r"\\{1,8}" + {"\r": "r", "\n": "n", "\t": "t"}[character])
    if (name := html.entities.codepoint2name.get(code)) is not None:
        escaped.append(f"&(?:amp;){{0,3}}{name};")
    return "(?:" + "|".join(escaped) + ")"


def _base64_cores(raw: bytes) -> list[str]:
    """What is the same of `raw` in base64, whatever stands before and after it."""
    cores = []
    for before in range(3):
        # The first and last characters share bits with the neighbours.
        encoded = base64.b64encode(bytes(before) + raw).decode("ascii")
        core = encoded[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6]
        if len(core) >= _SHORTEST_CORE:
            cores.append(core)
    return cores


def _either_alphabet(core: str) -> str:
    """Of standard or URL-safe base64 (RFC 4648), percent-encoded or not."""
    said = {"+": "(?:[+-]|%2[Bb])", "/": r"(?:\\{0,8}/|_|%2[Ff])"}
    return "".join(said.get(one, one) for one in core)


def _without_a_beginning(secret: str, text: str) -> str:
    known = _known(secret)
    forms = [*known, *(core for one in known for core in _base64_cores(one.encode("utf-8", "replace")))]
    for form in forms:
        for length in range(len(form) - 1, _SHORTEST_PART - 1, -1):
            if text.endswith(form[:length]):
                return text[:-length] + REMOVED
    return text
