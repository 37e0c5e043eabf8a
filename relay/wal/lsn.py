"""Log sequence numbers: Postgres writes ``16/B374D848``, we hold an int. Nothing else is here.

The int is the byte position in the WAL (Postgres 18, 8.20 `pg_lsn`), so differences are bytes.
"""

import re
from typing import Final

from relay.errors import DecodeError

_TEXT: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> int:
    """``16/B374D848`` to its int. Raises DecodeError when `text` has another form."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise DecodeError(f"{text!r} is not an LSN.")
    return int(found[1], 16) << 32 | int(found[2], 16)


def format_lsn(lsn: int) -> str:
    """The form that Postgres prints, in which ``relay_lsn`` headers and messages speak."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
