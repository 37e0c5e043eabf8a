"""A credential is in its variable or its file, and nowhere else: no table, event, spool, log or error has it,
however the provider echoes it and whatever fails. A rotated file is taken up by the running process.
"""

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from consumers.dispatch import Dispatch
from consumers.providers.simulator_http import Call, Reply
from fix_postgres import Database
from fix_scene import Scene
from provider_shapes import Shape
from relay.errors import RelayError

OLD = "sk-old-7Qm2Zr9vLx4TtY8b"
NEW = "sk-new-Hw5Kc1pNd3Gf6JsA"


def echoing(shape: Shape, call: Call, body: bytes) -> Reply | None:
    """Says in every way what it was sent, and fails in another way each time."""
    said = call.headers.get("authorization", "")
    bare = said.removeprefix("Bearer ")
    told = json.dumps(
        {
            "error": {"message": f"no entry for {said}", "key": base64.b64encode(bare.encode()).decode()},
            "job_id": bare,
        }
    ).encode()
    echo = (("Content-Type", "application/json"), ("X-Request-Id", bare), ("Location", f"http://x/?k={bare}"))
    shape.jobs.setdefault(bare, {"seen": 0})["seen"] += 1
    ways = [
        Reply(status=401, headers=echo, body=told),
        Reply(status=500, headers=echo, body=told),
        Reply(status=201, headers=echo, body=told, cut_after=len(told) - 30),
        Reply(status=307, headers=echo, body=told),
        Reply(status=422, headers=echo, body=told),
        Reply(silent=True),
    ]
    if call.method == "GET":
        return Reply(status=500, headers=echo, body=told)
    return ways[(len(shape.posts) - 1) % len(ways)]


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path) as running:
        yield running


def everything(scene: Scene) -> Iterator[tuple[str, str]]:
    """Every row of every table, as text. What is in the topics comes from the outbox and nowhere else."""
    tables = scene.all(
        "select c.oid::regclass::text from pg_class c where c.relkind = 'r' and c.relnamespace"
        " in ('relay'::regnamespace, 'public'::regnamespace)"
    )
    for (table,) in tables:
        for (row,) in scene.all(f"select t::text from {table} t"):
            yield table, row


def test_no_table_event_spool_log_or_error_has_the_credential_after_a_run_with_failures(
    scene: Scene, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secret_file = tmp_path / "credential"
    secret_file.write_text(OLD + "\n")
    errors: list[str] = []
    with Shape(echoing) as provider:
        changed = {
            "RELAY_PROVIDER_SIMULATOR_URL": provider.url,
            "RELAY_PROVIDER_SIMULATOR_SECRET_FILE": str(secret_file),
        }

        async def run() -> None:
            async with scene.context(**changed) as ctx:
                dispatch = Dispatch()
                await dispatch.open(ctx)
                for number in range(12):
                    if number == 6:
                        secret_file.write_text(NEW)
                    scene.connection.execute("update relay.provider_account set paused_at = null")
                    operation = scene.prepare()
                    try:
                        await dispatch.handle(scene.last(operation, "generation.requested"), ctx)
                    except RelayError as error:
                        errors.append(repr(error))
                secret_file.unlink()
                try:
                    await dispatch.handle(scene.last(scene.prepare(), "generation.requested"), ctx)
                except (RelayError, psycopg.Error) as error:
                    errors.append(str(error))
                await dispatch.close()

        asyncio.run(run())
        used = {call.headers["authorization"] for call, _ in provider.posts}
        assert used == {f"Bearer {OLD}", f"Bearer {NEW}"}, "the rotated file was not taken up"
        assert len(provider.posts) == 12

    said = capfd.readouterr()
    spooled = [
        (str(path), path.read_text("latin-1")) for path in (tmp_path / "spool").rglob("*") if path.is_file()
    ]
    seen = [*everything(scene), *spooled, ("the log", said.out + said.err), ("an error", "\n".join(errors))]
    assert len(seen) > 100
    for secret in (OLD, NEW):
        forms = [secret, base64.b64encode(secret.encode()).decode(), secret.encode().hex()]
        for where, text in seen:
            for form in forms:
                assert form not in text, f"{where} has the credential: {text[:300]}"
    assert any("can't be read" in one for one in errors)
