"""Whether the relay may go on: each row of the design's table, decided without a server."""

import uuid
from dataclasses import replace

import msgspec
import pytest

from relay import identity
from relay.errors import (
    CheckpointMissing,
    LogLost,
    OtherCluster,
    OutboxAltered,
    PhantomEvents,
    Repairing,
    Rewound,
    SynchronousStandbyName,
    UsageError,
)
from relay.identity import Server, Source, could_match, decide, may_start, require_event
from relay.kafka.checkpoint import Checkpoint
from relay.outbox.mapping import parse
from relay.wal.publication import Published
from relay.wal.slot import Slot, SourceIdentity

RECORDED = SourceIdentity(
    relay_id=uuid.UUID(int=1),
    slot_name="s",
    publication="p",
    outbox_table="relay.outbox",
    epoch=1,
    state="running",
    system_identifier="cluster-1",
    timeline=1,
    consistent_point=100,
    baseline_seq=7,
    verified_system_identifier=None,
    verified_timeline=None,
    verified_server_started_at=None,
    verified_at=None,
)
NEW = replace(RECORDED, state="new")
SLOT = Slot(
    name="s",
    plugin="pgoutput",
    database="app",
    temporary=False,
    active_pid=None,
    confirmed_flush=150,
    restart_lsn=90,
    wal_status="reserved",
    safe_wal_bytes=None,
    two_phase=False,
)
PUBLISHED = Published(
    outbox_exists=True,
    publication_exists=True,
    inserts=True,
    all_tables=False,
    outbox_included=True,
    row_filter=False,
    column_list=False,
    other_tables=0,
    via_root=False,
    partitioned=False,
)
SOURCE = Source(
    recorded=RECORDED,
    slot=SLOT,
    published=PUBLISHED,
    database="app",
    synchronous_standby_names="",
    flush_lsn=1000,
    system_identifier="cluster-1",
)
SERVER = Server("cluster-1", 1, 1000, {})
CHECKPOINT = Checkpoint(
    epoch=1,
    system_identifier="cluster-1",
    timeline=1,
    commit_lsn=300,
    index=2,
    event_id="e",
    seq=9,
    confirmed_lsn=310,
)


def start(source: Source) -> tuple[SourceIdentity, Slot]:
    return may_start(source, slot_name="s", publication="p", mapping=parse("relay.outbox", "native"))


def test_what_is_as_it_was_goes_on_from_the_checkpoint() -> None:
    assert start(SOURCE) == (RECORDED, SLOT)
    assert decide(RECORDED, SLOT, SERVER, CHECKPOINT) == CHECKPOINT


def test_a_new_relay_begins_at_the_consistent_point() -> None:
    first = decide(NEW, replace(SLOT, confirmed_flush=100), SERVER, None)
    assert (first.commit_lsn, first.index, first.event_id) == (0, -1, None)
    assert (first.confirmed_lsn, first.seq, first.epoch) == (100, 7, 1)


@pytest.mark.parametrize("recorded", [RECORDED, NEW], ids=["running", "new, but the slot was moved"])
def test_nothing_else_excuses_a_missing_checkpoint(recorded: SourceIdentity) -> None:
    with pytest.raises(CheckpointMissing):
        decide(recorded, SLOT, SERVER, None)


def test_a_relay_that_ran_has_no_second_first_start_at_the_consistent_point() -> None:
    with pytest.raises(CheckpointMissing):
        decide(RECORDED, replace(SLOT, confirmed_flush=100), SERVER, None)


def test_a_checkpoint_is_used_even_if_the_crash_came_before_the_state_was_written() -> None:
    assert decide(NEW, SLOT, SERVER, CHECKPOINT) == CHECKPOINT


def test_a_slot_above_the_checkpoint_was_moved_by_somebody() -> None:
    with pytest.raises(CheckpointMissing, match="advanced it"):
        decide(RECORDED, replace(SLOT, confirmed_flush=311), SERVER, CHECKPOINT)


def test_a_checkpoint_of_another_epoch_is_none() -> None:
    with pytest.raises(CheckpointMissing, match="epoch 1"):
        decide(replace(RECORDED, epoch=2), SLOT, SERVER, CHECKPOINT)


def test_another_cluster_stops() -> None:
    with pytest.raises(OtherCluster):
        decide(RECORDED, SLOT, replace(SERVER, system_identifier="cluster-2"), CHECKPOINT)


def test_a_checkpoint_of_another_cluster_stops() -> None:
    other = msgspec.structs.replace(CHECKPOINT, system_identifier="cluster-2")
    with pytest.raises(OtherCluster):
        decide(RECORDED, SLOT, SERVER, other)


def test_a_server_that_flushed_less_than_kafka_has_was_rewound() -> None:
    with pytest.raises(Rewound):
        decide(RECORDED, SLOT, replace(SERVER, flush_lsn=299), CHECKPOINT)


