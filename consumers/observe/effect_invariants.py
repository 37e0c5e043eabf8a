"""Invariants 3 to 7: what was done outside and what is known of it, against the provider's truth and the
files that were delivered. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Final

from consumers.observe.snapshot import RealJob, ServedFile, Snapshot
from consumers.observe.verdict import Verdict, grouped
from consumers.operations.tables import AttemptRow, ReservationRow

OVERDUE_S: Final = 30.0
"""A lease or a next action that is past by more than this was forgotten: schedule looks every second."""
MAY_HAVE_ARRIVED: Final = frozenset({"open", "accepted", "unknown"})
"""Outcomes of a submit attempt that the provider may charge for."""
TEMPORARY: Final = ".incoming/"
"""Keys below it are downloads under way, or what a killed process left of one: they are no final names."""


def one_post(snapshot: Snapshot) -> Verdict:
    """No more POSTs than one, and one for each that provably did nothing or was decided by a person."""
    operations = {str(operation.operation_id) for operation in snapshot.tables.operations}
    posts = Counter(post.reference for post in snapshot.truth.posts)
    submitted = _submissions(snapshot)
    repeats = Counter(str(entry.operation_id) for entry in snapshot.tables.journal if entry.cause == "replay")
    wrong: list[str] = []
    for reference, count in posts.items():
        if reference not in operations:
            wrong.append(f"the provider got {count} POSTs for {reference}, which is no operation")
            continue
        attempts = submitted.get(reference or "", [])
        excused = sum(one.outcome in ("unsent", "refused") or one.released for one in attempts)
        allowed = 1 + excused + repeats[reference or ""]
        if count > allowed:
            wrong.append(f"operation {reference} was posted {count} times, and {allowed} are accounted for")
        if count > len(attempts):
            wrong.append(f"operation {reference} was posted {count} times in {len(attempts)} attempts")
    return Verdict(
        3,
        "POSTs per operation are at most 1, plus attempts that sent nothing or were refused by rule, reviewed"
        " resubmissions and declared repeats.",
        len(snapshot.truth.posts),
        tuple(wrong),
    )


def _submissions(snapshot: Snapshot) -> dict[str, list[AttemptRow]]:
    return grouped(
        (attempt for attempt in snapshot.tables.attempts if attempt.action == "submit"),
        lambda attempt: str(attempt.operation_id),
    )


def no_job_is_forgotten(snapshot: Snapshot) -> Verdict:
    """What the provider made is known by its id, or known to be unknown."""
    known = {
        (row.job_id, str(row.operation_id))
        for row in snapshot.tables.remote_jobs
        if row.provider_account == snapshot.provider_account
    }
    unknown = {
        str(attempt.operation_id)
        for attempt in snapshot.tables.attempts
        if attempt.action == "submit" and attempt.outcome == "unknown"
    }
    wrong = [
        f"job {job.job_id} of operation {job.reference} is in no table, and no attempt is unknown"
        for job in snapshot.truth.jobs
        if (job.job_id, job.reference) not in known and job.reference not in unknown
    ]
    made = {job.job_id for job in snapshot.truth.jobs}
    wrong += [
        f"operation {operation.operation_id} is {operation.phase} with the job {operation.job_id}, which the"
        " provider never made"
        for operation in snapshot.tables.operations
        if operation.job_id is not None and operation.job_id not in made
    ]
    return Verdict(
        4,
        "Every job that the provider made is in remote_job, or an attempt of its operation is unknown.",
        len(snapshot.truth.jobs),
        tuple(wrong),
    )


def money_is_booked(snapshot: Snapshot) -> Verdict:
    """What was charged is booked, what may be charged is booked, and nobody passed a limit."""
    reservations = grouped(snapshot.tables.reservations, lambda row: row.operation_id)
    charged: dict[str | None, Decimal] = defaultdict(Decimal)
    for job in snapshot.truth.jobs:
        charged[job.reference] += job.charged
    overrun = {row.owner_id for row in snapshot.tables.allowances if row.overrun}
    wrong: list[str] = []
    for operation in snapshot.tables.operations:
        name = f"operation {operation.operation_id}"
        held = reservations.get(operation.operation_id, [])
        booked = sum((row.booked for row in held), Decimal(0))
        cost = charged.get(str(operation.operation_id), Decimal(0))
        if cost > booked:
            wrong.append(f"{name} was charged {cost}, and {booked} is booked")
        wrong += [
            f"{name} has {row.booked} booked for one attempt, and at most {operation.max_cost} was declared"
            for row in held
            if row.booked > operation.max_cost and operation.owner_id not in overrun
        ]
    by_attempt = {row.attempt_id: row for row in snapshot.tables.reservations}
    booked_for = {row.attempt_id for row in snapshot.tables.reservations if row.state != "released"}
    # A declared replay is paid from the reservation of the request that it repeats: one key is one job.
    paid_keys = {
        _key(one)
        for one in snapshot.tables.attempts
        if one.attempt_id in booked_for and one.idempotency_key is not None
    }
    for attempt in snapshot.tables.attempts:
        if attempt.action == "submit" and attempt.outcome in MAY_HAVE_ARRIVED:
            row = by_attempt.get(attempt.attempt_id)
            if (row is None or row.state == "released") and _key(attempt) not in paid_keys:
                wrong.append(
                    f"attempt {attempt.attempt_id} is {attempt.outcome}, and nothing is booked for it"
                )
    wrong += _allowances(snapshot)
    return Verdict(
        5,
        "Charged is at most settled + reserved + disputed and within the declared maximum; no unknown attempt"
        " is unbooked; no limit is passed.",
        len(snapshot.tables.operations) + len(snapshot.tables.allowances),
        tuple(wrong),
    )


def _key(attempt: AttemptRow) -> tuple[str, str | None]:
    return str(attempt.operation_id), attempt.idempotency_key


def _allowances(snapshot: Snapshot) -> Iterable[str]:
    by_owner = grouped(snapshot.tables.reservations, lambda row: (row.owner_id, row.unit))
    for allowance in snapshot.tables.allowances:
        name = f"the allowance of {allowance.owner_id} in {allowance.unit}"
        if (
            allowance.reserved + allowance.disputed + allowance.settled > allowance.limit_amount
            and not allowance.overrun
        ):
            yield f"{name} has passed its limit of {allowance.limit_amount}"
        said = {
            "reserved": allowance.reserved,
            "disputed": allowance.disputed,
            "settled": allowance.settled,
        }
        found = _by_state(by_owner.get((allowance.owner_id, allowance.unit), []))
        for state, amount in said.items():
            if amount != found[state]:
                yield f"{name} says {amount} {state}, and its reservations are {found[state]}"


def _by_state(rows: Iterable[ReservationRow]) -> dict[str, Decimal]:
    amounts: dict[str, Decimal] = defaultdict(Decimal)
    for row in rows:
        amounts[row.state] += row.booked
    return amounts


def none_is_stuck(snapshot: Snapshot) -> Verdict:
    """Whatever isn't final has a time that is still to come, or a person who was asked."""
    late = timedelta(seconds=OVERDUE_S)
    reviews = Counter(review.operation_id for review in snapshot.tables.reviews)
    wrong: list[str] = []
    for operation in snapshot.tables.operations:
        name = f"operation {operation.operation_id} ({operation.phase})"
        if reviews[operation.operation_id] != operation.open_reviews:
            wrong.append(
                f"{name} says that it has {operation.open_reviews} open reviews, and has"
                f" {reviews[operation.operation_id]}"
            )
        if operation.is_final:
            continue
        times = [time for time in (operation.lease_expires_at, operation.next_action_at) if time is not None]
        if not times and not reviews[operation.operation_id]:
            wrong.append(f"{name} has no lease, no next action and no review")
        wrong += [
            f"{name} was due at {time.isoformat()}, and nobody came"
            for time in times
            if time + late < snapshot.tables.read_at
        ]
    return Verdict(
        6,
        "Every operation is final, waits for a time that is set, or is in a review.",
        len(snapshot.tables.operations),
        tuple(wrong),
    )


