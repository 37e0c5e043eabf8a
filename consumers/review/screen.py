"""Draws a review on one screen: what is known, what it proves, and the commands that decide."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from consumers.operations.records import Attempt, Review, Whole
from consumers.review.judgement import Judgement, ids_seen
from consumers.review.proposal import COLLECTED
from consumers.terminal import CommandLine, Indented, Rows, plain, table

OBSERVATIONS: Final = 3
"""Of a job's observations the last few are shown: a screen that scrolls away decides nothing."""
EXCERPT_CHARACTERS: Final = 1200
"""Most of an answer's body on the screen; `--json` has all that was kept."""


def moment(value: datetime | None) -> str:
    """In UTC, whatever the server's or the reader's zone."""
    return "" if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def amount(value: Decimal) -> str:
    """Without the zeros that numeric(20, 6) carries."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def titled(title: str, body: RenderableType) -> Group:
    return Group(Text(f"\n{title}", style="bold"), Indented(body, 2))


def pairs(rows: Iterable[tuple[str, object]]) -> Table:
    """A name and its value on each line; empty ones are left out."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        if value not in (None, "", ()):
            table.add_row(Text(name, style="dim"), plain(value))
    return table


def review_screen(review: Review, seen: Whole, judgement: Judgement) -> Group:
    """Operation, attempts, answer, ids, what it proves and what not, and the commands that decide."""
    operation = seen.operation
    parts: list[RenderableType] = [
        Text(judgement.question, style="bold"),
        pairs(
            [
                ("review", f"{review.review_id}  revision {review.revision}  {review.kind}  {review.state}"),
                ("urgency", f"{review.severity}, deadline {moment(review.deadline)}"),
                ("resolved", review.resolution and f"{review.resolution} by {review.resolved_by}"),
                ("operation", f"{operation.operation_id}  {operation.phase} ({operation.phase_reason})"),
                ("owner", f"{operation.owner_id}  key {operation.operation_key}"),
                ("approved", f"{operation.specification_hash}  {operation.source_ref or ''}"),
                (
                    "at most",
                    operation.provider_account
                    and f"{amount(operation.max_cost)} {operation.cost_unit} at {operation.provider_account}",
                ),
            ]
        ),
    ]
    if seen.attempts:
        left_out = _observed(seen.attempts)[:-OBSERVATIONS]
        title = f"Attempts ({len(left_out)} earlier observations: --json)" if left_out else "Attempts"
        parts.append(titled(title, attempts(one for one in seen.attempts if one not in left_out)))
    excerpt = _excerpt(review, seen)
    if excerpt is not None:
        parts.append(titled("What came back", excerpt))
    ids = ids_seen(review, seen)
    if ids:
        parts.append(titled("Ids seen", plain("\n".join(ids))))
    kept = {name: held for name, held in review.evidence.items() if name != COLLECTED}
    if kept:
        parts.append(titled("Evidence", plain(_bounded(json.dumps(kept, ensure_ascii=False)))))
    parts.append(titled("It proves", _sentences(judgement.proven)))
    parts.append(titled("It does not prove", _sentences(judgement.unproven)))
    if review.state == "open":
        parts.append(titled("To decide", Group(*_commands(judgement))))
    return Group(*parts)


def _observed(found: Iterable[Attempt]) -> list[Attempt]:
    return [one for one in found if one.action == "observe"]


def attempts(found: Iterable[Attempt]) -> Rows:
    return table(
        ("attempt", "action", "no", "sent", "finished", "outcome", "why", "HTTP"),
        (
            (
                one.attempt_id,
                one.action,
                one.dispatch_no,
                moment(one.first_sent_at or one.started_at),
                moment(one.finished_at),
                one.outcome,
                one.outcome_reason,
                one.http_status,
            )
            for one in found
        ),
    )


def _excerpt(review: Review, seen: Whole) -> Text | None:
    about = [one for one in seen.attempts if one.action == "submit" and one.reported]
    named = [one for one in about if one.attempt_id == review.attempt_id]
    if not about:
        return None
    evidence: dict[str, Any] = (named or about)[-1].evidence
    head = f"HTTP {evidence['status']}" if evidence.get("status") else evidence.get("error") or "no answer"
    body = evidence.get("body", evidence.get("body_base64", ""))
    return plain(f"{head}\n{_bounded(str(body))}".rstrip())


def _bounded(text: str) -> str:
    return text if len(text) <= EXCERPT_CHARACTERS else f"{text[:EXCERPT_CHARACTERS]} …"


def _sentences(sentences: tuple[str, ...]) -> Text:
    return plain("\n".join(sentences) if sentences else "nothing")


def _commands(judgement: Judgement) -> Iterable[RenderableType]:
    if not judgement.choices:
        yield plain(
            "No command of this release decides a review of this kind here: it stays open, and visible."
        )
    for choice in judgement.choices:
        yield CommandLine(choice.command)
        yield Text.assemble("    ", Text(choice.effect, style="dim"))
        if choice.proposed:
            yield Text.assemble("    ", Text("proposed: ", style="green"), plain(choice.proposed))
        if choice.refused_now:
            yield Text.assemble("    ", Text("not yet: ", style="yellow"), plain(choice.refused_now))
