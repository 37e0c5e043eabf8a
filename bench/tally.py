"""Counts what a reader got: each row once, and each key's rows in the order of their commits. Pure."""

from dataclasses import dataclass, field


class Broken(Exception):
    """What was read isn't what was committed: a benchmark that loses rows has no figures."""


@dataclass(slots=True)
class Tally:
    """`take` each record in the order read; `n` is the row's number, from 0, ascending within a key."""

    distinct: int = 0
    duplicates: int = 0
    misordered: int = 0
    _seen: bytearray = field(default_factory=bytearray)
    _last: dict[bytes, int] = field(default_factory=dict)

    def take(self, key: bytes, n: int) -> None:
        if n < 0:
            raise Broken(f"A record has the row number {n}: its value was altered on the way.")
        if n >= len(self._seen):
            self._seen.extend(bytes(n + 1 - len(self._seen) + len(self._seen) // 2))
        if self._seen[n]:
            self.duplicates += 1
        else:
            self._seen[n] = 1
            self.distinct += 1
        if n < self._last.get(key, -1):
            self.misordered += 1
        else:
            self._last[key] = n

    def require(self, rows: int, who: str) -> None:
        """Raises Broken unless rows 0 to `rows` - 1 were each taken once, in order by key."""
        lost = rows - sum(self._seen[:rows])
        strange = self.distinct - (rows - lost)
        if lost or strange or self.duplicates or self.misordered:
            raise Broken(
                f"{who}: of {rows:,} committed rows {lost:,} were lost, {self.duplicates:,} came twice, "
                f"{self.misordered:,} came out of order, and {strange:,} were never committed."
            )
