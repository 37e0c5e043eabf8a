"""A cut download goes on where it was cut, and never with bytes of another version (RFC 9110, 13.1.5, 14)."""

import gzip
import hashlib
import os
from typing import Final

import pytest

from consumers.providers import destination
from consumers.providers.destination import OutputCut, OutputExpired, OutputRefused, OutputTooLarge, Rules
from consumers.providers.download import Downloaded, InMemory, Kept, download, resource_of
from fix_files import PLAIN, Files, serving
from wire import Talk, WireServer

pytestmark = pytest.mark.anyio

FILE: Final = os.urandom(300_000)
OTHER: Final = os.urandom(300_000)
MODIFIED: Final = "Tue, 01 Dec 2026 07:00:00 GMT"


def rules(url: str, limit_bytes: int = 10_000_000) -> Rules:
    return Rules(
        allowed=frozenset({destination.origin(url)}),
        limit_bytes=limit_bytes,
        deadline_s=60.0,
        redirects=3,
        connect_s=10.0,
    )


async def fetch(server: WireServer, target: InMemory, path: str = "/a.bin?signature=1") -> Downloaded:
    return await download(server.url + path, target=target, rules=rules(server.url))


def whole(found: Downloaded, target: InMemory, content: bytes = FILE) -> bool:
    return (bytes(target.content), found.size, found.sha256) == (
        content,
        len(content),
        hashlib.sha256(content).hexdigest(),
    )


@pytest.mark.parametrize(("etag", "modified"), [('"v1"', None), (None, MODIFIED), ('"v1"', MODIFIED)])
async def test_a_cut_download_goes_on_with_the_rest_of_the_same_version(
    etag: str | None, modified: str | None
) -> None:
    files, target = Files(FILE, etag=etag, last_modified=modified, cuts=[100_000, 50_000]), InMemory()
    with serving(files) as server:
        assert whole(await fetch(server, target), target)
    assert files.ranges_asked() == [None, "bytes=100000-", "bytes=150000-"]
    assert all(f"If-Range: {etag or modified}\r\n" in head for head in files.heads[1:])
    assert files.sent == [100_000, 50_000, 150_000]


@pytest.mark.parametrize(
    ("etag", "modified"),
    [
        ('W/"v1"', None),  # a weak tag says nothing of single bytes
        ('W/"v1"', MODIFIED),  # with a tag of any kind the date isn't used
        ("v1", None),  # no tag at all
        (None, "Tue, 01 Dec 2026 08:00:00 GMT"),  # changed in the very second of the answer
        (None, "yesterday"),
        (None, None),
    ],
)
async def test_without_a_strong_validator_no_part_is_asked_for(
    etag: str | None, modified: str | None
) -> None:
    files, target = Files(FILE, etag=etag, last_modified=modified, cuts=[100_000]), InMemory()
    with serving(files) as server:
        with pytest.raises(OutputCut):
            await fetch(server, target)
        assert target.kept is None
        assert whole(await fetch(server, target), target)
    assert files.ranges_asked() == [None, None]


@pytest.mark.parametrize("heeds_if_range", [True, False])
async def test_a_changed_version_is_fetched_from_its_beginning(heeds_if_range: bool) -> None:
    """A server that doesn't know If-Range sends a part of the new version under the new version's tag."""
    files = Files(FILE, heeds_if_range=heeds_if_range, cuts=[100_000], then=[(OTHER, '"v2"')])
    target = InMemory()
    with serving(files) as server:
        assert whole(await fetch(server, target), target, OTHER)
    assert files.ranges_asked()[1] == "bytes=100000-"


async def test_a_server_that_answers_200_to_a_range_is_read_from_the_beginning() -> None:
    files, target = Files(FILE, ranges=False, cuts=[100_000]), InMemory()
    with serving(files) as server:
        assert whole(await fetch(server, target), target)
    assert files.ranges_asked() == [None, "bytes=100000-"]
    assert files.sent == [100_000, 300_000]


@pytest.mark.parametrize(
    "said",
    [
        "bytes 0-299999/300000",
        "bytes 99999-299999/300000",
        "bytes 100000-299999/300001",
        "bytes 100000-300000/300000",
        "bytes 100000-99999/300000",
        "bytes */300000",
        "bytes 100000-299999",
        "items 100000-299999/300000",
        "",
    ],
)
async def test_a_part_that_is_not_the_one_that_was_asked_for_is_refused(said: str) -> None:
    files, target = Files(FILE, cuts=[100_000], content_range=said), InMemory()
    with serving(files) as server:
        assert whole(await fetch(server, target), target)
    assert files.ranges_asked() == [None, "bytes=100000-", None]


async def test_a_part_without_the_validator_is_refused() -> None:
    files, target = Files(FILE, heeds_if_range=False, cuts=[100_000], then=[(FILE, None)]), InMemory()
    with serving(files) as server:
        assert whole(await fetch(server, target), target)
    assert files.ranges_asked() == [None, "bytes=100000-", None]


async def test_a_range_past_the_end_starts_anew() -> None:
    files, target = Files(FILE[:50_000]), InMemory()
    with serving(files) as server:
        await _have(target, FILE[:60_000], server.url + "/a.bin", total=None)
        assert whole(await fetch(server, target), target, FILE[:50_000])


