"""Names of delivered files. Pure; the same for every attempt."""

import re
from typing import Final
from uuid import UUID

_SEGMENT_CHARACTERS: Final = 120
"""Most of one name in a path: file systems take 255 bytes."""


def output_key(owner_id: str, operation_id: UUID, ordinal: int, name: str) -> str:
    """``{owner}/{operation}/{ordinal}-{name}``: the same for every attempt, with harmless names. The
    operation's id keeps apart what making names harmless might bring together."""
    return f"{segment(owner_id) or 'owner'}/{operation_id}/{ordinal}-{segment(name) or 'output'}"


def operation_of(key: str) -> UUID | None:
    """Whose output `key` is, or None when it is no key of `output_key`."""
    parts = key.split("/")
    return as_uuid(parts[1]) if len(parts) == 3 and parts[2].partition("-")[0].isdigit() else None


def segment(text: str) -> str:
    """`text` as one harmless path segment: letters, digits, ``. _ -``, no leading dot, bounded."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).lstrip(".")[:_SEGMENT_CHARACTERS]


def as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
