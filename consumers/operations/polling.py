"""What follows from one observation of a job. Pure; neither time nor an unknown word ends an operation."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_CEILING, Decimal
from typing import Final
from uuid import UUID

from consumers.operations.lifecycle import Phase
from consumers.providers.observation import Observation
from consumers.providers.profile import Profile

SLOWER: Final = 10
"""A job under review for being unknown or late is still asked for, this many times `poll.max_s` apart: it may
come back, and nobody waits for it by the second."""
RETRY_AFTER_MOST_S: Final = 3600.0
"""A provider that asks for more is asked again after an hour all the same: that only costs a GET."""
JITTER: Final = 0.2
"""The share of a wait over which those that would end in the same moment are spread."""
AWAY_AFTER: Final = 3
"""As many GETs in a row that say nothing, and the account counts as away."""
AWAY_LEAST_S: Final = 60.0
AWAY_MOST_S: Final = 300.0
"""The longest wait of an account that is away lies between these: a GET each few minutes costs nothing."""
COST_STEP: Final = Decimal("0.000001")
COST_BELOW: Final = Decimal(10) ** 14
"""What `numeric(20, 6)` can hold: step, and the first amount that it can't."""

_SEEN: Final = {
    "running": Phase.ACCEPTED,
    "succeeded": Phase.SUCCEEDED,
    "failed": Phase.FAILED,
    "cancelled": Phase.CANCELLED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An operation as its observer needs it, and the job that it is asked for. Times are the database's.

    `last_seen_at`: when the provider last knew the job, at the earliest its acceptance. `observations` counts
    the answers so far, `job_cost` is what an earlier one said.
    """

    operation_id: UUID
    version: int
    phase: str
    is_final: bool
    job_id: str | None
    provider: str
    account: str
    profile_digest: str
    dispatch_no: int
    max_cost: Decimal
    accounting: str
    observed_at: datetime | None
    observations: int
    accepted_at: datetime | None
    last_seen_at: datetime | None
    updated_at: datetime
    job_cost: Decimal | None
    now: datetime
    job_taken: bool = False
    """A person gave the job to another operation: what comes of it is not this one's."""
    nudged_at: datetime | None = None
    """When a webhook last said that there is something to see."""
    waits_until: datetime | None = None
    """Until when it waits in the line of its account's limits."""
    polls_failed: int = 0
    poll_not_before: datetime | None = None
    """Of the account: GETs without an answer in a row, and until when all wait for that."""

    @property
    def provider_account(self) -> str:
        return f"{self.provider}/{self.account}"

    @property
    def recently(self) -> float:
        """Seconds since the last observation; infinite when there was none."""
        return (self.now - self.observed_at).total_seconds() if self.observed_at else float("inf")


@dataclass(frozen=True, slots=True)
class Finish:
    """The job ended: accepted → `phase`, settled with `cost` where it is known."""

    phase: Phase
    cost: Decimal | None

    def __str__(self) -> str:
        return f"ends as {self.phase}" + ("" if self.cost is None else f", cost {self.cost}")


@dataclass(frozen=True, slots=True)
class Poll:
    """Ask again after `delay_s`. `unknown` says why a person should look, if one should."""

    delay_s: float
    unknown: str | None = None

    def __str__(self) -> str:
        looked_at = "" if self.unknown is None else f"; a person should look: {self.unknown}"
        return f"asked again in {self.delay_s:.1f} s{looked_at}"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """It differs from what the operation ended with: kept and reviewed, never applied."""

    what: str

    def __str__(self) -> str:
        return f"contradicts how it ended: {self.what}"


@dataclass(frozen=True, slots=True)
class Noted:
    """Kept as evidence; nothing follows from it."""

    why: str

    def __str__(self) -> str:
        return f"kept, and nothing follows: {self.why}"


Verdict = Finish | Poll | Contradiction | Noted


def knows_the_job(observation: Observation) -> bool:
    """Whether the provider said something about the job that the profile understands."""
    return observation.state in _SEEN


def storable_cost(cost: Decimal | None) -> Decimal | None:
    """`cost` in whole millionths, rounded up so that no charge is booked short; None if it can't be held."""
    if cost is None or not 0 <= cost < COST_BELOW:
        return None
    rounded = cost.quantize(COST_STEP, rounding=ROUND_CEILING)
    return rounded if rounded < COST_BELOW else None


def decide(
    subject: Subject, observation: Observation, profile: Profile, *, job_id: str, asked_at: datetime
) -> Verdict:
    """What follows for `subject`, locked and read just now, from an answer about `job_id` that was asked for
    at `asked_at`."""
    if subject.job_id != job_id:
        return Noted("it is about another job than the operation's own")
    if subject.is_final:
        return _against_final(subject, observation, asked_at)
    if subject.phase != Phase.ACCEPTED:
        return Noted(f"the operation is {subject.phase}")
    if subject.job_taken:
        # Its review decides; one job is never two operations' result.
        return _slowly(subject, observation, profile)
    if observation.state == "succeeded" and observation.outputs:
        return Finish(Phase.SUCCEEDED, _cost(subject, observation, profile))
    if observation.state in ("failed", "cancelled"):
        # Whether a failed job was charged is known only from the provider: what was reserved isn't its cost.
        return Finish(_SEEN[observation.state], storable_cost(observation.cost))
    return _poll(subject, observation, profile, asked_at)


def _cost(subject: Subject, observation: Observation, profile: Profile) -> Decimal | None:
    if profile.cost != "reserved":
        return storable_cost(observation.cost)
    # An id that came with an error says nothing of the price: a person settles it.
    return None if subject.accounting == "unsettled" else subject.max_cost


def _against_final(subject: Subject, observation: Observation, asked_at: datetime) -> Verdict:
    seen = _SEEN.get(observation.state)
    if seen is None:
        return Noted("the operation is final, and the answer says nothing of the job")
    if seen is Phase.ACCEPTED and asked_at <= subject.updated_at:
        return Noted("an older answer, overtaken by the one that ended the operation")
    if seen != subject.phase:
        return Contradiction(f"the operation ended {subject.phase}, and the job is {observation.state}")
    cost = storable_cost(observation.cost)
    if cost is not None and subject.job_cost is not None and cost != subject.job_cost:
        return Contradiction(f"the job cost {subject.job_cost}, and now {cost}")
    return Noted("it says again how the operation ended")


def _poll(subject: Subject, observation: Observation, profile: Profile, asked_at: datetime) -> Poll:
    since_accepted_s = _seconds(subject.accepted_at, subject.now)
    spread = jitter(subject.operation_id, subject.observations)
    if observation.state == "not_found" and (
        _seconds(subject.last_seen_at, subject.now) > profile.not_found_grace_s
    ):
        unknown = "not_found"
    elif since_accepted_s > profile.give_up_s:
        unknown = "give_up"
    else:
        delay_s = profile.poll.delay_s(subject.observations, spread)
        if subject.nudged_at is not None and subject.nudged_at > asked_at:
            # What a webhook told of while the GET was under way may not be in its answer.
            delay_s = min(delay_s, profile.poll.min_s)
        return Poll(_at_least(delay_s, observation.retry_after_s, spread))
    return _slowly(subject, observation, profile, unknown)


def _slowly(subject: Subject, observation: Observation, profile: Profile, unknown: str | None = None) -> Poll:
    spread = jitter(subject.operation_id, subject.observations)
    delay_s = profile.poll.max_s * SLOWER * (1.0 + JITTER * spread)
    return Poll(_at_least(delay_s, observation.retry_after_s, spread), unknown)


def _at_least(delay_s: float, retry_after_s: float | None, spread: float) -> float:
    # Who was told the same time by the provider must not come back in the same moment.
    return max(delay_s, min(retry_after_s or 0.0, RETRY_AFTER_MOST_S) * (1.0 + JITTER * spread))


# An account that is away ------------------------------------------------------------------------------------


def says_nothing_of_the_account(observation: Observation) -> bool:
    """Whether the GET failed in a way that another job's would have failed in, too."""
    return observation.state == "error" and (
        observation.reason == "no_answer"
        or observation.reason in ("status_401", "status_403", "status_407", "status_408", "status_429")
        or observation.reason.startswith("status_5")
    )


def away_s(failed: int, profile: Profile) -> float:
    """How long an account is left alone after `failed` (from `AWAY_AFTER`) GETs in a row said nothing."""
    longest_s = min(AWAY_MOST_S, max(AWAY_LEAST_S, profile.poll.max_s))
    return float(min(longest_s, profile.poll.min_s * 2.0 ** min(max(0, failed - AWAY_AFTER), 30)))


def away_spread_s(operation_id: UUID, observations: int, profile: Profile) -> float:
    """How long after the account's wait an operation asks again: all over twice `poll.max_s`, so that a
    provider that is back isn't met by everybody at once."""
    return 2.0 * profile.poll.max_s * jitter(operation_id, observations)


def _seconds(since: datetime | None, now: datetime) -> float:
    return (now - since).total_seconds() if since else 0.0


def jitter(operation_id: UUID, number: int) -> float:
    """In [0, 1), the same for the same operation and number: a repeated decision is the same decision."""
    digest = hashlib.sha256(f"{operation_id}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
