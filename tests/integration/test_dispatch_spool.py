"""A spool that can't be used is the worker's fault: it is seen before anything is claimed, and no operation
and no event pays for it."""

import contextlib
import resource
import shutil
from collections.abc import Iterator

import pytest

from consumers.dispatch import Dispatch
from consumers.providers.spool import Spool, SpoolError
from fix_dispatch import Dispatching
from relay.errors import Unavailable

pytestmark = pytest.mark.anyio


@contextlib.contextmanager
def files_of(limit_bytes: int) -> Iterator[None]:
    """This process may write no longer file, as on a disk that is almost full (EFBIG in place of ENOSPC)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def untouched(dispatching: Dispatching, dispatcher: Dispatch, match: str) -> None:
    operation = dispatching.prepared()
    for _ in range(3):
        with pytest.raises(Unavailable, match=match) as caught:
            await dispatching.hand_over(dispatcher, operation)
        assert "RELAY_SPOOL" in str(caught.value)
    assert dispatching.row(operation, "phase, version, dispatch_no") == ("prepared", 1, 1)
    assert not dispatching.all("select 1 from relay.attempt where operation_id = %s", operation)


async def test_a_full_disk_is_seen_before_the_claim(dispatching: Dispatching) -> None:
    dispatcher = await dispatching.dispatcher()
    with files_of(1024 * 1024):
        await untouched(dispatching, dispatcher, "can't be written: File too large")
    operation = dispatching.prepared()
    await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase") == ("accepted",), "it goes on when there is room again"


async def test_a_spool_that_is_gone_is_seen_before_the_claim(dispatching: Dispatching) -> None:
    dispatcher = await dispatching.dispatcher()
    shutil.rmtree(dispatcher._spool.folder)
    await untouched(dispatching, dispatcher, "can't be written: No such file or directory")


async def test_a_spool_that_fails_in_the_hook_sends_nothing_and_is_asked_whether_it_takes_an_entry(
    dispatching: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may promise room and not keep it: one attempt is unsent, and no second is made."""
    dispatcher = await dispatching.dispatcher()
    first = dispatching.prepared()
    sending = dispatcher._spool.sending

    def onto_a_broken_disk(attempt_id: str, operation_id: str) -> None:
        with files_of(8):
            sending(attempt_id, operation_id)

    with monkeypatch.context() as broken:
        broken.setattr(dispatcher._spool, "sending", onto_a_broken_disk)
        with pytest.raises(Unavailable, match="can't be written"):
            await dispatching.hand_over(dispatcher, first)
    assert dispatching.row(first, "phase, phase_reason, dispatch_no") == ("prepared", "not_recorded", 2)
    assert dispatching.posts(first) == 0
    assert dispatching.all("select state from relay.reservation") == [("released",)]
    with files_of(8):
        await untouched(dispatching, dispatcher, "can't be written")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("not-an-attempt.jsonl", "is not an attempt's entry"),
        ("11111111-1111-4111-8111-111111111111.jsonl", "directory"),
    ],
    ids=["a foreign file", "an entry that can't be read"],
)
async def test_what_is_wrong_with_the_spool_parks_no_event(
    dispatching: Dispatching, name: str, said: str
) -> None:
    """Unavailable is tried for as long as it lasts; anything else would park a good event after a while."""
    dispatcher = await dispatching.dispatcher()
    foreign = dispatcher._spool.folder / name
    if said == "directory":
        foreign.mkdir()
    else:
        foreign.write_text('{"kind": "sending", "operation_id": "x"}\n')
    operation = dispatching.prepared()
    dispatcher._leftovers = True
    with pytest.raises(Unavailable, match=said):
        await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase, version") == ("prepared", 1)
    foreign.rmdir() if said == "directory" else foreign.unlink()
    await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase") == ("accepted",)


async def test_an_entry_that_can_not_be_removed_harms_no_event(
    dispatching: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = await dispatching.dispatcher()
    operation = dispatching.prepared()

    def stays(_spool: Spool, _attempt_id: str) -> None:
        raise SpoolError("The spool can't be emptied.", remedy="RELAY_SPOOL")

    with monkeypatch.context() as broken:
        broken.setattr(Spool, "applied", stays)
        await dispatching.hand_over(dispatcher, operation)
        with pytest.raises(Unavailable, match="can't be emptied"):
            await dispatching.hand_over(dispatcher, dispatching.prepared())
    assert dispatching.row(operation, "phase, version") == ("accepted", 4)
    await dispatching.hand_over(dispatcher, operation)
    assert dispatching.row(operation, "phase, version") == ("accepted", 4)
    assert not list(dispatcher._spool.folder.glob("*.jsonl"))
