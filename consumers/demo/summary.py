"""What the demo comes to: facts, verdicts, and whether all of it holds. Pure; text for people, JSON for
programs.
"""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from consumers.observe.snapshot import Snapshot
from consumers.observe.verdict import Verdict

AT_LEAST_ONCE: Final = (
    "The embedded broker shows uncommitted records to everybody, so it can't show exactly-once: the relay ran"
    " at least once here, and invariant 1 reads: none lost, duplicates removed by ce_id."
)
_OFFENDING_SHOWN: Final = 5


class Crash(msgspec.Struct, frozen=True, kw_only=True):
    """A SIGKILL. `in_flight` counts what it hit, `of_what`; `tries` how often it was done until it did."""

    process: str
    pid: int
    in_flight: int
    of_what: str
    tries: int = 1


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The dispatch topic, read again from offset 0 by the dispatch group."""

    events: int
    posts_before: int
    posts_after: int


class Approvals(msgspec.Struct, frozen=True, kw_only=True):
    """What the application did, by its own table and what it was told."""

    frames: int
    revisions: int
    rolled_back: int
    rolled_back_found: int
    approved_twice_same_operation: bool


class Files(msgspec.Struct, frozen=True, kw_only=True):
    delivered: int
    verified: int
    bytes: int


class ToReview(msgspec.Struct, frozen=True, kw_only=True):
    """Something that waits for a person, and the command that shows it."""

    operation_id: str
    source: str | None
    phase: str
    kind: str
    reason: str
    command: str


class Invariant(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    says: str
    holds: bool
    checked: int
    offending: list[str]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """`holds` is what the exit status says; `failures` why not."""

    operations: int
    seed: int
    seconds: float
    postgres: str
    kafka: str
    delivery: str
    delivery_note: str
    approvals: Approvals
    phases: dict[str, dict[str, int]]
    posts: int
    jobs: int
    files: Files
    faults: dict[str, dict[str, int]]
    crashes: list[Crash]
    replay: Replay
    duplicates: int
    parked: int
    paused: dict[str, str]
    uncertain: list[ToReview]
    other_reviews: list[ToReview]
    invariants: list[Invariant]

    @property
    def failures(self) -> list[str]:
        """Every reason for which the demo didn't show what it is for."""
        return list(_failures(self))

    @property
    def holds(self) -> bool:
        return not self.failures

    def json(self) -> bytes:
        """One JSON document."""
        said = msgspec.to_builtins(self)
        document = msgspec.json.encode({**said, "holds": self.holds, "failures": self.failures})
        return msgspec.json.format(document, indent=2)


def _failures(summary: Summary) -> Iterator[str]:
    for invariant in summary.invariants:
        if not invariant.holds:
            yield f"invariant {invariant.number} is broken"
    for fault, struck in summary.faults.items():
        if struck["struck"] < struck["planned"]:
            yield f"the fault {fault} struck {struck['struck']} times, and {struck['planned']} were planned"
    for crash in summary.crashes:
        if crash.in_flight == 0:
            yield f"the SIGKILL of {crash.process} hit nothing in flight"
    if not summary.uncertain:
        yield "no operation is uncertain"
    replay = summary.replay
    if replay.posts_after != replay.posts_before:
        yield f"the replay made {replay.posts_after - replay.posts_before} POSTs"
    if replay.events == 0:
        yield "the replay delivered nothing"
    if summary.files.verified != summary.files.delivered or not summary.files.delivered:
        yield f"{summary.files.verified} of {summary.files.delivered} delivered files are verified"
    approvals = summary.approvals
    if approvals.revisions != approvals.frames or approvals.rolled_back_found:
        yield "the application's table and its operations disagree"
    if not approvals.approved_twice_same_operation:
        yield "a revision that was approved twice has two operations"
    if summary.parked:
        yield f"{summary.parked} events were parked"


def invariants(verdicts: tuple[Verdict, ...]) -> list[Invariant]:
    return [
        Invariant(
            number=verdict.number,
            says=verdict.says,
            holds=verdict.holds,
            checked=verdict.checked,
            offending=list(verdict.offending),
        )
        for verdict in verdicts
    ]


def files(snapshot: Snapshot) -> Files:
    """What is called delivered, and how much of it has the bytes that the provider served."""
    kept = {file.key: file for file in snapshot.files}
    job_of = {operation.operation_id: operation.job_id for operation in snapshot.tables.operations}
    served = {(job.job_id, file.name): file.sha256 for job in snapshot.truth.jobs for file in job.files}
    delivered = [row for row in snapshot.tables.outputs if row.stored_key is not None]
    verified = [
        row
        for row in delivered
        if (file := kept.get(row.stored_key or "")) is not None
        and file.sha256 == served.get((job_of.get(row.operation_id) or "", row.name))
    ]
    return Files(
        delivered=len(delivered),
        verified=len(verified),
        bytes=sum(kept[row.stored_key or ""].size for row in verified),
    )


