"""What a group member tells librdkafka: what the promises rest on, what may be changed, its group."""

from typing import Final

from relay.errors import UsageError
from relay.settings import Settings

PREFETCH_KIB: Final = 16 * 1024
"""librdkafka's own queue, in front of ours; its default of 64 MiB per topic is more than a consumer needs."""
METADATA_S: Final = 5
"""A topic that the relay creates later is found within this time; librdkafka's default is five minutes."""

# What the promises rest on. They aren't defaults: setting another value is refused.
_FIXED: Final = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
}
_DEFAULTS: Final = {
    # A killed process' partitions are taken over within this; Kafka's default is 45 s. A thread of our own
    # polls however long handlers take, so only a process that is gone is silent for so long.
    "session.timeout.ms": "10000",
    "partition.assignment.strategy": "cooperative-sticky",
    "queued.max.messages.kbytes": str(PREFETCH_KIB),
    "topic.metadata.refresh.interval.ms": str(METADATA_S * 1_000),
    # A topic that does not exist yet is logged and waited for, never made with the broker's defaults.
    "allow.auto.create.topics": "false",
}


def group_id(settings: Settings, consumer_name: str) -> str:
    return f"{settings.topic_prefix}.{consumer_name}"


def consumer_properties(settings: Settings, group: str) -> dict[str, str]:
    """librdkafka's properties of a group member. Raises UsageError for one that a promise rests on."""
    given = settings.require_kafka()
    for name, value in {**_FIXED, "group.id": group}.items():
        if given.get(name, value) != value:
            raise UsageError(
                f"RELAY_KAFKA_{name.upper().replace('.', '_')} is set to {given[name]}.",
                meaning=f"Consumers rely on {name} = {value}.",
                remedy="Unset it.",
            )
    # A revoke is answered only when the work in flight is done, so the group must wait longer than that.
    patience_ms = {"max.poll.interval.ms": str(int(max(300.0, 2 * settings.grace_s + 60) * 1_000))}
    return {**_DEFAULTS, **patience_ms, **given, **_FIXED, "group.id": group}
