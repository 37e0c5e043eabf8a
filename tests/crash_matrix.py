"""The crash matrix: one process is killed at one failpoint, another takes its place, and the provider's truth
says what came of it. The cases are generated from `relay.failpoints`: a new one is covered by existing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from consumers.providers.simulator_world import Fault
from consumers.providers.spool import read_entry
from fix_system import OWNER, System
from relay import failpoints
from replay import CONSUMERS

PARTS: Final = (*CONSUMERS, "schedule", "review")
LONGER_THAN_ANY_LEASE: Final = "20 minutes"
SERVER_ACCEPTED: Final = f"{failpoints.DISPATCH_BODY_SENT} (the server accepted)"
"""Not a place in our code: we stand still after the last byte until the provider has made the job."""
FAULTS: Final[dict[str, tuple[Fault, ...]]] = {
    # A review, about whose job the provider is asked.
    failpoints.COLLECT_EVIDENCE_GATHERED: (Fault.BAD_GATEWAY_WITH_JOB,),
}
"""What must happen to an operation's job so that its path leads past the failpoint."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one kill came to."""

    failpoint: str
    phase: str
    posts: int
    jobs: int
    money: str
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        verdict = "; ".join(self.wrong) or "holds"
        return f"{self.phase:10} {self.posts} POSTs {self.jobs} jobs  {self.money:20} {verdict}"


def cases(part: str) -> list[str]:
    """The failpoints of a part, in the order in which its work passes them; every consumer's are its too."""
    own = [name for name in failpoints.NAMES_IN_ORDER if name.startswith(f"{part}.")]
    if part in CONSUMERS:
        own += [name for name in failpoints.NAMES_IN_ORDER if name.startswith("consumer.")]
    return [*own, SERVER_ACCEPTED] if part == "dispatch" else own


