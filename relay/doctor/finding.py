"""One finding of `relay doctor`: what was seen, why it matters, and the command that mends it. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from relay.errors import RelayError


class Severity(StrEnum):
    """`OK`: looked at, and well. `NOTE`: nothing to mend, or it couldn't be looked at. `WARNING`: it can
    break. `ERROR`: it is broken, or loses data when something else breaks."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is ``realm.name``, for programs; it never changes its meaning."""

    check: str
    severity: Severity
    what: str
    why: str = ""
    command: str = ""

    @property
    def realm(self) -> str:
        return self.check.partition(".")[0]


def ok(check: str, what: str) -> Finding:
    return Finding(check, Severity.OK, what)


def note(check: str, what: str, why: str = "", command: str = "") -> Finding:
    return Finding(check, Severity.NOTE, what, why, command)


def warning(check: str, what: str, why: str, command: str) -> Finding:
    return Finding(check, Severity.WARNING, what, why, command)


def error(check: str, what: str, why: str, command: str) -> Finding:
    return Finding(check, Severity.ERROR, what, why, command)


def unseen(check: str, reason: object, command: str = "") -> Finding:
    """It couldn't be looked at: no verdict, and never silence."""
    return note(check, f"couldn't be looked at: {reason}", "What wasn't seen may be broken.", command)


def unless_refused(check: str, well: str, rule: Callable[[], object]) -> Finding:
    """A rule that `relay run` stops by, asked beforehand: its error is the finding."""
    try:
        rule()
    except RelayError as refused:
        return error(check, refused.message, refused.meaning, refused.remedy)
    return ok(check, well)


def exit_status(findings: Iterable[Finding], *, strict: bool) -> int:
    """1 with an error, or with a warning when `strict`; else 0."""
    failing = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    return int(any(finding.severity in failing for finding in findings))


def length(seconds: float) -> str:
    """A length of time as a person says it: ``90 s``, ``3.5 h``, ``12 d``."""
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def size(count: float) -> str:
    """Bytes as a person says them."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.4g} TB"
