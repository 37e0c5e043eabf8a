"""Downloads against real sockets: the right bytes or a named error, and never to where they may not go."""

import hashlib
import ssl

import msgspec
import pytest

from consumers.providers.client import ProviderClient
from consumers.providers.destination import (
    DownloadError,
    OutputCut,
    OutputExpired,
    OutputForbidden,
    OutputRefused,
    OutputTooLarge,
)
from consumers.providers.download import Downloaded, InMemory, download
from consumers.providers.profile import Limits
from provider_samples import profile
from wire import CERTIFICATE, Talk, WireServer, listen, refused_port

pytestmark = pytest.mark.anyio

SIMULATOR = profile("simulator")
FILE = bytes(range(256)) * 400


async def fetch(
    url: str,
    target: InMemory | None = None,
    *,
    provider: str | None = None,
    allowed: tuple[str, ...] | None = None,
    limits: Limits | None = None,
) -> Downloaded:
    of = msgspec.structs.replace(SIMULATOR, limits=limits or SIMULATOR.limits)
    if allowed is not None:
        of = msgspec.structs.replace(
            of, download=msgspec.structs.replace(of.download, allowed_origins=allowed)
        )
    client = ProviderClient(of, base_url=provider or url.rpartition("/")[0], secret="s3cret-Token")
    return await download(url, target=target or InMemory(), rules=client.download_rules())


def serve(talk: Talk) -> None:
    talk.read_request()
    talk.answer(200, FILE, "Content-Type: image/png")


async def test_a_file_arrives_with_its_digest() -> None:
    target = InMemory()
    with WireServer(serve) as server:
        found = await fetch(f"{server.url}/a.png", target)
    assert target.content == FILE
    assert (found.sha256, found.size) == (hashlib.sha256(FILE).hexdigest(), len(FILE))
    assert (found.content_type, found.final_url) == ("image/png", f"{server.url}/a.png")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (403, OutputExpired),
        (404, OutputExpired),
        (410, OutputExpired),
        (429, OutputCut),
        (500, OutputCut),
        (503, OutputCut),
        (204, OutputRefused),
        (206, OutputRefused),
        (400, OutputRefused),
        (401, OutputRefused),
    ],
)
async def test_an_answer_that_is_not_the_file_is_a_named_error(
    status: int, error: type[DownloadError]
) -> None:
    target = InMemory()

    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(status, b"" if status == 204 else b"<html>")

    with WireServer(script) as server, pytest.raises(error) as caught:
        await fetch(f"{server.url}/a.png", target)
    assert caught.value.retriable is (error is OutputCut)
    assert target.content == b""


@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_a_file_that_is_cut_is_never_taken_for_the_whole(how: str) -> None:
    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(200, FILE[: len(FILE) // 2], announce=len(FILE))
        if how == "reset":
            talk.reset()

    with WireServer(script) as server, pytest.raises(OutputCut):
        await fetch(f"{server.url}/a.png")


@pytest.mark.parametrize(
    "url",
    [
        "https://[::1/a.png",
        "https://files..example/a.png",
        f"https://{'a' * 64}.example/a.png",
        "https://\N{SNOWMAN}.example/a.png",
    ],
)
async def test_what_is_not_a_url_is_a_named_error_wherever_it_comes_from(url: str) -> None:
    """Any other exception would let the delivery be tried again for ever, and nobody would be asked."""

    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(302, b"", f"Location: {url}")

    with pytest.raises(OutputForbidden, match="not a URL"):
        await fetch(url, provider="https://provider.example")
    if url.isascii():
        with WireServer(script) as server, pytest.raises(OutputForbidden, match="not a URL"):
            await fetch(f"{server.url}/a.png")


async def test_a_refused_connection_or_an_unknown_name_may_be_tried_again() -> None:
    with pytest.raises(OutputCut):
        await fetch(f"http://127.0.0.1:{refused_port()}/a.png")
    with pytest.raises(OutputCut):
        await fetch("https://no-such-host.invalid/a.png")


async def test_a_download_that_takes_too_long_is_cut() -> None:
    with WireServer(listen) as server, pytest.raises(OutputCut, match=r"longer than 0\.2 s"):
        await fetch(f"{server.url}/a.png", limits=Limits(download_deadline_s=0.2))


async def test_a_file_above_the_limit_is_refused_however_it_is_announced() -> None:
    with WireServer(serve) as server:
        with pytest.raises(OutputTooLarge):
            await fetch(f"{server.url}/a.png", limits=Limits(output_bytes=len(FILE) - 1))
        assert (await fetch(f"{server.url}/a.png", limits=Limits(output_bytes=len(FILE)))).size == len(FILE)


async def test_a_sink_that_fails_is_not_a_failed_download() -> None:
    class Full(InMemory):
        async def write(self, chunk: bytes) -> None:
            raise OSError("No space left on device")

    with WireServer(serve) as server, pytest.raises(OSError, match="No space"):
        await fetch(f"{server.url}/a.png", Full())


# --- where it may go


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/a",
        "https://127.0.0.1:{port}/a",
        "https://localhost:{port}/a",
        "https://[::ffff:127.0.0.1]:{port}/a",
        "https://0.0.0.0:{port}/a",
        "https://2130706433:{port}/a",
        "https://127.1:{port}/a",
        "file:///etc/passwd",
    ],
)
async def test_nothing_is_sent_to_an_address_that_is_not_public(url: str) -> None:
    with WireServer(listen) as server:
        with pytest.raises(OutputForbidden):
            await fetch(url.format(port=server.port), provider="https://api.example.com", allowed=())
        assert server.connections == 0


