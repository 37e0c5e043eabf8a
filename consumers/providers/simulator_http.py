"""A small HTTP/1.1 server for the provider simulator, which can break off wherever a real one might. It knows
nothing of jobs.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

import h11

_READ_BYTES: Final = 64 * 1024
_IDLE_S: Final = 60.0
"""A connection that sends nothing for this long is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request's head. `path` is percent-decoded per segment, without the query."""

    method: str
    path: tuple[str, ...]
    query: str
    headers: dict[str, str]

    @property
    def host(self) -> str:
        return self.headers.get("host", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What to answer, and how badly. `cut_after`: body bytes after which the connection is closed, though
    more were announced. `drip_s`: seconds between single bytes of the body. `silent`: read everything, then
    close without a word."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    cut_after: int | None = None
    drip_s: float | None = None
    silent: bool = False


Handler = Callable[[Call, bytes], Awaitable[Reply]]
RefuseToRead = Callable[[Call], bool]


class _Gone(Exception):
    """The client closed, or sent what is not HTTP."""


async def serve_connection(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    handler: Handler,
    refuse_to_read: RefuseToRead,
) -> None:
    """One request per connection. `refuse_to_read` sees the head; where it says so the connection is reset
    with the body unread."""
    connection = h11.Connection(h11.SERVER)
    try:
        head = await _next(connection, reader)
        if not isinstance(head, h11.Request):
            return
        call = _call(head)
        if refuse_to_read(call):
            writer.transport.abort()
            return
        body = bytearray()
        while isinstance(event := await _next(connection, reader), h11.Data):
            body += event.data
        if not isinstance(event, h11.EndOfMessage):
            return
        reply = await handler(call, bytes(body))
        if not reply.silent:
            await _send(connection, writer, reply)
    except (_Gone, ConnectionError, TimeoutError):
        return
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> object:
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            raise _Gone from error
        if event is not h11.NEED_DATA:
            return event
        async with asyncio.timeout(_IDLE_S):
            connection.receive_data(await reader.read(_READ_BYTES))


async def _send(connection: h11.Connection, writer: asyncio.StreamWriter, reply: Reply) -> None:
    headers = [("Content-Length", str(len(reply.body))), ("Connection", "close"), *reply.headers]
    writer.write(connection.send(h11.Response(status_code=reply.status, headers=headers)) or b"")
    if reply.drip_s is not None:
        for byte in reply.body:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(reply.drip_s)
        return
    body = reply.body if reply.cut_after is None else reply.body[: reply.cut_after]
    writer.write(body)
    await writer.drain()


def _call(head: h11.Request) -> Call:
    parts = urlsplit(head.target.decode("latin-1"))
    return Call(
        method=head.method.decode("ascii"),
        path=tuple(unquote(segment) for segment in parts.path.strip("/").split("/")),
        query=parts.query,
        headers={name.decode("latin-1").lower(): text.decode("latin-1") for name, text in head.headers},
    )
