"""What a submission's answer means: the table of the design, as one pure function. It never guesses: what is
not proven is unknown.

The order is the point. Ids are looked for first, in all that was read; then the profile's accept rules, its
reject rules, and the table. An id outranks a rejection: a job that may exist is never called refused.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote

from consumers.providers import document as documents
from consumers.providers import json_path, secrecy
from consumers.providers.answer import Answer
from consumers.providers.document import Document
from consumers.providers.evidence import evidence, text
from consumers.providers.observation import Observation, Output, classify_observation
from consumers.providers.profile import Profile, RejectRule
from consumers.providers.retry_after import retry_after_s

__all__ = ["Observation", "Output", "Submission", "classify_observation", "classify_submission"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What one submit attempt came to.

    accepted: `job_id` is the job. refused: a rule of the profile says that there is none; `after` and
    `charged` are the rule's. unsent: proven that no byte left. unknown: everything else; `candidates` are ids
    that were seen and prove nothing. An accepted answer may have candidates too: other declared ids.
    """

    verdict: Literal["accepted", "refused", "unsent", "unknown"]
    reason: str
    """ASCII, lower case with underscores."""
    job_id: str | None = None
    candidates: tuple[str, ...] = ()
    after: Literal["final", "fix", "delay"] | None = None
    retry_after_s: float | None = None
    charged: bool | None = None
    accounting: Literal["reserved", "unsettled"] = "reserved"
    hold: Literal["configuration"] | None = None
    generic_failure: bool = False
    """401, 403 or 5xx that no rule is about: several in a row pause the provider account."""
    evidence: dict[str, Any]
    """JSON-able, bounded, secrets removed, ids first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ids:
    """Every id in one answer, by how much it says."""

    declared: dict[str, tuple[str, ...]]
    """By declared path: the ids that stand there."""
    malformed: dict[str, tuple[str, ...]]
    """By declared path, and by "" for any other name that only a job's id has: what stands there without
    having the form of an id, for people."""
    likely: tuple[str, ...]
    """At a declared path, or under a name that only a job has: enough to doubt a rejection."""
    all: tuple[str, ...]

    def only(self, path: str) -> str | None:
        """The one id at `path`; None where there is none, more than one, or something malformed beside it."""
        found = self.declared[path]
        return found[0] if len(found) == 1 and not self.malformed[path] else None

    def malformed_at_a_path(self) -> bool:
        return any(found for path, found in self.malformed.items() if path)

    def doubt_a_refusal(self) -> bool:
        """Whether the answer speaks of a job, in whatever form."""
        return bool(self.likely) or any(self.malformed.values())


def classify_submission(profile: Profile, answer: Answer) -> Submission:
    """Apply the profile's rules, then the table of design-operations 5. Raises nothing."""
    # Once the hook has returned, only a head that could not be put together proves that nothing left.
    if not answer.sent and (not answer.hook_returned or answer.malformed):
        return _unsent(answer)
    document = documents.read(answer)
    ids = _ids(profile, answer, document)
    return (
        _accepted(profile, answer, ids)
        or _refused(profile, answer, document, ids)
        or _unknown(profile, answer, document, ids)
    )


def _unsent(answer: Answer) -> Submission:
    if answer.malformed:
        reason = "request_malformed"
    elif answer.hook_error is not None:
        reason = "not_recorded"
    elif answer.cancelled:
        reason = "cancelled"
    else:
        reason = "not_connected"
    return Submission(
        verdict="unsent",
        reason=reason,
        hold="configuration" if answer.malformed else None,
        evidence=evidence(answer),
    )


def _ids(profile: Profile, answer: Answer, document: Document) -> _Ids:
    secrets = answer.secrets
    declared: dict[str, tuple[str, ...]] = {}
    malformed: dict[str, tuple[str, ...]] = {}
    for path in profile.id_paths():
        values = json_path.find(path, document.value) if document.valid else []
        declared[path], malformed[path] = _read(
            (value for value in values if not documents.is_absent(value)), secrets
        )
    named = [one for one in documents.named(document) if not documents.is_absent(one.value)]
    certain, malformed[""] = _read((one.value for one in named if one.certain), secrets)
    others, _ = _read((one.value for one in named), secrets)
    headers = _ids_in_headers(profile, answer)
    if any(path and found for path, found in malformed.items()):
        # It stands under such a name itself, and is told once.
        malformed[""] = ()
    likely = documents.distinct((*(one for found in declared.values() for one in found), *headers, *certain))
    return _Ids(
        declared=declared,
        malformed=malformed,
        likely=likely,
        all=documents.distinct((*likely, *others)),
    )


