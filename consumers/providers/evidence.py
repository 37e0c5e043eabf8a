"""What is kept of an answer for a person to judge by: bounded, JSON-able, and without the secrets. Pure."""

import base64
import codecs
import hashlib
from typing import Any, Final

import msgspec

from consumers.providers.answer import Answer

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
_REMOVED: Final = "[secret removed]"


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
        kept["body_bytes"] = len(answer.body)
        kept["body_complete"] = answer.body_complete
        kept["body_sha256"] = hashlib.sha256(answer.body).hexdigest()
        kept |= _excerpt(answer)
    return kept


def bounded(evidence: dict[str, Any]) -> dict[str, Any]:
    """`evidence` as an attempt's row can hold it: the excerpt of the body in base64 if it must be, then
    without it; its digest stays.

    16 KiB of control characters are six times that in JSON, and a row that can't be written would keep the
    answer out of the database for ever.
    """
    if len(msgspec.json.encode(evidence)) <= EVIDENCE_BYTES:
        return evidence
    kept = dict(evidence)
    if isinstance(body := kept.pop("body", None), str):
        kept["body_base64"] = base64.b64encode(body.encode()).decode("ascii")
        if len(msgspec.json.encode(kept)) <= EVIDENCE_BYTES:
            return kept
    kept.pop("body_base64", None)
    kept["body_left_out"] = True
    if len(msgspec.json.encode(kept)) <= EVIDENCE_BYTES:
        return kept
    return {"status": evidence.get("status"), "left_out": True}


def text(raw: str, secrets: tuple[str, ...] = ()) -> str:
    """`raw`, bounded, without secrets and without what Postgres can't store (NUL, lone surrogates)."""
    for secret in secrets:
        raw = raw.replace(secret, _REMOVED)
    return raw[:_TEXT_CHARACTERS].encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def _excerpt(answer: Answer) -> dict[str, Any]:
    body = answer.body
    for secret in answer.secrets:
        body = body.replace(secret.encode("utf-8", "replace"), _REMOVED.encode())
    cut = body[:EXCERPT_BYTES]
    excerpt: dict[str, Any] = {"body_cut_here": True} if len(body) > EXCERPT_BYTES else {}
    try:
        # Not final where we cut: that may be in the middle of a character.
        shown = codecs.getincrementaldecoder("utf-8")().decode(cut, final=len(cut) == len(body))
    except UnicodeDecodeError:
        shown = "\x00"
    if "\x00" in shown:
        return {"body_base64": base64.b64encode(cut).decode("ascii")} | excerpt
    return {"body": shown} | excerpt
