"""Hands every event to new groups from offset 0, and tells what changed: nothing may (promise P7)."""

from collections.abc import Callable
from typing import Final

from fix_system import System

CONSUMERS: Final = {
    "dispatch": "generation.requested",
    "collect": "collection.requested",
    "deliver": "delivery.requested",
}
"""The consumers that cause or fetch something, and what they read."""


def replay(system: System, start: Callable[[str], None]) -> list[str]:
    """Of a quiet system whose consumers are stopped: forget their offsets, and `start` each by its name.
    Returns what is different after they have seen everything again."""
    before = _state(system)
    for name in CONSUMERS:
        system.forget_offsets(name)
    since = system.one("select relay.now()")
    for name in CONSUMERS:
        start(name)
    system.wait_until(
        lambda: all(_seen_again(system, name, topic, since) for name, topic in CONSUMERS.items()),
        "each consumer has seen every event again",
    )
    after = _state(system)
    changed = [what for what in before if before[what] != after[what]]
    return [f"{what}: {before[what]} became {after[what]}" for what in changed]


def _seen_again(system: System, name: str, topic: str, since: object) -> bool:
    left = system.one(
        """
        select count(*) from relay.outbox o where o.event_type = %s and not exists (
            select from relay.event_delivery d
             where d.event_id = o.event_id and d.group_id = %s and d.last_seen_at >= %s
               and d.last_outcome <> 'retrying')
        """,
        topic,
        f"{system.prefix}.{name}",
        since,
    )
    return bool(left == 0)


def _state(system: System) -> dict[str, object]:
    truth = system.truth()
    rows = system.owner.execute(
        "select operation_id::text, phase, version, open_reviews, dispatch_no from relay.operation"
    ).fetchall()
    state: dict[str, object] = {identity: tuple(rest) for identity, *rest in rows}
    state["POSTs"] = len(truth["posts"])
    state["jobs"] = len(truth["jobs"])
    state["downloads"] = len(truth["downloads"])
    state["ledger"] = system.one("select count(*) from relay.ledger")
    state["files"] = sorted(str(path) for path in system.outputs.rglob("*") if path.is_file())
    return state
