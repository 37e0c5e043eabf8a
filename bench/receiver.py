"""A reader in a process of its own, as consumers are: takes each record's latency and counts it."""

import multiprocessing
import time
from array import array
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Final

from bench.readers import StreamReader, TopicReader
from bench.tally import Broken, Tally

START_TIMEOUT_S: Final = 60.0
COMPLETE_TIMEOUT_S: Final = 60.0


@dataclass(slots=True)
class Latencies:
    """Of each record, in the order received: when it was inserted, and how long it took, in microseconds."""

    stamped_at_us: "array[int]" = field(default_factory=lambda: array("q"))
    took_us: "array[int]" = field(default_factory=lambda: array("q"))


class Receiver:
    """`wait_for_first`, then `finish`; `close` always follows."""

    def __init__(self, reader: TopicReader | StreamReader) -> None:
        # Not a fork: librdkafka's threads don't survive one.
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_receive, args=(reader, there), daemon=True)
        self._process.start()
        there.close()

    def wait_for_first(self) -> None:
        """Until the first record has come. Raises Broken."""
        self._hear(START_TIMEOUT_S)

    def finish(self, rows: int, who: str) -> Latencies:
        """Wait until it has all `rows`. Raises Broken when one is missing, doubled or out of order by key."""
        self._here.send(rows)
        tally, latencies = self._hear(COMPLETE_TIMEOUT_S + START_TIMEOUT_S)
        if not isinstance(tally, Tally) or not isinstance(latencies, Latencies):
            raise Broken("The reading process answered something else than what it counted.")
        tally.require(rows, who)
        return latencies

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._here.close()

    def _hear(self, timeout_s: float) -> tuple[object, object]:
        if not self._here.poll(timeout_s):
            raise Broken(f"The reading process got nothing within {timeout_s:g} s.")
        try:
            said: tuple[object, object] = self._here.recv()
        except EOFError:
            raise Broken("The reading process failed; its traceback is above.") from None
        return said


def _receive(reader: TopicReader | StreamReader, parent: Connection) -> None:
    """In the child: until the parent has said how many rows there are and all have come, or time is up."""
    tally, latencies = Tally(), Latencies()
    expected: int | None = None
    give_up_at = 0.0
    look_at = 0.0
    for received in reader.read():
        if received is not None:
            tally.take(received.key, received.mark.n)
            latencies.stamped_at_us.append(received.mark.stamped_at_us)
            latencies.took_us.append(received.at_us - received.mark.stamped_at_us)
            if tally.distinct == 1:
                parent.send((None, None))
        now = time.monotonic()
        if expected is None and now >= look_at:
            look_at = now + 0.1
            if parent.poll():
                expected = parent.recv()
                give_up_at = now + COMPLETE_TIMEOUT_S
        if expected is not None and (tally.distinct >= expected or now > give_up_at):
            break
    parent.send((tally, latencies))
