"""Turns what Postgres refuses a command of the relay's into one sentence for a person.

It hides nothing: what the database said is in the sentence, on one line, and the remedy is its caller's.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from relay.errors import RelayError, Unavailable, as_sentence


@contextmanager
def in_words(remedy: str, *, meaning: str = "") -> Iterator[None]:
    """Raises Unavailable for a database that is away, and RelayError with `remedy` for what it refuses."""
    try:
        yield
    except psycopg.OperationalError as error:
        raise Unavailable(
            f"The database can't be reached or ended the session: {as_sentence(error)}",
            remedy="Check RELAY_DATABASE_URL and the server, then try again.",
        ) from error
    except psycopg.Error as error:
        raise RelayError(
            f"Postgres refused it: {as_sentence(error.diag.message_primary or error)}",
            meaning=meaning,
            remedy=remedy,
        ) from error
