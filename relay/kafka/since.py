"""The records that a relay has published since a WAL position, read from the end of each partition.

A partition holds a relay's records in WAL order, so only its end is read, however long it is.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from confluent_kafka import Message

from relay.errors import DecodeError
from relay.kafka import spans
from relay.kafka.spans import Place, Span
from relay.wal.lsn import format_lsn, parse_lsn

_FIRST_WINDOW: Final = 512
"""Offsets read from the end at first; widened while they hold nothing from before the position."""

_WIDER: Final = 8


class Published(NamedTuple):
    """One event as Kafka has it."""

    event_id: str
    event_type: str
    key: str
    """The operation's id."""
    topic: str
    partition: int
    offset: int
    epoch: int
    lsn: int
    """Of its transaction's commit."""
    republished: bool
    """It stands behind events that are newer."""

    @property
    def place(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"

    def __str__(self) -> str:
        return (
            f"{self.event_id} {self.event_type} of {self.key} at {self.place}, committed at "
            f"{format_lsn(self.lsn)}"
        )


def published_since(
    properties: Mapping[str, str],
    topics: Iterable[str],
    *,
    source: str,
    epoch: int,
    lsn: int,
    window: int = _FIRST_WINDOW,
) -> Iterator[Published]:
    """Every committed record of the relay `source` in `epoch` whose commit is at or above `lsn`.

    Partition by partition in order of offset. Raises Unavailable, or spans.Stalled where somebody's hanging
    transaction hides an end.
    """
    whole = spans.find(properties, topics)
    wanted: dict[Place, Span] = {}
    open_places = {place for place, span in whole.items() if span.end > span.first}
    while open_places:
        for place in open_places:
            first, end = whole[place]
            wanted[place] = Span(max(first, end - window), end)
        oldest: dict[Place, Published] = {}
        for place, record in _ours(properties, {place: wanted[place] for place in open_places}, source):
            if not record.republished:
                oldest.setdefault(place, record)
        deep = {place for place, record in oldest.items() if (record.epoch, record.lsn) < (epoch, lsn)}
        open_places -= deep | {place for place in open_places if wanted[place].first == whole[place].first}
        window *= _WIDER
    for _, record in _ours(properties, wanted, source):
        if record.epoch == epoch and record.lsn >= lsn:
            yield record


def _ours(
    properties: Mapping[str, str], wanted: Mapping[Place, Span], source: str
) -> Iterator[tuple[Place, Published]]:
    for message in spans.read(properties, wanted):
        record = _read(message, source.encode())
        if record is not None:
            yield (record.topic, record.partition), record


def _read(message: Message, source: bytes) -> Published | None:
    headers: dict[str, bytes] = {}
    for header in message.headers() or []:
        if isinstance(header[1], bytes):
            headers[str(header[0])] = header[1]
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if headers.get("ce_source") != source or topic is None or partition is None or offset is None:
        return None
    key = message.key()
    try:
        return Published(
            event_id=headers["ce_id"].decode(),
            event_type=headers["ce_type"].decode(),
            key=key.decode() if isinstance(key, bytes) else "",
            topic=topic,
            partition=partition,
            offset=offset,
            epoch=int(headers["relay_epoch"]),
            lsn=parse_lsn(headers["relay_lsn"].decode()),
            republished=headers.get("relay_origin") == b"republish",
        )
    except (KeyError, ValueError, DecodeError):
        return None  # somebody wrote headers of our names by hand: it's no event of ours
