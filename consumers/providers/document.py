"""A provider's answer as a JSON document, read so that no id in it is lost or changed. Pure.

Numbers stay text (a float would change 12345678901234567890.10), repeated keys keep every value, and a broken
body is still searched.
"""

import json
import re
import unicodedata
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from consumers.providers.answer import Answer
from consumers.providers.json_path import Object

ID_CHARACTERS: Final = 512
"""Longest id that is stored as one: a longer text breaks a btree index."""
CANDIDATES: Final = 32
"""Most ids of one answer that are kept as candidates; the bytes are kept anyway."""
_INFLATED_BYTES: Final = 8 * 1024 * 1024
"""Most that a compressed answer may become."""
_NODES: Final = 100_000
"""Most values of one answer that are searched for ids."""
_JOB_KEYS: Final = frozenset(
    {"jobid", "taskid", "generationid", "predictionid", "renderid", "runid", "requestid", "id"}
)
_CERTAIN_KEYS: Final = _JOB_KEYS - {"requestid", "id"}
"""Keys that name a job even in an error; `id` and `request_id` there are mostly the error's own."""
_SALVAGE: Final = re.compile(
    r'"([A-Za-z_-]{2,24})"\s*:\s*(?:"((?:[^"\\\x00-\x1f]|\\.){1,512})"|(-?\d{1,512})(?=[\s,}\]]))'
)
"""`"key": "text"` or `"key": 123` with what ends it: a text that the cut has shortened is not an id."""


class Number(str):
    """A JSON number, as it was written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """`value` is meaningless unless `valid`. `text` is the body as text, for salvage."""

    valid: bool
    value: object
    text: str


def read(answer: Answer) -> Document:
    """The body as JSON. A body in a coding that was not asked for is decoded too. Raises nothing."""
    text = _decoded(answer).decode("utf-8", "replace").removeprefix("\ufeff")
    try:
        value = json.loads(
            text,
            object_pairs_hook=Object,
            parse_int=Number,
            parse_float=Number,
            parse_constant=Number,
        )
    except (ValueError, RecursionError):
        return Document(valid=False, value=None, text=text)
    return Document(valid=True, value=value, text=text)


def _decoded(answer: Answer) -> bytes:
    coding = (answer.header("content-encoding") or "").strip().lower()
    if coding not in {"gzip", "x-gzip", "deflate"}:
        return answer.body
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        return inflater.decompress(answer.body, _INFLATED_BYTES)
    except zlib.error:
        return answer.body


def job_id(value: object) -> str | None:
    """`value` as a job id, or None when it has not the form of one: 1 to 512 characters that can be stored,
    without controls; integers as their text."""
    if isinstance(value, Number):
        return str(value) if re.fullmatch(r"-?[0-9]+", value) and len(value) <= ID_CHARACTERS else None
    if not isinstance(value, str) or not 1 <= len(value) <= ID_CHARACTERS or value in {".", ".."}:
        return None
    # Cc are controls; Cs are lone surrogates, which no UTF-8 can hold.
    return None if any(unicodedata.category(one) in {"Cc", "Cs"} for one in value) else value


def shown(value: object) -> str:
    """`value` for people, bounded: a list or an object is only named, since its bytes are in the body."""
    if isinstance(value, Object):
        return "an object"
    return "a list" if isinstance(value, list) else repr(value)[:ID_CHARACTERS]


def is_absent(value: object) -> bool:
    """JSON null, or nothing: no id was said, as opposed to one of a wrong form."""
    return value is None or value == ""


def named_ids(document: Document, *, certain: bool = False) -> tuple[str, ...]:
    """Ids under keys that name one, anywhere in the document, or in the text of one that isn't valid.
    `certain` leaves out the keys that may name something else."""
    keys = _CERTAIN_KEYS if certain else _JOB_KEYS
    if document.valid:
        pairs: Iterable[tuple[str, object]] = _pairs(document.value)
    else:
        pairs = _salvaged(document.text)
    found = (job_id(value) for key, value in pairs if _plain(key) in keys)
    return distinct(one for one in found if one is not None)


def distinct(ids: Iterable[str]) -> tuple[str, ...]:
    """Each id once, in order, at most CANDIDATES of them."""
    seen: dict[str, None] = {}
    for one in ids:
        seen[str(one)] = None
        if len(seen) == CANDIDATES:
            break
    return tuple(seen)


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")


def _pairs(document: object) -> Iterable[tuple[str, object]]:
    waiting: list[object] = [document]
    for _ in range(_NODES):
        if not waiting:
            return
        here = waiting.pop()
        if isinstance(here, Object):
            yield from here.pairs
            waiting.extend(value for _, value in reversed(here.pairs) if isinstance(value, (Object, list)))
        elif isinstance(here, list):
            waiting.extend(value for value in reversed(here) if isinstance(value, (Object, list)))


def _salvaged(text: str) -> Iterable[tuple[str, object]]:
    for key, quoted, number in _SALVAGE.findall(text):
        if number:
            yield key, Number(number)
            continue
        try:
            yield key, json.loads(f'"{quoted}"')
        except ValueError:
            yield key, quoted
