"""`relay doctor`: everything that can be checked before it breaks. It changes nothing."""

import json
from collections import Counter
from dataclasses import asdict
from itertools import groupby
from typing import Final

import click

from relay.cli import loaded
from relay.doctor.finding import Finding, Severity, exit_status
from relay.doctor.server import OLD_TRANSACTION_S

_MARKS: Final = {Severity.OK: "✓", Severity.NOTE: "·", Severity.WARNING: "!", Severity.ERROR: "✗"}
_COLOURS: Final = {
    Severity.OK: "green",
    Severity.NOTE: "cyan",
    Severity.WARNING: "yellow",
    Severity.ERROR: "red",
}
_ORDER: Final = (Severity.ERROR, Severity.WARNING, Severity.NOTE, Severity.OK)


@click.command("doctor", short_help="Check everything that can be checked before it breaks.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON list of findings, the good ones as well."
)
@click.option("--strict", is_flag=True, help="A warning ends with status 1, too.")
@click.option(
    "--old-transaction-s",
    type=click.FloatRange(min=0),
    default=OLD_TRANSACTION_S,
    show_default=True,
    help="Seconds from which on an open transaction is worth a warning.",
)
@click.pass_context
def command(ctx: click.Context, *, as_json: bool, strict: bool, old_transaction_s: float) -> None:
    """Check Postgres, the slot, failover, the outbox, Kafka, topics and schemas; it changes nothing.

    Run it as the relay's own login: as relay_operator or relay_reader it says what it couldn't look at. A
    server that is away is a finding, and the rest is looked at.

    Each finding has a check (realm.name), a severity (ok, note, warning, error), what was seen, why it
    matters, and the command that mends it.

    Ends with 0 when there is no error (warnings and notes are only said), with 1 when there is one, or with
    --strict a warning; with 2 when it was called wrongly.
    """
    from relay.doctor.examine import Doctor

    found = Doctor(loaded(ctx).settings, old_transaction_s=old_transaction_s).examine()
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in found], ensure_ascii=False))
    else:
        _print(found)
    ctx.exit(exit_status(found, strict=strict))


def _print(found: list[Finding]) -> None:
    for realm, findings in groupby(found, key=lambda finding: finding.realm):
        click.secho(realm, bold=True)
        for (check, severity), group in groupby(
            findings, key=lambda finding: (finding.check, finding.severity)
        ):
            same = list(group)
            title = f"  {click.style(_MARKS[severity], fg=_COLOURS[severity])} {check.partition('.')[2]}"
            if severity is Severity.OK and len(same) > 1:
                click.echo(f"{title}: well for {len(same)}")
                continue
            for finding in same:
                click.echo(f"{title}: {finding.what}")
                if severity is not Severity.OK:
                    _say_more(finding)
    counts = Counter(finding.severity for finding in found)
    click.echo(", ".join(f"{counts[severity]} {severity}" for severity in _ORDER if counts[severity]))


def _say_more(finding: Finding) -> None:
    if finding.why:
        click.echo(f"      why: {finding.why}")
    if finding.command:
        click.echo(f"      run: {finding.command}")
