"""What ends a wait: a signal, a finished commit, an answer; one socket pair, so that one select sees all."""

import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class Waker:
    """`wake` may be called from any thread and from a signal handler; `clear` after the wait."""

    def __init__(self) -> None:
        self._hear, self._say = socket.socketpair()
        self._hear.setblocking(False)
        self._say.setblocking(False)

    @property
    def fileno(self) -> int:
        return self._hear.fileno()

    def wake(self) -> None:
        try:
            self._say.send(b"!")
        except BlockingIOError:
            pass  # full of earlier calls: it will be seen anyway

    def clear(self) -> None:
        try:
            while self._hear.recv(4096):
                pass
        except BlockingIOError:
            pass  # all read

    def close(self) -> None:
        self._hear.close()
        self._say.close()

    def run_aside(self, work: Callable[[], T], name: str) -> "Future[T]":
        """Run `work` in a thread of its own, which doesn't outlive the process; wakes when it has ended."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 handed to whoever waits for the future
                future.set_exception(error)
            self.wake()

        threading.Thread(target=run, name=name, daemon=True).start()
        return future


class Stopping:
    """Whether somebody asked for a clean stop."""

    def __init__(self, waker: Waker) -> None:
        self._waker = waker
        self._asked = False

    def asked(self) -> bool:
        return self._asked

    def ask(self) -> None:
        self._asked = True
        self._waker.wake()

    def on_signals(self) -> None:
        """SIGTERM and SIGINT ask once; a second one ends the process as it always would."""

        def handler(number: int, _frame: FrameType | None) -> Any:
            signal.signal(number, signal.SIG_DFL)
            self.ask()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handler)
