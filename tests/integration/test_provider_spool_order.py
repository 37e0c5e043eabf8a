"""By a recorded order of system calls: the spool's entry is on the disk before the first byte leaves."""

import time
from pathlib import Path

import pytest

from consumers.providers.answer import to_record
from consumers.providers.client import ProviderClient
from consumers.providers.spool import Spool
from provider_samples import profile, submission
from syscalls import Call, recorded
from wire import Talk, WireServer

pytestmark = pytest.mark.anyio

GENACE = profile("genace")
ATTEMPT = "0193e4b2-0000-7000-8000-000000000001"


def script(talk: Talk) -> None:
    talk.read_request()
    talk.answer(201, b'{"job_id": "job-1"}')


async def test_the_sending_entry_and_its_name_are_synced_before_the_first_byte_and_the_answer_after_the_last(
    tmp_path: Path,
) -> None:
    spool = Spool.open(tmp_path)
    with WireServer(script) as server:

        async def hook() -> None:
            spool.sending(ATTEMPT, "op-1")

        client = ProviderClient(GENACE, base_url=server.url, secret="s3cret-Token")
        with recorded() as calls:
            answer = await client.submit(
                submission(GENACE, server.url), before_first_byte=hook, deadline=time.monotonic() + 30.0
            )
            spool.answer(ATTEMPT, to_record(answer))
    entry = str(spool.folder / f"{ATTEMPT}.jsonl")
    send = Call("send", f"127.0.0.1:{server.port}")
    wanted = [call for call in calls if call.name == "fsync" or call == send]
    assert wanted[:2] == [Call("fsync", entry), Call("fsync", str(spool.folder))]
    assert wanted[2] == send
    assert wanted[-1] == Call("fsync", entry)
    assert set(wanted[2:-1]) == {send}
    spool.applied(ATTEMPT)
    spool.close()


async def test_a_sending_that_the_disk_refuses_sends_no_byte(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path)
    spool.sending(ATTEMPT, "op-1")
    with WireServer(script) as server:

        async def hook() -> None:
            spool.sending(ATTEMPT, "op-1")

        client = ProviderClient(GENACE, base_url=server.url, secret="s3cret-Token")
        with recorded() as calls:
            answer = await client.submit(
                submission(GENACE, server.url), before_first_byte=hook, deadline=time.monotonic() + 30.0
            )
        assert server.received == b""
    assert not answer.sent
    assert [call for call in calls if call.target == f"127.0.0.1:{server.port}"] == []
