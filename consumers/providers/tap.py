"""What one exchange really put on the wire and took from it, below the HTTP library. It changes no byte.

The library gives up at the first thing that isn't HTTP, and stops reading while it writes. What a server says
in either case may name a job that is paid for, so it is kept here.
"""

import asyncio
import re
from collections.abc import Iterable
from typing import Any, Final

import httpcore

HEAD_BYTES: Final = 192 * 1024
"""More than the head of any answer that the HTTP library reads, and what may come in one read behind it."""
_READ_BYTES: Final = 64 * 1024
_ANSWERED_GRACE_S: Final = 1.0
"""How long a request goes on being sent once a final answer to it has begun (RFC 9112, 9.5)."""
_QUIET_S: Final = 2.0
"""A server that broke HTTP and says nothing for this long has said all."""
_TURNS: Final = 4
"""Turns of the event loop in which an answer that has already come is read, before anything is written: a
write that fails closes the connection, and what was not read is gone."""
_INTERIM: Final = re.compile(rb"HTTP/1\.[01] 1[0-9]{2}[^\n]*\n(?:[^\r\n][^\n]*\n)*\r?\n")
_INTERIM_BEGUN: Final = re.compile(rb"HTTP/1\.[01] 1")
_STATUS_LINE_BYTES: Final = len("HTTP/1.1 200")


class Tap:
    """The bytes of one exchange, over whatever streams its connection is made of (TCP, then TLS)."""

    def __init__(self, *, body_bytes: int) -> None:
        self._limit_bytes = HEAD_BYTES + body_bytes
        self._received = bytearray()
        self._connections: list[httpcore.AsyncNetworkStream] = []
        self.stream: _Stream | None = None
        self.open = False
        """Set when the request may be sent; what went before, a proxy's CONNECT, isn't the exchange's."""
        self.written = False
        """Something of the request was given to the connection: bytes may have left."""
        self.head_over = False
        """The head of the answer has come, or what can't be one."""
        self.ended = False
        """The server closed, or the connection broke."""

    @property
    def received(self) -> bytes:
        """What came, head and all, as far as the bound."""
        return bytes(self._received)

    def take(self, data: bytes) -> None:
        """Raises RemoteProtocolError for more than any head has while there is still no answer: interim
        ones may go on for ever."""
        if not self.open:
            return
        self._received += data[: self._limit_bytes - len(self._received)]
        if len(self._received) > HEAD_BYTES and not self.head_over:
            raise httpcore.RemoteProtocolError(f"{HEAD_BYTES} bytes, and no answer in them")

    def connected(self, connection: httpcore.AsyncNetworkStream) -> None:
        self._connections.append(connection)

    async def aclose(self) -> None:
        """Close the connections: httpcore leaves one open when a TLS handshake in it is cancelled."""
        for connection in self._connections:
            await connection.aclose()

    async def drain(self) -> None:
        """Read on after HTTP was broken, to the end, the bound, or silence."""
        while self.stream is not None and not self.ended and len(self._received) < self._limit_bytes:
            try:
                await self.stream.receive(_READ_BYTES, _QUIET_S)
            except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError):
                return


class Backend(httpcore.AsyncNetworkBackend):
    """Connections whose streams are tapped."""

    def __init__(self, tap: Tap) -> None:
        self._inner = httpcore.AnyIOBackend()
        self._tap = tap

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        self._tap.connected(stream)
        return _Stream(stream, self._tap)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream, tap: Tap) -> None:
        self._inner = inner
        self._tap = tap
        self._early = bytearray()
        """What came while the request was being sent."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._early:
            data = bytes(self._early[:max_bytes])
            del self._early[:max_bytes]
            return data
        return await self.receive(max_bytes, timeout)

    async def receive(self, max_bytes: int, timeout: float | None) -> bytes:
        """The next bytes of the connection itself."""
        try:
            data = await self._inner.read(max_bytes, timeout)
        except httpcore.ReadTimeout:
            raise
        except Exception:
            self._tap.ended = True
            raise
        if not data:
            self._tap.ended = True
        self._tap.take(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not self._tap.open:
            await self._inner.write(buffer, timeout)
        elif buffer:
            await self._write_listening(buffer, timeout)

    async def _write_listening(self, buffer: bytes, timeout: float | None) -> None:
        """Write, and read what the server says meanwhile. Raises WriteError, on which httpcore goes on to the
        answer, when there is a final one and the server takes no more."""
        self._tap.stream = self
        listening = asyncio.create_task(self._listen())
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self._tap.written = True
        sending = asyncio.create_task(self._inner.write(buffer, timeout))
        try:
            await asyncio.wait({sending, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                await asyncio.wait({sending}, timeout=_ANSWERED_GRACE_S if _is_final(self._early) else None)
            if not sending.done():
                raise httpcore.WriteError("the server answered before it had read the request")
            await sending
        finally:
            listening.cancel()
            sending.cancel()
            await asyncio.gather(listening, sending, return_exceptions=True)

    async def _listen(self) -> None:
        """Until a final answer has begun, the connection ends, or enough is held."""
        while not self._tap.ended and not _is_final(self._early) and len(self._early) < _READ_BYTES:
            try:
                self._early += await self.receive(_READ_BYTES, None)
            except (httpcore.NetworkError, httpcore.ProtocolError, OSError):
                return

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._tap)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _is_final(said: bytearray) -> bool:
    """Whether more than interim answers (1xx) has come."""
    rest = bytes(said)
    while (interim := _INTERIM.match(rest)) is not None:
        rest = rest[interim.end() :]
    return len(rest) >= _STATUS_LINE_BYTES and not _INTERIM_BEGUN.match(rest)
