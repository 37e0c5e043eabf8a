"""`relay receive-webhooks`: a provider's word that it is time to look."""

import asyncio

import click

from consumers.webhooks.receiver import Receiver
from relay.cli import loaded
from relay.logs import configure


@click.command("receive-webhooks", short_help="Look at a job at once when its provider says so.")
@click.pass_context
def command(ctx: click.Context) -> None:
    """Receive POST /webhooks/PROVIDER[/ACCOUNT] at RELAY_WEBHOOKS_HOST and RELAY_WEBHOOKS_PORT.

    Until SIGTERM. A genuine one makes schedule ask for its job now, and changes nothing else. The provider's
    profile says how webhooks are signed; the secrets are RELAY_PROVIDER_<NAME>_WEBHOOK_SECRET or the lines of
    the file …_WEBHOOK_SECRET_FILE, several during a rotation. Put a proxy with TLS before it.
    """
    settings = loaded(ctx).settings
    configure(settings.log_format, settings.log_level)
    asyncio.run(Receiver(settings).run())
