"""Reads what the invariants are judged by, outside the workers' groups and without their code: whole topics,
the provider's truth, the delivered files. It never writes, commits or joins a group.
"""

import hashlib
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Final, cast
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener
from uuid import UUID

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from consumers.observe.snapshot import KeptFile, Position, Post, RealJob, ServedFile, TopicRecord, Truth
from relay.avro.catalog import Catalog
from relay.errors import RelayError, Unavailable

REQUEST_TIMEOUT_S: Final = 10.0
STALLED_S: Final = 60.0
"""No record and no end of a partition for this long: somebody's transaction hangs there, or Kafka is gone."""

# Topics -----------------------------------------------------------------------------------------------------


def read_topics(
    properties: Mapping[str, str], prefix: str, catalog: Catalog
) -> tuple[tuple[TopicRecord, ...], frozenset[UUID]]:
    """Every committed record of the topics `{prefix}.{event type}`, and the event ids in the relay's dead
    letters.

    Raises Unavailable when Kafka doesn't answer or a partition's end can't be reached.
    """
    dead_letters = f"{prefix}.relay-dlq"
    wanted = {f"{prefix}.{event_type}" for event_type in catalog.event_types()} | {dead_letters}
    records = [_record(message, catalog) for message in _messages(properties, f"{prefix}.witness", wanted)]
    events = tuple(record for record in records if record.topic != dead_letters)
    dead = {record.event_id for record in records if record.topic == dead_letters}
    return events, frozenset(one for one in dead if one is not None)


def _messages(properties: Mapping[str, str], group_id: str, topics: set[str]) -> list[Message]:
    consumer = Consumer(
        {
            **properties,
            "group.id": group_id,  # never joined: partitions are assigned
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
        }
    )
    try:
        known = consumer.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        partitions = [
            TopicPartition(name, number, 0)
            for name in topics & set(known)
            for number in known[name].partitions
        ]
        return _until_the_ends(consumer, partitions)
    except KafkaException as error:
        raise Unavailable(f"The topics can't be read: {error}.") from error
    finally:
        consumer.close()


def _until_the_ends(consumer: Consumer, partitions: list[TopicPartition]) -> list[Message]:
    consumer.assign(partitions)
    unread = {(partition.topic, partition.partition) for partition in partitions}
    messages: list[Message] = []
    deadline = time.monotonic() + STALLED_S
    while unread:
        message = consumer.poll(0.2)
        if message is None:
            if time.monotonic() > deadline:
                raise Unavailable(f"Reading stands still before the end of {sorted(unread)}.")
            continue
        deadline = time.monotonic() + STALLED_S
        error = message.error()
        if error is None:
            messages.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's name for it
            unread.discard((message.topic() or "", -1 if (number := message.partition()) is None else number))
        else:
            raise Unavailable(f"The topic {message.topic()} can't be read: {error.str()}.")
    return messages


def _record(message: Message, catalog: Catalog) -> TopicRecord:
    held = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    headers = {name: (value or b"").decode(errors="replace") for name, value in held}
    payload, defect = None, None
    try:
        decoded = catalog.decode(message.value() or b"")
        payload = decoded.value
        if decoded.event_type != headers.get("ce_type"):
            defect = f"ce_type is {headers.get('ce_type')}, and the value is {decoded.event_type}"
    except RelayError as error:
        defect = f"the value can't be read: {error}"
    return TopicRecord(
        topic=message.topic() or "",
        partition=-1 if (number := message.partition()) is None else number,
        offset=-1 if (offset := message.offset()) is None else offset,
        key=(message.key() or b"").decode(errors="replace"),
        event_id=_uuid(headers.get("ce_id")),
        event_type=headers.get("ce_type"),
        schema_version=_integer(headers.get("schema_version")),
        version=_integer(headers.get("operation_version")),
        position=_position(headers),
        origin=headers.get("relay_origin"),
        payload=payload,
        defect=defect,
    )


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text or "")
    except ValueError:
        return None


def _integer(text: str | None, base: int = 10) -> int | None:
    try:
        return int(text or "", base)
    except ValueError:
        return None


def _position(headers: Mapping[str, str]) -> Position | None:
    high, _, low = headers.get("relay_lsn", "").partition("/")
    epoch, index = _integer(headers.get("relay_epoch")), _integer(headers.get("relay_index"))
    above, below = _integer(high, 16), _integer(low, 16)
    if epoch is None or index is None or above is None or below is None:
        return None
    return epoch, (above << 32) | below, index


# The provider -----------------------------------------------------------------------------------------------


class _File(msgspec.Struct):
    name: str
    sha256: str
    size: int


class _Post(msgspec.Struct):
    reference: str | None
    fault: str | None
    job_id: str | None


class _Job(msgspec.Struct):
    job_id: str
    reference: str | None
    charged: Decimal
    state: str
    outputs: list[_File]


class _Truth(msgspec.Struct):
    posts: list[_Post]
    jobs: list[_Job]
    faults: dict[str, int]


def read_truth(url: str) -> Truth:
    """What the simulator at `url` knows (`GET /_truth`). Raises Unavailable when it doesn't say."""
    opener = build_opener(ProxyHandler({}))  # it is on this machine, whatever the environment's proxies are
    try:
        with opener.open(f"{url}/_truth", timeout=REQUEST_TIMEOUT_S) as answer:
            said = msgspec.json.decode(answer.read(), type=_Truth)
    except (URLError, TimeoutError, ConnectionError, msgspec.DecodeError) as error:
        raise Unavailable(f"The simulator at {url} doesn't say the truth: {error}.") from error
    return Truth(
        posts=tuple(
            Post(reference=post.reference, fault=post.fault, job_id=post.job_id) for post in said.posts
        ),
        jobs=tuple(
            RealJob(
                job_id=job.job_id,
                reference=job.reference,
                charged=job.charged,
                state=job.state,
                files=tuple(
                    ServedFile(name=one.name, sha256=one.sha256, size=one.size) for one in job.outputs
                ),
            )
            for job in said.jobs
        ),
        faults=said.faults,
    )


# The files --------------------------------------------------------------------------------------------------


def read_files(folder: Path) -> tuple[KeptFile, ...]:
    """Every file below `folder`, read whole. A key is its path below the folder, with slashes."""
    return tuple(
        _kept(path, path.relative_to(folder).as_posix())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )


def _kept(path: Path, key: str) -> KeptFile:
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256")
        return KeptFile(key=key, size=content.tell(), sha256=digest.hexdigest())
