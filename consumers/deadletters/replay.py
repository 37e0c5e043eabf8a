"""Gives parked events back to the one group that parked them, through `{topic}.{group}.retry`, or gives them
up.

An event goes once: `requested` is committed before it is sent, and who finds that state looks into the retry
topic before sending. A second time takes a person who says so.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import psycopg

from consumers.deadletters import decisions
from consumers.deadletters.letters import Letter, whole
from consumers.operations.decisions import Refused
from consumers.runtime.parking import RETRY_NO, RETRY_OF, Retrying, retry_topic
from consumers.runtime.record import Record, from_message
from relay import failpoints
from relay.kafka import spans
from relay.settings import Settings

Connection = psycopg.AsyncConnection[Any]


@dataclass(slots=True, kw_only=True)
class Replayed:
    """Places of what was sent, of what had been sent already by a replay that was interrupted, and of what
    can't be, with why."""

    sent: list[str] = field(default_factory=list)
    sent_before: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


class Replay:
    """For one group; `connection` is in autocommit, and holds the group's lock from `begin` on."""

    def __init__(
        self, connection: Connection, settings: Settings, group: str, *, who: str, why: str | None
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._group = group
        self._who = who
        self._why = why

    async def begin(self) -> None:
        """Raises Refused when somebody else is at work on the group's parked events."""
        if not await decisions.lock(self._connection, self._group):
            raise Refused(
                f"Somebody else decides about the parked events of {self._group} at this moment.",
                meaning="Nothing was changed.",
                remedy=f"Let them end; then `relay dlq list {self._group}` shows what is left.",
            )

    async def replay(self, letters: list[Letter], *, again: bool) -> Replayed:
        """Send each to the retry topic and wait until Kafka has it."""
        done = Replayed()
        retrying = Retrying(self._settings, self._group)
        for letter in letters:
            admitted = await self._admit(letter, again=again)
            if isinstance(admitted, str):
                done.left[letter.place] = admitted
                continue
            times, interrupted = admitted
            if interrupted and await asyncio.to_thread(self._is_there, letter, times):
                await decisions.replayed(self._connection, self._group, letter)
                done.sent_before.append(letter.place)
                continue
            record = await asyncio.to_thread(self._fetch, letter)
            if record is None:
                done.left[letter.place] = (
                    f"its value was too large to be parked, and {letter.from_place} is no longer there"
                )
                continue
            failpoints.hit(failpoints.DLQ_REPLAY_REQUESTED)
            await asyncio.to_thread(retrying.send, record, letter.from_topic, letter.place, times)
            failpoints.hit(failpoints.DLQ_REPLAY_SENT)
            await decisions.replayed(self._connection, self._group, letter)
            done.sent.append(letter.place)
        return done

    async def discard(self, letter: Letter) -> None:
        """Raises Refused when it was decided about already."""
        taken = await decisions.take(
            self._connection, self._group, letter, "discarded", who=self._who, why=self._why
        )
        if not taken:
            raise Refused(
                f"The event at {letter.place} was decided about already.",
                meaning="Nothing was changed.",
                remedy=f"`relay dlq show {self._group} {letter.place}` says by whom, and how.",
            )

    async def _admit(self, letter: Letter, *, again: bool) -> tuple[int, bool] | str:
        """The how-manieth time it goes, now that this is recorded, and whether an earlier replay was
        interrupted, so that it may be there; or why it may not go."""
        connection, group = self._connection, self._group
        if await decisions.take(connection, group, letter, "requested", who=self._who, why=self._why):
            return 1, False
        if again:
            times = await decisions.take_again(connection, group, letter, who=self._who, why=self._why)
            if times is not None:
                return times, False
        known = (await decisions.decisions(connection, group))[
            (letter.topic, letter.partition, letter.offset)
        ]
        if known.state == "requested":
            return known.times, True
        return (
            f"it was {known.state} by {known.who} at {known.decided_at:%Y-%m-%d %H:%M:%S%z}; once more takes"
            " --again"
        )

    def _is_there(self, letter: Letter, times: int) -> bool:
        topic = retry_topic(letter.from_topic, self._group)
        found = spans.find(self._settings.require_kafka(), [topic])
        sent = {(RETRY_OF, letter.place.encode()), (RETRY_NO, str(times).encode())}
        return any(
            sent <= set(from_message(message).headers)
            for message in spans.read(self._settings.require_kafka(), found)
        )

    def _fetch(self, letter: Letter) -> Record | None:
        """The whole record; a value that was left out when it was parked comes from its own topic."""
        parked = whole(self._settings, letter.topic, letter.partition, letter.offset)
        if parked is None or not letter.omitted_bytes:
            return parked
        return whole(self._settings, letter.from_topic, letter.from_partition, letter.from_offset)
