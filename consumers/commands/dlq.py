"""`relay dlq`: the events that a consumer group couldn't handle and parked; give them back to it, or give
them up."""

import sys
from dataclasses import asdict
from typing import Any

import click
import psycopg

from consumers.commands.session import json_option, say_json, with_database
from consumers.deadletters import decisions, letters
from consumers.deadletters.letters import Letter
from consumers.deadletters.replay import Replay, Replayed
from consumers.operations.decisions import Refused
from consumers.runtime.record import Record, Undecodable, to_event
from consumers.terminal import draw, table
from relay.avro.catalog import Catalog
from relay.cli import loaded
from relay.commands.who import who
from relay.settings import Settings

Connection = psycopg.AsyncConnection[Any]
Known = dict[tuple[str, int, int], decisions.Decided]

_STATES = ("open", "replayed", "discarded", "all")
_SHOWN_BYTES = 2_000


@click.group("dlq", short_help="Events that a consumer group has parked.")
def command() -> None:
    """Events that a consumer group couldn't handle. GROUP is a consumer's name (dispatch) or the group's
    whole id."""


@command.command("list", short_help="What a group has parked, and why.")
@click.argument("group")
@click.option("--state", type=click.Choice(_STATES), default="open", show_default=True)
@json_option
@click.pass_context
def list_(ctx: click.Context, *, group: str, state: str, as_json: bool) -> None:
    """What GROUP has parked, the oldest first. Open is what nobody has decided about."""

    async def work(connection: Connection, settings: Settings) -> tuple[str, list[Letter], Known]:
        name = letters.full_name(settings, group)
        return name, letters.letters(settings, name), await decisions.decisions(connection, name)

    name, found, known = with_database(ctx, work)
    shown = [one for one in found if state in ("all", _state(one, known))]
    if as_json:
        say_json([_as_json(one, known) for one in shown])
        return
    if not shown:
        click.echo(f"{name} has nothing parked" + (f" that is {state}." if state != "all" else "."))
        return
    rows = (
        (
            one.place,
            one.event_id or "",
            one.event_type,
            one.key,
            one.reason_code,
            one.reason,
            _state(one, known),
        )
        for one in shown
    )
    draw(table(("place", "event", "type", "key", "code", "why", "state"), rows))
    click.echo(f"\n{len(shown)} events. relay dlq show {group} EVENT shows one; replay and discard decide.")


@command.command("show", short_help="One parked event: its provenance, reason and payload.")
@click.argument("group")
@click.argument("event")
@json_option
@click.pass_context
def show(ctx: click.Context, *, group: str, event: str, as_json: bool) -> None:
    """Everything about EVENT (its id, or the place that `list` prints)."""

    async def work(connection: Connection, settings: Settings) -> tuple[list[Letter], Known]:
        name = letters.full_name(settings, group)
        found = _require(letters.chosen(letters.letters(settings, name), event), event, name)
        return found, await decisions.decisions(connection, name)

    found, known = with_database(ctx, work)
    settings = loaded(ctx).settings
    whole = [(one, letters.whole(settings, one.topic, one.partition, one.offset)) for one in found]
    if as_json:
        catalog = Catalog.load(settings.schemas)
        say_json([_as_json(one, known) | {"payload": _payload(record, catalog)} for one, record in whole])
        return
    catalog = Catalog.load(settings.schemas)
    for one, record in whole:
        for line in _lines(one, known, _payload(record, catalog)):
            click.echo(line)
        click.echo(f"\n{_next(group, one, known)}\n")


