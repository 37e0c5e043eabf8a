"""The whole examination: reads what can be read, judges it, and turns what can't be into findings.

A server that is away, a right that is missing, a check of somebody else's that breaks: each is one finding,
and the examination goes on.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Final

import psycopg

from relay import known_topics
from relay.avro.catalog import Catalog
from relay.doctor import cluster, failover, replication, schemas, server, source, topics
from relay.doctor import read_postgres as postgres
from relay.doctor.finding import Finding, Severity, error, unseen
from relay.doctor.read_kafka import KafkaReader
from relay.doctor.source import Position, SourceFacts
from relay.doctor.topics import Role, TopicFacts
from relay.errors import CheckpointGarbled, CheckpointUnreadable, RelayError, as_sentence
from relay.kafka import checkpoint as checkpoints
from relay.kafka.checkpoint import Checkpoint
from relay.kafka.topics import Topics, difference
from relay.outbox.event import dead_letter_topic, topics_from_start
from relay.outbox.mapping import OutboxMapping, of_settings
from relay.settings import Settings
from relay.wal import slot as slots
from relay.wal.slot import Slot, SourceIdentity

GROUP: Final = "relay.doctor"
"""Entry points of other packages' checks."""
CHECKPOINT_WAIT_S: Final = 5.0
"""An ordinary transaction of a relay's ends within milliseconds, a large one within a few seconds."""

