"""Every error that this distribution raises on purpose, with its remedy and exit status.

    RelayError                      1
    ├── UsageError                  2   a wrong setting, argument or file
    ├── Unavailable                 1   a server is away; trying again later is right
    ├── DecodeError                 1   bytes that are not what the protocol says
    ├── SchemaError                 1   a schema is missing, changed or incompatible
    │   ├── UnknownSchema           1   no schema of the catalog has this name, version or fingerprint
    │   └── PayloadMismatch         1   a payload doesn't fit its schema
    └── Stop                            the relay can't go on without a person
        ├── CheckpointMissing      10   checkpoint missing or behind the slot
        ├── OtherCluster           11
        ├── PhantomEvents          12
        ├── Rewound                13
        ├── LogLost                14   slot or WAL gone
        ├── OutboxAltered          15   publication or outbox narrowed or altered
        ├── StreamIncomplete       16
        ├── TopicsChanged          17
        ├── CheckpointUnreadable   18
        │   └── CheckpointGarbled  18   it was read, and is none
        ├── Fenced                 19
        ├── Repairing              20
        ├── SynchronousStandbyName 21
        └── BadEventHalt           22   a bad event, with on_bad_event = halt

A message says what happened; `meaning` what that means for the data; `remedy` the command to run next.
"""

from typing import ClassVar, Final

REPAIR: Final = (
    "Stop every relay of this slot, then run `relay outbox repair`: it publishes what Kafka lacks, makes the"
    " slot anew, and `relay run` goes on."
)
"""Ends a remedy where the outbox's rows are still there."""


def as_sentence(said: object) -> str:
    """What a server or a library said, on one line and closed, so that it can end a message of ours."""
    text = " ".join(str(said).split())
    return text if text.endswith((".", "?", "!")) else f"{text}."


class RelayError(Exception):
    """The base. `exit_status` is what the process ends with when nothing handles it."""

    exit_status: ClassVar[int] = 1

    def __init__(self, message: str, *, meaning: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.meaning = meaning
        self.remedy = remedy

    def __str__(self) -> str:
        return " ".join(part for part in (self.message, self.meaning, self.remedy) if part)


class UsageError(RelayError):
    exit_status = 2


class Unavailable(RelayError):
    pass


class DecodeError(RelayError):
    pass


class SchemaError(RelayError):
    pass


class UnknownSchema(SchemaError):
    pass


class PayloadMismatch(SchemaError):
    """Names the event type, its version and the field's path; never shows a value, which may be secret."""

    def __init__(self, event_type: str, schema_version: int, path: str, reason: str) -> None:
        self.event_type = event_type
        self.schema_version = schema_version
        self.path = path
        self.reason = reason
        what = f"the field {path}" if path else "the payload"
        super().__init__(f"{event_type} v{schema_version}: {what} {reason}.")


class Stop(RelayError):
    """The relay stops and says so; it never skips (promise P2)."""


class CheckpointMissing(Stop):
    exit_status = 10


class OtherCluster(Stop):
    exit_status = 11


class PhantomEvents(Stop):
    """Kafka has events of transactions at or above `switch_lsn`, which no server has any more."""

    exit_status = 12

    def __init__(self, message: str, *, switch_lsn: int, meaning: str = "", remedy: str = "") -> None:
        super().__init__(message, meaning=meaning, remedy=remedy)
        self.switch_lsn = switch_lsn


class Rewound(Stop):
    exit_status = 13


class LogLost(Stop):
    exit_status = 14


class OutboxAltered(Stop):
    exit_status = 15


class StreamIncomplete(Stop):
    exit_status = 16


class TopicsChanged(Stop):
    exit_status = 17


class CheckpointUnreadable(Stop):
    exit_status = 18


class CheckpointGarbled(CheckpointUnreadable):
    """It was read, and is no checkpoint."""


class Fenced(Stop):
    exit_status = 19


class Repairing(Stop):
    exit_status = 20


class SynchronousStandbyName(Stop):
    exit_status = 21


class BadEventHalt(Stop):
    exit_status = 22
