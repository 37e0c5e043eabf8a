"""`relay groups`: how far the consumer groups are, and how one at rest begins somewhere else."""

from datetime import datetime
from typing import Any

import click

from consumers.commands.session import json_option, say_json
from consumers.deadletters.letters import full_name
from consumers.operations.decisions import Refused
from consumers.runtime import groups
from consumers.terminal import draw, table
from relay.cli import loaded


@click.group("groups", short_help="Consumer groups: how far they are.")
def command() -> None:
    """Consumer groups of this prefix. GROUP is a consumer's name (dispatch) or the group's whole id."""


@command.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, *, as_json: bool) -> None:
    """The groups that Kafka knows."""
    found = groups.listed(loaded(ctx).settings)
    if as_json:
        say_json(found)
    elif not found:
        click.echo("Kafka knows no group of this prefix yet: none has a member, and none ever had.")
    else:
        draw(table(("group", "state"), ((one.group, one.state) for one in found)))


@command.command("show", short_help="Members, and how far each partition is.")
@click.argument("group")
@json_option
@click.pass_context
def show(ctx: click.Context, *, group: str, as_json: bool) -> None:
    """Members of GROUP, and of each partition what it is done with and what there is."""
    settings = loaded(ctx).settings
    seen = groups.look(settings, full_name(settings, group))
    if as_json:
        say_json(seen)
        return
    click.echo(f"{seen.group}: {seen.state}, {len(seen.members)} members")
    for member in seen.members:
        click.echo(f"  {member}")
    rows = ((one.topic, one.partition, one.committed, one.end, one.lag) for one in seen.partitions)
    draw(table(("topic", "partition", "done up to", "end", "lag"), rows))


@command.command("reset", short_help="Let a group at rest begin somewhere else.")
@click.argument("group")
@click.option("--to", required=True, metavar="start|end|TIME", help="TIME: the first record since, RFC 3339.")
@click.option("--topic", help="Only this topic.")
@click.option("--apply", "apply_", is_flag=True, help="Do what is shown without it.")
@json_option
@click.pass_context
def reset(ctx: click.Context, *, group: str, to: str, topic: str | None, apply_: bool, as_json: bool) -> None:
    """Move the offsets of GROUP, whose members must have stopped.

    Without --apply it only shows. To read again is harmless to the built-in groups: no event makes a second
    POST. To skip is not: what is skipped is never handled by an event, and `relay schedule` asks for it again
    only where an operation still waits.
    """
    settings = loaded(ctx).settings
    seen = groups.look(settings, full_name(settings, group))
    if topic is not None and all(one.topic != topic for one in seen.partitions):
        known = ", ".join(sorted({one.topic for one in seen.partitions})) or "none"
        raise click.UsageError(f"{seen.group} reads no topic {topic}; it has: {known}.")
    if not seen.at_rest:
        raise Refused(
            f"{seen.group} has {len(seen.members)} members: {'; '.join(seen.members)}.",
            meaning="They would go on from where they are; nothing was changed.",
            remedy="Stop them (SIGTERM), then run this again.",
        )
    moved = groups.moves(settings, seen, _to(to), topic)
    if apply_ and moved:
        groups.reset(settings, seen.group, moved)
    if as_json:
        say_json({"group": seen.group, "applied": apply_, "moves": moved})
        return
    for one in moved:
        was = "nothing" if one.was is None else one.was
        click.echo(f"{one.topic}/{one.partition}: {was} → {one.to}")
    if not moved:
        click.echo(f"{seen.group} is there already.")
    elif apply_:
        click.echo(f"{seen.group} begins there.")
    else:
        click.echo("Nothing was changed; --apply does it.")


def _to(text: str) -> Any:
    if text in ("start", "end"):
        return text
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise click.UsageError(f"--to {text!r}: say start, end, or a time as 2026-12-01T09:00:00+00:00.")
    return at
