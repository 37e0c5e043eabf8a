"""Replay through real Kafka: collect and deliver read everything again from offset 0, and nothing happens."""

from typing import Any

from fix_system import System


def test_a_replay_of_collection_and_delivery_asks_sends_and_downloads_nothing(system: System) -> None:
    operations = [system.approve(key=f"frame-{number}") for number in range(3)]
    system.start()
    system.wait_until(lambda: _stored(system) == len(operations), "everything is delivered")
    before = _effects(system)
    versions = system.owner.execute("select operation_id, version from relay.operation order by 1").fetchall()
    events = system.one("select count(*) from relay.outbox")

    system.stop("collect", "deliver")
    _forget_the_inbox(system)
    system.forget_offsets("collect")
    system.forget_offsets("deliver")
    system.start("collect", "deliver")
    wanted = system.one(
        "select count(*) from relay.outbox where event_type in ('collection.requested', 'delivery.requested')"
    )
    system.wait_until(lambda: _handled(system) == wanted, "every event is handled again")

    assert _effects(system) == before
    assert len(before["posts"]) == len(operations)
    assert (
        system.owner.execute("select operation_id, version from relay.operation order by 1").fetchall()
        == versions
    )
    assert system.one("select count(*) from relay.outbox") == events


def _stored(system: System) -> int:
    return int(
        system.one("select count(*) from relay.operation where kind = 'delivery' and phase = 'stored'")
    )


def _effects(system: System) -> dict[str, Any]:
    truth = system.truth()
    return {name: truth[name] for name in ("posts", "gets", "downloads")}


def _forget_the_inbox(system: System) -> None:
    """So that what is in it afterwards came by the replay."""
    system.owner.execute(
        "delete from relay.event_delivery where right(group_id, 8) in ('.collect', '.deliver')"
    )


def _handled(system: System) -> int:
    return int(
        system.one(
            "select count(*) from relay.event_delivery"
            " where right(group_id, 8) in ('.collect', '.deliver') and last_outcome = 'handled'"
        )
    )
