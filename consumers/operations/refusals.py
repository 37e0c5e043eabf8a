"""Turns what Postgres refuses into one sentence for a person: the only place that knows SQLSTATE OR0xx.

It hides nothing: what the database said is in the sentence, and an error that is nobody's refusal goes on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from consumers.operations.decisions import Refused
from relay.errors import RelayError, Unavailable

# SQLSTATE → what it means for the data, and what to do. The codes are listed in schemas/postgres/0001.
KNOWN: Final = {
    "OR001": ("The operation that the key has already stays as it is.", "Use another operation key."),
    "OR002": (
        "Nothing was prepared.",
        "`relay init` registers the profiles that it finds in RELAY_PROFILES.",
    ),
    "OR003": ("Nothing was prepared.", "Register the kind in relay.operation_kind."),
    "OR004": ("Nothing was changed.", "`relay ops list` shows what there is."),
    "OR010": ("Nothing was changed.", "What was approved, sent or decided is kept as it was."),
    "OR011": ("Nothing was changed.", "Look at it again: it may have moved. `relay ops show ID`."),
    "OR012": ("Nothing was changed.", "Look at it again: `relay ops show ID` tells what is proven."),
    "OR013": ("Nothing was changed.", "Every transition says who, why and by what cause."),
    "OR014": ("Nothing was changed.", "Decide what becomes of the operation, not only of its review."),
    "40001": ("Somebody else changed it at the same moment; nothing was changed.", "Try again."),
    "40P01": ("Somebody else changed it at the same moment; nothing was changed.", "Try again."),
    "42501": ("Nothing was changed.", "Use a login that is a member of the role relay_operator."),
    "42P01": ("The tables are not there, or not in this database.", "Run `relay init`."),
    "3F000": ("The schema relay is not in this database.", "Run `relay init`."),
    "42883": ("The schema relay is older than this release.", "Run `relay init`."),
    "22003": (
        "Nothing was changed.",
        "An amount has at most fourteen digits before the point and six after it.",
    ),
    "23514": ("Nothing was changed.", "Look at the value that you gave."),
}


def sentence(error: psycopg.Error) -> RelayError | None:
    """`error` for a person; None when it is no refusal that we know, but a fault."""
    said = (error.diag.message_primary or str(error)).strip()
    said = said[:1].upper() + said[1:] + ("" if said.endswith(".") else ".")
    known = KNOWN.get(error.sqlstate or "")
    if known is not None:
        meaning, remedy = known
        return Refused(said, meaning=meaning, remedy=error.diag.message_hint or remedy)
    if isinstance(error, psycopg.OperationalError):
        return Unavailable(
            f"The database can't be reached or ended the session: {said}",
            remedy="Check RELAY_DATABASE_URL and the server, then try again.",
        )
    return None


@contextmanager
def in_words() -> Iterator[None]:
    """Raises Refused or Unavailable for psycopg's errors that have a sentence."""
    try:
        yield
    except psycopg.Error as error:
        words = sentence(error)
        if words is None:
            raise
        raise words from error
