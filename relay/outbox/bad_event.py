"""What becomes of an event that can't be sent: park it, let its key wait, or stop. Pure decisions, no I/O.

A decision that was committed to `relay.parked_event` stands, however often the WAL is decoded and whatever
the schemas say by then: to send an event that an operator sees as parked would make it come twice.
"""

import uuid
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

import msgspec

from relay.errors import BadEventHalt, as_sentence
from relay.outbox.event import BadEvent, ParkedEvent
from relay.wal.lsn import format_lsn

REPUBLISH: Final = "relay.republish"
"""Prefix of the messages by which an operator asks for a parked event."""

BEHIND: Final = "behind"
"""The reason code of an event whose key waits for an earlier one."""

KEYS_MOST: Final = 100_000
"""Most keys that may wait: some 20 MB. More of them are no bad events but a missing schema."""

OnBadEvent = Literal["park", "park_key", "halt"]
Position = tuple[int, int]


class Decided(NamedTuple):
    """What an earlier life of the relay decided about an event, and committed, before Kafka had it."""

    code: str
    reason: str
    topic: str | None
    waits: bool
    """Whether it still waits for an operator, so that its key waits too."""


class ParkingLot(NamedTuple):
    """What `relay.parked_event` says at the start: keys that wait, and decisions above the checkpoint."""

    keys: frozenset[str] = frozenset()
    decided: tuple[tuple[Position, Decided], ...] = ()


class Verdicts:
    """Which events are parked without being looked at. False when there are none, as almost always."""

    def __init__(self, keys: Iterable[str] = (), decided: Iterable[tuple[Position, Decided]] = ()) -> None:
        self._keys = {key.encode() for key in keys}
        self._decided = dict(decided)

    def __bool__(self) -> bool:
        return bool(self._keys or self._decided)

    def of(self, position: Position, key: bytes | None) -> BadEvent | None:
        """Why the event at `position` is parked unseen; None when it must be looked at."""
        decided = self._decided.get(position)
        if decided is not None:
            return BadEvent(decided.code, decided.reason, decided.topic)
        if key in self._keys:
            return BadEvent(BEHIND, "an earlier event of its key is parked, and this one waits behind it")
        return None

    def is_parked(self, position: Position) -> bool:
        """Whether its row was committed by an earlier life."""
        return position in self._decided

    def parked(self, position: Position, key: bytes | None) -> BadEventHalt | None:
        """The event's key waits from here on. Nothing waits for an event without a key: it has no order."""
        decided = self._decided.get(position)
        if not key or key in self._keys or (decided is not None and not decided.waits):
            return None
        if len(self._keys) >= KEYS_MOST:
            return too_many()
        self._keys.add(key)
        return None

    def release(self, key: str) -> None:
        """Nothing of the key is parked any more."""
        self._keys.discard(key.encode())


def too_many() -> BadEventHalt:
    """The stop when more than KEYS_MOST keys would wait."""
    return BadEventHalt(
        f"{KEYS_MOST} keys wait behind a parked event (on_bad_event = park_key), and one more has to.",
        meaning="So many are rarely bad events: a schema may be missing. Nothing was confirmed past it.",
        remedy="See `relay outbox parked list` and mend the cause, or set RELAY_ON_BAD_EVENT=park; then start"
        " the relay again.",
    )


class Request(msgspec.Struct, frozen=True):
    """What a message with the prefix REPUBLISH says."""

    relay_id: uuid.UUID
    event_id: uuid.UUID
    request: int


def read_request(content: bytes) -> Request | None:
    """None for a message that isn't one: anybody may emit messages with any prefix."""
    try:
        return msgspec.json.decode(content, type=Request)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def halt(event: ParkedEvent) -> BadEventHalt:
    """The stop of `on_bad_event = halt`, for whoever is called."""
    mend = {
        "unknown_schema": "Add the schema to a folder that RELAY_SCHEMAS names",
        "too_large": f"Raise max.message.bytes of {event.topic}",
        "refused_by_broker": f"Look at the settings of {event.topic}, in Kafka",
    }.get(event.reason_code, "Mend the schema that it should fit")
    return BadEventHalt(
        f"The event {event.event_id} ({event.event_type or 'no type'}, key {event.operation_key or 'none'}) "
        f"at {format_lsn(event.commit_lsn)}/{event.index} can't be sent: {as_sentence(event.reason)}",
        meaning="All transactions before it are in Kafka (on_bad_event = halt); nothing was confirmed past"
        " it, and nothing is lost.",
        remedy=f"{mend}, or set RELAY_ON_BAD_EVENT=park to put it aside; then start `relay run` again.",
    )
