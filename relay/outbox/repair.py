"""Brings back what Kafka lacks of the outbox and makes the slot anew: repair, backfill, an accepted source.

The order is never changed: state `repairing`; transactional id taken over; what Kafka has; old slot dropped;
new slot with its snapshot; under it every missing row; the new epoch's checkpoint; state cleared. Whatever
breaks leaves the state, and the next repair begins from the start: it finds what the last one committed.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from relay import failpoints, identity, known_topics
from relay.errors import CheckpointGarbled, RelayError, UsageError
from relay.kafka import checkpoint as checkpoints
from relay.kafka.checkpoint import Checkpoint
from relay.kafka.contents import Contents
from relay.kafka.publisher import Publisher
from relay.kafka.spans import PATIENT_TIMEOUT_S
from relay.kafka.topics import Topics
from relay.opening import open_publisher
from relay.outbox import compare, parking, phantoms, repair_parked, repair_rules, rows
from relay.outbox.audit import require_rows
from relay.outbox.bad_event import Verdicts
from relay.outbox.compare import Verdict
from relay.outbox.event import EventEncoder, Schemas, source_of
from relay.outbox.mapping import NATIVE_OUTBOX, OutboxMapping
from relay.outbox.repair_rules import Asked, Plan
from relay.outbox.repair_source import Connection, RepairSource, Say, in_words
from relay.outbox.repair_writer import RepairWriter, commit_checkpoint
from relay.settings import Settings
from relay.wal import publication as publications
from relay.wal import repairing
from relay.wal import slot as slots
from relay.wal.export import Exported
from relay.wal.pgoutput import Begin
from relay.wal.slot import SourceIdentity
from relay.wal.stream import System

_SAY_EVERY_ROWS: Final = 100_000
_CHUNK_ROWS: Final = 2_000

_INSTEAD: Final = (
    " To go on without what is lost: set RELAY_SLOT to another name, run `relay init`, then `relay run`: that"
    " relay publishes whatever is committed from then on. Drop the old slot if it is still there."
)


@dataclass(slots=True)
class Done:
    """What a repair found and did; rows counted by their verdict."""

    dry_run: bool
    origin: str
    epoch: int
    consistent_point: str | None = None
    present: int = 0
    missing: int = 0
    """Rows that Kafka lacked; `published` and `newly_parked` say what became of them."""
    expired: int = 0
    parked: int = 0
    published: int = 0
    newly_parked: int = 0
    phantoms: int = 0
    """Events that only Kafka has, where another source was accepted."""
    unreconciled: bool = False
    """Whether dispatch stays closed, because a rewind was accepted and nobody has reconciled since."""


@dataclass(frozen=True, slots=True)
class Source:
    """What was read before anything was changed."""

    recorded: SourceIdentity
    system: System
    checkpoint: Checkpoint | None
    plan: Plan

    @property
    def may_be_behind(self) -> bool:
        """Whether Kafka may have events that are lost here; without a checkpoint nobody can rule it out."""
        return self.plan.source_accepted or self.checkpoint is None


class Repair:
    """`look` changes nothing; `run` repairs. Both raise Stop, UsageError or Unavailable."""

    def __init__(
        self, settings: Settings, mapping: OutboxMapping, schemas: Schemas, asked: Asked, say: Say
    ) -> None:
        require_repairable(settings, mapping)
        self._settings = settings
        self._mapping = mapping
        self._schemas = schemas
        self._asked = asked
        self._say = say
        self._source = RepairSource(settings, mapping, say)
        self._kafka = settings.require_kafka()
        self._topics = Topics(
            self._kafka, partitions=settings.topic_partitions, replication=settings.topic_replication
        )

    def look(self) -> Done:
        """Compare and say what a repair would do. Rows that a relay is about to publish count as missing."""
        with in_words(), self._source.connect("repair") as connection:
            source = self._admit(connection, idle=False)
            done = Done(dry_run=True, origin=source.plan.origin, epoch=source.plan.epoch)
            with (
                self._source.connect("repair-snapshot", snapshot=True) as snapshot,
                Contents(source_of(source.recorded.relay_id)) as contents,
            ):
                self._collect(snapshot, contents, source)
                self._list_phantoms(snapshot, contents, source, done)
                for _ in self._wanted(snapshot, contents, source, done):
                    pass  # counted
        return done

    def run(self) -> Done:
        """Repair; when it raises, the state stays `repairing`, and to run it again is right."""
        with in_words(), self._source.connect("repair") as connection:
            recorded = self._source.recorded(connection)
            if not repairing.lock(connection, recorded.relay_id):
                raise UsageError(
                    f"Another repair of relay {recorded.relay_id} is at work now.",
                    remedy="Let it end; `relay status` shows the state.",
                )
            source = self._admit(connection, idle=True)
            try:
                return self._run(connection, source)
            except RelayError:
                self._say("the state may have stayed `repairing`: mend what follows, and run this again")
                raise

    def _run(self, connection: Connection, source: Source) -> Done:
        relay_id, plan, system = source.recorded.relay_id, source.plan, source.system
        repairing.begin(
            connection,
            relay_id,
            epoch=plan.epoch,
            system_identifier=system.system_identifier,
            timeline=system.timeline,
            origin=plan.origin,
            source_accepted=plan.source_accepted,
            rewound=plan.rewound,
        )
        self._say(f"relay {relay_id}: repairing, epoch {plan.epoch}; `relay run` refuses until it has ended")
        failpoints.hit(failpoints.REPAIR_STATE_SET)
        reopen = partial(open_publisher, self._settings, self._mapping, self._schemas, self._topics, relay_id)
        publisher = reopen()  # its start shuts out the relay that was, and ends what it left open
        try:
            failpoints.hit(failpoints.REPAIR_FENCED)
            with Contents(source_of(relay_id)) as contents:
                self._collect(connection, contents, source)
                repair_parked.settle(
                    connection, relay_id, contents, self._compared(source.recorded).dead_letters
                )
                epoch = self._settle_epoch(connection, source, contents)
                done = Done(dry_run=False, origin=plan.origin, epoch=epoch)
                self._source.drop_slot(connection)
                failpoints.hit(failpoints.REPAIR_SLOT_DROPPED)
                timeout_s = self._asked.slot_timeout_s
                with self._source.snapshot(connection, timeout_s=timeout_s) as made:
                    snapshot, exported = made
                    failpoints.hit(failpoints.REPAIR_SLOT_MADE)
                    self._list_phantoms(snapshot, contents, source, done)
                    if done.phantoms:
                        repairing.close_dispatch(connection, relay_id)
                    writer = self._writer(connection, snapshot, source, exported, done, publisher, reopen)
                    try:
                        last = self._bring(snapshot, contents, source, done, writer)
                    finally:
                        publisher = writer.publisher
            done.published, done.newly_parked = writer.published, writer.parked
            done.unreconciled = self._mapping.name == NATIVE_OUTBOX and (
                plan.rewound or done.phantoms > 0 or source.recorded.unreconciled_since is not None
            )
            failpoints.hit(failpoints.REPAIR_ALL_PUBLISHED)
            checkpoint = Checkpoint(
                epoch=epoch,
                system_identifier=system.system_identifier,
                timeline=system.timeline,
                commit_lsn=_lsn_below(exported),
                index=writer.last_index,
                event_id=last.event_id if last else None,
                seq=(last.seq if last else None) or 0,
                confirmed_lsn=exported.consistent_point,
            )
            commit_checkpoint(publisher, checkpoint)
            failpoints.hit(failpoints.REPAIR_CHECKPOINT_WRITTEN)
            known_topics.take_as_they_are(connection, relay_id, self._topics)
            repairing.clear(
                connection,
                relay_id,
                epoch=epoch,
                consistent_point=exported.consistent_point,
                baseline_seq=checkpoint.seq,
            )
            failpoints.hit(failpoints.REPAIR_STATE_CLEARED)
            return done
        finally:
            publisher.discard()

    # What is there

    def _admit(self, connection: Connection, *, idle: bool) -> Source:
        """Everything that can be refused before anything is changed."""
        recorded = self._source.recorded(connection)
        slots.require_made_for(recorded, self._settings.publication, self._mapping)
        published = publications.read(connection, self._settings.publication, self._mapping)
        publications.require(published, self._settings.publication, self._mapping)
        identity.refuse_standby_name(slots.read_standby_names(connection), self._settings.slot)
        slot = slots.read_slot(connection, self._settings.slot)
        if idle:
            repair_rules.require_idle(recorded, slot, slots.read_database(connection))
        checkpoint = self._read_checkpoint(recorded)
        with closing(self._source.replication()) as stream:
            system = stream.identify()
            switches = stream.switches(system.timeline)
        event_id = checkpoint.event_id if checkpoint else None
        server = identity.Server(
            system.system_identifier, system.timeline, slots.read_flush_lsn(connection), switches
        )
        plan = repair_rules.plan(
            recorded,
            server,
            checkpoint,
            kept_event=event_id is None or slots.has_event(connection, self._mapping, event_id),
            asked=self._asked,
        )
        if self._mapping.columns.seq is None:
            self._say(
                "the outbox has no seq: within an operation, the order of what is brought back is a guess"
            )
        return Source(recorded, system, checkpoint, plan)

    def _read_checkpoint(self, recorded: SourceIdentity) -> Checkpoint | None:
        """None also for a checkpoint that nobody can read: the repair writes a new one over it."""
        try:
            # The relay that was may have left a transaction open, and isn't shut out yet.
            return checkpoints.read(
                self._kafka, self._settings.topic_prefix, recorded.relay_id, timeout_s=PATIENT_TIMEOUT_S
            )
        except CheckpointGarbled as garbled:
            self._say(f"the checkpoint is replaced: {garbled.message}")
            return None

    def _collect(self, connection: Connection, contents: Contents, source: Source) -> None:
        topics = self._compared(source.recorded).read(connection)
        if source.may_be_behind:
            topics += self._places(source).topics()
        count = contents.collect(self._kafka, topics)
        self._say(f"Kafka has {count} records of this outbox")

    def _places(self, source: Source) -> phantoms.Places:
        return phantoms.Places(
            self._kafka,
            self._mapping,
            self._schemas,
            self._settings.topic_prefix,
            self._settings.topic,
            source_of(source.recorded.relay_id),
            source.plan.epoch,
        )

    def _list_phantoms(self, snapshot: Connection, contents: Contents, source: Source, done: Done) -> None:
        if not source.may_be_behind:
            return
        epoch = source.checkpoint.epoch if source.checkpoint else None
        dead_letters = self._compared(source.recorded).dead_letters
        for record in phantoms.lost(
            snapshot, self._mapping, contents, dead_letters=dead_letters, epoch=epoch
        ):
            done.phantoms += 1
            self._say(f"only in Kafka: {record.event_id} at {record}")

    def _compared(self, recorded: SourceIdentity) -> compare.Topics:
        return compare.Topics(
            mapping=self._mapping,
            prefix=self._settings.topic_prefix,
            one_topic=self._settings.topic,
            relay_id=recorded.relay_id,
            schemas=self._schemas,
        )

    def _settle_epoch(self, connection: Connection, source: Source, contents: Contents) -> int:
        """An epoch above every record's, also where Postgres forgot one (a rewind while it was repaired)."""
        was, known = source.plan.epoch, contents.newest_epoch()
        if known < was:
            return was
        repairing.raise_epoch(connection, source.recorded.relay_id, was=was, epoch=known + 1)
        return known + 1

    # Rows

    def _wanted(
        self, snapshot: Connection, contents: Contents, source: Source, done: Done
    ) -> Iterator[tuple[compare.Row, Verdict | None]]:
        """Every row, with its verdict where it is to be brought back; counts them."""
        topics = self._compared(source.recorded)
        published_seq = source.checkpoint.seq if source.checkpoint else 0
        compared = compare.compare(snapshot, topics, contents, published_seq=published_seq)
        for number, (row, verdict) in enumerate(compared, start=1):
            bring = verdict is Verdict.MISSING
            if verdict is Verdict.PRESENT:
                done.present += 1
            elif verdict is Verdict.PARKED:
                done.parked += 1
                bring = not contents.has([row.event_id])  # the row was committed, its dead letter not
            elif verdict is Verdict.EXPIRED:
                done.expired += 1
                bring = self._asked.include_expired
            else:
                done.missing += 1
            if number % _SAY_EVERY_ROWS == 0:
                self._say(f"{number} rows compared, {done.missing} missing")
            yield row, verdict if bring else None

    def _bring(
        self, snapshot: Connection, contents: Contents, source: Source, done: Done, writer: RepairWriter
    ) -> compare.Row | None:
        """Publish what is wanted, in order. Returns the last row of the outbox."""
        last: compare.Row | None = None
        wanted: dict[str, Verdict] = {}
        for row, verdict in self._wanted(snapshot, contents, source, done):
            last = row
            if verdict is not None:
                wanted[row.event_id] = verdict
                if len(wanted) >= _CHUNK_ROWS:
                    self._add(snapshot, source, wanted, writer)
        self._add(snapshot, source, wanted, writer)
        writer.flush()
        return last

    def _add(
        self, snapshot: Connection, source: Source, wanted: dict[str, Verdict], writer: RepairWriter
    ) -> None:
        ids = list(wanted)
        waiting = repair_parked.decided(snapshot, source.recorded.relay_id, ids)
        id_at = list(self._mapping.columns.mapped()).index("event_id")
        for row in rows.read_rows(snapshot, self._mapping, ids):
            event_id = (row[id_at] or b"").decode()
            if event_id in waiting or wanted[event_id] is not Verdict.PARKED:  # else it was discarded
                writer.add(row, waiting.get(event_id))
        wanted.clear()

    def _writer(
        self,
        connection: Connection,
        snapshot: Connection,
        source: Source,
        exported: Exported,
        done: Done,
        publisher: Publisher,
        reopen: Callable[[], Publisher],
    ) -> RepairWriter:
        encoder = EventEncoder(
            self._mapping,
            self._schemas,
            relay_id=source.recorded.relay_id,
            epoch=done.epoch,
            topic_prefix=self._settings.topic_prefix,
            one_topic=self._settings.topic,
            limit_bytes=self._topics.limit_bytes,
            origin=done.origin,
        )
        encoder.relation(rows.read_relation(snapshot, self._mapping))
        # Now, not when it was committed: a record as old as its row could be gone with the next retention.
        encoder.begin(Begin(_lsn_below(exported), time.time_ns() // 1000, 0))
        relay_id, in_order = source.recorded.relay_id, self._settings.on_bad_event == "park_key"
        waiting = parking.at_start(
            connection, relay_id, epoch=done.epoch, checkpoint=(_lsn_below(exported), 0), keys=in_order
        )
        return RepairWriter(
            publisher,
            reopen,
            encoder,
            self._topics,
            connection,
            relay_id,
            Verdicts(waiting.keys),
            key_at=list(self._mapping.columns.mapped()).index("operation_id"),
            on_bad_event=self._settings.on_bad_event,
            group_bytes=self._settings.group_bytes,
        )


def require_repairable(settings: Settings, mapping: OutboxMapping) -> None:
    """Raises UsageError where rows don't stay in a table, and says how to go on without a repair."""
    require_rows(settings, mapping, "repair", instead=_INSTEAD)


def _lsn_below(exported: Exported) -> int:
    """The place of what is brought back: the first streamed commit may stand at the consistent point."""
    return exported.consistent_point - 1
