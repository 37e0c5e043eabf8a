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
    "22023": ("Nothing was changed.", "Look at the value that you gave."),
}
# What a constraint's name stands for, for whoever gave the value; Postgres' own words show tables and rows.
RULES: Final = {
    "remote_job_job_id_check": "An id has 1 to 512 characters, and no control is among them.",
    "review_evidence_check": "A review keeps 256 KiB of evidence, and this one is full.",
    "incident_evidence_check": "An incident keeps 256 KiB of evidence, and this is more.",
    "incident_decision_decision_check": "A decision has 1 to 4000 characters, and isn't empty.",
    "incident_decision_decided_by_check": "Who decides is named in 1 to 200 characters.",
    "allowance_owner_id_check": "An owner is named in 1 to 200 characters.",
    "allowance_unit_check": "A unit is named in 1 to 40 characters.",
    "allowance_limit_amount_check": "A limit is zero or more.",
    "outbox_payload_fits": "The event would be larger than a record of Kafka's may be (900,000 bytes).",
    "outbox_headers_fit": "The event's headers would be larger than 8 KiB.",
}


def sentence(error: psycopg.Error) -> RelayError | None:
    """`error` for a person; None when it is no refusal that we know, but a fault."""
    said = (error.diag.message_primary or str(error)).strip()
    said = said[:1].upper() + said[1:] + ("" if said.endswith(".") else ".")
    if isinstance(error, psycopg.IntegrityError):
        return Refused(
            _rule(error.diag), meaning="Nothing was changed.", remedy="Look at the value that you gave."
        )
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


def _rule(diag: psycopg.errors.Diagnostic) -> str:
    """Which rule a constraint stands for. Its row, which may be somebody's data, is never shown."""
    place = ".".join(filter(None, (diag.schema_name, diag.table_name)))
    if diag.constraint_name in RULES:
        return RULES[diag.constraint_name]
    if diag.column_name:
        return f"{place}.{diag.column_name} can't be empty."
    return f"The rule {diag.constraint_name} of {place} refuses a value."


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
