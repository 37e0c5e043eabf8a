"""`relay topics`: the relay's topics beside what it recorded of them, and a person's word for a change."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

import click
import psycopg

from relay import known_topics
from relay.cli import loaded
from relay.errors import UsageError
from relay.kafka import checkpoint as checkpoints
from relay.kafka.topics import Identity, Topics, difference
from relay.outbox.event import dead_letter_topic, topics_from_start
from relay.outbox.mapping import parse
from relay.refused import in_words
from relay.settings import Settings
from relay.wal import slot as slots
from relay.wal.slot import SourceIdentity

_READER: Final = "Use a login that is a member of relay_operator, relay_reader or relay_replicator."
_OPERATOR: Final = "Use a login that is a member of relay_operator."


@dataclass(frozen=True, slots=True)
class Beside:
    """One topic: what it is now, and what the relay recorded."""

    topic: str
    recorded: Identity | None
    now: Identity | None

    @property
    def differs(self) -> str | None:
        """What happened to it since it was recorded; None when nothing did."""
        return None if self.recorded is None else difference(self.recorded, self.now)

    @property
    def state(self) -> str:
        """One word or clause for a person."""
        if self.recorded is not None:
            return self.differs or "as recorded"
        return "not met yet" if self.now is None else "there, not recorded yet"


@click.group("topics", short_help="The relay's topics, and what changed about them.")
def command() -> None:
    """The topics that the relay publishes to, beside what it recorded when it met them.

    One that is deleted, made anew or repartitioned stops the relay (status 17) until somebody has looked.
    """


@command.command("list", short_help="Topics, partitions, ids, and what differs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_context
def list_command(ctx: click.Context, *, as_json: bool) -> None:
    """Each topic of this relay with its partitions and id, what is recorded, and what differs."""
    settings = loaded(ctx).settings
    with in_words(_READER), psycopg.connect(settings.require_database(), autocommit=True) as connection:
        found = _beside(settings, connection, _identity(connection, settings))
    if as_json:
        click.echo(json.dumps([_document(one) for one in found]))
        return
    width = max((len(one.topic) for one in found), default=0)
    for one in found:
        at = one.now or one.recorded
        partitions = "-" if at is None else f"{at.partitions:>3} partitions  {at.topic_id}"
        click.echo(f"{one.topic:{width}}  {partitions}  {one.state}")
    changed = [one.topic for one in found if one.differs]
    if changed:
        click.echo(
            f"\n{len(changed)} differ, and `relay run` stops. `relay topics accept {' '.join(changed)}` takes"
            " them as they are; `relay outbox repair` brings back what they no longer have."
        )


@command.command("accept", short_help="Take changed topics as they are now.")
@click.argument("topics", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every topic that differs.")
@click.pass_context
def accept_command(ctx: click.Context, *, topics: tuple[str, ...], everything: bool) -> None:
    """Record what the topics are now, so that `relay run` goes on with them.

    It says what that means. It brings nothing back: what a deleted topic had, `relay outbox repair` publishes
    again, as far as the outbox still has it.
    """
    if everything == bool(topics):
        raise UsageError(
            "Either name the topics to accept, or say --all.",
            remedy="`relay topics list` shows what differs.",
        )
    settings = loaded(ctx).settings
    with in_words(_OPERATOR), psycopg.connect(settings.require_database(), autocommit=True) as connection:
        identity = _identity(connection, settings)
        found = {one.topic: one for one in _beside(settings, connection, identity)}
        unknown = sorted(set(topics) - set(found))
        if unknown:
            raise UsageError(
                f"{', '.join(unknown)}: no topic of relay {identity.relay_id}.",
                remedy="`relay topics list` shows its topics.",
            )
        chosen = [one for one in found.values() if one.differs and (everything or one.topic in topics)]
        present = {one.topic: one.now for one in chosen if one.now is not None}
        with connection.transaction():
            known_topics.record(connection, identity.relay_id, present)
            known_topics.forget(connection, identity.relay_id, [one.topic for one in chosen if not one.now])
    checkpoint = checkpoints.topic(settings.topic_prefix, identity.relay_id)
    for one in chosen:
        click.echo(f"{one.topic} {one.differs}: accepted. {_meaning(one, checkpoint)}")
    if not chosen:
        click.echo("Nothing differs from what is recorded; nothing was changed.")
    else:
        click.echo("Start the relay again, if it has stopped.")


def _identity(connection: psycopg.Connection[Any], settings: Settings) -> SourceIdentity:
    found = slots.read_identity(connection, settings.slot)
    if found is None:
        raise UsageError(
            f"No relay is known for the replication slot {settings.slot}.",
            remedy="Run `relay init` once against this database.",
        )
    return found


def _beside(
    settings: Settings, connection: psycopg.Connection[Any], identity: SourceIdentity
) -> list[Beside]:
    """Every topic that the relay has met or would make at its start, by name."""
    from relay.avro.catalog import Catalog

    recorded = known_topics.read(connection, identity.relay_id)
    mapping = parse(settings.outbox_table, settings.outbox_columns, settings.outbox_rows)
    prefix = settings.topic_prefix
    names = {
        *recorded,
        *topics_from_start(mapping, Catalog.load(settings.schemas), prefix, settings.topic),
        dead_letter_topic(prefix),
        checkpoints.topic(prefix, identity.relay_id),
    }
    topics = Topics(
        settings.require_kafka(),
        partitions=settings.topic_partitions,
        replication=settings.topic_replication,
    )
    now = topics.describe(names)
    return [Beside(name, recorded.get(name), now.get(name)) for name in sorted(names)]


def _meaning(one: Beside, checkpoint: str) -> str:
    if one.topic == checkpoint and (one.now is None or one.recorded is None or _is_another(one)):
        return (
            "It held the relay's position: unless its records were moved with it, `relay run` now ends with "
            "status 10, and `relay outbox repair` is the way on."
        )
    if one.now is None:
        return "The relay makes it anew when it needs it; what it held is gone."
    if _is_another(one):
        return "What the former one held is gone; consumers start at the beginning of the new one."
    return (
        "An operation's later events may go to another partition than its earlier ones: order isn't kept for "
        "operations that are under way now."
    )


def _is_another(one: Beside) -> bool:
    return one.now is not None and one.recorded is not None and one.now.topic_id != one.recorded.topic_id


def _document(one: Beside) -> dict[str, object]:
    return {
        "topic": one.topic,
        "state": one.state,
        "differs": one.differs is not None,
        "now": None if one.now is None else asdict(one.now),
        "recorded": None if one.recorded is None else asdict(one.recorded),
    }
