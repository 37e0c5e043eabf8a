"""Keeps events that could not be sent: the row in `relay.parked_event` is committed before anything else."""

import uuid
from collections.abc import Iterable
from typing import Any

import psycopg

from relay.outbox.event import ParkedEvent
from relay.wal.lsn import format_lsn


def park(connection: psycopg.Connection[Any], relay_id: uuid.UUID, events: Iterable[ParkedEvent]) -> None:
    """Insert the events, or bring their rows up to date: the same event comes again after a crash.

    One transaction; raises psycopg.Error.
    """
    with connection.transaction(), connection.cursor() as cursor:
        for event in events:
            cursor.execute(
                """
                insert into relay.parked_event
                  (relay_id, event_id, event_type, schema_version, operation_key, commit_lsn, commit_index,
                   relay_epoch, reason_code, reason, topic, payload, payload_bytes)
                values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
                on conflict (relay_id, event_id) do update
                  set commit_lsn = excluded.commit_lsn, commit_index = excluded.commit_index,
                      relay_epoch = excluded.relay_epoch, reason_code = excluded.reason_code,
                      reason = excluded.reason, topic = excluded.topic
                """,
                [
                    relay_id,
                    event.event_id,
                    event.event_type,
                    event.schema_version,
                    event.operation_key,
                    format_lsn(event.commit_lsn),
                    event.index,
                    event.epoch,
                    event.reason_code,
                    event.reason,
                    event.topic,
                    event.payload,
                    event.payload_bytes,
                ],
            )