async def test_the_address_that_was_checked_is_the_one_connected_to_under_the_name_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No public address answers a test, so what only the internet could say is said here: which addresses the
    name has (the first one doesn't listen), and that these are public."""
    asked: list[str] = []

    async def resolve(host: str, _port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.2", "127.0.0.1"]

    monkeypatch.setattr("consumers.providers.download._resolve", resolve)
    monkeypatch.setattr("consumers.providers.destination.is_public", lambda _address: True)
    with WireServer(serve, tls=True) as server:
        client = ProviderClient(
            SIMULATOR,
            base_url="https://api.example",
            secret="s3cret-Token",
            tls=ssl.create_default_context(cafile=str(CERTIFICATE)),
        )
        url = f"https://provider.example:{server.port}/a.png"
        found = await download(url, target=InMemory(), rules=client.download_rules())
        assert (found.size, found.final_url) == (len(FILE), url)
        assert asked == ["provider.example"]
        assert f"Host: provider.example:{server.port}\r\n".encode() in server.received
        other = f"https://other.example:{server.port}/a.png"
        with pytest.raises(OutputCut, match="certificate"):
            await download(other, target=InMemory(), rules=client.download_rules())


async def test_plain_http_is_refused_to_a_public_address_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.providers.destination.is_public", lambda _address: True)
    with WireServer(listen) as server:
        with pytest.raises(OutputForbidden, match="not https"):
            await fetch(f"{server.url}/a.png", allowed=())
        assert server.connections == 0


async def test_a_redirect_is_checked_like_the_first_url() -> None:
    with WireServer(listen) as inside:

        def script(talk: Talk) -> None:
            talk.read_request()
            talk.answer(302, b"", f"Location: {inside.url}/metadata")

        with WireServer(script) as server, pytest.raises(OutputForbidden):
            await fetch(f"{server.url}/a.png")
        assert inside.connections == 0


async def test_credentials_go_to_the_providers_origin_and_to_no_other() -> None:
    with WireServer(serve) as storage:

        def script(talk: Talk) -> None:
            talk.read_request()
            talk.answer(307, b"", f"Location: {storage.url}/signed")

        with WireServer(script) as server:
            found = await fetch(f"{server.url}/a.png", allowed=("self", storage.url))
            assert b"Authorization: Bearer s3cret-Token" in server.received
        assert b"s3cret-Token" not in storage.received
        assert found.final_url == f"{storage.url}/signed"


async def test_a_relative_redirect_stays_where_it_was() -> None:
    def script(talk: Talk) -> None:
        if b"GET /a.png" in talk.read_request():
            talk.answer(301, b"", "Location: b.png?x=1")
        else:
            talk.answer(200, FILE)

    with WireServer(script) as server:
        found = await fetch(f"{server.url}/a.png")
    assert found.final_url == f"{server.url}/b.png?x=1"


async def test_a_redirect_without_end_or_without_aim_is_refused() -> None:
    def round_and_round(talk: Talk) -> None:
        talk.read_request()
        talk.answer(302, b"", "Location: /again")

    with WireServer(round_and_round) as server:
        with pytest.raises(OutputRefused, match="more than 3 times"):
            await fetch(f"{server.url}/a.png", limits=Limits(redirects=3))
        assert server.connections == 4

    def aimless(talk: Talk) -> None:
        talk.read_request()
        talk.answer(302, b"")

    with WireServer(aimless) as server, pytest.raises(OutputRefused, match="where to"):
        await fetch(f"{server.url}/a.png")


async def test_a_coding_that_was_not_asked_for_is_refused_when_it_cannot_be_undone() -> None:
    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(200, b"???", "Content-Encoding: br")

    with WireServer(script) as server, pytest.raises(OutputRefused, match="br"):
        await fetch(f"{server.url}/a.png")
