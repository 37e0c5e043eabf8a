"""The checkpoint on the wire, and what is said of bytes that are none."""

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import CheckpointUnreadable, DecodeError
from relay.kafka.checkpoint import Checkpoint, decode, encode, furthest, topic

_LSN = st.integers(0, 2**64 - 1)


@given(
    st.builds(
        Checkpoint,
        epoch=st.integers(1, 2**31),
        system_identifier=st.text(max_size=20),
        timeline=st.integers(1, 2**31),
        commit_lsn=_LSN,
        index=st.integers(-1, 2**62),
        event_id=st.none() | st.text(max_size=40),
        seq=st.integers(0, 2**63 - 1),
        confirmed_lsn=_LSN,
    )
)
def test_a_checkpoint_comes_back_as_it_was(checkpoint: Checkpoint) -> None:
    assert decode(encode(checkpoint)) == checkpoint


def test_a_person_can_read_it() -> None:
    checkpoint = Checkpoint(
        epoch=1,
        system_identifier="7",
        timeline=1,
        commit_lsn=0x16_B374D848,
        index=0,
        event_id=None,
        seq=0,
        confirmed_lsn=0x16_B374D850,
    )
    document = json.loads(encode(checkpoint))
    assert (document["commit_lsn"], document["confirmed_lsn"]) == ("16/B374D848", "16/B374D850")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"format": 2}'])
def test_bytes_that_are_no_checkpoint_are_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


def test_a_format_of_a_later_release_is_named() -> None:
    document = json.loads(
        encode(
            Checkpoint(
                epoch=1,
                system_identifier="7",
                timeline=1,
                commit_lsn=0,
                index=-1,
                event_id=None,
                seq=0,
                confirmed_lsn=0,
            )
        )
    )
    with pytest.raises(DecodeError, match="format 2"):
        decode(json.dumps({**document, "format": 2}).encode())


def test_its_topic_derives_from_the_relay_and_not_from_the_slot() -> None:
    assert topic("app", uuid.UUID(int=5)) == f"app.relay-checkpoint.{uuid.UUID(int=5)}"


def at(**position: int) -> Checkpoint:
    given: dict[str, int] = {
        "epoch": 1,
        "timeline": 1,
        "commit_lsn": 0,
        "index": -1,
        "confirmed_lsn": 0,
    } | position
    return Checkpoint(system_identifier="7", event_id=None, seq=0, **given)


@pytest.mark.parametrize(
    ("earlier", "last", "counts"),
    [
        (at(commit_lsn=9, confirmed_lsn=9), at(commit_lsn=5, confirmed_lsn=5), 0),  # of a frozen relay, late
        (at(commit_lsn=5), at(commit_lsn=5, confirmed_lsn=8), 1),
        (at(commit_lsn=9, confirmed_lsn=9), at(epoch=2, commit_lsn=5, confirmed_lsn=5), 1),  # repaired
        (at(commit_lsn=5, confirmed_lsn=9), at(timeline=2, commit_lsn=5, confirmed_lsn=8), 1),  # promoted
    ],
)
def test_the_checkpoint_that_is_furthest_on_counts(
    earlier: Checkpoint, last: Checkpoint, counts: int
) -> None:
    assert furthest([encode(earlier), encode(last)], "topic") == (earlier, last)[counts]


def test_the_last_one_must_be_readable_whatever_was_before_it() -> None:
    assert furthest([b"{}", encode(at(commit_lsn=5))], "topic") == at(commit_lsn=5)
    with pytest.raises(CheckpointUnreadable):
        furthest([encode(at(commit_lsn=5)), b"{}"], "topic")
