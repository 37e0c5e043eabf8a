"""The thread that waits for Kafka's commits while the relay's own thread reads on. It does nothing else."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from relay.kafka.checkpoint import Checkpoint
from relay.kafka.publisher import Publisher


@dataclass(frozen=True, slots=True)
class Committed:
    """How a commit ended; `error` is None when `checkpoint` and all before it is durable."""

    checkpoint: Checkpoint
    ordinal: int
    seconds: float
    error: Exception | None


class Committer:
    """At most one commit at a time. `wake` is called when it has ended."""

    def __init__(self, publisher: Publisher, wake: Callable[[], None]) -> None:
        self._publisher = publisher
        self._wake = wake
        self._jobs: queue.SimpleQueue[tuple[Checkpoint, int] | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[Committed] = queue.SimpleQueue()
        self.busy = False
        """Until the outcome has been taken: nothing may be produced meanwhile."""
        threading.Thread(target=self._run, name="kafka-committer", daemon=True).start()

    def commit(self, checkpoint: Checkpoint, ordinal: int) -> None:
        self.busy = True
        self._jobs.put((checkpoint, ordinal))

    def take(self) -> Committed | None:
        """The outcome, when there is one."""
        if not self.busy:
            return None
        try:
            ended = self._ended.get_nowait()
        except queue.Empty:
            return None
        self.busy = False
        return ended

    def close(self) -> None:
        """Let the thread end when its commit has."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            checkpoint, ordinal = job
            began = time.monotonic()
            error: Exception | None = None
            try:
                self._publisher.commit(checkpoint)
            except Exception as failure:  # noqa: BLE001 raised by the relay's own thread, which decides
                error = failure
            self._ended.put(Committed(checkpoint, ordinal, time.monotonic() - began, error))
            self._wake()
