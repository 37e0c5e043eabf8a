"""What the topics of a relay were when it last knew them, kept in Postgres: Kafka itself has no memory of it.

It only keeps; `relay.kafka.topics` compares. A row changes when a person accepts a change, never by itself.
"""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import psycopg

from relay.kafka.topics import Identity, Topics


def read(connection: psycopg.Connection[Any], relay_id: uuid.UUID) -> dict[str, Identity]:
    """Every topic that this relay has met, by name, without those accepted as gone. Raises psycopg.Error."""
    rows = connection.execute(
        """
        select topic, topic_id, partitions from relay.known_topic
        where relay_id = %s and topic_id is not null
        """,
        [relay_id],
    )
    return {topic: Identity(topic_id, partitions) for topic, topic_id, partitions in rows}


def record(connection: psycopg.Connection[Any], relay_id: uuid.UUID, topics: Mapping[str, Identity]) -> None:
    """Keep what the topics are now, in one transaction. Raises psycopg.Error."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(
            """
            insert into relay.known_topic (relay_id, topic, topic_id, partitions) values (%s, %s, %s, %s)
            on conflict (relay_id, topic) do update
              set topic_id = excluded.topic_id, partitions = excluded.partitions,
                  recorded_at = relay.now(), recorded_by = session_user
            """,
            [(relay_id, topic, found.topic_id, found.partitions) for topic, found in topics.items()],
        )


def forget(connection: psycopg.Connection[Any], relay_id: uuid.UUID, topics: Iterable[str]) -> None:
    """Topics that are gone, by a person's word: the relay may make them anew. Raises psycopg.Error."""
    connection.execute(
        """
        update relay.known_topic
        set topic_id = null, partitions = null, recorded_at = relay.now(), recorded_by = session_user
        where relay_id = %s and topic = any(%s)
        """,
        [relay_id, list(topics)],
    )


def take_as_they_are(connection: psycopg.Connection[Any], relay_id: uuid.UUID, topics: Topics) -> None:
    """After a repair, which has published what was missing: the topics are what they are now.

    Raises Unavailable or psycopg.Error.
    """
    if topics.embedded:
        return
    known = read(connection, relay_id)
    now = topics.describe([*known, *topics.unrecorded])
    with connection.transaction():
        record(connection, relay_id, now)
        forget(connection, relay_id, known.keys() - now.keys())