def reviews(snapshot: Snapshot) -> tuple[list[ToReview], list[ToReview]]:
    """Uncertain operations, and what else waits for a person."""
    operations = {operation.operation_id: operation for operation in snapshot.tables.operations}
    uncertain: list[ToReview] = []
    others: list[ToReview] = []
    for review in snapshot.tables.reviews:
        operation = operations[review.operation_id]
        (uncertain if operation.phase == "uncertain" else others).append(
            ToReview(
                operation_id=str(review.operation_id),
                source=operation.source_ref,
                phase=operation.phase,
                kind=review.kind,
                reason=review.reason,
                command=f"relay review show {review.review_id}",
            )
        )
    return uncertain, others


def phases(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for operation in snapshot.tables.operations:
        of_kind = counts.setdefault(operation.kind, {})
        of_kind[operation.phase] = of_kind.get(operation.phase, 0) + 1
    return counts


def duplicates(snapshot: Snapshot) -> int:
    """Records beyond the first of each event."""
    return len(snapshot.records) - len({record.event_id for record in snapshot.records})


def faults(expected: Mapping[Any, int], struck: Mapping[str, int]) -> dict[str, dict[str, int]]:
    return {
        str(fault): {"planned": count, "struck": struck.get(str(fault), 0)}
        for fault, count in sorted(expected.items())
    }


# Text -------------------------------------------------------------------------------------------------------


def text(summary: Summary, *, columns: int = 100, kept: bool = True) -> str:
    """For a person, in lines of at most `columns`. Where nothing is `kept`, no command can show a review."""
    return "\n".join(_wrapped(line, columns) for line in _lines(summary, kept=kept))


def _wrapped(line: str, columns: int) -> str:
    """`line`, going on behind its own indent; words, which may be ids, stay whole."""
    words = line.lstrip()
    indent = " " * (len(line) - len(words))
    return textwrap.fill(
        words,
        columns,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _lines(summary: Summary, *, kept: bool) -> Iterator[str]:
    approvals = summary.approvals
    yield f"{approvals.frames} frames approved, each with its operation in the same transaction."
    yield "1 more was rolled back and left nothing; 1 was approved twice and is one operation."
    yield f"PostgreSQL {summary.postgres}, {summary.kafka}, seed {summary.seed}, {summary.seconds:.1f} s."
    yield ""
    yield "Operations"
    for kind, counts in sorted(summary.phases.items(), reverse=True):
        yield f"  {kind:<11}" + ", ".join(f"{count} {phase}" for phase, count in sorted(counts.items()))
    yield f"  the provider counted {summary.posts} POSTs and made {summary.jobs} jobs"
    yield (
        f"  {summary.files.delivered} files delivered, {summary.files.verified} with the digest that the"
        f" provider served ({summary.files.bytes} bytes)"
    )
    for account, why in summary.paused.items():
        yield f"  the provider account {account} was paused: {why}"
    yield ""
    yield "Faults (struck / planned)"
    for fault, struck in summary.faults.items():
        yield f"  {fault:<24}{struck['struck']:>4} / {struck['planned']}"
    yield ""
    yield "Crashes"
    for crash in summary.crashes:
        yield f"  SIGKILL to {crash.process} (pid {crash.pid}): {crash.in_flight} {crash.of_what}"
    replay = summary.replay
    yield (
        f"  replay of the dispatch topic from offset 0: {replay.events} events, POSTs {replay.posts_before}"
        f" before and {replay.posts_after} after"
    )
    yield f"  {summary.duplicates} records are duplicates, {summary.parked} events were parked"
    yield ""
    yield f"Uncertain: {len(summary.uncertain)}, and nobody guesses"
    yield from _review_lines(summary.uncertain, kept=kept)
    yield f"Other reviews: {len(summary.other_reviews)}"
    yield from _review_lines(summary.other_reviews, kept=kept)
    if not kept:
        yield ""
        yield "The database is gone with the demo: with --keep FOLDER it stays, to look at and decide these."
    yield ""
    yield "Invariants"
    for invariant in summary.invariants:
        yield f"  {'holds ' if invariant.holds else 'BROKEN'} {invariant.number}  {invariant.says}"
        for offending in invariant.offending[:_OFFENDING_SHOWN]:
            yield f"             {offending}"
        if len(invariant.offending) > _OFFENDING_SHOWN:
            yield f"             and {len(invariant.offending) - _OFFENDING_SHOWN} more"
    yield f"  {summary.delivery_note}"
    yield ""
    if summary.holds:
        yield "All of it holds."
    else:
        yield "It does not hold:"
        for failure in summary.failures:
            yield f"  {failure}"


def _review_lines(reviews: list[ToReview], *, kept: bool) -> Iterator[str]:
    for review in reviews:
        yield f"  {review.source or review.operation_id}: {review.kind}, {review.reason}"
        if kept:
            yield f"      {review.command}"