class CrashMatrix:
    """Runs cases over one system, whose other processes go on."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._number = 0
        self._sent_unknown: set[UUID] = set()
        """Killed when bytes may have left and no answer was on the disk."""

    def start(self) -> None:
        self.system.start("run", "schedule")
        for name in CONSUMERS:
            self.start_one(name)

    def run(self, part: str) -> Iterator[Row]:
        """Each case of `part`."""
        for failpoint in cases(part):
            run = {"schedule": self._schedule, "review": self._review}.get(part)
            operations = run(failpoint) if run else [self._consumer(part, failpoint)]
            for operation in operations:
                self._settle(operation)
                yield self._row(failpoint, operation)

    # The kills ---------------------------------------------------------------------------------------

    def _consumer(self, name: str, failpoint: str) -> UUID:
        system = self.system
        system.kill(name)
        operation = self._approve(failpoint)
        if name != "dispatch":
            system.wait_for_phase(operation, {"collect": "accepted", "deliver": "succeeded"}[name])
        if failpoint == SERVER_ACCEPTED:
            self.start_one(name, f"{failpoints.DISPATCH_BODY_SENT}=stop")
            system.wait_until(lambda: bool(system.jobs(operation)), "the provider made the job")
            system.kill(name)
        else:
            self.start_one(name, f"{failpoint}=kill")
            system.wait_for_kill(name, failpoint)
        if self._unknown(operation):
            self._sent_unknown.add(operation)
        posts = system.posts(operation)
        assert posts <= 1, f"{failpoint}: {posts} POSTs before the crash"
        self._leases_run_out()
        self.start_one(name)
        return operation

    def _schedule(self, failpoint: str) -> list[UUID]:
        """One operation whose claim ran out, one that was held for money which is there again; and each of
        them has events that only schedule writes."""
        system = self.system
        system.kill("schedule")
        poor = f"studio-{failpoint}"
        held = self._approve(failpoint, owner=poor)
        system.wait_for_phase(held, "held")
        system.kill("dispatch")
        claimed = self._approve(failpoint)
        self.start_one("dispatch", f"{failpoints.DISPATCH_CLAIMED}=kill")
        system.wait_for_kill("dispatch", failpoints.DISPATCH_CLAIMED)
        self.start_one("dispatch")
        system.allow("5", poor)
        self._leases_run_out()
        system.start("schedule", failpoints=f"{failpoint}=kill")
        system.wait_for_kill("schedule", failpoint)
        system.start("schedule")
        return [claimed, held]

    def _review(self, failpoint: str) -> list[UUID]:
        """A decision is killed, and taken again: it counts once, whether or not the first one landed."""
        decided = [self._uncertain(failpoint)]
        job = self.system.jobs(decided[0])[0]
        self._resolve(failpoint, decided[0], "accepted", "--job-id", job)
        if failpoint != failpoints.REVIEW_JOB_LOOKED_UP:
            decided.append(self._uncertain(failpoint))
            self._leases_run_out()
            self._resolve(failpoint, decided[1], "not-accepted", "--then", "reject")
        return decided

    def _uncertain(self, failpoint: str) -> UUID:
        operation = self._approve(failpoint, faults=(Fault.CUT_BEFORE_ANSWER,))
        self.system.wait_for_phase(operation, "uncertain")
        return operation

    def _resolve(self, failpoint: str, operation: UUID, *decision: str) -> None:
        system = self.system
        review, revision = system.one(
            "select review_id, revision from relay.review where operation_id = %s and state = 'open'",
            operation,
        )
        words = ["review", "resolve", str(review), *decision]
        words += ["--revision", str(revision), "--reason", "the provider's list was read"]
        first = system.command(*words, failpoints=f"{failpoint}=kill")
        assert first.wait() == -9, first.output()
        landed = system.phase(operation) != "uncertain"
        again = system.command(*words)
        assert again.wait() == (1 if landed else 0), again.output()

    # What comes of it --------------------------------------------------------------------------------

    def _settle(self, operation: UUID) -> None:
        """Wait until it and its delivery are final; or, where nobody can know what came of it, in review."""
        unknown = operation in self._sent_unknown

        def quiet() -> bool:
            return bool(
                self.system.one(
                    """
                    select bool_and(is_final or (%s and phase = 'uncertain' and open_reviews > 0))
                      from relay.operation where %s in (operation_id, parent_operation_id)
                    """,
                    unknown,
                    operation,
                )
            )

        self.system.wait_until(quiet, f"operation {operation} is settled")

    def _row(self, failpoint: str, operation: UUID) -> Row:
        system = self.system
        phase, posts, jobs = system.phase(operation), system.posts(operation), system.jobs(operation)
        known = {
            job_id
            for (job_id,) in system.owner.execute(
                "select job_id from relay.remote_job where operation_id = %s", [operation]
            )
        }
        rows = system.owner.execute(
            "select state, sum(coalesce(settled_amount, amount)) from relay.reservation"
            " where operation_id = %s group by state order by state",
            [operation],
        ).fetchall()
        return Row(
            failpoint,
            phase,
            posts,
            len(jobs),
            ", ".join(f"{state} {amount.normalize():f}" for state, amount in rows),
            tuple(self._wrong(operation, phase, posts, set(jobs), known, dict(rows))),
        )

    def _wrong(
        self,
        operation: UUID,
        phase: str,
        posts: int,
        jobs: set[str],
        known: set[str],
        money: dict[str, object],
    ) -> Iterator[str]:
        resolved = bool(
            self.system.one(
                "select count(*) from relay.review where operation_id = %s and state = 'resolved'", operation
            )
        )
        if posts > 1:
            yield f"{posts} POSTs"
        if operation in self._sent_unknown:
            if phase != "uncertain":
                yield f"nobody can know what came of it, and it is {phase}"
            if set(money) != {"reserved"}:
                yield f"unknown, and its money is {money}"
        elif resolved and phase == "rejected":
            if set(money) != {"disputed"}:
                yield f"a person's word doesn't free money, and it is {money}"
        else:
            if phase != "succeeded":
                yield f"it could be known, and it is {phase}"
            if posts != 1 or jobs - known:
                yield f"{posts} POSTs, made {jobs}, known {known}"
            if set(money) - {"settled", "released"} or "settled" not in money:
                yield f"done, and its money is {money}"

    # ---------------------------------------------------------------------------------------------------

    def start_one(self, name: str, failpoints: str = "") -> None:
        # A static member: the next process has the partitions at once, without waiting for a session's end.
        self.system.start(name, failpoints=failpoints, RELAY_KAFKA_GROUP_INSTANCE_ID=name)

    def _approve(self, failpoint: str, *, owner: str = OWNER, faults: tuple[Fault, ...] = ()) -> UUID:
        self._number += 1
        key = f"{self._number} {failpoint}"
        return self.system.approve(key=key, owner=owner, faults=FAULTS.get(failpoint, ()) + faults)

    def _unknown(self, operation: UUID) -> bool:
        """Bytes may have left, and no answer is on the disk."""
        if self.system.phase(operation) != "submitting":
            return False
        entries = [read_entry(path) for path in (self.system.folder / "spool").rglob("*.jsonl")]
        return not any(
            entry is not None and entry.operation_id == str(operation) and entry.answer is not None
            for entry in entries
        )

    def _leases_run_out(self) -> None:
        self.system.move_clock(LONGER_THAN_ANY_LEASE)
