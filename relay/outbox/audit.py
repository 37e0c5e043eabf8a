"""Compares the outbox with its topics and names every event that isn't where it should be; changes nothing.

The outbox is read in one snapshot and Kafka after it, so a row of the snapshot that Kafka doesn't have is
missing, unless the relay hadn't come so far yet: then it is given time, and told apart.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import psycopg

from relay.avro.catalog import Catalog
from relay.errors import REPAIR, UsageError
from relay.kafka import checkpoint as checkpoints
from relay.kafka import spans
from relay.kafka.contents import TELL_EVERY, Contents, Record
from relay.outbox import phantoms
from relay.outbox.compare import Row, Topics, Verdict, compare
from relay.outbox.event import source_of
from relay.outbox.mapping import OutboxMapping
from relay.settings import Settings
from relay.wal import slot as slots
from relay.wal.slot import SourceIdentity

WAIT_S: Final = 30.0
"""How long the relay is given to come up to what the audit saw; it moves an idle slot every ten seconds."""

_LOOK_EVERY_S: Final = 0.5

Kind = Literal["missing", "unpublished", "expired", "doubled", "disordered", "phantom"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One event that isn't where it should be. `place` says where Kafka has it, `detail` what is wrong."""

    kind: Kind
    event_id: str
    detail: str
    seq: int | None = None
    event_type: str = ""
    key: str = ""
    place: str = ""


@dataclass(slots=True)
class Summary:
    """How many rows and records there are, and how many findings of each kind."""

    rows: int = 0
    records: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    pruned: int = 0
    """Records whose row isn't in the outbox any more, by pruning as far as anybody can tell."""
    exactly_once: bool = True

    @property
    def clean(self) -> bool:
        """Whether every event is where it should be; what retention took is said and is no fault.

        Doubled records are none where the delivery is at least once: `ce_id` removes them.
        """
        kinds = ["missing", "unpublished", "disordered", "phantom"]
        return not any(self.findings[kind] for kind in kinds + ["doubled"] * self.exactly_once)

    @property
    def remedy(self) -> str:
        """What to do about it; empty when it is clean."""
        if self.findings["missing"]:
            return f"Rows of the outbox are in no topic. {REPAIR}"
        if self.findings["unpublished"]:
            return "The relay hasn't come so far yet: see `relay status`, let it catch up, and audit again."
        if self.findings["phantom"]:
            return (
                "Consumers may have acted on events that the database doesn't have: reconcile those by hand."
            )
        if not self.clean:
            return (
                "Consumers that keep ce_id saw no harm; look at which relay or producer wrote these records."
            )
        return ""


