"""Checks of the outbox and of the relay's identity: is the source what Kafka's checkpoint says it was? Pure.

The rules are those that `relay run` stops by (relay.identity), asked beforehand.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from relay import identity
from relay.doctor.finding import Finding, error, length, note, ok, unless_refused, unseen, warning
from relay.errors import RelayError
from relay.kafka.checkpoint import Checkpoint
from relay.outbox.mapping import OutboxMapping
from relay.wal import publication as publications
from relay.wal.lsn import format_lsn
from relay.wal.publication import Published
from relay.wal.slot import Slot, SourceIdentity, require_made_for


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What the database says of the outbox and the relay."""

    slot_name: str
    publication: str
    mapping: OutboxMapping
    published: Published
    recorded: SourceIdentity | None
    slot: Slot | None
    pending: tuple[str, ...]
    """Migrations of this release that the database doesn't have."""
    unknown: tuple[str, ...]
    """Migrations that the database has and this release doesn't know."""
    parked: int
    payload_limit_bytes: int | None
    """What the outbox's own CHECK lets in; None without one."""
    oldest_age_s: float | None
    """Of the first row; None in an empty outbox, or in one without a time."""
    event_types: tuple[tuple[str, int | None], ...]
    """Type and schema version of the newest rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Both sides of the relay's position, read in an order that can't accuse a relay that is running: first
    the slot, then the checkpoint, then the server's WAL end."""

    recorded: SourceIdentity
    slot: Slot
    server: identity.Server
    checkpoint: Checkpoint | None
    event_kept: bool
    """Whether the checkpoint's event is in the outbox; True where it needn't be."""


def check(facts: SourceFacts) -> Iterator[Finding]:
    """Everything that Postgres alone can tell."""
    yield check_migrations(facts)
    yield check_publication(facts)
    yield check_identity(facts)
    yield check_rows(facts)
    yield check_parked(facts)


def check_migrations(facts: SourceFacts) -> Finding:
    if facts.unknown:
        return error(
            "outbox.migrations",
            f"The database has migrations that this release doesn't know: {', '.join(facts.unknown)}.",
            "A newer release has prepared it; this one may misread its tables.",
            "pip install --upgrade outbox-relay",
        )
    if facts.pending:
        return error(
            "outbox.migrations",
            f"The database lacks {', '.join(facts.pending)}.",
            "This release needs what they make.",
            "`relay init`",
        )
    return ok("outbox.migrations", "the database is as this release needs it")


def check_publication(facts: SourceFacts) -> Finding:
    published = facts.published
    there = published.outbox_exists or facts.mapping.source == "message"
    if facts.recorded is None and not (there and published.publication_exists):
        missing = "publication" if there else "outbox"
        return error(
            "outbox.publication",
            f"There is no {missing} yet.",
            "Nothing that is committed now reaches a relay.",
            "`relay init`",
        )
    return unless_refused(
        "outbox.publication",
        f"the publication {facts.publication} sends every insert of {facts.mapping.name}",
        lambda: publications.require(facts.published, facts.publication, facts.mapping),
    )


def check_identity(facts: SourceFacts) -> Finding:
    name, recorded = "identity.state", facts.recorded
    if recorded is None:
        return error(
            name,
            f"No relay is known for the replication slot {facts.slot_name}.",
            "`relay run` has nothing to go on from.",
            "`relay init`",
        )
    try:
        require_made_for(recorded, facts.publication, facts.mapping)
    except RelayError as refused:
        return error(
            name, refused.message, "It would read another outbox than it began with.", refused.remedy
        )
    if recorded.state == "repairing":
        return error(
            name,
            f"A repair of relay {recorded.relay_id} is under way, or was interrupted.",
            "Until it ends, nobody publishes from this outbox.",
            "If nobody runs it now: `relay outbox repair`",
        )
    if recorded.state == "new":
        return note(name, f"relay {recorded.relay_id} is new", "It hasn't run yet.", "`relay run`")
    return ok(name, f"relay {recorded.relay_id}, epoch {recorded.epoch}, {recorded.state}")


