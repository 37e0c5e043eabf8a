"""Whatever a server does between the attempts: what a download calls whole is one of its versions."""

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Final

import hypothesis.strategies as st
from hypothesis import Phase, given, settings

from consumers.providers import destination
from consumers.providers.destination import DownloadError, Rules
from consumers.providers.download import InMemory, download
from wire import Talk, WireServer

LENGTH: Final = 3200
VERSIONS: Final = tuple(
    b"".join(hashlib.sha256(f"{version} {block}".encode()).digest() for block in range(LENGTH // 32))
    for version in range(3)
)
"""Of one length: nothing but what the server says tells them apart."""
DATE: Final = "Tue, 01 Dec 2026 08:00:00 GMT"


@dataclass(frozen=True)
class Step:
    """How one request is answered."""

    version: int
    ranges: bool
    heeds_if_range: bool
    says: str
    """Which validators it names: strong, weak, dated, none, or wrong (another version's)."""
    shift: int
    """Added to where a part begins."""
    cut: int | None
    """Body bytes after which the connection ends."""


# Mostly a server that is nearly right: what is wrong in many ways at once is easy to refuse.
STEPS: Final = st.builds(
    Step,
    version=st.sampled_from((0, 1, 2)),
    ranges=st.sampled_from((True, True, True, False)),
    heeds_if_range=st.sampled_from((False, True)),
    says=st.sampled_from(("strong", "strong", "strong", "dated", "weak", "none")),
    shift=st.sampled_from((0, 0, 0, 1, -1)),
    cut=st.sampled_from((LENGTH // 2, LENGTH // 3, 1, LENGTH // 2, 0, None)),
)


class Server:
    """The script of one example; after its steps it serves the last version whole, without ranges."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = list(steps)

    def __call__(self, talk: Talk) -> None:
        head = talk.read_request().decode("latin-1").lower()
        step = self._steps.pop(0) if self._steps else Step(0, False, True, "strong", 0, None)
        content = VERSIONS[step.version]
        tag, modified = f'"v{step.version}"', f"Tue, 0{step.version + 1} Dec 2020 08:00:00 GMT"
        said = {
            "strong": [f"ETag: {tag}"],
            "weak": [f"ETag: W/{tag}", f"Last-Modified: {modified}"],
            "dated": [f"Last-Modified: {modified}"],
            "none": [],
        }[step.says]
        start = None
        if step.ranges and "range: bytes=" in head:
            start = int(head.partition("range: bytes=")[2].partition("-")[0])
            condition = head.partition("if-range: ")[2].partition("\r\n")[0]
            if (step.heeds_if_range and condition not in (tag, modified.lower())) or start >= len(content):
                start = None
        body = content[max(0, start + step.shift) if start is not None else 0 :]
        lines = [
            f"HTTP/1.1 {200 if start is None else 206} Some",
            f"Content-Length: {len(body)}",
            f"Date: {DATE}",
        ]
        if start is not None:
            lines.append(f"Content-Range: bytes {start + step.shift}-{len(content) - 1}/{len(content)}")
        talk.send("\r\n".join([*lines, *said, "", ""]).encode())
        talk.send(body[: step.cut])


# Without shrinking: each example is a server of its own, and thousands of them take minutes.
@settings(max_examples=100, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.lists(STEPS, min_size=3, max_size=6), st.integers(1, 4))
def test_what_is_called_whole_is_one_version(steps: list[Step], attempts: int) -> None:
    async def tried() -> None:
        target = InMemory()
        with WireServer(Server(steps)) as server:
            rules = Rules(
                allowed=frozenset({destination.origin(server.url)}),
                limit_bytes=10 * LENGTH,
                deadline_s=60.0,
                redirects=0,
                connect_s=10.0,
            )
            for _ in range(attempts):
                try:
                    found = await download(f"{server.url}/file", target=target, rules=rules)
                except DownloadError:
                    if target.kept is not None:
                        # What is kept for the next attempt is the beginning of one version.
                        assert any(version.startswith(bytes(target.content)) for version in VERSIONS)
                    continue
                assert bytes(target.content) in VERSIONS
                assert found.sha256 == hashlib.sha256(target.content).hexdigest()
                return

    asyncio.run(tried())