@command.command("replay", short_help="Give parked events back to their group.")
@click.argument("group")
@click.argument("events", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Every event that nobody has decided about.")
@click.option("--code", help="With --all: only those of this reason code.")
@click.option("--again", is_flag=True, help="Although it was replayed or discarded before.")
@click.option("--why", help="Kept with who and when.")
@json_option
@click.pass_context
def replay(
    ctx: click.Context,
    *,
    group: str,
    events: tuple[str, ...],
    all_: bool,
    code: str | None,
    again: bool,
    why: str | None,
    as_json: bool,
) -> None:
    """Give EVENTS (ids or places) to GROUP's own retry topic, which no other group reads.

    Each goes once; interrupted, run it again. An event that fails again is parked again. What can't be given
    back is named, and the status is 1.
    """
    if all_ == bool(events):
        raise click.UsageError("Name events, or say --all.")
    if again and all_:
        raise click.UsageError("--again takes the events by name: all of them once more is never meant.")

    async def work(connection: Connection, settings: Settings) -> Replayed:
        name = letters.full_name(settings, group)
        found = letters.letters(settings, name)
        replaying = Replay(connection, settings, name, who=who(), why=why)
        await replaying.begin()
        known = await decisions.decisions(connection, name)
        if all_:
            chosen = [
                one for one in found if _state(one, known) == "open" and code in (None, one.reason_code)
            ]
        else:
            chosen = [_one(letters.chosen(found, event), event, name, known) for event in events]
        return await replaying.replay(list(dict.fromkeys(chosen)), again=again)

    done = with_database(ctx, work)
    if as_json:
        say_json(done)
    else:
        for place in done.sent:
            click.echo(f"{place}: given back")
        for place in done.sent_before:
            click.echo(f"{place}: an earlier replay had given it back; it was not sent again")
        for place, reason in done.left.items():
            click.echo(f"{place}: left, {reason}")
        click.echo(f"{len(done.sent)} given back. `relay groups show {group}` shows whether the group runs.")
    if done.left:
        sys.exit(1)


@command.command("discard", short_help="Give a parked event up.")
@click.argument("group")
@click.argument("event")
@click.option("--why", required=True, help="Kept with who and when.")
@json_option
@click.pass_context
def discard(ctx: click.Context, *, group: str, event: str, why: str, as_json: bool) -> None:
    """Decide that EVENT is never given back. Its record stays in Kafka, and the decision in the database."""
    if not why.strip(" …"):
        raise click.UsageError("--why is empty: say why, it is kept for good.")

    async def work(connection: Connection, settings: Settings) -> Letter:
        name = letters.full_name(settings, group)
        discarding = Replay(connection, settings, name, who=who(), why=why)
        await discarding.begin()
        known = await decisions.decisions(connection, name)
        letter = _one(letters.chosen(letters.letters(settings, name), event), event, name, known)
        await discarding.discard(letter)
        return letter

    letter = with_database(ctx, work)
    if as_json:
        say_json({"place": letter.place, "event_id": letter.event_id, "state": "discarded"})
    else:
        click.echo(f"{letter.place} is discarded. What is left: `relay dlq list {group}`")


def _require(found: list[Letter], event: str, group: str) -> list[Letter]:
    if not found:
        raise Refused(
            f"{group} has parked no event {event}.",
            meaning="Nothing was changed.",
            remedy=f"`relay dlq list {group} --state all` shows all that it has parked.",
        )
    return found


def _one(found: list[Letter], event: str, group: str, known: Known) -> Letter:
    """An event may have been parked more than once: the one that is open, else the last."""
    still_open = [one for one in _require(found, event, group) if _state(one, known) == "open"]
    if len(still_open) > 1:
        places = ", ".join(one.place for one in still_open)
        raise Refused(
            f"{event} is parked {len(still_open)} times, and nobody has decided about any.",
            meaning="Nothing was changed.",
            remedy=f"Name one by its place: {places}.",
        )
    return still_open[0] if still_open else found[-1]


def _state(letter: Letter, known: Known) -> str:
    """A replay that was interrupted is still to be done."""
    decided = known.get((letter.topic, letter.partition, letter.offset))
    return "open" if decided is None or decided.state == "requested" else decided.state


def _as_json(letter: Letter, known: Known) -> dict[str, Any]:
    decided = known.get((letter.topic, letter.partition, letter.offset))
    return asdict(letter) | {
        "from_place": letter.from_place,
        "state": _state(letter, known),
        "decided": None if decided is None else asdict(decided),
    }


def _payload(record: Record | None, catalog: Catalog) -> object:
    """As its schema reads it; else its bytes, bounded."""
    if record is None:
        return None
    try:
        return dict(to_event(record, catalog).payload)
    except Undecodable as error:
        value = (record.value or b"")[:_SHOWN_BYTES]
        return {"undecodable": error.reason, "bytes": value.hex()}


def _lines(letter: Letter, known: Known, payload: object) -> list[str]:
    decided = known.get((letter.topic, letter.partition, letter.offset))
    lines = [
        f"place: {letter.place}",
        f"event: {letter.event_id or 'none'}  {letter.event_type or '(no type)'}",
        f"key: {letter.key}",
        f"from: {letter.from_place}",
        f"parked: {letter.parked_at}, after {letter.attempts} attempts",
        f"why: {letter.reason_code}: {letter.reason}",
        f"payload: {payload}",
        f"state: {_state(letter, known)}",
    ]
    if letter.omitted_bytes:
        lines.append(
            f"its value of {letter.omitted_bytes} bytes was too large to be parked; it is at `from` alone"
        )
    if decided is not None:
        why = f": {decided.why}" if decided.why else ""
        lines.append(f"{decided.state} by {decided.who} at {decided.decided_at:%Y-%m-%d %H:%M:%S%z}{why}")
    return lines


def _next(group: str, letter: Letter, known: Known) -> str:
    if _state(letter, known) == "open":
        return (
            f"When the cause is mended: relay dlq replay {group} {letter.place}\n"
            f"To give it up: relay dlq discard {group} {letter.place} --why '…'"
        )
    return f"Nothing is left to do. Once more: relay dlq replay {group} {letter.place} --again"
