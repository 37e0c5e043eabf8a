"""A TCP proxy that a test can cut, pause, deafen and heal, to be the network between two real programs.

It never looks into the bytes that it passes on.
"""

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Literal

import pytest

Direction = Literal["to_server", "to_client", "both"]

_CHUNK_BYTES = 64 * 1024
# Time enough for a loaded machine; the proxy's thread answers within microseconds.
_PATIENCE_S = 30.0
# SO_LINGER with 0 s: close sends RST, as a crashed peer's kernel does, instead of an orderly FIN.
_RESET = struct.pack("ii", 1, 0)


class _Pipe:
    """One connection through the proxy: what came from `source` waits in `pending` for `target`."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.pending: dict[socket.socket, bytearray] = {client: bytearray(), server: bytearray()}
        self.ended: set[socket.socket] = set()
        self.deafened = False

    def other(self, end: socket.socket) -> socket.socket:
        return self.server if end is self.client else self.client


class TcpProxy:
    """Listens on 127.0.0.1:`port` and passes on to `upstream`; all I/O is on one thread of its own.

    * `cut()`: every connection is reset, and new ones are refused, until `resume()`.
    * `pause(direction)`: nothing is read from that side; its kernel buffers fill, nothing is lost.
    * `blackhole(direction)`: what comes from that side is swallowed, as when the peer's machine has vanished.
    * `cut_after(n)`: the connection that brings the n-th byte from now to a client ends behind it; once.
    * `resume()`: as at first. A connection that lost bytes in a black hole is reset, since TCP would never
      deliver the rest.
    """

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.accepted = 0
        """Connections taken so far."""
        self.bytes_to_server = 0
        self.bytes_to_client = 0
        self.cuts = 0
        """Connections that `cut_after` has ended."""
        self._cut_at: int | None = None
        self._selector = selectors.DefaultSelector()
        self._listener = self._listen(0)
        self.host = "127.0.0.1"
        self.port: int = self._listener.getsockname()[1]
        self._pipes: list[_Pipe] = []
        self._paused: set[str] = set()
        self._swallowed: set[str] = set()
        self._commands: list[tuple[Callable[[], None], threading.Event]] = []
        self._changed = threading.Condition()
        self._wake_out, self._wake_in = socket.socketpair()
        self._closing = False
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    # What a test does

    def cut(self) -> None:
        self._call(self._do_cut)

    def pause(self, direction: Direction = "both") -> None:
        self._call(lambda: self._do_hold(self._paused, direction))

    def blackhole(self, direction: Direction = "both") -> None:
        self._call(lambda: self._do_hold(self._swallowed, direction))

    def cut_after(self, size: int) -> None:
        def arm() -> None:
            self._cut_at = self.bytes_to_client + size

        self._call(arm)

    def resume(self) -> None:
        self._call(self._do_resume)

    def close(self) -> None:
        if self._thread.is_alive():
            self._call(self._do_close)
            self._thread.join(_PATIENCE_S)

    def wait_until(self, reached: Callable[["TcpProxy"], bool], timeout_s: float = _PATIENCE_S) -> None:
        """Wait for something seen in the counters, for example ``lambda proxy: proxy.accepted == 2``."""
        with self._changed:
            if not self._changed.wait_for(lambda: reached(self), timeout_s):
                raise TimeoutError(f"The proxy's counters did not get there within {timeout_s:g} s.")

    # On the proxy's own thread

    def _call(self, command: Callable[[], None]) -> None:
        """Run `command` on the proxy's thread and return when it is done."""
        done = threading.Event()
        self._commands.append((command, done))
        self._wake_out.send(b"!")
        if not done.wait(_PATIENCE_S):
            raise TimeoutError("The proxy's thread does not answer.")

    def _listen(self, port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        listener.setblocking(False)
        return listener

    def _run(self) -> None:
        while not self._closing:
            for key, events in self._selector.select():
                if key.fileobj is self._wake_in:
                    self._wake_in.recv(_CHUNK_BYTES)
                elif key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Pipe) and key.data in self._pipes:
                    assert isinstance(key.fileobj, socket.socket)
                    self._serve(key.data, key.fileobj, events)
            while self._commands:
                command, done = self._commands.pop(0)
                command()
                done.set()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            return
        try:
            server = socket.create_connection(self.upstream, timeout=_PATIENCE_S)
        except OSError:
            self._reset(client)
            return
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pipe = _Pipe(client, server)
        self._pipes.append(pipe)
        with self._changed:
            self.accepted += 1
            self._changed.notify_all()
        self._watch(pipe)

    def _direction(self, pipe: _Pipe, source: socket.socket) -> str:
        return "to_server" if source is pipe.client else "to_client"

    def _watch(self, pipe: _Pipe) -> None:
        """Ask for exactly the events that can be acted on: no reading into a full or a paused side."""
        for end in (pipe.client, pipe.server):
            events = 0
            full = len(pipe.pending[pipe.other(end)]) >= _CHUNK_BYTES
            if end not in pipe.ended and not full and self._direction(pipe, end) not in self._paused:
                events |= selectors.EVENT_READ
            if pipe.pending[end] and self._direction(pipe, pipe.other(end)) not in self._paused:
                events |= selectors.EVENT_WRITE
            with contextlib.suppress(KeyError):
                self._selector.unregister(end)
            if events:
                self._selector.register(end, events, pipe)

    def _serve(self, pipe: _Pipe, end: socket.socket, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._read(pipe, end)
            if events & selectors.EVENT_WRITE:
                sent = end.send(pipe.pending[end])
                del pipe.pending[end][:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(pipe)
            return
        if len(pipe.ended) == 2 and not any(pipe.pending.values()):
            self._drop(pipe, reset=False)
            return
        for finished in pipe.ended:
            if not pipe.pending[pipe.other(finished)]:
                with contextlib.suppress(OSError):
                    pipe.other(finished).shutdown(socket.SHUT_WR)
        self._watch(pipe)

    def _read(self, pipe: _Pipe, end: socket.socket) -> None:
        data = end.recv(_CHUNK_BYTES)
        direction = self._direction(pipe, end)
        if direction in self._swallowed:
            pipe.deafened = True
            if not data:
                pipe.ended.add(end)
            return
        if not data:
            pipe.ended.add(end)
            return
        if direction == "to_client" and self._cut_at is not None:
            left = self._cut_at - self.bytes_to_client
            if len(data) >= left:
                # What came before goes out, then both ends are closed in order: no RST may overtake it.
                data = data[:left]
                pipe.ended.update((pipe.client, pipe.server))
                pipe.pending[pipe.server].clear()
                self._cut_at = None
                self.cuts += 1
        pipe.pending[pipe.other(end)] += data
        with self._changed:
            if direction == "to_server":
                self.bytes_to_server += len(data)
            else:
                self.bytes_to_client += len(data)
            self._changed.notify_all()

    def _reset(self, end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        end.close()

    def _drop(self, pipe: _Pipe, *, reset: bool = True) -> None:
        self._pipes.remove(pipe)
        for end in (pipe.client, pipe.server):
            with contextlib.suppress(KeyError):
                self._selector.unregister(end)
            if reset:
                self._reset(end)
            else:
                end.close()

    def _do_cut(self) -> None:
        if self._listener.fileno() != -1:
            self._selector.unregister(self._listener)
            self._listener.close()
        for pipe in list(self._pipes):
            self._drop(pipe)

    def _do_hold(self, held: set[str], direction: Direction) -> None:
        held.update({"to_server", "to_client"} if direction == "both" else {direction})
        for pipe in self._pipes:
            self._watch(pipe)

    def _do_resume(self) -> None:
        self._paused.clear()
        self._swallowed.clear()
        if self._listener.fileno() == -1:
            self._listener = self._listen(self.port)
            self._selector.register(self._listener, selectors.EVENT_READ)
        for pipe in list(self._pipes):
            if pipe.deafened:
                self._drop(pipe)
            else:
                self._watch(pipe)

    def _do_close(self) -> None:
        self._do_cut()
        self._closing = True
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()


@pytest.fixture
def tcp_proxy() -> Iterator[Callable[[str, int], TcpProxy]]:
    """Makes proxies to a host and port; all are closed at teardown."""
    proxies: list[TcpProxy] = []

    def make(host: str, port: int) -> TcpProxy:
        proxy = TcpProxy((host, port))
        proxies.append(proxy)
        return proxy

    yield make
    for proxy in proxies:
        proxy.close()
