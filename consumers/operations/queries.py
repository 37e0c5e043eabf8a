"""Reads the named blocks of `consumers/operations/sql/*.sql`. All SQL on operations is there, or in the
migrations.

A block begins with ``-- name: some_name``; parameters are psycopg's ``%(name)s``.
"""

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Final, LiteralString, cast

_NAME: Final = re.compile(r"^-- name: ([a-z][a-z0-9_]*)\n", re.MULTILINE)


class Queries(Mapping[str, LiteralString]):
    """The blocks of one file, by name. Raises KeyError, which names the file, for an unknown block."""

    def __init__(self, file: str) -> None:
        self._file = file
        text = (files("consumers.operations") / "sql" / f"{file}.sql").read_text(encoding="utf-8")
        parts = _NAME.split(text)[1:]
        names = parts[::2]
        if len(names) != len(set(names)):
            raise ValueError(f"{file}.sql names a block twice")
        # The text ships with the package: to psycopg it is as literal as a string in the source.
        self._blocks = {
            name: cast(LiteralString, body.strip()) for name, body in zip(names, parts[1::2], strict=True)
        }

    def __getitem__(self, name: str) -> LiteralString:
        try:
            return self._blocks[name]
        except KeyError:
            raise KeyError(f"{self._file}.sql has no block {name!r}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)
