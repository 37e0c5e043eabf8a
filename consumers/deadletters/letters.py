"""Reads what a group has parked: every record of its `{topic}.{group}.dlq` topics, to their true end, outside
any group. It writes nothing.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from consumers.runtime import groups
from consumers.runtime.parking import parking_topic
from consumers.runtime.properties import group_id
from consumers.runtime.record import Record, event_id, from_message
from relay.errors import Unavailable, UsageError
from relay.kafka import spans
from relay.kafka.spans import Place, Span
from relay.settings import Settings

_PLACE: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>[0-9]+)@(?P<offset>[0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A parked event without its value. `place` names it; `from_place` is where the group had met it."""

    place: str
    topic: str
    partition: int
    offset: int
    event_id: UUID | None
    event_type: str
    key: str
    from_topic: str
    from_partition: int
    from_offset: int
    reason_code: str
    reason: str
    attempts: int
    parked_at: str
    value_bytes: int
    omitted_bytes: int
    """Of a value that was too large to be parked: it is in its own topic alone."""

    @property
    def from_place(self) -> str:
        return f"{self.from_topic}/{self.from_partition}@{self.from_offset}"


def full_name(settings: Settings, name: str) -> str:
    """The group's id, by it or by the consumer's name."""
    prefix = f"{settings.topic_prefix}."
    return name if name.startswith(prefix) else group_id(settings, name)


def parking_topics(settings: Settings, group: str) -> list[str]:
    """Where the group has parked anything. Raises UsageError when Kafka knows neither them nor the group."""
    suffix = parking_topic("", group)
    found = [name for name in spans.names(settings.require_kafka()) if name.endswith(suffix)]
    if not found:
        known = {one.group for one in groups.listed(settings)}
        if group not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise UsageError(
                f"There is no consumer group {group}, and nothing was ever parked for it.",
                remedy=f"The groups of this prefix are: {listed}. `relay groups list` shows them.",
            )
    return found


def letters(settings: Settings, group: str) -> list[Letter]:
    """All that the group has parked, the oldest of each topic first."""
    return [_letter(record) for record in _records(settings, parking_topics(settings, group))]


def whole(settings: Settings, topic: str, partition: int, offset: int) -> Record | None:
    """The one record at a place; None when it is no longer there."""
    place = (topic, partition)
    found = spans.find(settings.require_kafka(), [topic]).get(place)
    if found is None or not found.first <= offset < found.end:
        return None
    for record in _read(settings, {place: Span(offset, offset + 1)}):
        if record.offset == offset:
            return record
    return None


def chosen(found: list[Letter], named: str) -> list[Letter]:
    """Those that `named` means: a place, or an event's id. Raises UsageError when it is neither."""
    at = _PLACE.fullmatch(named)
    if at is not None:
        return [one for one in found if one.place == named]
    try:
        wanted = UUID(named)
    except ValueError:
        raise UsageError(
            f"{named!r} is neither an event's id nor a place.",
            remedy="`relay dlq list GROUP` prints both: the id is a UUID, the place is"
            " TOPIC/PARTITION@OFFSET.",
        ) from None
    return [one for one in found if one.event_id == wanted]


def _records(settings: Settings, topics: list[str]) -> Iterator[Record]:
    yield from sorted(
        _read(settings, spans.find(settings.require_kafka(), topics)),
        key=lambda one: (one.topic, one.timestamp_ms, one.partition, one.offset),
    )


def _read(settings: Settings, places: Mapping[Place, Span]) -> Iterator[Record]:
    try:
        for message in spans.read(settings.require_kafka(), places):
            yield from_message(message)
    except spans.Stalled as stalled:
        raise Unavailable(str(stalled), remedy=stalled.remedy) from stalled


def _letter(record: Record) -> Letter:
    return Letter(
        place=f"{record.topic}/{record.partition}@{record.offset}",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        event_id=event_id(record),
        event_type=_text(record, "ce_type"),
        key=(record.key or b"").decode(errors="replace"),
        from_topic=_text(record, "dlq_topic"),
        from_partition=_number(record, "dlq_partition"),
        from_offset=_number(record, "dlq_offset"),
        reason_code=_text(record, "dlq_reason_code"),
        reason=_text(record, "dlq_reason"),
        attempts=_number(record, "dlq_attempts"),
        parked_at=_text(record, "dlq_parked_at"),
        value_bytes=len(record.value or b""),
        omitted_bytes=_number(record, "dlq_value_omitted_bytes"),
    )


def _text(record: Record, name: str) -> str:
    return (record.header(name) or b"").decode(errors="replace")


def _number(record: Record, name: str) -> int:
    text = _text(record, name)
    return int(text) if text.isascii() and text.isdigit() else 0
