"""Whether the source is what Kafka's checkpoint says it was, before anything is skipped or confirmed.

A pure decision over what was read elsewhere. It fails closed: what it can't explain stops the relay.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from relay.errors import (
    REPAIR,
    CheckpointMissing,
    LogLost,
    OtherCluster,
    PhantomEvents,
    Repairing,
    Rewound,
    SynchronousStandbyName,
    UsageError,
)
from relay.kafka.checkpoint import Checkpoint
from relay.outbox.mapping import OutboxMapping
from relay.wal import publication as publications
from relay.wal.lsn import format_lsn
from relay.wal.publication import Published
from relay.wal.slot import Slot, SourceIdentity, require_made_for, require_usable

_REWIND: Final = (
    "If RELAY_DATABASE_URL names the wrong server, correct it. Else, when this database is the right one, run"
    " `relay init --accept-rewind`: it lists what Kafka has and the outbox doesn't, publishes what it lacks,"
    " and keeps dispatch closed until the operations are reconciled."
)


@dataclass(frozen=True, slots=True)
class Source:
    """What an ordinary connection says, before replication starts."""

    recorded: SourceIdentity | None
    slot: Slot | None
    published: Published
    database: str
    synchronous_standby_names: str
    flush_lsn: int
    """How far the server's WAL is flushed, now."""
    system_identifier: str


@dataclass(frozen=True, slots=True)
class Server:
    """What IDENTIFY_SYSTEM says on the replication connection, and the history of its timeline."""

    system_identifier: str
    timeline: int
    flush_lsn: int
    """Read after the slot was taken: an earlier one may be below what the relay before us published."""
    switches: Mapping[int, int]
    """Where each timeline of its history ended. The checkpoint's counts: Kafka may not have heard yet of a
    promotion that Postgres has recorded."""


def application_name(slot: str) -> str:
    """What our replication connection calls itself."""
    return f"outbox-relay-{slot}"


def may_start(
    source: Source, *, slot_name: str, publication: str, mapping: OutboxMapping
) -> tuple[SourceIdentity, Slot]:
    """What can be decided before the slot is taken and Kafka is touched.

    Raises UsageError where `relay init` never ran, Repairing, OtherCluster, LogLost, OutboxAltered,
    SynchronousStandbyName.
    """
    recorded, slot = source.recorded, source.slot
    if recorded is None:
        raise UsageError(
            f"No relay is known for the replication slot {slot_name}.",
            remedy="Run `relay init` once against this database.",
        )
    if recorded.state == "repairing":
        raise Repairing(
            f"A repair of relay {recorded.relay_id} is under way, or was interrupted.",
            meaning="Until it ends, nobody may publish from this outbox.",
            remedy="If nobody runs it now, run `relay outbox repair` again: it begins from the start, finds"
            " what is in Kafka already, and then `relay run` goes on.",
        )
    # Before the slot: another cluster has none either, and to say so would hide what happened.
    require_cluster(recorded, source.system_identifier)
    if slot is None or slot.wal_status == "lost" or slot.confirmed_flush is None:
        raise LogLost(
            f"The replication slot {slot_name} is {'gone' if slot is None else 'lost (wal_status = lost)'}.",
            meaning="What was committed since its last confirmed position may be gone from the WAL.",
            remedy=REPAIR,
        )
    require_usable(slot, source.database)
    # First whether it is ours at all: a wrong setting is no altered outbox.
    require_made_for(recorded, publication, mapping)
    publications.require(source.published, publication, mapping)
    refuse_standby_name(source.synchronous_standby_names, slot_name)
    return recorded, slot


def refuse_standby_name(setting: str, slot_name: str) -> None:
    """Raises SynchronousStandbyName when `synchronous_standby_names` could take the relay for a standby."""
    name = application_name(slot_name)
    if could_match(setting, name):
        raise SynchronousStandbyName(
            f"synchronous_standby_names = {setting!r} matches {name}, the relay's connection.",
            meaning="Postgres would take the relay for a standby: commits would wait until Kafka has them.",
            remedy="Name the real standbys there instead of `*`, then reload Postgres.",
        )


def could_match(setting: str, name: str) -> bool:
    """Whether `name` is, or `*` is, in a value of `synchronous_standby_names` (Postgres 18, 19.6.2)."""
    body = re.sub(r"^\s*(?:(?:FIRST|ANY)\s+)?\d+\s*\(", "", setting, flags=re.IGNORECASE)
    names = re.findall(r'"((?:[^"]|"")*)"|([^\s,()"]+)', body)
    # A quoted "*" is a wildcard as well (SyncRepGetStandbyPriority compares the text).
    return any((quoted or bare).lower() in {"*", name.lower()} for quoted, bare in names)


