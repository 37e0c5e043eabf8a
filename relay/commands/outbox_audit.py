"""`relay outbox audit`: every event that isn't where it should be, by name."""

import json
import sys
from dataclasses import asdict
from typing import Final

import click

from relay.cli import loaded
from relay.outbox.audit import WAIT_S, Audit, Finding, Summary
from relay.outbox.mapping import of_settings
from relay.refused import in_words

_SHOWN: Final = 50
_LOGIN: Final = "Use a login that is a member of relay_operator, relay_reader or relay_replicator."


@click.command("audit", short_help="Compare the outbox with its topics.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=WAIT_S,
    show_default=True,
    help="Seconds that the relay gets to come up to what the audit saw.",
)
@click.option("--all", "everything", is_flag=True, help=f"Show every finding, not {_SHOWN} of each kind.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: findings, then the summary.")
@click.pass_context
def command(ctx: click.Context, *, wait_s: float, everything: bool, as_json: bool) -> None:
    """Compare the outbox with its topics and name every event that isn't where it should be.

    Missing events, those that the relay hasn't come to within --wait (unpublished), doubled and disordered
    ones, those that only Kafka has, and those that retention took. It
    changes nothing and needs little memory, however many rows there are. Ends with 0 when every event is
    where it should be (what retention took is only said), else with 1.
    """
    settings = loaded(ctx).settings
    mapping = of_settings(settings)
    audit = Audit(settings, mapping, wait_s=wait_s, progress=_progress)
    with in_words(_LOGIN):
        for finding in audit.findings():
            if as_json:
                click.echo(json.dumps(asdict(finding)))
            elif everything or audit.summary.findings[finding.kind] <= _SHOWN:
                click.echo(_line(finding))
    if as_json:
        click.echo(json.dumps({"summary": _counted(audit.summary)}))
    else:
        _say(audit.summary, everything=everything)
    if not audit.summary.clean:
        ctx.exit(1)


def _progress(what: str) -> None:
    if sys.stderr.isatty():
        click.echo(what, err=True)


def _line(finding: Finding) -> str:
    seq = "" if finding.seq is None else f" seq {finding.seq}"
    kind = f" {finding.event_type}" if finding.event_type else ""
    place = f" [{finding.place}]" if finding.place else ""
    return f"{finding.kind}: {finding.event_id}{seq}{kind} {finding.detail}{place}"


def _say(summary: Summary, *, everything: bool) -> None:
    left_out = {kind: count - _SHOWN for kind, count in summary.findings.items() if count > _SHOWN}
    if left_out and not everything:
        more = ", ".join(f"{count} more {kind}" for kind, count in left_out.items())
        click.echo(f"… and {more} (`relay outbox audit --all`)")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(summary.verdicts.items()))
    click.echo(f"{summary.rows} rows in the outbox ({counts or 'none'}), {summary.records} records in Kafka")
    doubled, phantom = summary.findings["doubled"], summary.findings["phantom"]
    click.echo(f"doubled {doubled}, disordered {summary.findings['disordered']}, only in Kafka {phantom}")
    if summary.pruned:
        click.echo(
            f"{summary.pruned} records are of rows that were pruned: whether those committed isn't known now"
        )
    click.echo(
        "clean: every event is where it should be" if summary.clean else f"not clean. {summary.remedy}"
    )


def _counted(summary: Summary) -> dict[str, object]:
    return {
        "clean": summary.clean,
        "rows": summary.rows,
        "records": summary.records,
        "verdicts": dict(summary.verdicts),
        "findings": dict(summary.findings),
        "pruned": summary.pruned,
        "remedy": summary.remedy,
    }
