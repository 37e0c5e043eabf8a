"""What came back from one HTTP exchange, as plain data: the seam between the client (which does I/O) and
classification (which never does). It interprets nothing.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from consumers.providers import secrecy


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One exchange. An absent `status` means that no complete response head was read.

    `hook_returned`: the hook before the first byte returned to the HTTP library, so bytes may have left.
    `sent`: bytes may have left this machine. False only where it is proven that none did.
    `malformed`: the request itself could not be put on the wire (an illegal header or URL).
    `cancelled`: the exchange ended because its task was cancelled; whoever called it raises that again once
    the answer is recorded.
    `body_complete`: the message ended as HTTP says it must; `truncated`: we stopped reading at our own bound.
    `unread`: what came off the wire, head and all, where it could not be read as HTTP.
    """

    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    body_complete: bool = False
    truncated: bool = False
    unread: bytes = b""
    sent: bool = False
    hook_returned: bool = False
    malformed: bool = False
    cancelled: bool = False
    error: str | None = None
    """Exception class and text, for people; nothing decides by it."""
    hook_error: BaseException | None = field(default=None, compare=False)
    """What the hook raised, so that its owner can act on it. Not kept in the spool."""
    elapsed_s: float = 0.0
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Texts that evidence must not contain. Never written anywhere."""

    def header(self, name: str) -> str | None:
        """The first header called `name` (any case), or None."""
        return next(iter(self.header_values(name)), None)

    def header_values(self, name: str) -> tuple[str, ...]:
        """Every header called `name` (any case)."""
        wanted = name.lower()
        return tuple(value for key, value in self.headers if key.lower() == wanted)

    @property
    def framed(self) -> bool:
        """Whether the head says where the body ends (RFC 9112, 6.3). Where only the connection's end does, a
        body that was cut looks whole."""
        return (
            self.header("content-length") is not None
            or self.header("transfer-encoding") is not None
            or self.status in {204, 304}
        )


def to_record(answer: Answer) -> dict[str, Any]:
    """A JSON-able form that loses nothing that classification looks at; the body, which may be any bytes, is
    base64. The secrets are taken out: whoever reads it back may have others by then."""
    clean = partial(secrecy.without, answer.secrets, cut=not answer.body_complete)
    clean_bytes = partial(secrecy.without_bytes, answer.secrets, cut=not answer.body_complete)
    return {
        "status": answer.status,
        "headers": [[name, clean(value)] for name, value in answer.headers],
        "body": base64.b64encode(clean_bytes(answer.body)).decode("ascii"),
        "body_complete": answer.body_complete,
        "truncated": answer.truncated,
        "unread": base64.b64encode(clean_bytes(answer.unread)).decode("ascii"),
        "sent": answer.sent,
        "hook_returned": answer.hook_returned,
        "malformed": answer.malformed,
        "cancelled": answer.cancelled,
        "error": None if answer.error is None else clean(answer.error),
        "elapsed_s": answer.elapsed_s,
    }


def from_record(record: Mapping[str, Any], *, secrets: tuple[str, ...] = ()) -> Answer:
    """The answer that `to_record` wrote. Raises KeyError or ValueError when the record is not one."""
    return Answer(
        status=record["status"],
        headers=tuple((str(name), str(value)) for name, value in record["headers"]),
        body=base64.b64decode(record["body"], validate=True),
        body_complete=bool(record["body_complete"]),
        truncated=bool(record["truncated"]),
        # Entries of an earlier release have none.
        unread=base64.b64decode(record.get("unread", ""), validate=True),
        sent=bool(record["sent"]),
        hook_returned=bool(record["hook_returned"]),
        malformed=bool(record["malformed"]),
        cancelled=bool(record["cancelled"]),
        error=record["error"],
        elapsed_s=float(record["elapsed_s"]),
        secrets=secrets,
    )
