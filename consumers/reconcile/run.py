"""Compares the tables with Kafka's history and the spools after an accepted rewind, decides for each
operation, and opens dispatch when all is decided. It sends nothing, and may be killed anywhere and run again.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import psycopg

from consumers.operations import restored
from consumers.operations.answers import apply_submission
from consumers.operations.decisions import Refused
from consumers.operations.lost import (
    Decision,
    Life,
    Subject,
    Submission,
    Verdict,
    Witness,
    decide,
    evidence,
    submissions,
)
from consumers.providers.outcome import Submission as Outcome
from consumers.providers.profile import Profile
from consumers.providers.spools import Kept, kept
from consumers.reconcile.history import History, Reading
from consumers.reconcile.report import Asked, Decided, Phantom, Report, Spooled
from consumers.registered import Providers
from relay import failpoints
from relay.errors import SchemaError
from relay.outbox.event import source_of
from relay.settings import Settings

Connection = psycopg.AsyncConnection[Any]
Say = Callable[[str], None]

_SAY_EVERY: Final = 1_000
_LATE_DELIVERY_S: Final = 900.0
_DEADLINE_S: Final = 86_400.0
"""For an operation whose profile can't be read: the profile's own defaults."""


class Reconciliation:
    """Lives for one run over `connection`, which is in autocommit."""

    def __init__(self, connection: Connection, settings: Settings, asked: Asked, say: Say) -> None:
        self._connection = connection
        self._settings = settings
        self._asked = asked
        self._say = say
        self._providers = Providers(settings)

    async def run(self) -> Report | None:
        """None when there is nothing to reconcile. Raises Refused, Unavailable or UsageError."""
        sources = await restored.sources(self._connection)
        since = next((one.unreconciled_since for one in sources if one.unreconciled_since), None)
        if since is None:
            await self._require_open()
            return None
        if self._asked.apply:
            if any(one.state == "repairing" for one in sources):
                raise Refused(
                    "The relay's repair has not ended, so Kafka may still miss what the outbox has.",
                    meaning="Nothing was changed; dispatch stays closed.",
                    remedy="Run `relay outbox repair` to its end, then `relay ops reconcile` again.",
                )
            if not await restored.lock(self._connection):
                raise Refused(
                    "Another `relay ops reconcile` is at work now.", remedy="Let it end, then look again."
                )
        report = Report(applied=self._asked.apply, closed_since=since)
        spooled = self._read_spools(report)
        subjects = await restored.subjects(self._connection)
        self._say(f"{len(subjects)} operations are not final; reading Kafka's history of all of them")
        history = await Reading(
            self._settings,
            epochs={source_of(one.relay_id): one.epoch for one in sources},
            subjects=frozenset(subjects),
            requested=await restored.requested(self._connection),
            known=lambda entries: restored.known(self._connection, entries),
        ).read()
        failpoints.hit(failpoints.RECONCILE_READ)
        report.transitions_read = history.read
        report.incomplete_partitions = sorted(history.incomplete)
        report.reaches_back, report.unreadable = history.reaches_back, history.unreadable
        # Also those that are final by now: what was lost of them is told, though nothing may send them again.
        finals = [one for one in (*history.lives, *spooled) if one not in subjects]
        subjects |= await restored.subjects(self._connection, finals)
        self._require_history(history, subjects)
        await self._tell_of_phantoms(report, history, subjects, spooled)
        twins = _twins(report.phantoms)
        for number, subject in enumerate(subjects.values(), start=1):
            await self._take(report, subject, history, spooled, twins)
            if number % _SAY_EVERY == 0:
                self._say(f"{number} of {len(subjects)} operations decided")
        report.counts = dict(Counter(str(one.verdict) for one in report.operations))
        failpoints.hit(failpoints.RECONCILE_ALL_DECIDED)
        if self._asked.apply:
            await self._open(report)
        return report

    async def _require_open(self) -> None:
        closed = await restored.gate(self._connection)
        if closed is not None:
            raise Refused(
                f"No accepted rewind waits to be reconciled, and dispatch is closed all the same: {closed}.",
                meaning="Nothing was changed.",
                remedy="Start `relay run`: dispatch opens when it has verified this database. If it stops,"
                " it says"
                " what to run; after a restore that is `relay init --accept-rewind`, and then this again.",
            )

    # What is known -----------------------------------------------------------------------------------

    def _read_spools(self, report: Report) -> dict[UUID, list[Kept]]:
        """Entries by their operation."""
        found: dict[UUID, list[Kept]] = {}
        folders = [one for one in self._asked.spools if one.is_dir()]
        missing = [one for one in self._asked.spools if not one.is_dir()]
        if missing and not self._asked.spool_lost:
            raise Refused(
                f"There is no spool at {', '.join(map(str, missing))}.",
                meaning="A dispatcher's spool may hold a submission of which Kafka never heard; nothing was"
                " changed.",
                remedy="Run this where the dispatchers' volumes are, or name a copy of each with --spool"
                " DIR. If"
                " they are gone for good, say --spool-lost.",
            )
        for folder in folders:
            report.spools_read.append(str(folder))
            for one in kept(folder):
                report.spool_entries += 1
                try:
                    operation_id, _ = UUID(one.entry.operation_id), UUID(one.entry.attempt_id)
                    found.setdefault(operation_id, []).append(one)
                except ValueError:
                    why = "it doesn't say whose operation it is: what could be submitted again stays held"
                    report.spooled.append(
                        Spooled(
                            path=str(one.entry.path),
                            attempt_id=one.entry.attempt_id,
                            operation_id="",
                            why=why,
                        )
                    )
        return found

    def _require_history(self, history: History, subjects: Mapping[UUID, Subject]) -> None:
        waiting = any(one.phase == "held" and one.phase_reason == "restored" for one in subjects.values())
        if history.reaches_back or not waiting or self._asked.history_lost or not self._asked.apply:
            return
        raise Refused(
            f"The topic {history.topic} has nothing from before the rewind that this database knows.",
            meaning="It may be another Kafka or another prefix, or the topic was made anew: nobody could tell"
            " what was submitted. Nothing was changed.",
            remedy="Correct RELAY_KAFKA_BOOTSTRAP or RELAY_TOPIC_PREFIX. If the history is gone for good, say"
            " --history-lost: then each operation waits for a person's decision.",
        )

    async def _submissions_spooled(self, subject: Subject, entries: Iterable[Kept]) -> tuple[Submission, ...]:
        """Of those attempts that the tables don't have."""
        found = []
        for one in entries:
            attempt_id = UUID(one.entry.attempt_id)
            found.append(
                Submission(
                    attempt_id=attempt_id,
                    dispatch_no=subject.dispatch_no,
                    worker="",
                    sent_at=one.written_at,
                    said="a spool has it" if one.entry.answer is None else "a spool has its answer",
                    spool=str(one.folder),
                )
            )
        known = await restored.attempts_known(self._connection, [one.attempt_id for one in found])
        return tuple(one for one in found if one.attempt_id not in known)

    # What becomes of it ------------------------------------------------------------------------------

    async def _take(
        self,
        report: Report,
        subject: Subject,
        history: History,
        spooled: Mapping[UUID, Sequence[Kept]],
        twins: Mapping[tuple[str, str, str], UUID],
    ) -> None:
        life = history.lives.get(subject.operation_id)
        handled, last_dispatch = history.handled(subject.operation_id)
        nameless = any(not one.operation_id for one in report.spooled)
        witness = Witness(
            handled=handled,
            last_dispatch=last_dispatch,
            covered=history.covers(subject.operation_id) and not nameless,
            kept_version=history.kept.get(subject.operation_id, 0),
            twin=twins.get((subject.owner_id, subject.kind, subject.specification_hash)),
            spooled=await self._submissions_spooled(subject, spooled.get(subject.operation_id, ())),
        )
        decision = decide(subject, life, witness)
        if decision.verdict is Verdict.LEAVE:
            return
        changed = await self._apply(subject, life, decision) if self._asked.apply else False
        failpoints.hit(failpoints.RECONCILE_OPERATION_DECIDED)
        told = {one.job_id for one in decision.submissions if one.job_id}
        report.operations.append(
            Decided(
                operation_id=subject.operation_id,
                owner_id=subject.owner_id,
                phase=subject.phase,
                verdict=decision.verdict,
                why=decision.why,
                job_ids=sorted(told | set(life.job_ids() if life else ())),
                attempt_ids=[one.attempt_id for one in decision.submissions],
                changed=changed,
            )
        )

    async def _apply(self, subject: Subject, life: Life | None, decision: Decision) -> bool:
        actor, operation_id = self._asked.actor, subject.operation_id
        told = evidence(life, decision.submissions, decision.why)
        if decision.verdict is Verdict.RELEASE:
            return await restored.release(self._connection, operation_id, actor=actor, why=decision.why)
        if decision.verdict is Verdict.HOLD:
            return await restored.keep_held(
                self._connection, operation_id, actor=actor, why=decision.why, told=told
            )
        profile = await self._profile(subject)
        late_s, deadline_s = _LATE_DELIVERY_S, _DEADLINE_S
        if profile is not None:
            late_s = profile.submit.deadline_s + profile.margin_s + profile.late_delivery_s
            deadline_s = profile.review_deadline_s("uncertain_submission")
        changed = await restored.make_uncertain(
            self._connection,
            operation_id,
            decision.submissions,
            actor=actor,
            why=decision.why,
            late_delivery_s=late_s,
            review_deadline_s=deadline_s,
            told=told,
        )
        failpoints.hit(failpoints.RECONCILE_UNCERTAIN)
        known = await restored.attempts_known(
            self._connection, [one.attempt_id for one in decision.submissions]
        )
        for one in decision.submissions:
            if one.job_id is None or known.get(one.attempt_id) == "accepted":
                continue
            if profile is None:  # nobody can say what its answer means; the id is kept all the same
                changed |= await restored.keep_job(self._connection, operation_id, one.attempt_id, one.job_id)
                continue
            await apply_submission(
                self._connection,
                attempt_id=one.attempt_id,
                operation_id=operation_id,
                outcome=Outcome(
                    verdict="accepted",
                    reason="accepted_before_restore",
                    job_id=one.job_id,
                    evidence={"ids": [one.job_id], "told_by": "the history in Kafka", "known_by": one.said},
                ),
                profile=profile,
                actor=actor,
            )
            changed = True
        return changed

    async def _profile(self, subject: Subject) -> Profile | None:
        if subject.provider is None or subject.profile_digest is None:
            return None
        try:
            return await self._providers.profile(self._connection, subject.provider, subject.profile_digest)
        except SchemaError as error:
            self._say(f"operation {subject.operation_id}: {error}")
            return None

    # What the tables don't know ----------------------------------------------------------------------

    async def _tell_of_phantoms(
        self,
        report: Report,
        history: History,
        subjects: Mapping[UUID, Subject],
        spooled: Mapping[UUID, Sequence[Kept]],
    ) -> None:
        unknown = [one for one in {*history.lives, *spooled} if one not in subjects]
        there = await restored.operations_known(self._connection, unknown)
        without_post = await restored.without_post(self._connection)
        for operation_id in sorted(set(unknown) - there):
            life = history.lives.get(operation_id, Life(operation_id))
            if life.kind in without_post:
                report.deliveries_lost += 1
                continue
            entries = spooled.get(operation_id, ())
            sent = {one.attempt_id for one in submissions(life)} | {UUID(e.entry.attempt_id) for e in entries}
            lost = life.in_order()
            phantom = Phantom(
                operation_id=operation_id,
                owner_id=life.owner_id,
                kind=life.kind,
                specification_hash=life.specification_hash,
                phase=lost[-1].to_phase if lost else "",
                job_ids=life.job_ids(),
                attempt_ids=sorted(sent),
                places=[one.place for one in lost][-10:] + [str(one.entry.path) for one in entries],
            )
            report.phantoms.append(phantom)
            if self._asked.apply:
                jobs = f", with {_count(len(phantom.job_ids), 'job')}" if phantom.job_ids else ""
                what = f"operation {operation_id} is only in Kafka or a spool{jobs}: its commit is lost"
                told = evidence(life, submissions(life), what) | {
                    "owner_id": life.owner_id,
                    "kind": life.kind,
                    "specification_hash": life.specification_hash,
                    "places": phantom.places,
                }
                await restored.tell_of_phantom(self._connection, operation_id, what, told)
                failpoints.hit(failpoints.RECONCILE_PHANTOM_TOLD)

    async def _open(self, report: Report) -> None:
        if not await restored.end(self._connection, report.closed_since, self._asked.actor):
            raise Refused(
                "Another rewind was accepted, or a repair began, while this was at work.",
                meaning="What was decided until then stands; dispatch stays closed.",
                remedy="When `relay status` shows the relay at work, run `relay ops reconcile --apply`"
                " again.",
            )
        failpoints.hit(failpoints.RECONCILE_OPENED)
        report.dispatch_open = await restored.gate(self._connection) is None


def _twins(phantoms: Iterable[Phantom]) -> dict[tuple[str, str, str], UUID]:
    """Phantoms that were submitted, by what makes another operation the same intent."""
    return {
        (one.owner_id, one.kind, one.specification_hash): one.operation_id
        for one in phantoms
        if one.attempt_ids or one.job_ids
    }


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
