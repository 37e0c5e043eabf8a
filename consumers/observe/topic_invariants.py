"""Invariants 1 and 2: what the topics hold, against the outbox and the journal. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

from consumers.observe.snapshot import Snapshot, TopicRecord
from consumers.observe.verdict import Verdict, grouped
from consumers.operations.tables import OutboxRow

TRANSITIONS: Final = "operation.transitioned"
REPUBLISHED: Final = "republish"


def every_row_is_in_kafka(snapshot: Snapshot) -> Verdict:
    """Every committed outbox row is in its topic, unchanged, and nothing else is; once where promised."""
    rows = {row.event_id: row for row in snapshot.tables.outbox}
    copies = grouped(snapshot.records, lambda record: record.event_id)
    wrong: list[str] = []
    for event_id, row in rows.items():
        if event_id in snapshot.tables.parked:
            if event_id not in snapshot.dead_letters:
                wrong.append(f"event {event_id} is parked, and not in the dead-letter topic")
            continue
        found = copies.get(event_id, [])
        if not found:
            wrong.append(f"event {event_id} ({row.event_type}, seq {row.seq}) is in no topic")
        elif len(found) > 1 and snapshot.delivery == "exactly_once":
            wrong.append(f"event {event_id} is {len(found)} times in Kafka: {', '.join(map(str, found))}")
        for record in found:
            wrong += [f"{record}: {difference}" for difference in _differences(row, record)]
    for unknown, found in copies.items():
        if unknown is None:
            wrong += [f"{record} has no event id" for record in found]
        elif unknown not in rows:
            wrong += [f"{record} has the event {unknown}, which was never committed" for record in found]
    wrong += [
        f"{record} is of the operation {record.key}, whose transaction was rolled back"
        for record in snapshot.records
        if record.key in {str(one) for one in snapshot.rolled_back}
    ]
    once = "exactly once" if snapshot.delivery == "exactly_once" else "duplicates removed by ce_id"
    return Verdict(
        1,
        f"Every committed outbox row is in Kafka ({once}), and none of a rolled-back transaction.",
        len(rows) + len(snapshot.records),
        tuple(wrong),
    )


def _differences(row: OutboxRow, record: TopicRecord) -> Iterable[str]:
    if record.defect is not None:
        yield record.defect
        return
    said = (record.key, record.event_type, record.schema_version, record.version)
    wanted = (str(row.operation_id), row.event_type, row.schema_version, row.version)
    if said != wanted:
        yield f"key, type and versions are {said}, and were committed as {wanted}"
    if not record.topic.endswith(row.event_type):
        yield f"{row.event_type} doesn't belong into this topic"
    payload = record.payload or {}
    for name in sorted({*row.payload, *payload}):
        if _same_value(row.payload.get(name)) != _same_value(payload.get(name)):
            yield f"the field {name} is not what was committed"


def _same_value(value: Any) -> Any:
    """JSON's texts and Avro's logical types, made comparable."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return value
        return moment.astimezone(UTC) if moment.tzinfo else value
    return value


def order_per_operation(snapshot: Snapshot) -> Verdict:
    """One partition and commit order per operation and topic; the journal arrives without a hole."""
    order: dict[UUID | None, int] = {row.event_id: row.seq for row in snapshot.tables.outbox}
    streams = grouped(snapshot.records, lambda record: (record.topic, record.key))
    wrong: list[str] = []
    versions: dict[str, list[int]] = {}
    for (topic, key), records in streams.items():
        partitions = {record.partition for record in records}
        if len(partitions) > 1:
            wrong.append(f"{topic}: operation {key} is on partitions {sorted(partitions)}")
        first = _first_of_each(records)
        if topic.endswith(TRANSITIONS):
            versions[key] = sorted(record.version for record in first if record.version is not None)
        # A republished event is late by a person's decision: the one exception of promise P3.
        told = [record for record in first if record.origin != REPUBLISHED]
        wrong += _out_of_order(topic, key, [record.position for record in told], "WAL position")
        wrong += _out_of_order(topic, key, [order.get(record.event_id) for record in told], "seq")
        numbers = [record.version for record in told]
        if any(_falls(pair) for pair in pairwise(numbers)):
            wrong.append(f"{topic}: versions of operation {key} fall: {numbers}")
    journal = grouped(snapshot.tables.journal, lambda entry: entry.operation_id)
    for operation in snapshot.tables.operations:
        wanted = list(range(1, operation.version + 1))
        arrived = versions.get(str(operation.operation_id), [])
        if arrived != wanted:
            wrong.append(
                f"operation {operation.operation_id} is at version {operation.version}, and"
                f" {TRANSITIONS} tells {arrived}"
            )
        written = [entry.version for entry in journal.get(operation.operation_id, [])]
        if written != wanted:
            wrong.append(
                f"operation {operation.operation_id} is at version {operation.version}, and its journal has"
                f" {written}"
            )
    return Verdict(
        2,
        f"Order per operation within a topic; {TRANSITIONS} carries versions 1 to n without holes.",
        len(streams),
        tuple(wrong),
    )


def _first_of_each(records: Iterable[TopicRecord]) -> list[TopicRecord]:
    """Without the later copies of an event, in the order of offsets."""
    first: dict[UUID | None, TopicRecord] = {}
    for record in sorted(records, key=lambda one: (one.partition, one.offset)):
        first.setdefault(record.event_id, record)
    return list(first.values())


def _out_of_order(topic: str, key: str, said: list[Any], what: str) -> list[str]:
    if None in said:
        return [f"{topic}: a record of operation {key} has no {what}"]
    return [f"{topic}: operation {key} has {what} {b} after {a}" for a, b in pairwise(said) if not a < b]


def _falls(pair: tuple[int | None, int | None]) -> bool:
    before, after = pair
    return before is None or after is None or after < before
