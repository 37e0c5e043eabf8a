"""`relay consume NAME`: run one consumer in its group until SIGTERM."""

import asyncio

import click

from consumers.runtime.discovery import find
from consumers.runtime.process import run
from relay import logs
from relay.cli import loaded


@click.command("consume", short_help="Run one consumer in its group.")
@click.argument("name")
@click.pass_context
def command(ctx: click.Context, name: str) -> None:
    """Run the consumer NAME: dispatch, collect, deliver, or one of a package of yours.

    Its group id is PREFIX.NAME. Start as many processes as you like, up to the topics' partitions. On
    SIGTERM, work in flight finishes (RELAY_GRACE_S) and is committed; what must not be cancelled is waited
    for.
    """
    consumer = find(name)
    settings = loaded(ctx).settings
    logs.configure(settings.log_format, settings.log_level)
    asyncio.run(run(consumer, settings))