class Audit:
    """`findings` streams; `summary` is whole when it has ended.

    `progress` is told what is being done. Raises UsageError where an audit can't exist, Unavailable,
    CheckpointUnreadable or psycopg.Error.
    """

    def __init__(
        self,
        settings: Settings,
        mapping: OutboxMapping,
        *,
        wait_s: float = WAIT_S,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        require_rows(settings, mapping, "audit")
        self._settings = settings
        self._mapping = mapping
        self._wait_s = wait_s
        self._progress = progress
        self.summary = Summary(exactly_once=settings.delivery == "exactly_once")

    def findings(self) -> Iterator[Finding]:
        """Every finding, kind by kind."""
        url = self._settings.require_database()
        with psycopg.connect(url, application_name="outbox-relay audit") as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            recorded = slots.read_identity(connection, self._settings.slot)
            if recorded is None:
                raise UsageError(
                    f"No relay is known for the replication slot {self._settings.slot}.",
                    remedy="Run `relay init` once against this database.",
                )
            seen_to = slots.read_insert_lsn(connection)  # whatever the snapshot shows was committed below it
            with Contents(source_of(recorded.relay_id)) as contents:
                for finding in self._all(connection, recorded, contents, seen_to):
                    self.summary.findings[finding.kind] += 1
                    yield finding

    def _all(
        self, connection: psycopg.Connection[Any], recorded: SourceIdentity, contents: Contents, seen_to: int
    ) -> Iterator[Finding]:
        settings = self._settings
        topics = Topics(
            mapping=self._mapping,
            prefix=settings.topic_prefix,
            one_topic=settings.topic,
            relay_id=recorded.relay_id,
            schemas=Catalog.load(settings.schemas),
        )
        names = topics.read(connection)
        self._progress(f"reading {len(names)} topics")
        self.summary.records = contents.collect(
            settings.require_kafka(), names, tell=lambda count: self._progress(f"{count} records read")
        )
        self._progress(f"{self.summary.records} records; comparing the outbox")
        caught_up = True
        seen = self._verdicts(connection, recorded, topics, contents)
        if seen[Verdict.MISSING]:
            self._progress("rows are missing: waiting for the relay to come up to what was seen")
            caught_up = self._wait_for(recorded, seen_to)
            self.summary.records += contents.collect(settings.require_kafka(), names)
        if seen[Verdict.MISSING] or seen[Verdict.EXPIRED]:
            yield from self._of_rows(connection, recorded, topics, contents, caught_up=caught_up)
        else:
            self.summary.rows, self.summary.verdicts = seen.total(), seen
        yield from self._of_records(contents, topics.dead_letters)
        self._progress("looking for events that the outbox doesn't have")
        yield from self._phantoms(contents, topics.dead_letters)

    def _compared(
        self,
        connection: psycopg.Connection[Any],
        recorded: SourceIdentity,
        topics: Topics,
        contents: Contents,
    ) -> Iterator[tuple[Row, Verdict]]:
        checkpoint = self._checkpoint(recorded)
        published_seq = recorded.baseline_seq if checkpoint is None else checkpoint.seq
        return compare(connection, topics, contents, published_seq=published_seq)

    def _verdicts(
        self,
        connection: psycopg.Connection[Any],
        recorded: SourceIdentity,
        topics: Topics,
        contents: Contents,
    ) -> Counter[str]:
        """How many rows have which verdict; it ends at the first that is missing."""
        seen: Counter[str] = Counter()
        for _, verdict in self._compared(connection, recorded, topics, contents):
            seen[verdict] += 1
            if verdict is Verdict.MISSING:
                break
            if seen.total() % TELL_EVERY == 0:
                self._progress(f"{seen.total()} rows compared")
        return seen

    def _of_rows(
        self,
        connection: psycopg.Connection[Any],
        recorded: SourceIdentity,
        topics: Topics,
        contents: Contents,
        *,
        caught_up: bool,
    ) -> Iterator[Finding]:
        for row, verdict in self._compared(connection, recorded, topics, contents):
            self.summary.rows += 1
            self.summary.verdicts[verdict] += 1
            if verdict is Verdict.MISSING:
                kind: Kind = "missing" if caught_up else "unpublished"
                detail = "is in no topic" if caught_up else "is in no topic, and the relay isn't past it yet"
            elif verdict is Verdict.EXPIRED:
                kind, detail = "expired", "is older than what its partition still has"
            else:
                continue
            yield Finding(kind, row.event_id, detail, row.seq, row.event_type, row.key or "", topics.of(row))

    def _of_records(self, contents: Contents, dead_letters: str) -> Iterator[Finding]:
        for event_id, records in contents.doubled(except_topic=dead_letters):
            places = ", ".join(str(record) for record in records)
            yield Finding("doubled", event_id, f"is there {len(records)} times", place=places)
        for before, record in contents.disordered(except_topic=dead_letters):
            detail = f"stands behind {before.event_id} at {before}, which comes after it in the WAL"
            yield Finding("disordered", record.event_id, detail, place=str(record))

    def _phantoms(self, contents: Contents, dead_letters: str) -> Iterator[Finding]:
        """Events of Kafka that the outbox doesn't have: a fresh look, since some came after the snapshot."""
        url = self._settings.require_database()
        with psycopg.connect(url, autocommit=True, application_name="outbox-relay audit") as connection:
            gone = phantoms.absent(connection, self._mapping, contents, dead_letters=dead_letters)
            for record, pruned in gone:
                if pruned:
                    self.summary.pruned += 1
                else:
                    yield _phantom(record)

    def _wait_for(self, recorded: SourceIdentity, lsn: int) -> bool:
        """Whether the relay has confirmed up to `lsn` within the time that it is given."""
        until = time.monotonic() + self._wait_s
        while True:
            checkpoint = self._checkpoint(recorded)
            if checkpoint is not None and checkpoint.confirmed_lsn >= lsn:
                return True
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_EVERY_S)

    def _checkpoint(self, recorded: SourceIdentity) -> checkpoints.Checkpoint | None:
        settings = self._settings
        return checkpoints.read(
            settings.require_kafka(),
            settings.topic_prefix,
            recorded.relay_id,
            timeout_s=spans.PATIENT_TIMEOUT_S,
        )


def require_rows(settings: Settings, mapping: OutboxMapping, what: str, *, instead: str = "") -> None:
    """Raises UsageError where rows don't stay in a table: there is nothing to compare with.

    `instead` says what a person can do without it.
    """
    if settings.outbox_source == "message" or not mapping.rows_kept:
        held = "logical messages" if settings.outbox_source == "message" else "rows that don't stay"
        raise UsageError(
            f"There is no {what} for an outbox of {held}: nothing is left to compare Kafka with.",
            remedy="It needs RELAY_OUTBOX_SOURCE=table and RELAY_OUTBOX_ROWS=kept, and that it is true."
            + instead,
        )


def _phantom(record: Record) -> Finding:
    return Finding("phantom", record.event_id, "is in Kafka and not in the outbox", place=str(record))
