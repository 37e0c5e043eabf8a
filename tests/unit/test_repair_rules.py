"""Whether a repair may begin, and what it is: decided without a server."""

import uuid
from dataclasses import replace

import msgspec
import pytest

from relay.errors import OtherCluster, PhantomEvents, Rewound, UsageError
from relay.identity import Server
from relay.kafka.checkpoint import Checkpoint
from relay.outbox.repair_rules import Asked, Plan, plan, require_idle
from relay.wal.slot import Slot, SourceIdentity

RECORDED = SourceIdentity(
    relay_id=uuid.UUID(int=1),
    slot_name="s",
    publication="p",
    outbox_table="relay.outbox",
    epoch=3,
    state="running",
    system_identifier="cluster-1",
    timeline=1,
    consistent_point=100,
    baseline_seq=0,
    verified_system_identifier=None,
    verified_timeline=None,
    verified_server_started_at=None,
    verified_at=None,
)
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
SERVER = Server("cluster-1", 1, 1000, {})
CHECKPOINT = Checkpoint(
    epoch=3,
    system_identifier="cluster-1",
    timeline=1,
    commit_lsn=300,
    index=0,
    event_id="e",
    seq=9,
    confirmed_lsn=310,
)
REWOUND = replace(SERVER, flush_lsn=200)
PROMOTED = Server("cluster-1", 2, 1000, {1: 250})
OTHER = replace(SERVER, system_identifier="cluster-2")


def planned(
    server: Server = SERVER,
    *,
    recorded: SourceIdentity = RECORDED,
    checkpoint: Checkpoint | None = CHECKPOINT,
    kept_event: bool = True,
    asked: Asked | None = None,
) -> Plan:
    return plan(recorded, server, checkpoint, kept_event=kept_event, asked=asked or Asked())


def test_a_repair_of_the_same_source_raises_the_epoch() -> None:
    assert planned() == Plan(epoch=4, origin="repair", source_accepted=False, rewound=False)


def test_the_epoch_is_above_postgres_and_above_kafka() -> None:
    later = msgspec.structs.replace(CHECKPOINT, epoch=7)
    assert planned(checkpoint=later).epoch == 8
    assert planned(checkpoint=None).epoch == 4


def test_a_relay_that_never_ran_is_backfilled_and_so_is_its_interrupted_backfill() -> None:
    new = replace(RECORDED, state="new")
    assert planned(recorded=new, checkpoint=None).origin == "backfill"
    interrupted = replace(RECORDED, state="repairing", repair_origin="backfill")
    assert planned(recorded=interrupted, checkpoint=None).origin == "backfill"
    assert planned(asked=Asked(backfill=True)).origin == "backfill"


@pytest.mark.parametrize(
    ("server", "kept_event", "stop"),
    [
        (OTHER, True, OtherCluster),
        (REWOUND, True, Rewound),
        (PROMOTED, True, PhantomEvents),
        (SERVER, False, Rewound),
    ],
    ids=["another cluster", "rewound", "phantoms", "the last event is gone"],
)
def test_a_source_that_nobody_accepted_is_not_repaired(
    server: Server, kept_event: bool, stop: type[Exception]
) -> None:
    with pytest.raises(stop):
        planned(server, kept_event=kept_event)
    interrupted = replace(RECORDED, state="repairing", repair_origin="repair")
    with pytest.raises(stop):
        planned(server, kept_event=kept_event, recorded=interrupted)


def test_a_rewind_is_accepted_and_what_goes_on_with_it_does_not_ask_again() -> None:
    accepted = planned(REWOUND, asked=Asked(accept="rewind"))
    assert (accepted.source_accepted, accepted.rewound) == (True, True)
    interrupted = replace(RECORDED, state="repairing", source_accepted=True, repair_origin="repair")
    assert planned(REWOUND, recorded=interrupted).source_accepted
    assert planned(PROMOTED, recorded=interrupted, kept_event=False).source_accepted


def test_what_was_accepted_does_not_cover_yet_another_cluster() -> None:
    interrupted = replace(RECORDED, state="repairing", source_accepted=True, repair_origin="repair")
    with pytest.raises(OtherCluster):
        planned(OTHER, recorded=interrupted)


def test_an_upgrade_is_accepted_and_its_interrupted_repair_goes_on() -> None:
    assert planned(OTHER, asked=Asked(accept="upgrade")).source_accepted
    # The first step recorded the new cluster; Kafka's checkpoint still names the old one.
    interrupted = replace(
        RECORDED,
        state="repairing",
        source_accepted=True,
        system_identifier="cluster-2",
        repair_origin="repair",
    )
    assert planned(OTHER, recorded=interrupted).source_accepted


def test_an_old_backup_that_was_upgraded_closes_dispatch_like_any_rewind() -> None:
    assert not planned(OTHER, asked=Asked(accept="upgrade")).rewound
    assert planned(OTHER, kept_event=False, asked=Asked(accept="upgrade")).rewound


def test_there_must_be_something_to_accept() -> None:
    with pytest.raises(UsageError, match="no rewind to accept"):
        planned(asked=Asked(accept="rewind"))
    with pytest.raises(UsageError, match="no other cluster to accept"):
        planned(asked=Asked(accept="upgrade"))
    with pytest.raises(UsageError, match="no other cluster to accept"):
        planned(REWOUND, asked=Asked(accept="upgrade"))
    with pytest.raises(OtherCluster):
        planned(OTHER, asked=Asked(accept="rewind"))


def test_a_slot_that_a_relay_reads_is_left_alone() -> None:
    active = replace(SLOT, active_pid=7)
    with pytest.raises(UsageError, match="server process 7"):
        require_idle(RECORDED, active, "app")
    require_idle(RECORDED, SLOT, "app")
    require_idle(RECORDED, None, "app")
    # Whoever holds it after an interrupted repair was refused, and is waited for.
    require_idle(replace(RECORDED, state="repairing"), active, "app")


def test_somebody_elses_slot_is_never_dropped() -> None:
    with pytest.raises(UsageError, match="somebody else's"):
        require_idle(RECORDED, replace(SLOT, plugin="wal2json"), "app")
    with pytest.raises(UsageError):
        require_idle(RECORDED, SLOT, "another database")
