"""The first line of `relay status`: the worst that is true, and what to run."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from relay.lag import Events, Sample, seconds_until_lost, wal_rate
from relay.standing import Seen, duration, judge, size
from relay.wal.slot import Slot

SLOT = Slot(
    name="outbox_relay",
    plugin="pgoutput",
    database="app",
    temporary=False,
    active_pid=7,
    confirmed_flush=1000,
    restart_lsn=900,
    wal_status="reserved",
    safe_wal_bytes=None,
    two_phase=False,
)
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
SAMPLE = Sample(NOW, 1000, SLOT, "")
SEEN = Seen(
    slot_name="outbox_relay",
    repairing=False,
    sample=SAMPLE,
    wal_bytes_per_s=0.0,
    events=Events(0, exact=True, oldest_age_s=0),
    kafka_error="",
    has_checkpoint=True,
    progress_age_s=3.0,
    patience_s=60.0,
)


def with_slot(seen: Seen, **changed: object) -> Seen:
    assert seen.sample.slot is not None
    slot = replace(seen.sample.slot, **changed)  # type: ignore[arg-type]
    return replace(seen, sample=replace(seen.sample, slot=slot))


WAITING = replace(SEEN, events=Events(3, exact=True, oldest_age_s=300), progress_age_s=290.0)


@pytest.mark.parametrize(
    ("seen", "state", "sentence"),
    [
        (SEEN, "idle", "publishing, 0 events behind"),
        (
            replace(SEEN, events=Events(1, exact=True, oldest_age_s=0.5)),
            "publishing",
            "publishing, 1 event behind, the oldest for 0.5 s",
        ),
        (
            replace(SEEN, events=Events(20_000, exact=False, oldest_age_s=70), progress_age_s=1.0),
            "publishing",
            "publishing, at most 20,000 events behind, the oldest for 1 min 10 s",
        ),
        (
            WAITING,
            "stuck",
            (
                "stuck: 3 events behind, the oldest for 5 min, and Kafka last took something 4 min 50 s ago; "
                "look at the relay's log"
            ),
        ),
        (
            replace(WAITING, sample=replace(SAMPLE, stalled_by="synchronized_standby_slots names b (away)")),
            "stalled",
            (
                "stalled: 3 events behind, the oldest for 5 min, and Postgres sends none: "
                "synchronized_standby_slots names b (away)"
            ),
        ),
        (
            with_slot(WAITING, active_pid=None),
            "nobody",
            (
                "nobody runs: no relay holds the slot outbox_relay; run `relay run` "
                "(3 events behind, the oldest for 5 min)"
            ),
        ),
        (
            replace(SEEN, events=None, sample=replace(SAMPLE, insert_lsn=3048)),
            "publishing",
            "publishing, 2.0 KiB of WAL not confirmed",
        ),
        (
            replace(SEEN, events=None, kafka_error="Kafka is away."),
            "unknown",
            "a relay holds the slot, and Kafka doesn't say how far it is: Kafka is away.",
        ),
        (
            replace(SEEN, has_checkpoint=False),
            "unknown",
            "a relay holds the slot and has no checkpoint in Kafka yet; its log says why",
        ),
        (
            replace(SEEN, sample=replace(SAMPLE, slot=None)),
            "lost",
            (
                "slot lost: there is no replication slot outbox_relay, and the WAL since it was dropped may "
                "be gone; run `relay outbox repair`"
            ),
        ),
        (
            with_slot(WAITING, wal_status="lost", active_pid=None),
            "lost",
            "slot lost: Postgres has removed WAL that the slot outbox_relay needs; run `relay outbox repair`",
        ),
        (
            replace(WAITING, repairing=True),
            "repairing",
            (
                "repairing: a repair is under way or was broken off, and nothing is published meanwhile; "
                "if none runs, run `relay outbox repair` again"
            ),
        ),
    ],
)
def test_one_sentence_says_how_it_is(seen: Seen, state: str, sentence: str) -> None:
    judged = judge(seen)
    assert (judged.state, judged.sentence) == (state, sentence)


def test_the_end_of_the_slot_is_foreseen_while_something_is_unconfirmed() -> None:
    near = replace(with_slot(SEEN, safe_wal_bytes=3_600_000, confirmed_flush=500), wal_bytes_per_s=1000.0)
    assert judge(near).sentence.endswith(
        "; if nothing is confirmed the slot is lost in 1 h at the present rate of WAL"
    )
    assert judge(with_slot(near, safe_wal_bytes=10**12)).sentence == "publishing, 0 events behind"


@pytest.mark.parametrize(
    ("safe_wal_bytes", "wal_status", "rate", "seconds"),
    [
        (1000, "reserved", 100.0, 10.0),
        (1000, "reserved", 0.0, float("inf")),
        (None, "reserved", 100.0, float("inf")),
        (1000, "reserved", None, None),
        (-5, "unreserved", 100.0, 0.0),
        (None, "lost", 100.0, 0.0),
    ],
)
def test_time_until_the_slot_is_lost_at_the_present_rate(
    safe_wal_bytes: int | None, wal_status: str, rate: float | None, seconds: float | None
) -> None:
    sample = replace(SAMPLE, slot=replace(SLOT, safe_wal_bytes=safe_wal_bytes, wal_status=wal_status))
    assert seconds_until_lost(sample, rate) == seconds


def test_the_rate_is_what_was_written_between_two_samples() -> None:
    later = replace(SAMPLE, taken_at=NOW + timedelta(seconds=2), insert_lsn=5000)
    assert wal_rate(SAMPLE, later) == 2000.0
    assert wal_rate(SAMPLE, SAMPLE) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.2 s"), (59, "59 s"), (61, "1 min 1 s"), (3_900, "1 h 5 min"), (90_000, "1 d 1 h")],
)
def test_durations_read_well(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"), [(10, "10 bytes"), (2**20, "1.0 MiB"), (None, "an unknown amount")]
)
def test_sizes_read_well(count: int | None, words: str) -> None:
    assert size(count) == words