def decide(recorded: SourceIdentity, slot: Slot, server: Server, checkpoint: Checkpoint | None) -> Checkpoint:
    """The checkpoint to go on from; the first one when the relay is new.

    Raises OtherCluster, PhantomEvents, Rewound or CheckpointMissing (design: fail closed).
    """
    flush = slot.confirmed_flush or 0
    require_cluster(recorded, server.system_identifier)
    if checkpoint is None:
        if recorded.state == "new" and flush == recorded.consistent_point:
            return _first(recorded, server)
        raise CheckpointMissing(
            "Kafka has no checkpoint of this relay"
            + (f", and it has run before (state {recorded.state})." if recorded.state != "new" else "."),
            meaning=f"The slot stands at {format_lsn(flush)}; what Kafka has up to there is unknown, so "
            "events could be missing or published twice.",
            remedy="If this is the wrong Kafka or prefix, correct RELAY_KAFKA_BOOTSTRAP or "
            f"RELAY_TOPIC_PREFIX. Else: {REPAIR}",
        )
    if checkpoint.system_identifier == server.system_identifier and checkpoint.epoch != recorded.epoch:
        raise CheckpointMissing(
            f"Kafka's checkpoint is of epoch {checkpoint.epoch}, and Postgres is in epoch {recorded.epoch}.",
            meaning="One of them was restored or repaired without the other.",
            remedy=REPAIR,
        )
    checkpoint = require_same(checkpoint, server)
    if flush > checkpoint.confirmed_lsn:
        raise CheckpointMissing(
            f"The slot stands at {format_lsn(flush)}, above the {format_lsn(checkpoint.confirmed_lsn)} that "
            "the checkpoint allowed.",
            meaning="Somebody made the slot anew or advanced it; events in between may be in no Kafka.",
            remedy=REPAIR,
        )
    return checkpoint


def require_cluster(recorded: SourceIdentity, system_identifier: str) -> None:
    """Raises OtherCluster when the server isn't of the cluster that the relay was made for."""
    if system_identifier != recorded.system_identifier:
        raise _other_cluster(recorded.system_identifier, system_identifier)


def require_same(checkpoint: Checkpoint, server: Server) -> Checkpoint:
    """The checkpoint, on the server's timeline. Raises OtherCluster, PhantomEvents or Rewound."""
    if checkpoint.system_identifier != server.system_identifier:
        raise _other_cluster(checkpoint.system_identifier, server.system_identifier)
    if checkpoint.timeline != server.timeline:
        return _after_promotion(checkpoint, server)
    if server.flush_lsn < max(checkpoint.commit_lsn, checkpoint.confirmed_lsn):
        raise _rewound(
            f"the server has flushed up to {format_lsn(server.flush_lsn)} only, and Kafka has events up to "
            f"{format_lsn(checkpoint.commit_lsn)}"
        )
    return checkpoint


def require_event(checkpoint: Checkpoint, *, kept: bool) -> None:
    """Raises Rewound when the checkpoint's event is gone from an outbox that keeps its rows."""
    if checkpoint.event_id is not None and not kept:
        raise _rewound(f"the last event that Kafka has, {checkpoint.event_id}, is not in the outbox")


def _first(recorded: SourceIdentity, server: Server) -> Checkpoint:
    return Checkpoint(
        epoch=recorded.epoch,
        system_identifier=server.system_identifier,
        timeline=server.timeline,
        commit_lsn=0,
        index=-1,
        event_id=None,
        seq=recorded.baseline_seq,
        confirmed_lsn=recorded.consistent_point,
    )


def _after_promotion(checkpoint: Checkpoint, server: Server) -> Checkpoint:
    switch_lsn = server.switches.get(checkpoint.timeline)
    if switch_lsn is None:
        raise _rewound(
            f"it is on timeline {server.timeline}, whose history has no timeline {checkpoint.timeline}"
        )
    if checkpoint.commit_lsn >= switch_lsn:
        raise PhantomEvents(
            f"The promotion at {format_lsn(switch_lsn)} lost transactions whose events Kafka has: the "
            f"last one is {checkpoint.event_id}, committed at {format_lsn(checkpoint.commit_lsn)}.",
            switch_lsn=switch_lsn,
            meaning="Consumers have acted on events that no longer exist in Postgres.",
            remedy=_REWIND,
        )
    return msgspec.structs.replace(
        checkpoint,
        timeline=server.timeline,
        confirmed_lsn=min(checkpoint.confirmed_lsn, switch_lsn),
    )


def _other_cluster(was: str, now: str) -> OtherCluster:
    return OtherCluster(
        f"This is the Postgres cluster {now}, and the relay was made for {was}.",
        meaning="Its WAL positions mean nothing here, so neither skipping nor confirming would be right.",
        remedy="Point RELAY_DATABASE_URL at the right cluster. If this one took its place, as after"
        " pg_upgrade, run `relay init --accept-upgrade`: it compares the outbox with Kafka, publishes what it"
        " lacks, and makes the slot anew.",
    )


def _rewound(what: str) -> Rewound:
    return Rewound(
        f"The database is behind Kafka: {what}.",
        meaning="It was restored or rewound; consumers have acted on events that it doesn't have.",
        remedy=_REWIND,
    )
