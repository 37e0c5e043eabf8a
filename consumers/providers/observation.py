"""What the answer to a GET says about a job. Pure; it never turns silence or an unknown word into a state."""

import re
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from consumers.providers import document as documents
from consumers.providers import json_path
from consumers.providers.answer import Answer
from consumers.providers.document import Document, Number
from consumers.providers.evidence import evidence, text
from consumers.providers.profile import OutputPaths, Profile
from consumers.providers.retry_after import retry_after_s

OUTPUTS: Final = 1000
"""Most files of one job; more is an answer that this profile doesn't describe."""
_URL: Final = re.compile(r"[^\x00-\x20\x7f\ud800-\udfff]{1,8192}")
"""No spaces or controls, and no lone surrogate, which no UTF-8 and so no row can hold."""
_NAME_CHARACTERS: Final = 100
_COST: Final = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?")
"""What a cost may look like: not negative, and within numeric(38, 18) once it is checked below."""
_COST_BELOW: Final = Decimal(10) ** 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One file of a succeeded job. `name` is safe as a file name and unique among the job's outputs."""

    url: str
    name: str
    content_type: str | None = None
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen. `unrecognised`: an answer that fits the profile nowhere; `not_found`: 404 or 410;
    `error`: nothing was learnt, ask again."""

    state: Literal["running", "succeeded", "failed", "cancelled", "unrecognised", "not_found", "error"]
    reason: str
    outputs: tuple[Output, ...] = ()
    cost: Decimal | None = None
    word: str | None = None
    """The provider's own word for the state."""
    retry_after_s: float | None = None
    evidence: dict[str, Any]


def asks_for_result(profile: Profile, answer: Answer, *, job_id: str) -> bool:
    """Whether the outputs of the job, which has succeeded, are asked for with another GET."""
    if profile.observe.result_path is None:
        return False
    return classify_observation(profile, answer, job_id=job_id).reason == "succeeded"


def classify_observation(
    profile: Profile, answer: Answer, *, job_id: str | None = None, result: Answer | None = None
) -> Observation:
    """Read a GET's answer. With `job_id`, an answer about another job is an error. Raises nothing.

    `result`: the answer to the second GET, where the profile has its outputs there.
    """
    seen = _classify(profile, answer, job_id)
    if seen.state != "succeeded" or result is None:
        return seen
    document = documents.read(result)
    wait_s = retry_after_s(result)
    if result.status is None or result.status // 100 == 5 or result.status in {408, 425, 429}:
        # It has succeeded and said so; only its outputs weren't to be had this time.
        return Observation(
            state="error", reason="no_result", retry_after_s=wait_s, evidence=evidence(result, word=seen.word)
        )
    outputs = None
    if result.status // 100 == 2 and document.valid:
        outputs = _outputs(profile.observe.outputs, document)
    if outputs is None:
        return Observation(
            state="unrecognised",
            reason="outputs_unreadable",
            word=seen.word,
            cost=seen.cost,
            retry_after_s=wait_s,
            evidence=evidence(result, word=seen.word),
        )
    return replace(seen, outputs=outputs)


def _classify(profile: Profile, answer: Answer, job_id: str | None) -> Observation:
    wait_s = retry_after_s(answer)
    if answer.status is None:
        return Observation(state="error", reason="no_answer", evidence=evidence(answer))
    if answer.status in {404, 410}:
        return Observation(
            state="not_found", reason="not_found", retry_after_s=wait_s, evidence=evidence(answer)
        )
    if answer.status // 100 != 2:
        return Observation(
            state="error",
            reason=f"status_{answer.status}",
            retry_after_s=wait_s,
            evidence=evidence(answer),
        )
    document = documents.read(answer)
    if not document.valid:
        reason = "answer_not_json" if answer.body_complete else "answer_cut"
        return Observation(state="error", reason=reason, retry_after_s=wait_s, evidence=evidence(answer))
    if job_id is not None and (other := _other_job(profile, document, job_id)) is not None:
        return Observation(
            state="error",
            reason="another_job",
            retry_after_s=wait_s,
            evidence=evidence(answer, asked_for=job_id, answered_for=other),
        )
    return _state(profile, answer, document, wait_s)