def _read(values: Iterable[object], secrets: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ids among `values`, and the others as they are shown to people. What has our credential in it, a
    server's echo, is no id: ids go into tables and topics."""
    ids: list[str] = []
    others: list[str] = []
    for value in values:
        found = documents.job_id(value)
        if found is not None and not secrecy.has(secrets, found):
            ids.append(found)
        else:
            others.append(text(documents.shown(value), secrets))
    return documents.distinct(ids), documents.distinct(others)


def _ids_in_headers(profile: Profile, answer: Answer) -> tuple[str, ...]:
    """A Location that is this profile's address of a job, and a header that is named after one."""
    found = [value for name, value in answer.headers if documents.names_a_job(name)]
    before, _, after = profile.observe.path.partition("${job_id}")
    # A placeholder in the query stays there; behind one in the path, query and fragment are somebody's own.
    address = re.compile(
        re.escape(before) + "([^/?#&]+)" + re.escape(after.partition("?")[0]) + "(?:[?#&].*)?"
    )
    for location in answer.header_values("location"):
        start = location.find(before)
        said = address.fullmatch(location, start) if start >= 0 else None
        if said is not None:
            # A byte that is no UTF-8 would become another id.
            found.append(unquote(said[1], errors="surrogateescape"))
    return _read(found, answer.secrets)[0]


def _accepted(profile: Profile, answer: Answer, ids: _Ids) -> Submission | None:
    status = answer.status
    if status is None:
        return None
    for rule in profile.accept:
        job_id = ids.only(rule.job_id)
        if job_id is None or not rule.covers(status):
            continue
        declared = documents.distinct(one for found in ids.declared.values() for one in found)
        others = tuple(one for one in declared if one != job_id)
        return Submission(
            verdict="accepted",
            reason="accepted" if status < 300 else "accepted_with_error",
            job_id=job_id,
            candidates=others[: documents.CANDIDATES],
            accounting=rule.accounting,
            evidence=evidence(
                answer,
                job_id=job_id,
                candidates=list(others[: documents.CANDIDATES]),
                other_ids=[
                    *others[documents.CANDIDATES :],
                    *(one for one in ids.all if one != job_id and one not in set(declared)),
                ],
            ),
        )
    return None


def _refused(profile: Profile, answer: Answer, document: Document, ids: _Ids) -> Submission | None:
    """What the first reject rule that fits says. None where none does, and where the answer also names a job,
    or lost a part that might: then the refusal is not proven."""
    rule = _reject_rule(profile, answer, document)
    if rule is None or not document.whole:
        return None
    if ids.doubt_a_refusal() or documents.mentions_a_job(document):
        return None
    return Submission(
        verdict="refused",
        reason=rule.reason or f"refused_{answer.status}",
        after=rule.after,
        charged=rule.charged,
        retry_after_s=(retry_after_s(answer) or rule.delay_s) if rule.after == "delay" else None,
        evidence=evidence(answer, other_ids=list(ids.all)),
    )


def _reject_rule(profile: Profile, answer: Answer, document: Document) -> RejectRule | None:
    return next((rule for rule in profile.reject if _fits(rule, answer, document)), None)


def _fits(rule: RejectRule, answer: Answer, document: Document) -> bool:
    if answer.status is None or not rule.covers(answer.status):
        return False
    if rule.path is None:
        return True
    values = json_path.find(rule.path, document.value) if document.valid else []
    return len(values) == 1 and _same(values[0], rule.equals)


def _same(said: object, wanted: str | int | bool | None) -> bool:
    """JSON true is not "true", and 1 is neither "1" nor true."""
    if isinstance(wanted, bool) or isinstance(said, bool):
        return said is wanted
    if isinstance(wanted, int):
        return isinstance(said, documents.Number) and said == str(wanted)
    return isinstance(said, str) and not isinstance(said, documents.Number) and said == wanted


def _unknown(profile: Profile, answer: Answer, document: Document, ids: _Ids) -> Submission:
    status = answer.status
    generic = status is not None and (status in {401, 403} or status // 100 == 5)
    candidates = ids.all[: documents.CANDIDATES]
    return Submission(
        verdict="unknown",
        reason=_why_unknown(profile, answer, document, ids),
        candidates=candidates,
        retry_after_s=retry_after_s(answer),
        generic_failure=generic and not ids.likely,
        evidence=evidence(
            answer,
            candidates=list(candidates),
            malformed_ids=[one for found in ids.malformed.values() for one in found],
            other_ids=list(ids.all[documents.CANDIDATES :]),
        ),
    )


def _why_unknown(profile: Profile, answer: Answer, document: Document, ids: _Ids) -> str:
    status = answer.status
    if status is None:
        return "cancelled" if answer.cancelled else "no_answer"
    if status // 100 == 3:
        return "redirect"
    if ids.malformed_at_a_path():
        return "job_id_malformed"
    if status // 100 == 2:
        if not document.valid:
            return "answer_not_json" if answer.body_complete else "answer_cut"
        if len(ids.all) > 1:
            return "several_job_ids"
        return "job_id_not_at_its_path" if ids.all else "no_job_id"
    if ids.likely:
        return "job_id_with_error"
    if ids.malformed[""]:
        return "job_id_malformed"
    if _reject_rule(profile, answer, document) is not None:
        return "refusal_unreadable" if answer.body_complete else "refusal_cut"
    return f"status_{status}"
