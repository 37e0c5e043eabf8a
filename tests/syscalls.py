"""The order in which a process really calls the system: syncs, socket sends and what a test adds by name.

Python's own C functions are watched (`sys.setprofile`, in every thread), so neither the spool nor the HTTP
library has to be replaced by something that only looks like it.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

_SENDS: Final = frozenset({"send", "sendall", "sendmsg"})


@dataclass(frozen=True, slots=True)
class Call:
    """`name`: fsync, send or unlink. `target`: the file's path, or `host:port` of a socket's other end."""

    name: str
    target: str


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """The calls made inside, in order, each noted just before it is made."""
    calls: list[Call] = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event != "c_call":
            return
        if argument is os.fsync:
            calls.append(Call("fsync", _path_of(_descriptor(frame))))
        elif argument.__name__ in _SENDS and isinstance(argument.__self__, socket.socket):
            calls.append(Call("send", _peer(argument.__self__)))

    previous: Callable[..., Any] | None = sys.getprofile()
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield calls
    finally:
        sys.setprofile(previous)
        threading.setprofile(None)


def _descriptor(frame: FrameType) -> int:
    """What the calling line hands to fsync: a local called `file` or `descriptor`."""
    for name in ("file", "descriptor", "fd"):
        held = frame.f_locals.get(name)
        if isinstance(held, int):
            return held
    raise AssertionError(f"{frame.f_code.co_qualname} syncs something that this recorder can't name")


def _path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _peer(sock: socket.socket) -> str:
    try:
        host, port, *_ = sock.getpeername()
    except OSError:
        return ""
    return f"{host}:{port}"
