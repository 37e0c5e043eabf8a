"""A second reader of pgoutput, slow and strict, written from the manual alone (Postgres 18, 54.9).

It shares nothing with the decoder that it judges: it says what the mapped columns of a row are, or that the
bytes are no row.
"""

from dataclasses import dataclass, field

Value = bytes | None


class NotProtocol(Exception):
    """These bytes are no message of the protocol."""


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise NotProtocol("it ends too early")
        found = self.data[self.at : self.at + count]
        self.at += count
        return found

    def number(self, size: int) -> int:
        value = 0
        for byte in self.take(size):
            value = value * 256 + byte
        return value

    def text(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise NotProtocol("a text without an end")
        found = self.take(end - self.at)
        self.take(1)
        try:
            return found.decode("utf-8")
        except UnicodeDecodeError as error:
            raise NotProtocol("a text that is not UTF-8") from error

    @property
    def left(self) -> int:
        return len(self.data) - self.at


@dataclass
class Oracle:
    """What one stream says. `row` is asked for inserts, `note` is told everything else."""

    schema: str
    table: str
    columns: tuple[str, ...]
    relations: dict[int, tuple[str, str, list[str]]] = field(default_factory=dict)

    def note(self, data: bytes) -> None:
        """A message that may announce a relation. Raises NotProtocol."""
        if data[:1] != b"w" or data[25:26] != b"R":
            return
        said = _Bytes(data)
        said.take(26)
        oid = said.number(4)
        schema, table = said.text(), said.text()
        said.take(1)
        names = []
        for _ in range(said.number(2)):
            said.take(1)
            names.append(said.text())
            said.take(8)
        if said.left:
            raise NotProtocol("it is longer than it says")
        if len(set(names)) != len(names):
            raise NotProtocol("one column twice")
        self.relations[oid] = (schema or "pg_catalog", table, names)

    def row(self, data: bytes) -> list[Value]:
        """The mapped columns of an insert into the outbox, in the mapping's order. Raises NotProtocol.

        What stands behind the last mapped column is nobody's business, except that it may not be missing when
        the mapped ones are the last.
        """
        said = _Bytes(data)
        if said.take(1) != b"w":
            raise NotProtocol("no XLogData")
        said.take(24)
        if said.take(1) != b"I":
            raise NotProtocol("no insert")
        schema, table, names = self.relations.get(said.number(4), ("", "", []))
        if (schema, table) != (self.schema, self.table) or not set(self.columns) <= set(names):
            raise NotProtocol("no row of the outbox")
        if said.take(1) != b"N" or said.number(2) != len(names):
            raise NotProtocol("no new row of so many columns")
        found: dict[str, Value] = {}
        for name in names:
            kind = said.take(1)
            if kind == b"n":
                found[name] = None
            elif kind == b"t":
                found[name] = said.take(said.number(4))
            else:
                raise NotProtocol("a value of another kind")
            if set(self.columns) <= set(found):
                break
        if len(found) == len(names) and said.left:
            raise NotProtocol("it is longer than it says")
        return [found[name] for name in self.columns]
