"""`relay simulate-provider`: a provider that knows the truth, for demos and tests. It reads no settings."""

import asyncio
import signal
import sys
from pathlib import Path

import click

from consumers.providers.simulator import Simulator
from consumers.providers.simulator_world import Fault, Plan
from relay.errors import UsageError


@click.command(
    "simulate-provider",
    short_help="A provider that makes jobs, charges and fails as planned.",
    epilog=f"Faults: {', '.join(Fault)}.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=0, show_default=True, type=click.IntRange(0, 65535), help="0: any free one.")
@click.option("--seed", default=0, show_default=True, help="What is random follows from it.")
@click.option(
    "--plan",
    metavar="FILE",
    help='JSON, - for standard input, for example {"faults": {"cut_before_answer": 0.1}, "polls": [1, 3]}.',
)
@click.option("--secret", help="Demand it as a bearer token.")
def command(host: str, port: int, seed: int, plan: str | None, secret: str | None) -> None:
    """Serve a provider that makes jobs, charges for them and fails as planned; GET /_truth tells all.

    Prints `listening on URL` when it is ready, and serves until SIGINT or SIGTERM.
    """
    simulator = Simulator(host=host, port=port, seed=seed, plan=_plan(plan), secret=secret)
    asyncio.run(_serve(simulator))


async def _serve(simulator: Simulator) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, simulator.stop)
    await simulator.serve(_say)


def _say(url: str) -> None:
    click.echo(f"listening on {url}")


def _plan(name: str | None) -> Plan | None:
    if name is None:
        return None
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The plan {name} can't be read: {error}.") from None
    return Plan.parse(text, source=name)
