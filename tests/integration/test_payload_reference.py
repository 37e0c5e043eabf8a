"""A payload by reference: the bytes that were approved are sent, or nothing is."""

import asyncio
import hashlib
import os
import ssl
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest

from consumers.dispatch import Dispatch
from consumers.operations.audit import audit
from consumers.operations.specification import Reference
from consumers.payloads import PayloadChanged, Payloads, PayloadUnreachable
from fix_commands import Command
from fix_dispatch import Dispatching
from fix_operations import APPLICATION, PROVIDER, Stage
from fix_s3 import ACCESS_KEY, BUCKET, S3, SECRET_KEY
from fix_scene import OWNER, UNIT
from relay.errors import UsageError
from relay.outbox.intent import Intent, PayloadRef, prepare
from wire import LOCALHOST, Talk, WireServer, listen, refused_port

pytestmark = pytest.mark.anyio

CONTENT: Final = b'{"prompt":  "a boat, and 12345678901234567890.10 gulls"}\n'
OTHER: Final = b'{"prompt":  "a ship, and 12345678901234567890.10 gulls"}\n'


def reference(url: str, content: bytes = CONTENT) -> Reference:
    return Reference(url=url, sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def payloads(*sources: str) -> Payloads:
    return Payloads(sources, lease_s=60.0, tls=ssl.create_default_context(cafile=str(LOCALHOST)))


def prepared(scene: Dispatching, ref: PayloadRef) -> UUID:
    intent = Intent("generation", OWNER, str(uuid4()), ref, "simulator", Decimal(5), cost_unit=UNIT)
    return prepare(scene.connection, intent).operation_id


async def dispatched(scene: Dispatching, operation: UUID, *sources: str) -> str:
    """The phase after a dispatcher that may read from `sources` was handed its newest event."""
    event = scene.last(operation, "generation.requested")
    await scene.handle(Dispatch(), event, RELAY_PAYLOAD_SOURCES=",".join(sources))
    return scene.phase(operation)


# Through dispatch -----------------------------------------------------------------------------------------


async def test_the_approved_bytes_are_sent_as_they_are(
    dispatching: Dispatching, tmp_path: Path, command: Command
) -> None:
    """Byte for byte: two spaces and a number that no float holds included."""
    file = tmp_path / "payload one.json"
    file.write_bytes(CONTENT)
    operation = prepared(dispatching, PayloadRef.to(file.as_uri(), CONTENT))
    assert await dispatched(dispatching, operation, tmp_path.as_uri()) == "accepted"
    (post,) = dispatching.simulator.truth()["posts"]
    assert post["body_sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert dispatching.row(operation, "payload, payload_bytes") == (None, len(CONTENT))
    assert [finding.what for finding in await _audited(dispatching)] == []
    env = dispatching.environment | {"RELAY_DATABASE_URL": dispatching.database.url_as("relay_reader")}
    shown = await asyncio.to_thread(lambda: command("ops", "show", str(operation), env=env).out)
    assert f"SHA-256 {hashlib.sha256(CONTENT).hexdigest()}" in shown
    said = f"{shown} {dispatching.all('select payload, headers from relay.outbox')}"
    assert "payload one" not in said
    assert "payload%20one" not in said


async def test_unreachable_bytes_send_nothing_and_are_asked_for_again(
    dispatching: Dispatching, tmp_path: Path
) -> None:
    file = tmp_path / "payload.json"
    operation = prepared(dispatching, PayloadRef.to(file.as_uri(), CONTENT))
    assert await dispatched(dispatching, operation, tmp_path.as_uri()) == "prepared"
    assert dispatching.row(operation, "phase_reason, not_before > relay.now(), accounting") == (
        "payload_unreachable", True, "none",
    )  # fmt: skip
    ((outcome, evidence),) = dispatching.all("select outcome, evidence from relay.attempt")
    assert outcome == "unsent"
    assert "No such file" in evidence["error"]
    assert dispatching.posts(operation) == 0
    file.write_bytes(CONTENT)
    await dispatching.wake("1 minute")
    assert await dispatched(dispatching, operation, tmp_path.as_uri()) == "accepted"


async def test_bytes_that_stay_unreachable_are_held_for_a_person(
    dispatching: Dispatching, tmp_path: Path
) -> None:
    operation = prepared(dispatching, PayloadRef.to((tmp_path / "none").as_uri(), CONTENT))
    for _ in range(dispatching.profile.max_unsent):
        assert dispatching.phase(operation) == "prepared"
        await dispatched(dispatching, operation, tmp_path.as_uri())
        await dispatching.wake("10 minutes")
    assert dispatching.row(operation, "phase, phase_reason") == ("held", "unreachable")
    assert dispatching.reviews(operation) == ["hold"]


@pytest.mark.parametrize("found", [OTHER, CONTENT[:-1], CONTENT + b" ", b""])
async def test_changed_bytes_are_held_with_an_incident_and_a_review(
    dispatching: Dispatching, tmp_path: Path, found: bytes
) -> None:
    file = tmp_path / "payload.json"
    file.write_bytes(found)
    operation = prepared(dispatching, PayloadRef.to(file.as_uri(), CONTENT))
    assert await dispatched(dispatching, operation, tmp_path.as_uri()) == "held"
    assert dispatching.row(operation, "phase_reason, accounting") == ("specification", "none")
    assert dispatching.reviews(operation) == ["hold"]
    ((boundary, what, evidence),) = dispatching.all("select boundary, what, evidence from relay.incident")
    assert boundary == "claim"
    assert "not what was approved" in what
    assert evidence["approved_sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert evidence["found_bytes" if "found_bytes" in evidence else "bytes"] == len(found)
    assert dispatching.posts(operation) == 0


async def test_a_place_that_is_not_listed_is_held_for_configuration(
    dispatching: Dispatching, tmp_path: Path
) -> None:
    (tmp_path / "payload.json").write_bytes(CONTENT)
    operation = prepared(dispatching, PayloadRef.to((tmp_path / "payload.json").as_uri(), CONTENT))
    assert await dispatched(dispatching, operation, (tmp_path / "other").as_uri()) == "held"
    assert dispatching.row(operation, "phase_reason") == ("configuration",)
    assert "RELAY_PAYLOAD_SOURCES" in dispatching.one(
        "select reason from relay.journal where operation_id = %s and to_phase = 'held'", operation
    )
    assert dispatching.posts(operation) == 0


async def test_a_digest_in_the_row_that_is_not_the_approved_one_is_found(
    dispatching: Dispatching, tmp_path: Path
) -> None:
    """Somebody with the owner's rights, who switched the guards off."""
    file = tmp_path / "payload.json"
    file.write_bytes(OTHER)
    operation = prepared(dispatching, PayloadRef.to(file.as_uri(), CONTENT))
    change = "update relay.operation set payload_sha256 = %s where operation_id = %s"
    with pytest.raises(psycopg.Error, match="can't change"):
        dispatching.connection.execute(change, [hashlib.sha256(OTHER).hexdigest(), operation])
    dispatching.connection.execute("alter table relay.operation disable trigger b_guard_reference")
    dispatching.connection.execute(change, [hashlib.sha256(OTHER).hexdigest(), operation])
    assert await dispatched(dispatching, operation, tmp_path.as_uri()) == "held"
    assert dispatching.row(operation, "phase_reason") == ("specification",)
    assert any("specification hashes to" in finding.what for finding in await _audited(dispatching))
    assert dispatching.posts(operation) == 0


async def _audited(scene: Dispatching) -> list[Any]:
    async with scene.pool.connection() as connection:
        return await audit(connection)


# Files ----------------------------------------------------------------------------------------------------


async def test_a_listed_folder_is_no_way_out_of_it(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_bytes(CONTENT)
    (inside / "link").symlink_to(outside / "secret")
    (tmp_path / "in-name-only").write_bytes(CONTENT)
    for path in ("in/link", "in/../out/secret", "in/%2e%2e/out/secret", "out/secret", "in-name-only"):
        with pytest.raises(UsageError, match="RELAY_PAYLOAD_SOURCES"):
            await payloads(inside.as_uri()).fetch(reference(f"{tmp_path.as_uri()}/{path}"))


async def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PayloadChanged, match="no regular file"):
        await payloads(tmp_path.as_uri()).fetch(reference((tmp_path / "pipe").as_uri()))
    with pytest.raises((PayloadUnreachable, PayloadChanged)):
        await payloads(tmp_path.as_uri()).fetch(reference(tmp_path.as_uri()))


# https ----------------------------------------------------------------------------------------------------


def serving(content: bytes, *, status: int = 200, announce: int | None = None) -> WireServer:
    def script(talk: Talk) -> None:
        talk.read_request()
        talk.answer(status, content, announce=announce)

    return WireServer(script, tls=LOCALHOST)


def https(server: WireServer) -> tuple[str, str]:
    """A listed origin, and a reference's URL there."""
    return f"https://127.0.0.1:{server.port}", f"https://127.0.0.1:{server.port}/p.json?signature=s3cr3t"


async def fetched(server: WireServer, *, lease_s: float = 60.0) -> bytes:
    """From a listed server, by a client that trusts it."""
    origin, url = https(server)
    tls = ssl.create_default_context(cafile=str(LOCALHOST))
    return await Payloads((origin,), lease_s=lease_s, tls=tls).fetch(reference(url))


async def test_bytes_from_https_are_the_approved_ones_or_none() -> None:
    with serving(CONTENT) as server:
        assert await fetched(server) == CONTENT
        assert b"uthorization" not in server.received
    for found in (OTHER, CONTENT + b" ", CONTENT[:-1]):
        with (
            serving(found) as server,
            pytest.raises(PayloadChanged, match="not what was approved") as changed,
        ):
            await fetched(server)
        assert "s3cr3t" not in f"{changed.value} {changed.value.evidence}"


@pytest.mark.parametrize("status", [404, 403, 410, 401, 429, 500, 503, 204])
async def test_an_answer_that_is_not_the_bytes_is_unreachable(status: int) -> None:
    content = b"" if status == 204 else b"no"
    with serving(content, status=status) as server, pytest.raises(PayloadUnreachable) as caught:
        await fetched(server)
    assert "s3cr3t" not in str(caught.value)


async def test_a_cut_answer_and_a_silent_server_are_unreachable_and_never_changed() -> None:
    def endless(talk: Talk) -> None:
        talk.read_request()
        talk.send(b"HTTP/1.1 200 OK\r\n\r\n" + CONTENT[:10])

    with serving(CONTENT[:10], announce=len(CONTENT)) as server, pytest.raises(PayloadUnreachable):
        await fetched(server)
    with WireServer(endless, tls=LOCALHOST) as server, pytest.raises(PayloadUnreachable, match="was cut"):
        await fetched(server)
    with WireServer(listen, tls=LOCALHOST) as server, pytest.raises(PayloadUnreachable, match="longer than"):
        await fetched(server, lease_s=0.6)
    port = refused_port()
    with pytest.raises(PayloadUnreachable):
        await payloads(f"https://127.0.0.1:{port}").fetch(reference(f"https://127.0.0.1:{port}/p"))


async def test_more_than_the_approved_bytes_are_not_read() -> None:
    def flood(talk: Talk) -> None:
        talk.read_request()
        talk.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            talk.send(b"x" * 65536)

    with WireServer(flood, tls=LOCALHOST) as server, pytest.raises(PayloadChanged, match="more than"):
        await fetched(server)
    with serving(CONTENT + b" ") as server, pytest.raises(PayloadChanged, match="more than"):
        await fetched(server)


async def test_a_private_address_is_fetched_from_only_where_it_is_listed() -> None:
    with serving(CONTENT) as inside:
        _, url = https(inside)
        with pytest.raises(UsageError, match="RELAY_PAYLOAD_SOURCES"):
            await payloads().fetch(reference(url))
        assert inside.connections == 0

        def script(talk: Talk) -> None:
            talk.read_request()
            talk.answer(302, b"", f"Location: {url}")

        with WireServer(script, tls=LOCALHOST) as server:
            with pytest.raises(UsageError, match="RELAY_PAYLOAD_SOURCES"):
                await payloads(https(server)[0]).fetch(reference(https(server)[1]))
            assert inside.connections == 0
            assert (
                await payloads(https(server)[0], https(inside)[0]).fetch(reference(https(server)[1]))
                == CONTENT
            )


# S3 -------------------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


async def test_bytes_from_a_bucket_are_the_approved_ones_or_none(bucket: S3) -> None:
    bucket.put("approved/p.json", CONTENT)
    bucket.put("approved/other.json", OTHER)
    bucket.put("approved/longer.json", CONTENT + b" ")
    bucket.put("approved-not/p.json", CONTENT)
    listed = payloads(f"s3://{BUCKET}/approved")
    assert await listed.fetch(reference(f"s3://{BUCKET}/approved/p.json")) == CONTENT
    for key in ("other.json", "longer.json"):
        with pytest.raises(PayloadChanged):
            await listed.fetch(reference(f"s3://{BUCKET}/approved/{key}"))
    with pytest.raises(PayloadUnreachable) as caught:
        await listed.fetch(reference(f"s3://{BUCKET}/approved/none.json"))
    assert SECRET_KEY not in str(caught.value)
    assert ACCESS_KEY not in str(caught.value)
    for url in (f"s3://{BUCKET}/approved-not/p.json", "s3://another/approved/p.json"):
        with pytest.raises(UsageError, match="RELAY_PAYLOAD_SOURCES"):
            await listed.fetch(reference(url))


@pytest.mark.parametrize(
    "source",
    ["/srv/payloads", "http://files.example", "https://files.example/path", "ftp://a/b", "s3://k:s@b"],
)
def test_a_source_that_is_no_prefix_is_refused_at_the_start(source: str) -> None:
    with pytest.raises(UsageError, match="RELAY_PAYLOAD_SOURCES"):
        payloads(source)


# What is approved -----------------------------------------------------------------------------------------


def _prepare(stage: Stage, **changes: Any) -> Any:
    given = {
        "payload_ref": "https://files.example/p.json",
        "payload_sha256": "A" * 64,
        "payload_bytes": 7,
        "key": str(uuid4()),
    } | changes
    with stage.acting(APPLICATION) as connection:
        return connection.execute(
            "select operation_id, specification_hash, payload_sha256 from relay.prepare_operation("
            "kind => 'generation', owner_id => 'studio', operation_key => %(key)s, provider => %(provider)s,"
            " max_cost => 5, payload_ref => %(payload_ref)s, payload_sha256 => %(payload_sha256)s,"
            " payload_bytes => %(payload_bytes)s)",
            {"provider": PROVIDER, **given},
        ).fetchone()


def test_the_specification_covers_digest_and_length_and_not_the_place(stage: Stage) -> None:
    operation, hashed, sha256 = _prepare(stage, key="one")
    assert sha256 == "a" * 64
    assert _prepare(stage, key="one", payload_ref="s3://bucket/p.json")[0] == operation
    assert _prepare(stage)[1] == hashed
    for change in ({"payload_sha256": "b" * 64}, {"payload_bytes": 8}):
        assert _prepare(stage, **change)[1] != hashed
        with pytest.raises(psycopg.Error, match="already has the specification") as conflict:
            _prepare(stage, key="one", **change)
        assert conflict.value.sqlstate == "OR001"


@pytest.mark.parametrize(
    "change",
    [
        {"payload_sha256": None},
        {"payload_bytes": None},
        {"payload_ref": None},
        {"payload_ref": None, "payload_sha256": None, "payload_bytes": None},
        {"payload_bytes": -1},
        {"payload_bytes": 16_777_217},
        {"payload_sha256": "a" * 63},
        {"payload_ref": "http://files.example/p.json"},
        {"payload_ref": "https://user:secret@files.example/p.json"},
        {"payload_ref": "https://files.example/p.json#part"},
        {"payload_ref": "file://host/p.json"},
        {"payload_ref": "s3://bucket"},
        {"payload_ref": "https://files.example/" + "p" * 2048},
    ],
)
def test_a_reference_that_is_not_whole_is_refused_in_words(stage: Stage, change: dict[str, Any]) -> None:
    with pytest.raises(psycopg.Error, match="payload") as refused:
        _prepare(stage, **change)
    assert refused.value.sqlstate in ("22004", "22023")
    assert "secret" not in str(refused.value)
