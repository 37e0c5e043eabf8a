"""What `relay doctor` asks of the operations' topics: the history must outlive every retention."""

from collections.abc import Iterator
from typing import Final

from relay.doctor.examine import Examination
from relay.doctor.finding import Finding, ok, warning
from relay.doctor.topics import TopicFacts

HISTORY: Final = "operation.transitioned"


def check(examination: Examination) -> Iterator[Finding]:
    """The entry point of the group `relay.doctor`."""
    settings = examination.settings
    name = settings.topic or f"{settings.topic_prefix}.{HISTORY}"
    topic = examination.topics.get(name)
    if topic is not None and topic.exists and topic.config is not None:
        yield check_history(topic)


def check_history(topic: TopicFacts) -> Finding:
    """An operation's life can be rebuilt from Kafka alone only while each of its events is there."""
    name = "operations.history"
    limits = {"retention.ms": "-1", "retention.bytes": "-1"}
    config = topic.config or {}
    cut = {limit: config[limit] for limit in limits if not config.get(limit, "-1").startswith("-")}
    if not cut:
        return ok(name, f"{topic.name} keeps every transition for ever")
    said = ", ".join(f"{limit} = {value}" for limit, value in cut.items())
    return warning(
        name,
        f"{topic.name} forgets: {said}.",
        "The history of operations can't be rebuilt from Kafka alone, nor compared with the tables.",
        f"kafka-configs.sh --bootstrap-server … --alter --topic {topic.name} --add-config"
        " retention.ms=-1,retention.bytes=-1",
    )