def _state(profile: Profile, answer: Answer, document: Document, wait_s: float | None) -> Observation:
    cost, cost_said = _cost(profile, document)
    said: dict[str, Any] = {"cost_unreadable": cost_said if cost is None else None}
    words = json_path.find(profile.observe.status, document.value)
    word = words[0] if len(set(map(documents.shown, words))) == 1 else None
    if not isinstance(word, str) or isinstance(word, Number):
        return Observation(
            state="unrecognised",
            reason="no_status",
            cost=cost,
            retry_after_s=wait_s,
            evidence=evidence(
                answer, statuses=[text(documents.shown(one), answer.secrets) for one in words[:8]], **said
            ),
        )
    shown = text(word, answer.secrets)
    state = profile.observe.words.get(word)
    if state is None:
        return Observation(
            state="unrecognised",
            reason="unknown_word",
            word=shown,
            cost=cost,
            retry_after_s=wait_s,
            evidence=evidence(answer, word=shown, **said),
        )
    if state == "succeeded" and _failed_all_the_same(profile, document):
        state = "failed"
    here = state == "succeeded" and profile.observe.result_path is None
    outputs = _outputs(profile.observe.outputs, document) if here else ()
    if outputs is None:
        return Observation(
            state="unrecognised",
            reason="outputs_unreadable",
            word=shown,
            cost=cost,
            retry_after_s=wait_s,
            evidence=evidence(answer, word=shown, **said),
        )
    return Observation(
        state=state,
        reason=state,
        outputs=outputs,
        cost=cost,
        word=shown,
        retry_after_s=wait_s,
        evidence=evidence(answer, word=shown, **said),
    )


def _failed_all_the_same(profile: Profile, document: Document) -> bool:
    if profile.observe.failure is None:
        return False
    said = json_path.find(profile.observe.failure, document.value)
    return any(not documents.is_absent(one) for one in said)


def _other_job(profile: Profile, document: Document, job_id: str) -> str | None:
    if profile.observe.job_id is None:
        return None
    found = (documents.job_id(value) for value in json_path.find(profile.observe.job_id, document.value))
    return next((one for one in found if one is not None and one != job_id), None)


def _cost(profile: Profile, document: Document) -> tuple[Decimal | None, str | None]:
    """The cost, never through a float; and what stood there, for people."""
    if profile.cost == "reserved":
        return None, None
    found = [one for one in json_path.find(profile.cost, document.value) if one is not None]
    if not found:
        return None, None
    shown = text(", ".join(map(documents.shown, found[:8])))
    if len(found) > 1 or not isinstance(found[0], str) or not _COST.fullmatch(found[0]):
        return None, shown
    try:
        cost = Decimal(found[0])
    except InvalidOperation:
        return None, shown
    return (cost, shown) if cost < _COST_BELOW else (None, shown)


def _outputs(paths: OutputPaths, document: Document) -> tuple[Output, ...] | None:
    """The files, or None when one of them can't be read: a part of a result is never delivered as the
    whole."""
    found = (json_path.find(path, document.value) for path in paths.places)
    elements = next((here for one in found if (here := [each for each in one if each is not None])), [])
    if len(elements) > OUTPUTS:
        return None
    outputs: list[Output] = []
    taken: set[str] = set()
    for number, element in enumerate(elements, start=1):
        url = _string(paths.url, element)
        if url is None or not _URL.fullmatch(url):
            return None
        size = _text(paths.size, element)
        sha256 = _string(paths.sha256, element)
        if size is not None and not re.fullmatch(r"[0-9]{1,18}", size):
            return None
        if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
            return None
        name = _name(_string(paths.name, element) or _last_segment(url), number, taken)
        taken.add(name.lower())
        content_type = _string(paths.content_type, element)
        outputs.append(
            Output(
                url=url,
                name=name,
                content_type=None if content_type is None else text(content_type),
                size=None if size is None else int(size),
                sha256=None if sha256 is None else sha256.lower(),
            )
        )
    return tuple(outputs)


def _text(path: str | None, element: object) -> str | None:
    found = [] if path is None else json_path.find(path, element)
    return str(found[0]) if len(found) == 1 and isinstance(found[0], str) else None


def _string(path: str | None, element: object) -> str | None:
    """As `_text`, and a JSON number isn't one."""
    found = [] if path is None else json_path.find(path, element)
    return None if any(isinstance(one, Number) for one in found) else _text(path, element)


def _last_segment(url: str) -> str:
    try:
        return unquote(urlsplit(url).path.rpartition("/")[2])
    except ValueError:
        return ""


def _name(said: str, number: int, taken: set[str]) -> str:
    """`said` as one harmless path segment: no separators, no leading dot, not longer than a file system
    takes."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", said).lstrip("._-")[-_NAME_CHARACTERS:] or f"output-{number}"
    return plain if plain.lower() not in taken else f"{number}-{plain}"
