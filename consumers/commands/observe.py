"""`relay observe`: the life of each operation, read from the topics and from nothing else. It never
writes."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import click

from consumers.observe.history import History
from consumers.observe.reader import Start, TopicReader
from consumers.observe.show import (
    TRANSITIONED,
    Observed,
    event_document,
    event_line,
    life_document,
    life_table,
    plain,
)
from consumers.runtime.record import Undecodable, event_type, to_event
from consumers.terminal import draw
from relay.avro.catalog import Catalog
from relay.cli import loaded
from relay.errors import UsageError
from relay.settings import Settings

_AGO = re.compile(r"(\d+)([smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class _Since(click.ParamType[datetime]):
    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value)
        if match := _AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"{text!r} is neither a time (2026-11-29T16:44:00Z) nor an age (15m, 2h, 3d)", param, ctx
            )
        return moment if moment.tzinfo else moment.astimezone()


@click.command("observe", short_help="Show the life of each operation, from the topics alone.")
@click.option(
    "--type", "event_types", multiple=True, metavar="TYPE", help="Only these event types. Repeatable."
)
@click.option("--operation", "operation_id", type=click.UUID, help="Only this operation.")
@click.option("--from-offset", type=click.IntRange(min=0), help="Begin at this offset of every partition.")
@click.option("--since", type=_Since(), help="Begin at a time (RFC 3339), or so long ago: 15m, 2h, 3d.")
@click.option(
    "--follow", "-f", is_flag=True, help="Go on at the end, a line for each event, until interrupted."
)
@click.option(
    "--json", "as_json", is_flag=True, help="A JSON line for each event, then one for each operation."
)
@click.pass_context
def command(
    ctx: click.Context,
    event_types: tuple[str, ...],
    operation_id: object,
    from_offset: int | None,
    since: datetime | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the life of each operation, rebuilt from the topics.

    Reads from the start (or --from-offset, --since) to the end that the topics have now, outside the workers'
    groups: no offset moves.
    """
    if from_offset is not None and since is not None:
        raise UsageError("--from-offset and --since both say where to begin.", remedy="Give one of them.")
    settings = loaded(ctx).settings
    catalog = Catalog.load(settings.schemas)
    start = Start(offset=from_offset, since=since)
    with TopicReader(settings, _topics(settings, catalog, event_types), start) as reader:
        for topic in reader.missing_topics:
            click.echo(f"There is no topic {topic} yet.", err=True)
        wanted = None if operation_id is None else str(operation_id).encode()
        seen = _observed(reader, catalog, event_types, wanted, follow=follow)
        try:
            if follow:
                _follow(seen, as_json=as_json)
            else:
                _show(seen, as_json=as_json)
        except KeyboardInterrupt:
            ctx.exit(0)


def _topics(settings: Settings, catalog: Catalog, event_types: tuple[str, ...]) -> list[str]:
    known = catalog.event_types()
    for each in event_types:
        if each not in known:
            raise UsageError(
                f"There is no schema for the event type {each!r}.",
                remedy=f"Known are {', '.join(known)}; RELAY_SCHEMAS adds folders.",
            )
    if settings.topic is not None:
        return [settings.topic]
    return [f"{settings.topic_prefix}.{each}" for each in event_types or known]


def _observed(
    reader: TopicReader, catalog: Catalog, event_types: tuple[str, ...], key: bytes | None, *, follow: bool
) -> Iterator[Observed]:
    for record in reader.records(follow=follow):
        if key is not None and record.key != key:
            continue
        if event_types and event_type(record) not in event_types:
            continue
        try:
            yield Observed(record, to_event(record, catalog), None)
        except Undecodable as undecodable:
            yield Observed(record, None, undecodable.reason)


def _line(document: dict[str, object]) -> None:
    click.echo(json.dumps(document, default=plain, ensure_ascii=False))


def _follow(seen: Iterator[Observed], *, as_json: bool) -> None:
    for observed in seen:
        if as_json:
            _line(event_document(observed))
        else:
            click.echo(event_line(observed))


def _show(seen: Iterator[Observed], *, as_json: bool) -> None:
    history = History()
    by_operation: dict[str, list[Observed]] = {}
    for observed in seen:
        if observed.event is not None and observed.event.type == TRANSITIONED:
            history.add(observed.event.payload)
        if as_json:
            _line(event_document(observed))
        else:
            by_operation.setdefault(observed.operation, []).append(observed)
    if as_json:
        for life in history:
            _line(life_document(life))
        return
    lives = {str(life.operation_id): life for life in history}
    for operation, events in by_operation.items():
        draw(life_table(operation, lives.get(operation), events))
    if not by_operation:
        click.echo("No events.")