def files_are_whole(snapshot: Snapshot) -> Verdict:
    """What lies under a final name is what the provider served, and what is called delivered lies there."""
    jobs = {job.job_id: job for job in snapshot.truth.jobs}
    job_of = {operation.operation_id: operation.job_id for operation in snapshot.tables.operations}
    kept = {file.key: file for file in snapshot.files}
    outputs = grouped(snapshot.tables.outputs, lambda row: row.operation_id)
    wrong: list[str] = []
    named: set[str] = set()
    for rows in outputs.values():
        for row in rows:
            if row.stored_key is None:
                continue
            named.add(row.stored_key)
            name = f"output {row.ordinal} of operation {row.operation_id}"
            file = kept.get(row.stored_key)
            served = _served(jobs, job_of.get(row.operation_id), row.name)
            if file is None:
                wrong.append(f"{name} is called stored, and {row.stored_key} is not there")
            elif served is None:
                wrong.append(f"{name} is stored, and the provider served no {row.name}")
            elif (file.sha256, file.size) != (served.sha256, served.size):
                wrong.append(f"{name}: {row.stored_key} is not what the provider served")
            elif (row.stored_sha256, row.stored_bytes) != (file.sha256, file.size):
                wrong.append(f"{name}: the table's digest is not that of {row.stored_key}")
    for operation in snapshot.tables.operations:
        if operation.parent_operation_id is not None and operation.phase == "stored":
            wrong += [
                f"operation {operation.operation_id} is stored without output {row.ordinal} of its parent"
                for row in outputs.get(operation.parent_operation_id, [])
                if row.stored_key is None
            ]
    served_digests = {file.sha256 for job in jobs.values() for file in job.files}
    wrong += [
        f"{file.key} lies under a final name, and is nothing that the provider served"
        for file in snapshot.files
        if file.key not in named and not file.key.startswith(TEMPORARY) and file.sha256 not in served_digests
    ]
    return Verdict(
        7,
        "Every delivered file has the digest of what the provider served; none is half written.",
        len(snapshot.files),
        tuple(wrong),
    )


def _served(jobs: Mapping[str, RealJob], job_id: str | None, name: str) -> ServedFile | None:
    job = jobs.get(job_id or "")
    return next((file for file in job.files if file.name == name), None) if job else None