def check_rows(facts: SourceFacts) -> Finding:
    if facts.mapping.lacks is None:
        return ok("outbox.rows", "rows are kept and numbered: audit and repair can compare them with Kafka")
    return note(
        "outbox.rows",
        facts.mapping.lacks,
        "What is lost between the slot and Kafka can't be found or brought back from the table, or not in"
        " order.",
        "Set RELAY_OUTBOX_ROWS=kept and keep them, and name a seq column in RELAY_OUTBOX_COLUMNS.",
    )


def check_parked(facts: SourceFacts) -> Finding:
    if not facts.parked:
        return ok("outbox.parked", "no event is parked")
    return warning(
        "outbox.parked",
        f"{facts.parked} events could not be sent and wait as parked.",
        "Their consumers haven't heard of them.",
        "`relay outbox parked list`",
    )


def check_position(position: Position) -> Finding:
    """What `relay run` would decide at its start."""
    name, recorded = "identity.checkpoint", position.recorded
    try:
        found = identity.decide(recorded, position.slot, position.server, position.checkpoint)
        identity.require_event(found, kept=position.event_kept)
    except RelayError as refused:
        return error(name, refused.message, refused.meaning, refused.remedy)
    if position.checkpoint is None:
        return note(name, "Kafka has no checkpoint yet", "The relay is new.", "`relay run`")
    return ok(name, f"slot and checkpoint agree at {format_lsn(found.confirmed_lsn)}")


def check_verified(recorded: SourceIdentity, started_at_differs: bool) -> Finding:
    """Dispatch works only while the relay has verified the server that runs now."""
    name = "identity.verified"
    if recorded.verified_at is None:
        return note(
            name, "no relay has verified the source yet", "Dispatch is closed until then.", "`relay run`"
        )
    if started_at_differs:
        return warning(
            name,
            "Postgres was started since the relay verified it.",
            "Dispatch is closed until a relay has seen that it is the same database.",
            "`relay run`",
        )
    return ok(name, f"verified {recorded.verified_at:%Y-%m-%d %H:%M}, and the server runs since before that")


def check_reconciled(recorded: SourceIdentity) -> Finding:
    """After an accepted rewind dispatch is closed, and the relay itself works: nothing else shows it."""
    name, since = "identity.reconciled", recorded.unreconciled_since
    if since is None:
        return ok(name, "no accepted rewind waits to be reconciled")
    return warning(
        name,
        f"A rewind was accepted at {since:%Y-%m-%d %H:%M}, and nobody has reconciled the operations since.",
        "Dispatch is closed: what looks prepared here may have been submitted before the rewind.",
        "`relay ops reconcile` compares the operations with Kafka's history and the dispatchers' spools,"
        " and opens"
        " it.",
    )


def check_retention(facts: SourceFacts, topic: str, retention_s: float | None) -> Finding:
    """`retention_s`: how long the topic keeps records; None is for ever."""
    name = "topics.retention"
    if retention_s is None:
        return ok(name, f"{topic} keeps records for ever")
    kept = length(retention_s)
    if facts.oldest_age_s is None or not facts.mapping.rows_kept:
        return note(name, f"{topic} keeps records for {kept}", "Prune the outbox sooner than that.")
    if facts.oldest_age_s < retention_s:
        return ok(name, f"{topic} keeps records for {kept}, longer than the outbox has rows")
    age = length(facts.oldest_age_s)
    days = max(1, int(retention_s // 86_400) - 1)
    return warning(
        name,
        f"{topic} keeps records for {kept}, and the outbox has rows of {age}.",
        "Of a row that is older than its topic, nobody can say whether Kafka ever had it: audit and repair"
        " call it expired.",
        f"`relay outbox prune --older-than {days}d`; or kafka-configs.sh --bootstrap-server … --alter --topic"
        f" {topic} --add-config retention.ms={round(2 * facts.oldest_age_s * 1000)}",
    )


def position_unseen(reason: object) -> Finding:
    return unseen("identity.checkpoint", reason, "`relay doctor` as the relay's own login, with Kafka up")
