"""`relay outbox`: what an operator does with the outbox itself."""

from typing import Final

import click

from relay.commands.lazy import LazyGroup

_MODULES: Final[dict[str, str]] = {
    "audit": "relay.commands.outbox_audit",
    "parked": "relay.commands.outbox_parked",
    "repair": "relay.commands.outbox_repair",
    "prune": "relay.commands.outbox_prune",
    "republish": "relay.commands.outbox_republish",
}


@click.group("outbox", cls=LazyGroup, modules=_MODULES, short_help="Compare, repair, prune; bad events.")
def command() -> None:
    """The outbox beside its topics: what is missing, how it is brought back, what may go."""
