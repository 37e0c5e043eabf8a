"""A provider's list of jobs, page by page, and what it says about one request. Pure: it renders requests and
reads answers, and it never takes an incomplete list for a complete one.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from consumers.providers import document as documents
from consumers.providers import json_path
from consumers.providers.answer import Answer
from consumers.providers.evidence import text
from consumers.providers.profile import Listing, Profile
from consumers.providers.request import Request, render_get

MATCHES: Final = 32
"""Most jobs under one reference that are kept: more is a provider that doesn't repeat what it was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """When the request may have been accepted, by the database's clock."""

    since: datetime
    until: datetime


@dataclass(slots=True)
class Listed:
    """What was read of the list so far. `matches` are the ids under the request's reference."""

    pages: int = 0
    elements: int = 0
    matches: list[str] = field(default_factory=list)
    cursor: str | None = None
    complete: bool = False
    """Every page was read, whole and understood."""
    why_not: str | None = None
    """Why it is not complete, once that is certain."""

    @property
    def ended(self) -> bool:
        return self.complete or self.why_not is not None


def render_listing(
    profile: Profile,
    listing: Listing,
    base_url: str,
    *,
    operation_id: str,
    interval: Interval,
    cursor: str | None,
    secret: str | None,
) -> Request:
    """The GET for the first page, or the one after `cursor`. Raises UsageError as `render_submit` does."""
    path = listing.path if cursor is None or listing.next_path is None else listing.next_path
    known = {
        "operation_id": operation_id,
        "since": _moment(interval.since),
        "until": _moment(interval.until),
        "cursor": cursor or "",
    }
    for name, said in known.items():
        path = path.replace(f"${{{name}}}", quote(said, safe=""))
    return render_get(profile, base_url, path, listing.headers, secret)


def read_page(listing: Listing, answer: Answer, listed: Listed, *, operation_id: str) -> None:
    """Add what this page says to `listed`. Raises nothing: what can't be read makes the list incomplete."""
    if answer.status is None:
        listed.why_not = f"no answer: {text(answer.error or 'nothing was read', answer.secrets)}"
        return
    if answer.status // 100 != 2:
        listed.why_not = f"HTTP {answer.status}"
        return
    document = documents.read(answer)
    if not document.valid or not answer.body_complete:
        listed.why_not = "the answer is cut or no JSON"
        return
    holders = json_path.find(listing.each.removesuffix("[*]"), document.value)
    if listing.each.endswith("[*]") and not (len(holders) == 1 and isinstance(holders[0], list)):
        # An empty list is a list; no list at its place is an answer that nobody has described.
        listed.why_not = f"there is no list at {listing.each}"
        return
    elements = json_path.find(listing.each, document.value)
    listed.pages += 1
    listed.elements += len(elements)
    for element in elements:
        references = json_path.find(listing.reference, element)
        ids = [documents.job_id(one) for one in json_path.find(listing.job_id, element)]
        if operation_id in [str(one) for one in references]:
            if len(ids) != 1 or ids[0] is None:
                listed.why_not = "a job of this request has no id that can be read"
                return
            if ids[0] not in listed.matches:
                listed.matches.append(ids[0])
        elif len(references) != 1 or not isinstance(references[0], str):
            # It may be this request's: the list says of one job less than it was declared to say.
            listed.why_not = f"an element has no reference at {listing.reference}"
    if len(listed.matches) > MATCHES:
        listed.why_not = f"more than {MATCHES} jobs under one reference"
    if listed.why_not is None:
        _turn(listing, document.value, listed)


def _turn(listing: Listing, value: object, listed: Listed) -> None:
    named = [] if listing.cursor is None else json_path.find(listing.cursor, value)
    following = [one for one in named if one not in (None, "")]
    if not following:
        listed.complete = True
    elif len(following) > 1 or not isinstance(following[0], str):
        listed.why_not = "the next page can't be read"
    elif following[0] == listed.cursor:
        listed.why_not = "the list names the same page again"
    elif listed.pages >= listing.pages:
        listed.why_not = f"there are more than {listing.pages} pages"
    else:
        listed.cursor = str(following[0])


def proves_absence(listing: Listing, listed: Listed, *, asked_at: datetime, interval: Interval) -> str | None:
    """Why `listed`, read from `asked_at` on, doesn't prove that no job came of the request; None: it does.

    It must be declared, complete, without a match, and asked for when whatever was accepted in the interval
    had to be in it (design-operations, section 6).
    """
    visible_from = interval.until.timestamp() + listing.visibility_lag_s
    if listed.matches:
        return "it has a job of this request"
    if not listed.complete:
        return f"it is incomplete: {listed.why_not or 'not read to its end'}"
    if asked_at.timestamp() < visible_from:
        late = datetime.fromtimestamp(visible_from, UTC)
        return f"a job of this request may be missing from it until {late:%Y-%m-%d %H:%M:%SZ}"
    if not listing.proves_absence:
        return "the profile doesn't declare that this list proves absence"
    return None


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