async def test_a_shorter_part_than_asked_for_is_followed_by_the_next() -> None:
    def script(talk: Talk) -> None:
        head = talk.read_request().decode()
        if "bytes=" not in head:
            talk.answer(200, FILE[:100_000], PLAIN, 'ETag: "v1"', announce=len(FILE))
            return
        start = int(head.partition("bytes=")[2].partition("-")[0])
        end = min(start + 80_000, len(FILE))
        talk.answer(206, FILE[start:end], 'ETag: "v1"', f"Content-Range: bytes {start}-{end - 1}/{len(FILE)}")

    target = InMemory()
    with WireServer(script) as server:
        assert whole(await fetch(server, target), target)
        assert server.connections == 4


async def test_a_part_of_another_resource_is_not_gone_on_with() -> None:
    """An entity tag means something for one resource only; a signature in the query is another matter."""
    files, target = Files(FILE), InMemory()
    with serving(files) as server:
        await _have(target, FILE[:100_000], server.url + "/a.bin?signature=old")
        assert whole(await fetch(server, target, "/a.bin?signature=new"), target)
        await _have(target, FILE[:100_000], server.url + "/a.bin")
        assert whole(await fetch(server, target, "/b.bin"), target)
    assert files.ranges_asked() == ["bytes=100000-", None]


async def test_a_redirect_is_followed_before_the_part_is_asked_for() -> None:
    files, target = Files(FILE, cuts=[100_000]), InMemory()
    with serving(files) as storage:

        def script(talk: Talk) -> None:
            talk.read_request()
            talk.answer(302, b"", f"Location: {storage.url}/signed")

        with WireServer(script) as server:
            both = Rules(
                allowed=frozenset({destination.origin(server.url), destination.origin(storage.url)}),
                limit_bytes=10_000_000,
                deadline_s=60.0,
                redirects=1,
                connect_s=10.0,
            )
            assert whole(await download(f"{server.url}/a", target=target, rules=both), target)
            assert b"Range:" not in server.received
    assert files.ranges_asked() == [None, "bytes=100000-"]


async def test_what_came_whole_before_a_crash_is_not_fetched_again() -> None:
    files, target = Files(FILE), InMemory()
    with serving(files) as server:
        await _have(target, FILE, server.url + "/a.bin", total=len(FILE))
        assert whole(await fetch(server, target), target)
    assert files.heads == []


async def test_a_url_that_expires_in_the_middle_is_expired_and_the_bytes_stay() -> None:
    files, target = Files(FILE, cuts=[100_000]), InMemory()

    def script(talk: Talk) -> None:
        if files.heads:
            talk.read_request()
            talk.answer(403, b"<Error/>")
        else:
            files(talk)

    with WireServer(script) as server, pytest.raises(OutputExpired):
        await fetch(server, target)
    assert target.size == 100_000
    assert target.kept is not None


async def test_a_server_that_brings_nothing_more_is_not_asked_without_end() -> None:
    files, target = Files(FILE, cuts=[100_000, 0]), InMemory()
    with serving(files) as server, pytest.raises(OutputCut):
        await fetch(server, target)
    assert len(files.heads) == 2
    assert target.size == 100_000


async def test_more_bytes_than_announced_are_never_the_file() -> None:
    def script(talk: Talk) -> None:
        head = talk.read_request().decode()
        if "bytes=" not in head:
            talk.answer(200, FILE[:100_000], PLAIN, 'ETag: "v1"', announce=len(FILE))
            return
        lines = [
            "HTTP/1.1 206 Some",
            'ETag: "v1"',
            "Content-Range: bytes 100000-299999/300000",
            "Transfer-Encoding: chunked",
        ]
        body = FILE[100_000:] + b"more"
        talk.send("\r\n".join([*lines, "", f"{len(body):x}", ""]).encode() + body + b"\r\n0\r\n\r\n")

    target = InMemory()
    with WireServer(script) as server, pytest.raises(OutputCut, match="more than"):
        await fetch(server, target)
    assert target.size == 0


async def test_a_file_that_is_announced_above_the_limit_is_not_begun() -> None:
    files, target = Files(FILE), InMemory()
    with serving(files) as server, pytest.raises(OutputTooLarge):
        await download(server.url, target=target, rules=rules(server.url, limit_bytes=len(FILE) - 1))
    assert target.size == 0


async def test_a_coded_body_is_decoded_and_never_gone_on_with() -> None:
    packed = gzip.compress(FILE)

    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(200, packed, 'ETag: "v1"', "Content-Encoding: gzip")

    target = InMemory()
    with WireServer(script) as server:
        found = await fetch(server, target)
        assert whole(found, target)
        assert found.framed
        assert target.kept is None


async def test_a_file_whose_end_nothing_announces_says_so() -> None:
    """A body that ends with the connection: a cut looks the same (RFC 9112, 8)."""

    def script(talk: Talk) -> None:
        talk.read_request()
        talk.send(b"HTTP/1.1 200 OK\r\n\r\n" + FILE)

    target = InMemory()
    with WireServer(script) as server:
        found = await fetch(server, target)
    assert whole(found, target)
    assert not found.framed


async def test_a_206_that_nobody_asked_for_is_refused() -> None:
    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(206, FILE[:10], 'ETag: "v1"', "Content-Range: bytes 0-9/300000")

    with WireServer(script) as server, pytest.raises(OutputRefused, match="206"):
        await fetch(server, InMemory())


async def _have(target: InMemory, content: bytes, url: str, *, total: int | None = len(FILE)) -> None:
    await target.restart(
        Kept(resource=resource_of(url), etag='"v1"', last_modified=None, total=total, content_type=None)
    )
    await target.write(content)
