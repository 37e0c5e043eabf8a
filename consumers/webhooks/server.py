"""A small HTTP/1.1 server for what strangers may send: everything about a request is bounded, and one request
is read from each connection. It knows nothing of webhooks.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import h11

from relay.errors import Unavailable

HEAD_BYTES: Final = 16 * 1024
BODY_BYTES: Final = 256 * 1024
"""A webhook tells of one job; nothing beyond this is read."""
REQUEST_S: Final = 10.0
"""From the connection to the last byte of the answer: who is slower is cut off."""
CONNECTIONS: Final = 256
"""At one time. More are closed at once, so that nobody's slow connections take all memory."""
_READ_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`headers` has lower-case names; of a repeated header, all values joined by commas (RFC 9110, 5.3)."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Awaitable[Reply]]


class _Refused(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


async def serve(
    host: str, port: int, handler: Handler, *, ready: Callable[[int], None], stopping: asyncio.Event
) -> None:
    """Serve until `stopping`; `ready` is told the port. What was read is answered before it returns.

    Raises Unavailable when the address can't be had.
    """
    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(_connection(reader, writer, handler))
        connections.add(task)
        task.add_done_callback(connections.discard)

    try:
        server = await asyncio.start_server(accept, host, port, limit=_READ_BYTES)
    except OSError as error:
        raise Unavailable(
            f"Webhooks can't be received at {host}:{port}: {error.strerror}.",
            remedy="Set RELAY_WEBHOOKS_PORT to a free port, RELAY_WEBHOOKS_HOST to an address of this host.",
        ) from None
    async with server:
        ready(server.sockets[0].getsockname()[1])
        await stopping.wait()
        server.close()
        if connections:
            await asyncio.wait(connections, timeout=REQUEST_S)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
    try:
        async with asyncio.timeout(REQUEST_S):
            try:
                request = await _request(connection, reader, writer)
            except _Refused as refused:
                reply = Reply(refused.status)
            else:
                if request is None:
                    return
                reply = await handler(request)
            await _answer(connection, writer, reply)
    except (ConnectionError, TimeoutError, h11.LocalProtocolError):
        writer.transport.abort()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(REQUEST_S):
                await writer.wait_closed()


async def _request(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request | None:
    """The whole request; None when the client went away. Raises _Refused."""
    head = await _next(connection, reader)
    if not isinstance(head, h11.Request):
        return None
    headers: dict[str, str] = {}
    for raw, value in head.headers:
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
        headers[name] = f"{headers[name]},{text}" if name in headers else text
    announced = headers.get("content-length", "0")
    if not announced.isdigit() or int(announced) > BODY_BYTES:
        raise _Refused(413)
    if connection.they_are_waiting_for_100_continue:
        writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
    body = bytearray()
    while isinstance(event := await _next(connection, reader), h11.Data):
        body += event.data
        if len(body) > BODY_BYTES:
            raise _Refused(413)
    if not isinstance(event, h11.EndOfMessage):
        return None
    try:
        path = urlsplit(head.target.decode("latin-1")).path
    except ValueError:
        raise _Refused(400) from None
    return Request(method=head.method.decode("ascii"), path=path, headers=headers, body=bytes(body))


async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> object:
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            raise _Refused(error.error_status_hint) from None
        if event is not h11.NEED_DATA:
            return event
        connection.receive_data(await reader.read(_READ_BYTES))


async def _answer(connection: h11.Connection, writer: asyncio.StreamWriter, reply: Reply) -> None:
    headers = [("Content-Length", "0"), ("Connection", "close"), *reply.headers]
    writer.write(connection.send(h11.Response(status_code=reply.status, headers=headers)) or b"")
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    await writer.drain()
