"""Whether a repair may begin, and what it then is: decided from what was read, without a server.

It fails closed like `relay.identity`: a source that isn't the recorded one is repaired only when a person has
accepted it.
"""

from dataclasses import dataclass
from typing import Literal

from relay import identity
from relay.errors import OtherCluster, PhantomEvents, RelayError, Rewound, UsageError
from relay.identity import Server
from relay.kafka.checkpoint import Checkpoint
from relay.wal.slot import Slot, SourceIdentity, require_usable

Accept = Literal["upgrade", "rewind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person asks of a repair."""

    include_expired: bool = False
    backfill: bool = False
    """Rows from before the slot, not ones that were lost: the records say so."""
    accept: Accept | None = None
    """The source is another one, or behind Kafka, and that is meant."""
    slot_timeout_s: float = 60.0
    """How long the new slot waits for older transactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A repair that may begin."""

    epoch: int
    origin: Literal["repair", "backfill"]
    source_accepted: bool
    rewound: bool
    """Whether Kafka has, or may have, events that this database doesn't: an old backup can be upgraded
    too."""


def require_idle(recorded: SourceIdentity, slot: Slot | None, database: str) -> None:
    """Raises UsageError for somebody else's slot, and for one that a relay reads now.

    A relay that works needs no repair. After an interrupted repair whoever still holds the slot is waited
    for, since it was refused or shut out already.
    """
    if slot is None:
        return
    require_usable(slot, database)
    if slot.active_pid is not None and recorded.state != "repairing":
        raise UsageError(
            f"A relay reads the slot {slot.name} now (server process {slot.active_pid}).",
            meaning="While it works, nothing needs a repair; nothing was changed.",
            remedy="`relay outbox audit` says whether anything is missing. If so, stop the relay (SIGTERM)"
            " and its standbys, then run this again.",
        )


def plan(
    recorded: SourceIdentity,
    server: Server,
    checkpoint: Checkpoint | None,
    *,
    kept_event: bool,
    asked: Asked,
) -> Plan:
    """What the repair is.

    Raises OtherCluster, PhantomEvents or Rewound for a source that nobody has accepted, and UsageError when
    there is nothing of the kind to accept.
    """
    accepted_before = recorded.state == "repairing" and recorded.source_accepted
    found = _obstacle(recorded, server, checkpoint, kept_event=kept_event)
    behind = isinstance(found, PhantomEvents | Rewound)
    if accepted_before and not _is_other(recorded, server):
        pass
    elif asked.accept is None:
        if found is not None:
            raise found
    elif asked.accept == "upgrade" and not isinstance(found, OtherCluster):
        raise UsageError(
            f"There is no other cluster to accept: this is {server.system_identifier}, as it was."
            + (f" But: {found.message}" if found else ""),
            remedy=found.remedy if found else "Start `relay run`; if it stops, it says what to run.",
        )
    elif asked.accept == "rewind" and not behind:
        if found is not None:
            raise found
        raise UsageError(
            "There is no rewind to accept: this database has all that Kafka's checkpoint says.",
            remedy="Start `relay run`; if it stops, it says what to run.",
        )
    epoch = max(recorded.epoch, checkpoint.epoch if checkpoint else 0) + 1
    before = recorded.repair_origin if recorded.state == "repairing" else None
    backfill = asked.backfill or recorded.state == "new"
    return Plan(
        epoch=epoch,
        origin=before or ("backfill" if backfill else "repair"),
        source_accepted=accepted_before or asked.accept is not None,
        rewound=asked.accept == "rewind" or (asked.accept == "upgrade" and not (checkpoint and kept_event)),
    )


def _is_other(recorded: SourceIdentity, server: Server) -> bool:
    return recorded.system_identifier != server.system_identifier


def _obstacle(
    recorded: SourceIdentity, server: Server, checkpoint: Checkpoint | None, *, kept_event: bool
) -> RelayError | None:
    """Why the source isn't the one whose events Kafka has; None when it is."""
    try:
        identity.require_cluster(recorded, server.system_identifier)
        if checkpoint is not None:
            identity.require_same(checkpoint, server)
            identity.require_event(checkpoint, kept=kept_event)
    except (OtherCluster, PhantomEvents, Rewound) as found:
        return found
    return None
