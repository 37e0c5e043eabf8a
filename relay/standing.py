"""Where the relay stands, in one sentence for the person on call, from what was read. It does no I/O."""

import math
from dataclasses import dataclass

from relay.lag import Events, Sample, seconds_until_lost

SOON_S = 86_400.0
"""A slot that is lost within a day is worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What `relay status` has read."""

    slot_name: str
    repairing: bool
    sample: Sample
    wal_bytes_per_s: float | None
    events: Events | None
    """None where that can't be known."""
    kafka_error: str
    """Why Kafka couldn't be asked; empty when it could."""
    has_checkpoint: bool
    progress_age_s: float | None
    """Since the last checkpoint was written."""
    patience_s: float
    """Without progress for so long, with something to do, it is stuck."""


@dataclass(frozen=True, slots=True)
class Standing:
    """`state` is for programs: publishing, idle, stuck, stalled, nobody, repairing, lost or unknown."""

    state: str
    sentence: str


def judge(seen: Seen) -> Standing:
    """The worst that is true comes first."""
    slot = seen.sample.slot
    if slot is None:
        return Standing(
            "lost",
            f"slot lost: there is no replication slot {seen.slot_name}, and the WAL since it was dropped may"
            " be gone; run `relay outbox repair`",
        )
    if slot.wal_status == "lost":
        return Standing(
            "lost",
            f"slot lost: Postgres has removed WAL that the slot {seen.slot_name} needs;"
            " run `relay outbox repair`",
        )
    if seen.repairing:
        return Standing(
            "repairing",
            "repairing: a repair is under way or was broken off, and nothing is published meanwhile;"
            " if none runs, run `relay outbox repair` again",
        )
    state, sentence = _running(seen) if slot.active_pid is not None else _nobody(seen)
    return Standing(state, sentence + _end_of_slot(seen))


def _nobody(seen: Seen) -> tuple[str, str]:
    sentence = f"nobody runs: no relay holds the slot {seen.slot_name}; run `relay run`"
    return "nobody", f"{sentence} ({_waiting(seen)})"


def _running(seen: Seen) -> tuple[str, str]:
    if seen.kafka_error:
        return "unknown", f"a relay holds the slot, and Kafka doesn't say how far it is: {seen.kafka_error}"
    if not seen.has_checkpoint:
        return "unknown", "a relay holds the slot and has no checkpoint in Kafka yet; its log says why"
    waits = seen.events.waiting > 0 if seen.events is not None else bool(seen.sample.lag_bytes)
    if waits and seen.sample.stalled_by:
        return "stalled", f"stalled: {_waiting(seen)}, and Postgres sends none: {seen.sample.stalled_by}"
    age_s = seen.progress_age_s
    old = seen.events is not None and seen.events.oldest_age_s > seen.patience_s
    if waits and old and age_s is not None and age_s > seen.patience_s:
        since = f"Kafka last took something {duration(age_s)} ago"
        return "stuck", f"stuck: {_waiting(seen)}, and {since}; look at the relay's log"
    return "publishing" if waits else "idle", f"publishing, {_behind(seen)}"


def _behind(seen: Seen) -> str:
    if seen.events is None:
        return f"{size(seen.sample.lag_bytes)} of WAL not confirmed"
    most = "" if seen.events.exact else "at most "
    words = f"{most}{seen.events.waiting:,} event{'' if seen.events.waiting == 1 else 's'} behind"
    if seen.events.waiting:
        words += f", the oldest for {duration(seen.events.oldest_age_s)}"
    return words


def _waiting(seen: Seen) -> str:
    if seen.events is None:
        return f"{size(seen.sample.lag_bytes)} of WAL wait"
    return _behind(seen)


def _end_of_slot(seen: Seen) -> str:
    left_s = seconds_until_lost(seen.sample, seen.wal_bytes_per_s)
    if left_s is None or left_s > SOON_S or not seen.sample.lag_bytes:
        return ""
    return f"; if nothing is confirmed the slot is lost in {duration(left_s)} at the present rate of WAL"


def duration(seconds: float) -> str:
    """``1 h 5 min``; the two largest units."""
    whole = int(seconds)
    for unit_s, unit, below_s, below in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit_s:
            rest = whole % unit_s // below_s
            return f"{whole // unit_s} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"


def size(count: float | None) -> str:
    """``1.2 MiB``."""
    if count is None:
        return "an unknown amount"
    if count < 1024:
        return f"{count:.0f} bytes"
    power = min(4, int(math.log(count, 1024)))
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"
