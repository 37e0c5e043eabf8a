"""Runs a profile against a provider, real or simulated, and says which of its declared fields were confirmed.
It makes jobs there, and touches no database: whoever calls it knows what that costs.
"""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from uuid import uuid4

from consumers.providers.answer import Answer
from consumers.providers.client import ProviderClient
from consumers.providers.listing import Interval, Listed, read_page, render_listing
from consumers.providers.observation import Observation, asks_for_result, classify_observation
from consumers.providers.outcome import Submission, classify_submission
from consumers.providers.profile import Profile
from consumers.providers.request import (
    idempotency_key,
    render_cancel,
    render_observe,
    render_result,
    render_submit,
)

Said = Literal["confirmed", "contradicted", "not seen"]

_ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
_WRONG: Final = "a-credential-that-is-wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was seen of one declared field."""

    field: str
    said: Said
    what: str


@dataclass(slots=True)
class Contract:
    """One run. `payload` is what is submitted; `patience_s` how long a job may take to end."""

    profile: Profile
    base_url: str
    secret: str | None
    payload: bytes
    patience_s: float = 600.0
    pause_s: float | None = None
    """Between two observations; None: the profile's own pacing."""
    findings: list[Finding] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    """Every id that the provider gave."""

    async def run(self, *, cancel: bool = False) -> list[Finding]:
        """Submit, observe to the end, ask again what is declared repeatable, list; with `cancel` a second job
        is made and cancelled. Raises UsageError where the profile can't be rendered with these settings."""
        operation_id = str(uuid4())
        started = datetime.now(UTC)
        await self._refusal_of_a_wrong_credential()
        job_id = await self._submit(operation_id)
        if job_id is not None:
            await self._replay(operation_id, job_id)
            await self._observe(job_id)
            await self._listing(operation_id, job_id, started)
            if cancel and self.profile.cancel is not None:
                await self._cancel()
        self._not_seen()
        return self.findings

    # Submit ------------------------------------------------------------------------------------------

    async def _submit(self, operation_id: str) -> str | None:
        answer, outcome = await self.post(operation_id)
        if outcome.verdict != "accepted" or outcome.job_id is None:
            self._say("submit", "contradicted", f"{outcome.verdict}: {outcome.reason} ({_head(answer)})")
            return None
        number, rule = next(
            (n, one) for n, one in enumerate(self.profile.accept) if one.covers(answer.status or 0)
        )
        self._say("submit.path", "confirmed", f"{self.profile.submit.method} {self.profile.submit.path}")
        self._say(f"accept.{number}.job_id", "confirmed", f"{outcome.job_id} at {rule.job_id}")
        return outcome.job_id

    async def post(self, operation_id: str, *, secret: str | None = None) -> tuple[Answer, Submission]:
        """One POST for the operation, and what the profile makes of its answer."""
        profile = self.profile
        credential = self.secret if secret is None else secret
        request = render_submit(
            profile,
            self.base_url,
            operation_id=operation_id,
            payload=self.payload,
            secret=credential,
            idempotency_key=idempotency_key(profile, operation_id),
        )

        async def nothing() -> None:
            return None

        deadline = time.monotonic() + profile.submit.deadline_s
        client = self._client(credential)
        answer = await client.submit(request, before_first_byte=nothing, deadline=deadline)
        outcome = classify_submission(profile, answer)
        if outcome.job_id is not None and outcome.job_id not in self.jobs:
            self.jobs.append(outcome.job_id)
        return answer, outcome

    async def _refusal_of_a_wrong_credential(self) -> None:
        """The one refusal that anybody can have for nothing."""
        numbers = [n for n, rule in enumerate(self.profile.reject) if rule.covers(401)]
        if not numbers or not self.secret:
            return
        answer, outcome = await self.post(str(uuid4()), secret=_WRONG)
        said: Said = "confirmed" if outcome.verdict == "refused" and answer.status == 401 else "contradicted"
        self._say(f"reject.{numbers[0]}", said, f"a wrong credential is answered with {_head(answer)}")

    async def _replay(self, operation_id: str, job_id: str) -> None:
        if self.profile.idempotency == "none":
            return
        answer, outcome = await self.post(operation_id)
        same = outcome.verdict == "accepted" and outcome.job_id == job_id
        what = f"the same key gave {outcome.job_id or outcome.reason} ({_head(answer)})"
        self._say("idempotency.mode", "confirmed" if same else "contradicted", what)

    # Observe -----------------------------------------------------------------------------------------

    async def _observe(self, job_id: str) -> None:
        words: dict[str, None] = {}
        seen = await self._until_ended(job_id, words)
        for word in words:
            known = word in self.profile.observe.words
            self._say(
                f"observe.words.{word}",
                "confirmed" if known else "contradicted",
                self.profile.observe.words.get(word, "the profile doesn't know this word"),
            )
        if not words:
            self._say("observe.status", "contradicted", f"{seen.state}: {seen.reason}")
            return
        self._say("observe.path", "confirmed", self.profile.observe.path)
        self._say("observe.status", "confirmed", f"{seen.word} at {self.profile.observe.status}")
        if seen.state not in _ENDED:
            self._say(
                "observe.words",
                "not seen",
                f"the job is {seen.word or seen.reason} after {self.patience_s} s",
            )
            return
        if seen.state == "succeeded":
            where = ", ".join(self.profile.observe.outputs.places)
            self._say(
                "observe.outputs",
                "confirmed" if seen.outputs else "contradicted",
                f"{len(seen.outputs)} at {where}",
            )
        if self.profile.cost != "reserved":
            said: Said = "confirmed" if seen.cost is not None else "contradicted"
            self._say("cost", said, f"{seen.cost} at {self.profile.cost}")

    async def observe_once(self, job_id: str) -> Observation:
        """One observation of `job_id`, with the second GET where the profile has one."""
        profile, client = self.profile, self._client(self.secret)
        request = render_observe(profile, self.base_url, job_id, self.secret)
        answer = await client.observe(request, profile.observe.deadline_s)
        result: Answer | None = None
        if asks_for_result(profile, answer, job_id=job_id):
            request = render_result(profile, self.base_url, job_id, self.secret)
            result = await client.observe(request, profile.observe.deadline_s)
        return classify_observation(profile, answer, job_id=job_id, result=result)

    async def _until_ended(self, job_id: str, words: dict[str, None]) -> Observation:
        until = time.monotonic() + self.patience_s
        number = 0
        while True:
            seen = await self.observe_once(job_id)
            if seen.word is not None:
                words[seen.word] = None
            if seen.state in _ENDED or seen.state in {"unrecognised", "not_found"}:
                return seen
            pause_s = self.profile.poll.delay_s(number) if self.pause_s is None else self.pause_s
            number += 1
            if time.monotonic() + pause_s > until:
                return seen
            await asyncio.sleep(pause_s)

    # Listing and cancel ------------------------------------------------------------------------------

    async def _listing(self, operation_id: str, job_id: str, started: datetime) -> None:
        listing = self.profile.listing
        if listing is None:
            return
        listed = await self.listed(operation_id, started)
        if job_id in listed.matches:
            self._say("listing", "confirmed", f"{job_id} under {listing.reference}")
        elif not listed.complete:
            self._say("listing", "contradicted", listed.why_not or "it was not read to its end")
        else:
            lag = f"; it may take {listing.visibility_lag_s:g} s"
            self._say("listing", "contradicted", f"{listed.elements} jobs, and none is ours{lag}")

    async def listed(self, operation_id: str, started: datetime) -> Listed:
        """The provider's list, as far as it can be read."""
        profile, listing, listed = self.profile, self.profile.listing, Listed()
        if listing is None:
            return listed
        interval = Interval(since=started - timedelta(minutes=1), until=datetime.now(UTC))
        while not listed.ended:
            request = render_listing(
                profile,
                listing,
                self.base_url,
                operation_id=operation_id,
                interval=interval,
                cursor=listed.cursor,
                secret=self.secret,
            )
            answer = await self._client(self.secret).observe(request, listing.deadline_s)
            read_page(listing, answer, listed, operation_id=operation_id)
        return listed

    async def _cancel(self) -> None:
        declared = self.profile.cancel
        _, outcome = await self.post(str(uuid4()))
        if outcome.job_id is None or declared is None:
            self._say("cancel", "not seen", f"a second job was not made: {outcome.reason}")
            return
        request = render_cancel(self.profile, self.base_url, outcome.job_id, self.secret)
        answer = await self._client(self.secret).observe(request, declared.deadline_s)
        seen = await self._until_ended(outcome.job_id, {})
        gone = declared.destroys and seen.state == "not_found"
        done = answer.status is not None and answer.status // 100 == 2 and (seen.state == "cancelled" or gone)
        what = f"answered with {_head(answer)}, then the job is {seen.word or seen.reason}"
        self._say("cancel", "confirmed" if done else "contradicted", what)

    # ---------------------------------------------------------------------------------------------------

    def _client(self, secret: str | None) -> ProviderClient:
        return ProviderClient(self.profile, base_url=self.base_url, secret=secret)

    def _say(self, name: str, said: Said, what: str) -> None:
        self.findings.append(Finding(field=name, said=said, what=what))

    def _not_seen(self) -> None:
        """What is declared, and this run had no occasion to see."""
        profile = self.profile
        seen = [one.field for one in self.findings]
        declared: list[tuple[bool, str, Callable[[str], bool]]] = [
            *((True, f"accept.{n}", _under(f"accept.{n}")) for n in range(len(profile.accept))),
            *((True, f"reject.{n}", _under(f"reject.{n}")) for n in range(len(profile.reject))),
            *(
                (True, f"observe.words.{word}", _under(f"observe.words.{word}"))
                for word in profile.observe.words
            ),
            (profile.idempotency != "none", "idempotency.retention_s", _under("idempotency.retention_s")),
            (profile.listing is not None, "listing", _under("listing")),
            (profile.cancel is not None, "cancel", _under("cancel")),
            (profile.webhooks is not None, "webhooks", _under("webhooks")),
        ]
        for is_declared, name, covers in declared:
            if is_declared and not any(covers(one) for one in seen):
                self._say(name, "not seen", "this run had no occasion for it")


def _under(name: str) -> Callable[[str], bool]:
    return re.compile(re.escape(name) + r"(?:\..*)?").fullmatch  # type: ignore[return-value]


def _head(answer: Answer) -> str:
    return f"HTTP {answer.status}" if answer.status is not None else answer.error or "no answer"
