"""A provider's answer as a JSON document, read so that no id in it is lost or changed. Pure.

Numbers stay text (a float would change 12345678901234567890.10), repeated keys keep every value, bytes that
are no UTF-8 make no id, and a broken body is still searched.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from consumers.providers.answer import Answer
from consumers.providers.coding import decoded
from consumers.providers.json_path import Object

ID_CHARACTERS: Final = 512
"""Longest id that is stored as one: a longer text breaks a btree index."""
CANDIDATES: Final = 32
"""Most ids of one answer that are kept as candidates; the bytes are kept anyway."""
_JOB: Final = ("job", "task", "generation", "prediction", "render", "run")
_CERTAIN_KEYS: Final = frozenset(
    f"{noun}{end}" for noun in _JOB for end in ("id", "ids", "uuid", "uuids", "uid", "uids")
)
"""Keys that name a job even in an error."""
_JOB_KEYS: Final = _CERTAIN_KEYS | {"id", "uuid", "requestid"}
"""`id` and `request_id` of an error are mostly the error's own, unless they are in a job."""
_IN_A_JOB: Final = frozenset({"id", "uuid", "uid"})
_JOBS: Final = frozenset(f"{noun}{end}" for noun in _JOB for end in ("", "s"))
_SALVAGE: Final = re.compile(
    r'"([A-Za-z_-]{2,24})"\s*:\s*(?:"((?:[^"\\\x00-\x1f]|\\.){1,512})"|(-?\d{1,512})(?=[\s,}\]]))'
)
"""`"key": "text"` or `"key": 123` with what ends it: a text that the cut has shortened is not an id."""
_LOOSE: Final = re.compile(
    r"(?<![\"\w-])'?([A-Za-z_-]{2,24})'?\s*[=:>]\s*'?([A-Za-z0-9][A-Za-z0-9._:-]{0,511})(?=['<&;,\s}\]])"
)
"""`key=text`, `'key': 'text'`, `<key>text</key>`: what isn't JSON at all."""
_MENTION: Final = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(_JOB)})[_-]?u?u?ids?(?![A-Za-z])", re.IGNORECASE)


class Number(str):
    """A JSON number, as it was written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """`value` is meaningless unless `valid`. `text` is what came as text, for salvage. `whole`: nothing that
    the answer said can be missing from it."""

    valid: bool
    value: object
    text: str
    whole: bool = field(default=True, compare=False)


class Named(NamedTuple):
    """A value under a key that names one."""

    value: object
    certain: bool
    """Under a key that only a job's id has."""


def read(answer: Answer) -> Document:
    """The body as JSON. Raises nothing."""
    found = decoded(answer)
    # What is no UTF-8 becomes lone surrogates, and no id may have those: an id is never altered.
    text = found.body.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    try:
        value = json.loads(
            text,
            object_pairs_hook=Object,
            parse_int=Number,
            parse_float=Number,
            parse_constant=Number,
        )
    except (ValueError, RecursionError):
        unread = answer.unread.decode("utf-8", "surrogateescape")
        whole = answer.body_complete and found.readable and answer.framed
        return Document(valid=False, value=None, text=f"{text}\n{unread}" if unread else text, whole=whole)
    return Document(valid=True, value=value, text=text, whole=answer.body_complete)


def job_id(value: object) -> str | None:
    """`value` as a job id, or None when it has not the form of one: 1 to 512 characters that can be stored,
    without controls; integers as their text."""
    if isinstance(value, Number):
        return str(value) if re.fullmatch(r"-?[0-9]+", value) and len(value) <= ID_CHARACTERS else None
    if not isinstance(value, str) or not 1 <= len(value) <= ID_CHARACTERS or value in {".", ".."}:
        return None
    if value.isspace():
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


def named(document: Document) -> Iterator[Named]:
    """Every value under a key that names an id, anywhere in the document, or in the text of one that isn't
    valid."""
    if not document.valid:
        for key, value in _salvaged(document.text):
            certain = names_a_job(key)
            if certain or plain(key) in _JOB_KEYS:
                yield Named(value, certain)
        return
    waiting: list[tuple[str, object]] = [("", document.value)]
    while waiting:
        parent, here = waiting.pop()
        if isinstance(here, list):
            waiting.extend((parent, one) for one in reversed(here) if isinstance(one, (Object, list)))
        elif isinstance(here, Object):
            for key, value in here.pairs:
                name = plain(key)
                certain = name in _CERTAIN_KEYS or (name in _IN_A_JOB and parent in _JOBS)
                if certain or name in _JOB_KEYS:
                    yield from (Named(one, certain) for one in _leaves(value))
            waiting.extend(
                (plain(key), value)
                for key, value in reversed(here.pairs)
                if isinstance(value, (Object, list))
            )


def mentions_a_job(document: Document) -> bool:
    """Whether a document that isn't valid has a word that names a job's id, whatever follows it."""
    return not document.valid and _MENTION.search(document.text) is not None


def names_a_job(name: str) -> bool:
    """Whether a key, or a header such as X-Job-Id, is named after a job's id."""
    return plain(name).removeprefix("x") in _CERTAIN_KEYS


def distinct(ids: Iterable[str]) -> tuple[str, ...]:
    """Each id once, in order."""
    return tuple(dict.fromkeys(str(one) for one in ids))


def plain(key: str) -> str:
    """A key without its spelling: job_id, jobId and JOB-ID are one."""
    return key.lower().replace("_", "").replace("-", "")


def _leaves(value: object) -> Iterator[object]:
    """A value, or those of a list of them; what they hold in turn is searched by its own keys."""
    for one in value if isinstance(value, list) else (value,):
        if not isinstance(one, (Object, list)):
            yield one


def _salvaged(text: str) -> Iterator[tuple[str, object]]:
    for key, quoted, number in _SALVAGE.findall(text):
        if number:
            yield key, Number(number)
            continue
        try:
            yield key, json.loads(f'"{quoted}"')
        except ValueError:
            yield key, quoted
    yield from _LOOSE.findall(text)
