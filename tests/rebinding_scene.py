"""A world in which names change under a download: run it in a network and mount namespace of its own.

``unshare --net --mount python rebinding_scene.py`` gives it a public address, a private one and a name server
whose answers change, and prints as JSON what a download of each came to and who was connected to.
"""

import asyncio
import json
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from consumers.providers.destination import DownloadError, Rules
from consumers.providers.download import InMemory, download

PUBLIC: Final = "93.184.216.34"
PRIVATE: Final = "127.0.0.1"
NAME: Final = "provider.example"
PORT: Final = 443
CERTIFICATE: Final = Path(__file__).with_name("tls") / "provider.example.pem"

_A: Final = 1
_AAAA: Final = 28


class NameServer:
    """Answers every question for an address by `answers`, which is asked anew each time (RFC 1035)."""

    def __init__(self) -> None:
        self.answers: Callable[[str], list[str]] = lambda _name: []
        self.asked: list[str] = []
        # The resolver asks for both kinds at once: both are told the same.
        self._now: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            question, peer = self._socket.recvfrom(512)
            name, end = _name(question)
            (kind,) = struct.unpack_from(">H", question, end)
            found: list[bytes] = []
            if kind in (_A, _AAAA):
                family = socket.AF_INET if kind == _A else socket.AF_INET6
                if kind == _A:
                    self.asked.append(name)
                    self._now = self.answers(name)
                for address in self._now:
                    if (":" in address) == (kind == _AAAA):
                        data = socket.inet_pton(family, address)
                        found.append(struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(data)) + data)
            head = question[:2] + struct.pack(">HHHHH", 0x8180, 1, len(found), 0, 0)
            self._socket.sendto(head + question[12 : end + 4] + b"".join(found), peer)


def _name(question: bytes) -> tuple[str, int]:
    labels, at = [], 12
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), at + 1


class FileServer:
    """https on one address; `location` makes it a redirect."""

    def __init__(self, address: str) -> None:
        self.connections = 0
        self.location: str | None = None
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(CERTIFICATE)
        self._listener = socket.create_server((address, PORT))
        self._address = address
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            peer, _ = self._listener.accept()
            self.connections += 1
            try:
                with self._tls.wrap_socket(peer, server_side=True) as talk:
                    talk.recv(65536)
                    body = self._address.encode()
                    head = "HTTP/1.1 200 OK" if self.location is None else "HTTP/1.1 302 Found"
                    more = "" if self.location is None else f"Location: {self.location}\r\n"
                    talk.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body)
            except OSError:
                continue


async def _tried(servers: list[FileServer], names: NameServer) -> dict[str, Any]:
    before = [server.connections for server in servers]
    names.asked.clear()
    target = InMemory()
    rules = Rules(
        limit_bytes=1000,
        deadline_s=30.0,
        redirects=3,
        connect_s=5.0,
        tls=ssl.create_default_context(cafile=str(CERTIFICATE)),
    )
    try:
        await download(f"https://{NAME}/file", target=target, rules=rules)
        result = bytes(target.content).decode()
    except DownloadError as error:
        result = type(error).__name__
    return {
        "result": result,
        "public": servers[0].connections - before[0],
        "private": servers[1].connections - before[1],
        "asked": list(names.asked),
    }


def _after_the_first(first: str, later: str) -> Callable[[str], list[str]]:
    times = iter([first])
    return lambda _name: [next(times, later)]


async def _main() -> None:
    names = NameServer()
    servers = [FileServer(PUBLIC), FileServer(PRIVATE)]
    seen: dict[str, Any] = {}
    for case, answers in {
        "private": lambda _name: [PRIVATE],
        "public": lambda _name: [PUBLIC],
        "both": lambda _name: [PUBLIC, PRIVATE],
        "mapped": lambda _name: ["::ffff:127.0.0.1"],
        "loopback six": lambda _name: ["::1"],
        "rebound": _after_the_first(PUBLIC, PRIVATE),
    }.items():
        names.answers = answers
        seen[case] = await _tried(servers, names)
    servers[0].location = f"https://other.{NAME}/file"
    names.answers = lambda name: [PUBLIC] if name == NAME else [PRIVATE]
    seen["redirect to a private name"] = await _tried(servers, names)
    servers[0].location = f"https://{NAME}/again"
    names.answers = _after_the_first(PUBLIC, PRIVATE)
    seen["rebound between redirects"] = await _tried(servers, names)
    sys.stdout.write(json.dumps(seen))


def _prepare() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{PUBLIC}/32", "dev", "lo"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (
            ("resolv.conf", "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n"),
            ("nsswitch.conf", "hosts: dns\n"),
        ):
            written = Path(folder) / name
            written.write_text(text)
            subprocess.run(["mount", "--bind", str(written), f"/etc/{name}"], check=True)


if __name__ == "__main__":
    _prepare()
    asyncio.run(_main())
