"""The `relay` command: thin. Each sub-command is found by name in the entry-point group `relay.commands`
and imported only when it is called, so that `relay --help` costs nothing and a package of yours may add one.
"""

import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import click

from relay import failpoints
from relay.errors import RelayError, UsageError
from relay.settings import Loaded, load


class _Commands(click.Group):
    def _entry_points(self) -> dict[str, EntryPoint]:
        return {found.name: found for found in entry_points(group="relay.commands")}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(self._entry_points())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        found = self._entry_points().get(cmd_name)
        if found is None:
            return None
        command = found.load()
        if not isinstance(command, click.Command):
            raise UsageError(
                f"The sub-command {cmd_name!r} of {found.value} is not a click command.",
                remedy="Mend the entry point of the package that declares it.",
            )
        return command


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="outbox-relay", prog_name="relay")
@click.option("--config", type=click.Path(path_type=Path), help="Settings file (TOML). Also RELAY_CONFIG.")
@click.option("--database-url", help="libpq URL or keywords. Also RELAY_DATABASE_URL.")
@click.option("--kafka-bootstrap", help="Kafka brokers, host:port. Also RELAY_KAFKA_BOOTSTRAP.")
@click.option("--log-level", help="debug, info, warning or error. Also RELAY_LOG_LEVEL.")
@click.option("--log-format", help="console or json. Also RELAY_LOG_FORMAT.")
@click.pass_context
def relay(
    ctx: click.Context,
    config: Path | None,
    database_url: str | None,
    kafka_bootstrap: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Outbox Relay: committed outbox rows to Kafka, and consumers whose effect must not happen twice."""
    failpoints.arm()
    flags: dict[str, object] = {
        "database_url": database_url,
        "kafka": {"bootstrap.servers": kafka_bootstrap} if kafka_bootstrap else None,
        "log_level": log_level,
        "log_format": log_format,
    }
    # Loaded by the sub-command that needs settings: `relay run --help` must work with a broken file.
    ctx.obj = lambda: load(config=config, flags=flags)


def loaded(ctx: click.Context) -> Loaded:
    """The settings of this invocation; warnings go to standard error once. Raises UsageError."""
    result: Loaded = ctx.obj()
    for warning in result.warnings:
        click.echo(f"warning: {warning}", err=True)
    return result


def main() -> None:
    """Entry point of the console script. Ends with the exit status that the error carries."""
    try:
        # Not standalone, click returns what `ctx.exit` was given; a command that just ends returns None.
        status = relay.main(prog_name="relay", standalone_mode=False)
        if isinstance(status, int):
            sys.exit(status)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except RelayError as error:
        click.echo(f"relay: {error.message}", err=True)
        if error.meaning:
            click.echo(f"  what it means: {error.meaning}", err=True)
        if error.remedy:
            click.echo(f"  what to do:    {error.remedy}", err=True)
        sys.exit(error.exit_status)
