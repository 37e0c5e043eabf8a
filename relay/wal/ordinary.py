"""The ordinary connection beside the replication one: questions in SQL, and word of the server's shutdown.

It runs in a thread of its own, because a slow answer must never delay feedback; the connection stays there.
"""

import queue
import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from relay.errors import Unavailable, UsageError, as_sentence
from relay.wal.stream import CONNECT_TIMEOUT_S, SENDER_TIMEOUT_S, SHUTDOWN

T = TypeVar("T")
Connection = psycopg.Connection[Any]
_Job = Callable[[Connection | None], None]

STATEMENT_TIMEOUT_S: Final = 10


def bounded_conninfo(url: str, application_name: str) -> str:
    """`url` with a bound on connecting, on a silent server and on a statement, where it gives none."""
    given = conninfo_to_dict(url)
    return make_conninfo(
        url,
        application_name=application_name,
        connect_timeout=given.get("connect_timeout") or CONNECT_TIMEOUT_S,
        tcp_user_timeout=given.get("tcp_user_timeout") or int(SENDER_TIMEOUT_S * 1000),
        options=f"{given.get('options') or ''} -c statement_timeout={STATEMENT_TIMEOUT_S}s".strip(),
    )


class OrdinaryConnection:
    """Connects at the first question and again after a failure. `wake` is called when there is news."""

    def __init__(self, url: str, application_name: str, wake: Callable[[], None]) -> None:
        self._conninfo = bounded_conninfo(url, application_name)
        self._wake = wake
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._bell, self._ring = socket.socketpair()
        self._connection: Connection | None = None
        self._shutting_down = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ordinary-connection", daemon=True)
        self._thread.start()

    @property
    def shutting_down(self) -> bool:
        """Whether the server has said 57P01 or 57P03 here: it waits for us to let it go."""
        return self._shutting_down.is_set()

    def ask(self, question: Callable[[Connection], T]) -> "Future[T]":
        """Run `question` on the connection (autocommit). Its future raises Unavailable when that is away."""
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(question(self._connected()))
            except psycopg.OperationalError as error:
                self._lost(error)
                future.set_exception(Unavailable(f"Postgres didn't answer: {as_sentence(error)}"))
            except psycopg.Error as error:
                future.set_exception(
                    UsageError(
                        f"Postgres refused what the relay must do: {error.diag.message_primary or error}.",
                        remedy="Run `relay init` of this release, and grant relay_replicator to this login.",
                    )
                )
            except Exception as error:  # noqa: BLE001 handed to whoever asked, not swallowed
                future.set_exception(error)
            self._wake()

        self._jobs.put(job)
        self._ring.send(b"!")
        return future

    def close(self) -> None:
        """End the connection. A question that is under way ends by its time-out."""
        self._jobs.put(None)
        # Ends the thread's wait like a byte would; the thread may be gone already, so nothing is sent.
        self._ring.close()

    def _run(self) -> None:
        while True:
            watched: list[Any] = [self._bell, *([self._connection] if self._connection else [])]
            readable, _, _ = select.select(watched, [], [])
            if self._connection in readable:
                self._hear()
            if self._bell in readable:
                self._bell.recv(4096)
            while not self._jobs.empty():
                job = self._jobs.get()
                if job is None:
                    self._drop()
                    self._bell.close()
                    return
                job()

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = psycopg.connect(self._conninfo, autocommit=True)
            connection.add_notice_handler(self._on_notice)
            self._connection = connection
        return self._connection

    def _hear(self) -> None:
        """Something came unasked: most likely that the server ends this connection."""
        if self._connection is None:
            return
        try:
            self._connection.pgconn.consume_input()
            self._connection.pgconn.is_busy()  # lets libpq parse it, and call the notice handler
        except psycopg.OperationalError as error:
            self._lost(error)
        self._wake()

    def _on_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.sqlstate in SHUTDOWN:
            self._shutting_down.set()

    def _lost(self, error: psycopg.OperationalError) -> None:
        if error.sqlstate in SHUTDOWN:
            self._shutting_down.set()
        if self._connection is not None and (self._connection.broken or self._connection.closed):
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
