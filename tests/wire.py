"""A TCP server of scripted behaviour that counts each byte it is sent: what a client really put on the
wire."""

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

_WAIT_S: Final = 30.0
CERTIFICATE: Final = Path(__file__).with_name("tls") / "provider.example.pem"
"""Key and self-signed certificate of provider.example."""
LOCALHOST: Final = Path(__file__).with_name("tls") / "localhost.pem"
"""The same of localhost and 127.0.0.1."""
EXPIRED: Final = CERTIFICATE.with_name("expired.example.pem")
"""The like, of 2020."""


class Talk:
    """One accepted connection, in a thread of its own."""

    def __init__(self, peer: socket.socket, server: "WireServer") -> None:
        self.peer = peer
        self._server = server
        self.received = b""
        self.taken = b""

    def read(self) -> bytes:
        """The next bytes; b"" when the client closed."""
        chunk = self.peer.recv(65536)
        self.received += chunk
        self._server.note(chunk)
        return chunk

    def read_exactly(self, length: int) -> bytes:
        """The next `length` bytes of a handshake, which `taken` has from its last step on."""
        got = b""
        while len(got) < length:
            chunk = self.peer.recv(length - len(got))
            if not chunk:
                raise ConnectionError("the client closed within a handshake")
            got += chunk
        self.taken = got
        return got

    def read_request(self) -> bytes:
        """Everything up to the end of a request's body (by Content-Length), or to the client's close."""
        while b"\r\n\r\n" not in self.received:
            if not self.read():
                return self.received
        head, _, body = self.received.partition(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, text = line.partition(b":")
            if name.strip().lower() == b"content-length":
                length = int(text)
        while len(body) < length:
            chunk = self.read()
            if not chunk:
                break
            body += chunk
        return self.received

    def read_to_the_end(self) -> bytes:
        """Everything until the client closes."""
        while self.read():
            pass
        return self.received

    def closed_by_peer(self, within_s: float = _WAIT_S) -> bool:
        """Whether the client ends the connection in that time, however much it has sent that nobody reads."""
        poll = select.poll()
        poll.register(self.peer, select.POLLRDHUP)
        return bool(poll.poll(within_s * 1000))

    def wait_released(self) -> None:
        """Wait until the test lets go: a client that gave up closes unseen behind what nobody reads."""
        assert self._server.released.wait(_WAIT_S), "nobody let go"

    def send(self, data: bytes) -> None:
        self.peer.sendall(data)

    def answer(self, status: int, body: bytes, *headers: str, announce: int | None = None) -> None:
        """A whole answer; with `announce`, one whose Content-Length says something else than the body."""
        lines = [f"HTTP/1.1 {status} Some", f"Content-Length: {len(body) if announce is None else announce}"]
        self.send("\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + body)

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peer.close()


class WireServer:
    """`with WireServer(script) as server:` runs `script` for each connection, which is closed when it
    returns. With `tls` it is provider.example, or whom that file is of, and counts what was inside."""

    def __init__(self, script: Callable[[Talk], None], *, tls: bool | Path = False) -> None:
        self._script = script
        self._tls: ssl.SSLContext | None = None
        if tls:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(CERTIFICATE if tls is True else tls)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []
        self._talks: list[Talk] = []
        self._closed = 0
        self.released = threading.Event()
        self.received = b""
        """Every byte of every connection."""
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._talks)

    def note(self, chunk: bytes) -> None:
        with self._changed:
            self.received += chunk
            self._changed.notify_all()

    def wait_connected(self, connections: int) -> None:
        """Wait until `connections` connections have been accepted."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._talks) >= connections, _WAIT_S), (
                "nobody connected"
            )

    def wait_closed(self, connections: int) -> None:
        """Wait until the scripts of `connections` connections have ended: all their bytes are then
        counted."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._closed >= connections, _WAIT_S), (
                "a script never ended"
            )

    def __enter__(self) -> Self:
        accepting = threading.Thread(target=self._accept, name="wire-accept", daemon=True)
        accepting.start()
        self._threads.append(accepting)
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        # shutdown wakes the accept that close alone would leave waiting.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for talk in self._talks:
            with contextlib.suppress(OSError):
                talk.peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_WAIT_S)

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            peer.settimeout(_WAIT_S)
            # What a script sends is on its way before a reset throws it away.
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            talk = Talk(peer, self)
            with self._changed:
                self._talks.append(talk)
                self._changed.notify_all()
            thread = threading.Thread(target=self._run, args=(talk,), name="wire-talk", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, talk: Talk) -> None:
        try:
            # The client may go first: that is what some scripts are for.
            with contextlib.suppress(OSError):
                if self._tls is not None:
                    talk.peer = self._tls.wrap_socket(talk.peer, server_side=True)
                self._script(talk)
        finally:
            talk.peer.close()
            with self._changed:
                self._closed += 1
                self._changed.notify_all()


def listen(talk: Talk) -> None:
    """A script that never answers."""
    talk.read_to_the_end()


def tunnel(port: int) -> Callable[[Talk], None]:
    """The script of a proxy that takes any CONNECT to this machine's `port`."""

    def script(talk: Talk) -> None:
        talk.read_request()
        with socket.create_connection(("127.0.0.1", port), _WAIT_S) as inner:
            talk.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pump, args=(inner, talk.peer), daemon=True)
            back.start()
            _pump(talk.peer, inner)
            back.join(_WAIT_S)

    return script


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            target.sendall(chunk)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def refused_port() -> int:
    """A port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextlib.contextmanager
def stalled_port() -> Iterator[int]:
    """A port whose queue of connections is full: another one is neither taken nor refused."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(3):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(address)
        port: int = address[1]
        yield port