_REALMS: Final = ("postgres", "replication", "failover", "outbox", "identity", "schemas", "kafka", "topics")


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was seen, for checks of other packages."""

    settings: Settings
    topics: Mapping[str, TopicFacts]
    """Empty while Kafka is away."""
    reader: KafkaReader | None
    """Asks for more topics; None while Kafka is away."""


Check = Callable[[Examination], Iterable[Finding]]
"""What an entry point of the group `relay.doctor` is."""


@dataclass(slots=True)
class _Seen:
    """What one part found and another needs."""

    slot: Slot | None = None
    recorded: SourceIdentity | None = None
    facts: SourceFacts | None = None
    switches: Mapping[int, int] | None = None
    checkpoint: Checkpoint | None = None
    topics: dict[str, TopicFacts] = field(default_factory=dict)
    reader: KafkaReader | None = None


class Doctor:
    """One examination: call `examine` once. `clock` is this machine's, in seconds since 1970."""

    def __init__(
        self,
        settings: Settings,
        *,
        old_transaction_s: float = server.OLD_TRANSACTION_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._mapping: OutboxMapping = of_settings(settings)
        self._old_transaction_s = old_transaction_s
        self._clock = clock
        self._seen = _Seen()

    def examine(self) -> list[Finding]:
        """Every finding, by realm. Raises UsageError for settings that name no database or no Kafka."""
        url = self._settings.require_database()
        self._settings.require_kafka()
        catalog, found = self._load_schemas()
        try:
            with postgres.connect(url) as connection:
                found += self._of_postgres(connection, url)
                found += self._of_kafka(catalog)
                found += _allowed("topics.changed", lambda: self._of_known_topics(connection))
                found += self._of_position(connection)
        except psycopg.OperationalError as away:
            found.append(server.check_reachable(f"Postgres is away: {as_sentence(away)}"))
            if self._seen.reader is None:
                found += self._of_kafka(catalog)
        found += self._of_both(catalog)
        found += list(_of_others(self._examination()))
        return sorted(found, key=_order)

    def _examination(self) -> Examination:
        return Examination(settings=self._settings, topics=self._seen.topics, reader=self._seen.reader)

    def _load_schemas(self) -> tuple[Catalog | None, list[Finding]]:
        try:
            return Catalog.load(self._settings.schemas), []
        except RelayError as broken:
            return None, [schemas.check_loads(broken.message, broken.remedy)]

    def _of_postgres(self, connection: postgres.Connection, url: str) -> Iterator[Finding]:
        settings, seen = self._settings, self._seen
        yield from _allowed(
            "postgres.server",
            lambda: server.check(
                postgres.read_server(connection, settings.slot, self._clock),
                settings.slot,
                old_transaction_s=self._old_transaction_s,
            ),
        )
        if slots.is_standby(connection):
            return  # everything else is the primary's to say
        yield from _allowed("replication.facts", lambda: self._of_replication(connection, url))
        yield from _allowed(
            "failover.facts", lambda: failover.check(postgres.read_failover(connection, url, settings.slot))
        )

        def of_source() -> Iterator[Finding]:
            facts = seen.facts = postgres.read_source(connection, settings, self._mapping)
            seen.recorded, seen.slot = facts.recorded, facts.slot
            yield from source.check(facts)
            if facts.recorded is not None:
                differs = postgres.restarted_since_verified(connection, facts.recorded)
                yield source.check_verified(facts.recorded, differs)
                yield source.check_reconciled(facts.recorded)

        yield from _allowed("outbox.facts", of_source)

    def _of_replication(self, connection: postgres.Connection, url: str) -> Iterator[Finding]:
        facts = postgres.read_replication(connection, self._settings, self._mapping)
        yield from replication.check(facts)
        if not facts.may_replicate:
            return
        try:
            self._seen.switches = postgres.try_replication(url).switches
        except RelayError as refused:
            yield replication.check_connection(refused.message)
        else:
            yield replication.check_connection(None)

    def _of_kafka(self, catalog: Catalog | None) -> Iterator[Finding]:
        settings, seen = self._settings, self._seen
        try:
            reader = KafkaReader(settings)
            facts = reader.cluster()
            yield from cluster.check(facts)
            seen.reader = reader
            if not facts.embedded:
                seen.topics = reader.topics(self._roles(catalog))
        except RelayError as away:
            yield cluster.check_unreachable(away.message)
            return
        limit = None if seen.facts is None else seen.facts.payload_limit_bytes
        yield from topics.check(seen.topics, brokers=facts.brokers, payload_limit_bytes=limit)

    def _of_known_topics(self, connection: postgres.Connection) -> Iterator[Finding]:
        """What the relay recorded of its topics beside what they are: by a difference it stops."""
        settings, seen = self._settings, self._seen
        if seen.recorded is None or not seen.topics:
            return
        known = known_topics.read(connection, seen.recorded.relay_id)
        described = Topics(
            settings.require_kafka(),
            partitions=settings.topic_partitions,
            replication=settings.topic_replication,
        ).describe(known)
        changed = {name: difference(was, described.get(name)) for name, was in known.items()}
        yield from topics.check_changed(len(known), {name: what for name, what in changed.items() if what})

    def _roles(self, catalog: Catalog | None) -> dict[str, Role]:
        settings, recorded = self._settings, self._seen.recorded
        roles: dict[str, Role] = {}
        if catalog is not None:
            for name in topics_from_start(self._mapping, catalog, settings.topic_prefix, settings.topic):
                roles[name] = "event"
        roles[dead_letter_topic(settings.topic_prefix)] = "dead letters"
        if recorded is not None:
            roles[checkpoints.topic(settings.topic_prefix, recorded.relay_id)] = "checkpoint"
        return roles

    def _of_position(self, connection: postgres.Connection) -> Iterator[Finding]:
        """Slot, then checkpoint, then the server's WAL end: what a relay does in between is no fault."""
        seen, prefix = self._seen, self._settings.topic_prefix
        recorded, slot = seen.recorded, seen.slot
        if recorded is None or slot is None or slot.confirmed_flush is None:
            return  # which is a finding already
        if recorded.state == "repairing":
            return
        if seen.reader is None:
            yield source.position_unseen("Kafka is away")
            return
        try:
            found = checkpoints.read(
                self._settings.require_kafka(), prefix, recorded.relay_id, timeout_s=CHECKPOINT_WAIT_S
            )
        except CheckpointGarbled as garbled:
            yield error("identity.checkpoint", garbled.message, garbled.meaning, garbled.remedy)
            return
        except CheckpointUnreadable as hidden:
            topic = checkpoints.topic(prefix, recorded.relay_id)
            yield topics.check_open_transaction(topic, hidden.message, hidden.remedy)
            return
        except RelayError as away:
            yield source.position_unseen(away.message)
            return

        def of_position() -> Iterator[Finding]:
            now = postgres.read_position_server(connection, seen.switches or {})
            if seen.switches is None and found is not None and found.timeline != now.timeline:
                yield source.position_unseen("this login may not read the timelines' history (REPLICATION)")
                return
            event = None if found is None or not self._mapping.rows_kept else found.event_id
            kept = event is None or slots.has_event(connection, self._mapping, event)
            yield source.check_position(
                Position(recorded=recorded, slot=slot, server=now, checkpoint=found, event_kept=kept)
            )

        yield from _allowed("identity.checkpoint", of_position)

    def _of_both(self, catalog: Catalog | None) -> Iterator[Finding]:
        """What needs the outbox and its topics, or its schemas."""
        seen = self._seen
        if catalog is not None and self._mapping.payload == "avro":
            yield from schemas.check_compatible(catalog)
            if seen.facts is not None:
                yield schemas.check_known(catalog, seen.facts.event_types)
        events = [t for t in seen.topics.values() if t.role == "event" and t.config is not None]
        if seen.facts is not None and events:
            shortest = min(events, key=lambda t: float("inf") if t.retention_s is None else t.retention_s)
            yield source.check_retention(seen.facts, shortest.name, shortest.retention_s)


def _allowed(check: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What `look` finds, up to what Postgres refuses it."""
    found: list[Finding] = []
    try:
        found.extend(look())
    except psycopg.OperationalError:
        raise
    except psycopg.Error as refused:
        said = as_sentence(refused.diag.message_primary or refused)
        found.append(server.check_seen(check, said))
    except RelayError as refused:
        found.append(unseen(check, refused.message, refused.remedy))
    return found


def _of_others(examination: Examination) -> Iterator[Finding]:
    """Other packages' checks; one that breaks is a finding, with its name."""
    for entry in sorted(entry_points(group=GROUP), key=lambda found: found.name):
        try:
            check: Check = entry.load()
            found = list(check(examination))
        except Exception as broken:  # noqa: BLE001 somebody else's code: said, and the rest goes on
            yield error(
                f"{entry.name}.check",
                f"The check {entry.value} broke: {type(broken).__name__}: {as_sentence(broken)}",
                "What it looks at wasn't looked at.",
                "Mend or remove the package that declares it (entry point group relay.doctor).",
            )
        else:
            yield from found


_RANK: Final = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2, Severity.OK: 3}


def _order(finding: Finding) -> tuple[int, str, int, str]:
    """By realm, the worst first, and what one check says of several topics together."""
    realm = finding.realm
    at = _REALMS.index(realm) if realm in _REALMS else len(_REALMS)
    return at, realm, _RANK[finding.severity], finding.check
