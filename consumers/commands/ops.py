"""`relay ops`: operations in a list, one with all that is known of it, the audit. What changes anything
(cancel, reconcile, redact) is in modules of its own."""

import sys
from collections import Counter
from typing import Any
from uuid import UUID

import click
import psycopg
from rich.console import RenderableType

from consumers.commands.ops_cancel import command as cancel
from consumers.commands.ops_reconcile import command as reconcile
from consumers.commands.ops_redact import command as redact
from consumers.commands.session import Id, json_option, say_json, with_database
from consumers.operations import listing
from consumers.operations.audit import OVERDUE_S, Finding, audit
from consumers.operations.lifecycle import Phase
from consumers.operations.records import Operation, Whole
from consumers.review.screen import amount, attempts, moment, pairs, titled
from consumers.terminal import draw, table
from relay.settings import Settings

Connection = psycopg.AsyncConnection[Any]


@click.group("ops", short_help="Operations: list, show, audit.")
def command() -> None:
    """Operations: the durable record of what was approved, tried and known."""


command.add_command(cancel)
command.add_command(reconcile)
command.add_command(redact)


@command.command("list")
@click.option("--phase", type=click.Choice([str(phase) for phase in Phase]), help="Only in this phase.")
@click.option("--owner", help="Only this owner's.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@json_option
@click.pass_context
def list_(ctx: click.Context, *, phase: str | None, owner: str | None, limit: int, as_json: bool) -> None:
    """Operations, those that moved last first."""

    async def work(connection: Connection, _: Settings) -> tuple[list[Operation], dict[str, int]]:
        return (
            await listing.operations(connection, phase=phase, owner_id=owner, limit=limit),
            await listing.phases(connection, owner_id=owner),
        )

    found, phases = with_database(ctx, work)
    if as_json:
        say_json({"operations": found, "phases": phases})
        return
    if found:
        rows = (
            (
                one.operation_id,
                one.kind,
                one.owner_id,
                one.operation_key,
                one.phase,
                one.phase_reason,
                one.job_id,
                one.accounting,
                moment(one.updated_at),
            )
            for one in found
        )
        draw(table(("operation", "kind", "owner", "key", "phase", "why", "job", "money", "moved"), rows))
    click.echo(", ".join(f"{count} {name}" for name, count in phases.items()) or "There is no operation.")


@command.command("show", short_help="All that is known of one operation.")
@click.argument("operation", type=Id())
@json_option
@click.pass_context
def show(ctx: click.Context, *, operation: UUID, as_json: bool) -> None:
    """Everything that is known of OPERATION: its journal, attempts, jobs, money, outputs and reviews."""

    async def work(connection: Connection, _: Settings) -> Whole:
        return await listing.whole(connection, operation)

    seen = with_database(ctx, work)
    if as_json:
        say_json(seen)
    else:
        draw(*_screen(seen))


@command.command("audit", short_help="What the tables hold and may not, by name.")
@click.option(
    "--overdue-s",
    type=click.FloatRange(0),
    default=OVERDUE_S,
    show_default=True,
    help="What has been due for longer is a finding.",
)
@json_option
@click.pass_context
def audit_(ctx: click.Context, *, overdue_s: float, as_json: bool) -> None:
    """Hold the tables against what may be there: hashes, journal, events, submissions, jobs, money, wakers.

    Ends with status 1 if there is any finding.
    """

    async def work(connection: Connection, _: Settings) -> list[Finding]:
        return await audit(connection, overdue_s=overdue_s)

    findings = with_database(ctx, work)
    if as_json:
        say_json({"findings": findings})
    elif findings:
        draw(
            table(
                ("breaks", "operation", "what"),
                ((one.invariant, one.operation_id, one.what) for one in findings),
            )
        )
        counted = Counter(str(one.invariant) for one in findings)
        click.echo("\n" + ", ".join(f"{count} {name}" for name, count in sorted(counted.items())))
    else:
        click.echo("Nothing was found that may not be.")
    if findings:
        sys.exit(1)


def _screen(seen: Whole) -> list[RenderableType]:
    operation = seen.operation
    parts: list[RenderableType] = [
        pairs(
            [
                ("operation", f"{operation.operation_id}  {operation.kind}"),
                ("phase", f"{operation.phase} ({operation.phase_reason}), version {operation.version}"),
                ("owner", f"{operation.owner_id}  key {operation.operation_key}"),
                ("approved", f"{operation.specification_hash}, {operation.payload_bytes} bytes"),
                (
                    "by reference",
                    f"SHA-256 {operation.payload_sha256}" if operation.payload_sha256 is not None else "",
                ),
                ("from", operation.source_ref),
                ("by", operation.requested_by),
                ("provider", operation.provider_account),
                ("job", operation.job_id),
                ("at most", f"{amount(operation.max_cost)} {operation.cost_unit}, {operation.accounting}"),
                ("claimed by", operation.claimed_by),
                ("lease until", moment(operation.lease_expires_at)),
                ("looked at again", moment(operation.next_action_at)),
                ("cancel", "requested" if operation.cancel_requested else ""),
                ("parent", operation.parent_operation_id),
                ("delivery", ", ".join(str(one) for one in seen.deliveries)),
            ]
        ),
        titled(
            "Journal",
            table(
                ("v", "at", "from", "to", "cause", "reason", "by"),
                (
                    (
                        one.version,
                        moment(one.at),
                        one.from_phase,
                        one.to_phase,
                        one.cause,
                        one.reason,
                        one.actor,
                    )
                    for one in seen.journal
                ),
            ),
        ),
    ]
    if seen.attempts:
        parts.append(titled("Attempts", attempts(seen.attempts)))
    sections: list[tuple[str, tuple[str, ...], list[tuple[object, ...]]]] = [
        (
            "Jobs",
            ("job", "role", "state", "cost", "seen"),
            [(one.job_id, one.role, one.state, one.cost, moment(one.first_seen_at)) for one in seen.jobs],
        ),
        (
            "Money",
            ("attempt", "amount", "state", "settled"),
            [
                (one.attempt_id, f"{amount(one.amount)} {one.unit}", one.state, one.settled_amount)
                for one in seen.reservations
            ],
        ),
        (
            "Outputs",
            ("no", "name", "stored as", "bytes", "sha256"),
            [
                (one.ordinal, one.name, one.stored_key, one.stored_bytes, one.stored_sha256)
                for one in seen.outputs
            ],
        ),
        (
            "Reviews",
            ("review", "kind", "state", "resolution", "by"),
            [(one.review_id, one.kind, one.state, one.resolution, one.resolved_by) for one in seen.reviews],
        ),
        (
            "Incidents",
            ("at", "boundary", "what", "decision"),
            [(moment(one.opened_at), one.boundary, one.what, one.decision) for one in seen.incidents],
        ),
    ]
    parts += [titled(title, table(columns, rows)) for title, columns, rows in sections if rows]
    return parts
