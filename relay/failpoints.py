"""Named points at which a test may kill, stop or break a process. Inert unless both variables are set.

``RELAY_FAILPOINTS="dispatch.answer_received=kill; relay.kafka_committed=kill@3"`` with
``RELAY_ALLOW_FAILPOINTS=1``. Actions: ``kill`` (SIGKILL to this process), ``stop`` (SIGSTOP, until somebody
continues it), ``hang`` (this thread alone, for ever), ``raise`` (`FailpointReached`). ``@N`` acts on the N-th
passage only; without it, on each.
``failpoint NAME ACTION`` goes to standard error just before the action, so that a test can wait for it.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from relay.errors import UsageError

# relay run
RELAY_TRANSACTION_READ: Final = "relay.transaction_read"
RELAY_ENCODED: Final = "relay.encoded"
RELAY_BEFORE_KAFKA_COMMIT: Final = "relay.before_kafka_commit"
RELAY_KAFKA_COMMITTED: Final = "relay.kafka_committed"
RELAY_BEFORE_FEEDBACK: Final = "relay.before_feedback"
RELAY_FEEDBACK_SENT: Final = "relay.feedback_sent"
RELAY_REPUBLISH_TAKEN: Final = "relay.republish_taken"
RELAY_REPUBLISHED: Final = "relay.republished"

# relay outbox repair, relay init --backfill
REPAIR_STATE_SET: Final = "repair.state_set"
REPAIR_FENCED: Final = "repair.fenced"
REPAIR_SLOT_DROPPED: Final = "repair.slot_dropped"
REPAIR_SLOT_MADE: Final = "repair.slot_made"
REPAIR_RECORDS_COMMITTED: Final = "repair.records_committed"
REPAIR_ALL_PUBLISHED: Final = "repair.all_published"
REPAIR_CHECKPOINT_WRITTEN: Final = "repair.checkpoint_written"
REPAIR_STATE_CLEARED: Final = "repair.state_cleared"

# relay consume dispatch
DISPATCH_BEFORE_CLAIM: Final = "dispatch.before_claim"
DISPATCH_CLAIM_UNCOMMITTED: Final = "dispatch.claim_uncommitted"
DISPATCH_CLAIMED: Final = "dispatch.claimed"
DISPATCH_PAYLOAD_CHECKED: Final = "dispatch.payload_checked"
DISPATCH_REQUEST_RENDERED: Final = "dispatch.request_rendered"
DISPATCH_CONNECTION_OPEN: Final = "dispatch.connection_open"
DISPATCH_HOOK_BEFORE_COMMIT: Final = "dispatch.hook_before_commit"
DISPATCH_HOOK_UNCOMMITTED: Final = "dispatch.hook_uncommitted"
DISPATCH_HOOK_COMMITTED: Final = "dispatch.hook_committed"
DISPATCH_HOOK_SPOOLED: Final = "dispatch.hook_spooled"
DISPATCH_HEADERS_SENT: Final = "dispatch.headers_sent"
DISPATCH_BODY_SENT: Final = "dispatch.body_sent"
DISPATCH_HEAD_RECEIVED: Final = "dispatch.head_received"
DISPATCH_BODY_RECEIVED: Final = "dispatch.body_received"
DISPATCH_ANSWER_RECEIVED: Final = "dispatch.answer_received"
DISPATCH_ANSWER_SPOOLED: Final = "dispatch.answer_spooled"
DISPATCH_ANSWER_UNCOMMITTED: Final = "dispatch.answer_uncommitted"
DISPATCH_ANSWER_APPLIED: Final = "dispatch.answer_applied"

# relay consume collect
COLLECT_BEFORE_GET: Final = "collect.before_get"
COLLECT_ANSWER_RECEIVED: Final = "collect.answer_received"
COLLECT_ANSWER_UNCOMMITTED: Final = "collect.answer_uncommitted"
COLLECT_ANSWER_APPLIED: Final = "collect.answer_applied"
COLLECT_EVIDENCE_GATHERED: Final = "collect.evidence_gathered"

# relay consume deliver
DELIVER_CLAIMED: Final = "deliver.claimed"
DELIVER_RECEIVING: Final = "deliver.receiving"
DELIVER_DOWNLOADED: Final = "deliver.downloaded"
DELIVER_PLACED: Final = "deliver.placed"
DELIVER_RECORDED: Final = "deliver.recorded"
DELIVER_STORED: Final = "deliver.stored"

# every consumer
CONSUMER_HANDLED: Final = "consumer.handled"
CONSUMER_OFFSETS_COMMITTED: Final = "consumer.offsets_committed"

# relay schedule
SCHEDULE_LEASE_UNCOMMITTED: Final = "schedule.lease_uncommitted"
SCHEDULE_LEASES_EXPIRED: Final = "schedule.leases_expired"
SCHEDULE_EVENTS_UNCOMMITTED: Final = "schedule.events_uncommitted"
SCHEDULE_EVENTS_EMITTED: Final = "schedule.events_emitted"
SCHEDULE_RELEASE_UNCOMMITTED: Final = "schedule.release_uncommitted"
SCHEDULE_HOLDS_RELEASED: Final = "schedule.holds_released"
SCHEDULE_ATTEMPTS_CLOSED: Final = "schedule.attempts_closed"
SCHEDULE_REVIEWS_ESCALATED: Final = "schedule.reviews_escalated"

# relay review resolve
REVIEW_JOB_LOOKED_UP: Final = "review.job_looked_up"
REVIEW_UNCOMMITTED: Final = "review.uncommitted"
REVIEW_RESOLVED: Final = "review.resolved"

# relay spool import
SPOOL_IMPORT_APPLIED: Final = "spool_import.applied"

# relay dlq replay
DLQ_REPLAY_REQUESTED: Final = "dlq.replay_requested"
DLQ_REPLAY_SENT: Final = "dlq.replay_sent"

# relay ops reconcile
RECONCILE_READ: Final = "reconcile.read"
RECONCILE_PHANTOM_TOLD: Final = "reconcile.phantom_told"
RECONCILE_UNCERTAIN: Final = "reconcile.uncertain"
RECONCILE_OPERATION_DECIDED: Final = "reconcile.operation_decided"
RECONCILE_ALL_DECIDED: Final = "reconcile.all_decided"
RECONCILE_OPENED: Final = "reconcile.opened"

NAMES_IN_ORDER: Final = tuple(
    value for name, value in dict(globals()).items() if name.isupper() and isinstance(value, str)
)
"""As they stand above, which is the order in which work passes them."""
NAMES: Final = frozenset(NAMES_IN_ORDER)
ACTIONS: Final = frozenset({"kill", "stop", "hang", "raise"})
_HANGING_S: Final = 3600.0


class FailpointReached(Exception):
    """Raised by the action ``raise``."""


@dataclass(slots=True)
class _Armed:
    action: str
    on_passage: int | None
    passages: int = 0


def parse(text: str) -> dict[str, _Armed]:
    """Read ``name=action[@N]`` pairs separated by ``;``. Raises UsageError for an unknown name or action."""
    armed: dict[str, _Armed] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        name, _, spec = entry.partition("=")
        action, _, passage = spec.partition("@")
        if name not in NAMES:
            raise UsageError(
                f"RELAY_FAILPOINTS names {name!r}, which is not a failpoint.",
                remedy="The names are the constants of relay/failpoints.py.",
            )
        if action not in ACTIONS or (passage and not (passage.isdigit() and int(passage) > 0)):
            raise UsageError(
                f"RELAY_FAILPOINTS has {entry!r}.",
                remedy="Write NAME=kill, =stop, =hang or =raise, with @N (from 1) for one passage only.",
            )
        armed[name] = _Armed(action, int(passage) if passage else None)
    return armed


def load(environ: Mapping[str, str]) -> dict[str, _Armed]:
    """What `environ` asks for. Raises UsageError when failpoints are named but not allowed."""
    text = environ.get("RELAY_FAILPOINTS", "")
    if text and environ.get("RELAY_ALLOW_FAILPOINTS") != "1":
        raise UsageError(
            "RELAY_FAILPOINTS is set, and this process is not a test.",
            remedy="Unset it, or set RELAY_ALLOW_FAILPOINTS=1 if it is one.",
        )
    return parse(text)


_armed: dict[str, _Armed] = {}


def arm(environ: Mapping[str, str] = os.environ) -> None:
    """Read the environment once; `relay.cli` calls this before any command."""
    _armed.clear()
    _armed.update(load(environ))


def hit(name: str) -> None:
    """Pass the failpoint `name`. Does nothing unless it is armed."""
    if not _armed:
        return
    point = _armed.get(name)
    if point is None:
        return
    point.passages += 1
    if point.on_passage not in (None, point.passages):
        return
    print(f"failpoint {name} {point.action}", file=sys.stderr, flush=True)
    if point.action == "raise":
        raise FailpointReached(name)
    while point.action == "hang":
        time.sleep(_HANGING_S)
    os.kill(os.getpid(), signal.SIGKILL if point.action == "kill" else signal.SIGSTOP)
