"""How long a server asks us to wait (RFC 9110, 10.2.3). Pure: it never looks at this machine's clock."""

import email.utils
from datetime import UTC, datetime
from typing import Final

from consumers.providers.answer import Answer

LONGEST_S: Final = 86400.0
"""A server that says more than a day is asked again after a day."""


def retry_after_s(answer: Answer) -> float | None:
    """Retry-After in seconds, or None. A date counts from the answer's own Date, so that both are of one
    clock."""
    said = (answer.header("retry-after") or "").strip()
    if said.isascii() and said.isdigit():
        return min(float(said), LONGEST_S)
    until, now = _moment(said), _moment(answer.header("date") or "")
    if until is None or now is None:
        return None
    return min(max((until - now).total_seconds(), 0.0), LONGEST_S)


def _moment(text: str) -> datetime | None:
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    # Two of HTTP's three forms of a date name GMT, the third has no zone and means it (RFC 9110, 5.6.7).
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
