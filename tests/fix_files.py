"""A file server with ranges and validators, which breaks off where it is told to."""

import threading
from dataclasses import dataclass, field
from typing import Final

from wire import Talk, WireServer

_WAIT_S: Final = 60.0
PLAIN: Final = "Content-Type: application/octet-stream"


@dataclass
class Files:
    """The script of a `WireServer`. One file, whatever the path; `cuts` are the numbers of body bytes after
    which the first, second, … answer is cut."""

    content: bytes
    etag: str | None = '"v1"'
    last_modified: str | None = None
    ranges: bool = True
    heeds_if_range: bool = True
    cuts: list[int] = field(default_factory=list)
    then: list[tuple[bytes, str | None]] = field(default_factory=list)
    """Content and tag from the second answer on, from the third, …"""
    hold_after: int | None = None
    """Bytes of the body after which an answer waits for `release`."""
    content_range: str | None = None
    """What each part calls itself, instead of what it is."""
    heads: list[str] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    """Body bytes of each answer."""
    release: threading.Event = field(default_factory=threading.Event)
    held: threading.Event = field(default_factory=threading.Event)

    def __call__(self, talk: Talk) -> None:
        head = talk.read_request().decode("latin-1")
        if self.heads and self.then:
            self.content, self.etag = self.then.pop(0)
        self.heads.append(head)
        asked = {
            name.lower(): text.strip()
            for name, _, text in (line.partition(":") for line in head.split("\r\n")[1:])
        }
        start = self._start(asked)
        headers = [PLAIN, "Date: Tue, 01 Dec 2026 08:00:00 GMT"]
        headers += [f"ETag: {self.etag}"] if self.etag else []
        headers += [f"Last-Modified: {self.last_modified}"] if self.last_modified else []
        if start is not None and start >= len(self.content):
            talk.answer(416, b"", f"Content-Range: bytes */{len(self.content)}")
            return
        if start is not None:
            true = f"bytes {start}-{len(self.content) - 1}/{len(self.content)}"
            headers.append(f"Content-Range: {true if self.content_range is None else self.content_range}")
        body = self.content[start or 0 :]
        whole = len(body)
        if self.cuts:
            body = body[: self.cuts.pop(0)]
        lines = [
            f"HTTP/1.1 {200 if start is None else 206} Some",
            f"Content-Length: {whole}",
            *headers,
            "",
            "",
        ]
        talk.send("\r\n".join(lines).encode("latin-1"))
        if self.hold_after is not None and not self.release.is_set():
            talk.send(body[: self.hold_after])
            self.held.set()
            self.release.wait(_WAIT_S)
            body = body[self.hold_after :]
        talk.send(body)
        self.sent.append(len(body))

    def ranges_asked(self) -> list[str | None]:
        """The Range of each request."""
        found = (
            [line for line in head.split("\r\n") if line.lower().startswith("range:")] for head in self.heads
        )
        return [lines[0].partition(":")[2].strip() if lines else None for lines in found]

    def _start(self, asked: dict[str, str]) -> int | None:
        if not self.ranges or "range" not in asked:
            return None
        if self.heeds_if_range and asked.get("if-range") not in (self.etag, self.last_modified):
            return None
        return int(asked["range"].removeprefix("bytes=").removesuffix("-"))


def serving(files: Files) -> WireServer:
    return WireServer(files)