def test_an_outbox_without_the_checkpoints_event_was_rewound() -> None:
    require_event(CHECKPOINT, kept=True)
    with pytest.raises(Rewound, match="not in the outbox"):
        require_event(CHECKPOINT, kept=False)


def test_a_promotion_that_lost_what_kafka_has_left_phantoms() -> None:
    with pytest.raises(PhantomEvents):
        decide(RECORDED, SLOT, replace(SERVER, timeline=2, switches={1: 300}), CHECKPOINT)


def test_a_clean_promotion_goes_on_below_the_switch() -> None:
    found = decide(RECORDED, SLOT, replace(SERVER, timeline=2, switches={1: 305}), CHECKPOINT)
    assert (found.timeline, found.confirmed_lsn, found.commit_lsn) == (2, 305, 300)


def test_a_promotion_that_postgres_has_recorded_and_kafka_has_not_is_still_a_clean_one() -> None:
    found = decide(
        replace(RECORDED, timeline=2), SLOT, replace(SERVER, timeline=2, switches={1: 305}), CHECKPOINT
    )
    assert (found.timeline, found.confirmed_lsn) == (2, 305)


def test_after_two_promotions_the_end_of_the_checkpoints_timeline_counts() -> None:
    twice = replace(SERVER, timeline=3, switches={1: 305, 2: 900})
    assert decide(RECORDED, SLOT, twice, CHECKPOINT).confirmed_lsn == 305


def test_a_timeline_without_ours_in_its_history_is_another_life() -> None:
    with pytest.raises(Rewound, match="history"):
        decide(RECORDED, SLOT, replace(SERVER, timeline=2, switches={}), CHECKPOINT)


def test_a_setting_that_names_another_outbox_is_wrong_use_and_no_altered_outbox() -> None:
    elsewhere = replace(SOURCE, recorded=replace(RECORDED, outbox_table="public.theirs"))
    with pytest.raises(UsageError, match=r"was made for public\.theirs"):
        start(replace(elsewhere, published=replace(PUBLISHED, outbox_exists=False)))


def test_without_init_nothing_runs() -> None:
    with pytest.raises(UsageError, match="relay init"):
        start(replace(SOURCE, recorded=None))


def test_during_a_repair_nothing_runs() -> None:
    with pytest.raises(Repairing):
        start(replace(SOURCE, recorded=replace(RECORDED, state="repairing")))


@pytest.mark.parametrize("slot", [None, replace(SLOT, wal_status="lost")])
def test_a_slot_that_is_gone_or_lost_stops(slot: Slot | None) -> None:
    with pytest.raises(LogLost):
        start(replace(SOURCE, slot=slot))


@pytest.mark.parametrize(
    "published",
    [
        replace(PUBLISHED, outbox_exists=False),
        replace(PUBLISHED, publication_exists=False),
        replace(PUBLISHED, inserts=False),
        replace(PUBLISHED, all_tables=True),
        replace(PUBLISHED, outbox_included=False),
        replace(PUBLISHED, row_filter=True),
        replace(PUBLISHED, column_list=True),
        replace(PUBLISHED, other_tables=1),
        replace(PUBLISHED, partitioned=True, via_root=False),
        replace(PUBLISHED, missing_columns=("seq",)),
    ],
)
def test_a_publication_that_sends_less_or_more_than_the_outbox_stops(published: Published) -> None:
    with pytest.raises(OutboxAltered) as caught:
        start(replace(SOURCE, published=published))
    assert caught.value.remedy


@pytest.mark.parametrize(
    "slot",
    [
        replace(SLOT, plugin="test_decoding"),
        replace(SLOT, database="other"),
        replace(SLOT, temporary=True),
        replace(SLOT, two_phase=True),
    ],
)
def test_a_slot_of_another_kind_is_somebody_elses(slot: Slot) -> None:
    with pytest.raises(UsageError):
        start(replace(SOURCE, slot=slot))


def test_settings_that_name_another_outbox_than_the_relays_are_refused() -> None:
    with pytest.raises(UsageError, match=r"app\.other"):
        may_start(SOURCE, slot_name="s", publication="p", mapping=parse("app.other", "native"))


@pytest.mark.parametrize(
    "setting",
    ["*", "a, *", "FIRST 1 (a, *)", "ANY 2 (*)", "outbox-relay-s", 'ANY 1 ("OUTBOX-RELAY-S")', '2 (b, "*")'],
)
def test_a_name_that_could_take_the_relay_for_a_standby_stops(setting: str) -> None:
    with pytest.raises(SynchronousStandbyName):
        start(replace(SOURCE, synchronous_standby_names=setting))


@pytest.mark.parametrize("setting", ["", "a", "FIRST 1 (a, b)", "ANY 1 (outbox-relay-other)"])
def test_other_standbys_names_are_left_alone(setting: str) -> None:
    assert not could_match(setting, identity.application_name("s"))
