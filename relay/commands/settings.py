"""`relay settings`: every setting with its value, where that came from, and its environment variable."""

import json

import click

from relay.cli import loaded
from relay.settings import ENV_PREFIX, Loaded, Settings, environment_name, masked

_SEVERAL = {
    "kafka": f"{ENV_PREFIX}KAFKA_…",
    "providers": f"{ENV_PREFIX}PROVIDER_<NAME>_URL, …_SECRET, …_SECRET_FILE",
}


@click.command("settings", short_help="Every setting: its value, and where that came from.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List every setting: value, origin (default, file, environment, flag) and environment variable.

    Secrets are masked. Later origins win: a file (--config, RELAY_CONFIG), then the environment, then flags.
    """
    rows = describe(loaded(ctx))
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    for row in rows:
        value = (
            row["value"] if isinstance(row["value"], str) else json.dumps(row["value"], ensure_ascii=False)
        )
        click.echo(f"{row['name']} = {value or '(empty)'}")
        click.echo(f"    {row['description']}")
        click.echo(f"    {row['origin']}; {row['environment']}")


def describe(settings: Loaded) -> list[dict[str, object]]:
    """One row per setting, in the order of `relay.settings.Settings`; nothing secret in it."""
    values = masked(settings.settings)
    return [
        {
            "name": name,
            "value": values[name],
            "origin": settings.origins[name],
            "environment": _SEVERAL.get(name, environment_name(name)),
            "description": field.description or "",
        }
        for name, field in Settings.model_fields.items()
    ]
