"""What is kept of an answer for a person to judge by: ids first, then bounded bytes; JSON-able, and without
the secrets. Pure.
"""

import base64
import codecs
import hashlib
from typing import Any, Final

import msgspec

from consumers.providers import secrecy
from consumers.providers.answer import Answer
from consumers.providers.coding import decoded

EXCERPT_BYTES: Final = 16 * 1024
"""Most of a body that goes into the database; the spool has all that was read."""
EVIDENCE_BYTES: Final = 60 * 1024
"""Most that an attempt keeps, as compact JSON; the column takes 64 KiB of jsonb's own, wider text."""
_TEXT_CHARACTERS: Final = 1024
"""Most of one header or error that is kept."""
_HEADERS: Final = frozenset(
    {
        "content-type",
        "content-length",
        "content-encoding",
        "transfer-encoding",
        "date",
        "server",
        "via",
        "location",
        "retry-after",
        "request-id",
        "x-request-id",
        "x-correlation-id",
        "x-job-id",
        "cf-ray",
        "traceparent",
    }
)
"""Headers that help to find the request on the other side. Cookies and credentials are not among them."""
_CLEANED_BYTES: Final = 4 * EXCERPT_BYTES
"""Most of a body that is looked through for secrets: escaped, one is several times as long as what stands in
its place."""
_ID_LISTS: Final = ("candidates", "malformed_ids", "other_ids")
_IDS_BYTES: Final = EVIDENCE_BYTES // 2
"""Most of the evidence that ids take; those that are candidates are in a table of their own."""


def evidence(answer: Answer, **first: Any) -> dict[str, Any]:
    """`first` (ids above all; None and empty left out), then what was seen of the exchange."""
    kept: dict[str, Any] = {name: held for name, held in first.items() if held not in (None, (), [], "")}
    kept |= {
        "status": answer.status,
        "sent": answer.sent,
        "error": None if answer.error is None else text(answer.error, answer.secrets),
        "elapsed_s": round(answer.elapsed_s, 3),
    }
    if answer.status is not None:
        kept["headers"] = {
            name.lower(): text(held, answer.secrets)
            for name, held in answer.headers
            if name.lower() in _HEADERS
        }
        body = decoded(answer)
        kept["body_bytes"] = len(answer.body)
        kept["body_complete"] = answer.body_complete
        kept["body_sha256"] = hashlib.sha256(answer.body).hexdigest()
        if body.coding:
            # As it is read: in a coding, a secret couldn't be seen by us and would be by others.
            kept["body_coding"] = text(body.coding, answer.secrets)
        kept |= _excerpt("body", body.body, answer.secrets, cut=not answer.body_complete)
    if answer.unread:
        kept |= _excerpt("unread", answer.unread, answer.secrets, cut=True)
    return kept


def bounded(evidence: dict[str, Any]) -> dict[str, Any]:
    """`evidence` as an attempt's row can hold it: the bytes in base64 if they must be, then without them; a
    digest stays. Ids go last, and how many are left out is said.

    16 KiB of control characters are six times that in JSON, and a row that can't be written would keep the
    answer out of the database for ever.
    """
    kept = dict(evidence)
    for name in _ID_LISTS:
        if isinstance(ids := kept.get(name), list):
            fitting = _fitting(ids)
            kept[name] = fitting
            if len(fitting) < len(ids):
                kept[f"{name}_left_out"] = len(ids) - len(fitting)
    for name in ("unread", "body"):
        if len(msgspec.json.encode(kept)) <= EVIDENCE_BYTES:
            return kept
        if isinstance(excerpt := kept.pop(name, None), str):
            kept[f"{name}_base64"] = base64.b64encode(excerpt.encode()).decode("ascii")
        if len(msgspec.json.encode(kept)) > EVIDENCE_BYTES and kept.pop(f"{name}_base64", None) is not None:
            kept[f"{name}_left_out"] = True
    return kept if len(msgspec.json.encode(kept)) <= EVIDENCE_BYTES else _least(kept)


def _fitting(ids: list[Any]) -> list[Any]:
    """As many of the first ones as have room; each list has its share."""
    room = _IDS_BYTES // len(_ID_LISTS)
    for kept, one in enumerate(ids):
        room -= len(msgspec.json.encode(one)) + 2
        if room < 0:
            return ids[:kept]
    return ids


def _least(evidence: dict[str, Any]) -> dict[str, Any]:
    names = ("job_id", *_ID_LISTS, "status", "error", "elapsed_s", "body_bytes", "body_sha256")
    return {name: evidence[name] for name in names if name in evidence} | {"left_out": True}


def text(raw: str, secrets: tuple[str, ...] = ()) -> str:
    """`raw`, bounded, without secrets and without what Postgres can't store (NUL, lone surrogates)."""
    cut = len(raw) > _TEXT_CHARACTERS
    kept = secrecy.without(secrets, raw[: 4 * _TEXT_CHARACTERS], cut=cut)[:_TEXT_CHARACTERS]
    return kept.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def _excerpt(name: str, data: bytes, secrets: tuple[str, ...], *, cut: bool) -> dict[str, Any]:
    """The beginning of `data`, as text where it is text. `cut`: its end is missing."""
    looked_at = data[:_CLEANED_BYTES]
    clean = secrecy.without_bytes(secrets, looked_at, cut=cut or len(data) > len(looked_at))
    kept = clean[:EXCERPT_BYTES]
    is_cut = len(kept) < len(clean) or len(looked_at) < len(data)
    excerpt: dict[str, Any] = {f"{name}_cut_here": True} if is_cut else {}
    try:
        # Not final where we cut: that may be in the middle of a character.
        shown = codecs.getincrementaldecoder("utf-8")().decode(kept, final=not is_cut)
    except UnicodeDecodeError:
        shown = "\x00"
    if "\x00" in shown:
        return {f"{name}_base64": base64.b64encode(kept).decode("ascii")} | excerpt
    return {name: shown} | excerpt
