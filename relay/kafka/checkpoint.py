"""The checkpoint: where the relay is in the WAL, kept in Kafka in the same transaction as the events.

One compacted topic per relay, always partition 0. Reading it must never stop early: a stale checkpoint would
make events a second time.
"""

import uuid
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from relay.errors import REPAIR, CheckpointGarbled, CheckpointUnreadable, DecodeError, Unavailable
from relay.kafka import spans
from relay.kafka.spans import PROGRESS_TIMEOUT_S
from relay.wal.lsn import format_lsn, parse_lsn

PARTITION: Final = 0
"""The embedded broker makes four; the checkpoint is always in the first."""

FORMAT: Final = 1

_FIRST_WINDOW: Final = 512
"""Offsets read from the end at first; doubled back while no checkpoint is found in them."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Everything up to event `index` of the commit at `commit_lsn` is in Kafka."""

    epoch: int
    system_identifier: str
    timeline: int
    commit_lsn: int
    """0 before the first event."""
    index: int
    """-1 before the first event."""
    event_id: str | None
    seq: int
    """The highest `seq` streamed; 0 where the table has none."""
    confirmed_lsn: int
    """The slot's `confirmed_flush` never passes this."""


class _Wire(msgspec.Struct, kw_only=True):
    format: int
    epoch: int
    system_identifier: str
    timeline: int
    commit_lsn: str
    index: int
    event_id: str | None
    seq: int
    confirmed_lsn: str


def topic(prefix: str, relay_id: uuid.UUID) -> str:
    """Derives from the relay's id, never from the slot's name: two databases may use the same slot name."""
    return f"{prefix}.relay-checkpoint.{relay_id}"


def encode(checkpoint: Checkpoint) -> bytes:
    """JSON, with LSNs as Postgres prints them, so that a person can read the topic."""
    return msgspec.json.encode(
        _Wire(
            format=FORMAT,
            epoch=checkpoint.epoch,
            system_identifier=checkpoint.system_identifier,
            timeline=checkpoint.timeline,
            commit_lsn=format_lsn(checkpoint.commit_lsn),
            index=checkpoint.index,
            event_id=checkpoint.event_id,
            seq=checkpoint.seq,
            confirmed_lsn=format_lsn(checkpoint.confirmed_lsn),
        )
    )


def decode(data: bytes) -> Checkpoint:
    """Raises DecodeError for bytes that are not a checkpoint that this release can read."""
    try:
        wire = msgspec.json.decode(data, type=_Wire)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(f"The checkpoint is not one: {error}.") from None
    if wire.format != FORMAT:
        raise DecodeError(
            f"The checkpoint has format {wire.format}, and this release reads format {FORMAT}.",
            remedy="Run the release that wrote it.",
        )
    return Checkpoint(
        epoch=wire.epoch,
        system_identifier=wire.system_identifier,
        timeline=wire.timeline,
        commit_lsn=parse_lsn(wire.commit_lsn),
        index=wire.index,
        event_id=wire.event_id,
        seq=wire.seq,
        confirmed_lsn=parse_lsn(wire.confirmed_lsn),
    )


class Written(NamedTuple):
    checkpoint: Checkpoint
    written_ms: int
    """When the last one was written: milliseconds since 1970, by the clock of the relay that did."""


def read(
    properties: Mapping[str, str],
    prefix: str,
    relay_id: uuid.UUID,
    *,
    timeout_s: float = PROGRESS_TIMEOUT_S,
    must_exist: bool = False,
) -> Checkpoint | None:
    """`read_written` without the time."""
    found = read_written(properties, prefix, relay_id, timeout_s=timeout_s, must_exist=must_exist)
    return None if found is None else found.checkpoint


def read_written(
    properties: Mapping[str, str],
    prefix: str,
    relay_id: uuid.UUID,
    *,
    timeout_s: float = PROGRESS_TIMEOUT_S,
    must_exist: bool = False,
) -> Written | None:
    """The last committed checkpoint, read up to the true end of the partition; None when there is none.

    `must_exist`: the topic was seen a moment ago, so a broker that doesn't know it is behind the others.
    Raises Unavailable when Kafka doesn't answer, and CheckpointUnreadable when a hanging transaction hides
    the end, or when it isn't a checkpoint (CheckpointGarbled).
    """
    name = topic(prefix, relay_id)
    place = (name, PARTITION)
    found = spans.find(properties, [name])
    if must_exist and place not in found:
        raise Unavailable(f"The broker that was asked doesn't know the topic {name} yet.")
    whole = found.get(place, spans.Span(0, 0))
    window = _FIRST_WINDOW
    while whole.end > whole.first:
        span = spans.Span(max(whole.first, whole.end - window), whole.end)
        values = _ours(properties, place, relay_id, span, timeout_s)
        if values:
            return Written(furthest([value for value, _ in values], name), values[-1][1])
        if span.first == whole.first:
            break
        window *= 2
    return None


def furthest(values: list[bytes], name: str) -> Checkpoint:
    """The checkpoint that is furthest on: the last one, except after at-least-once's only weakness.

    Without transactions nothing shuts out a relay that was frozen with its checkpoint still to be sent: that
    one then stands behind those of the relay that took over. A repair raises the epoch, a promotion the
    timeline, so what is meant to go back never loses against what was before it.
    """
    try:
        furthest = decode(values[-1])
    except DecodeError as error:
        meaning = "The relay doesn't know what Kafka has, so it publishes nothing."
        if error.remedy:
            raise CheckpointUnreadable(error.message, meaning=meaning, remedy=error.remedy) from None
        raise CheckpointGarbled(
            f"The last record of {name}, partition {PARTITION}, is no checkpoint: {error.message}",
            meaning=meaning,
            remedy=f"See who else writes that topic. {REPAIR}",
        ) from None
    for value in values[:-1]:
        try:
            furthest = max(furthest, decode(value), key=_order)
        except DecodeError:
            continue  # somebody else's, before ours: the last one counts
    return furthest


def _order(checkpoint: Checkpoint) -> tuple[int, int, int, int, int]:
    at = checkpoint
    return at.epoch, at.timeline, at.commit_lsn, at.index, at.confirmed_lsn


def _ours(
    properties: Mapping[str, str], place: spans.Place, relay_id: uuid.UUID, span: spans.Span, timeout_s: float
) -> list[tuple[bytes, int]]:
    """Values and times of our records in `span`, markers and aborted records passed over."""
    try:
        return [
            (message.value() or b"", message.timestamp()[1])
            for message in spans.read(properties, {place: span}, timeout_s=timeout_s)
            if message.key() == relay_id.bytes
        ]
    except spans.Stalled as stalled:
        raise CheckpointUnreadable(
            str(stalled),
            meaning="Another producer's transaction hangs there; until it ends, nobody can say which "
            "checkpoint is the last, so the relay publishes nothing.",
            remedy=stalled.remedy,
        ) from None
