"""What the simulated provider really did: jobs, charges, files, and the faults that it was told to make. Pure
bookkeeping: it opens nothing, and everything in it follows from the seed and the requests.
"""

import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from relay.errors import UsageError

Probability = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1)]

_FILE_BYTES: Final = (4_096, 65_536)
"""Size of a file, from and to: more than one packet, little enough for a demo of hundreds."""
_COST_CENTS: Final = (40, 100)


class Fault(StrEnum):
    """Everything that can go wrong on purpose."""

    # of a submission, where no job is made
    CUT_BEFORE_READING = "cut_before_reading"
    BAD_GATEWAY = "bad_gateway"
    RATE_LIMITED = "rate_limited"
    UNPROCESSABLE = "unprocessable"
    REDIRECT = "redirect"
    # of a submission, where one is
    CUT_BEFORE_ANSWER = "cut_before_answer"
    BAD_GATEWAY_WITH_JOB = "bad_gateway_with_job"
    ERROR_AFTER_CREATION = "error_after_creation"
    TRUNCATED_ANSWER = "truncated_answer"
    SLOW_DRIP = "slow_drip"
    LATE_ACCEPTANCE = "late_acceptance"
    ID_ELSEWHERE = "id_elsewhere"
    """The job's id stands where no profile says that it would."""
    # of a submission, where the answer names a job that was made before
    SAME_JOB = "same_job"
    """As if the provider took the request for a repetition of the last one that made a job."""
    # of a job
    JOB_FAILED = "job_failed"
    JOB_STUCK = "job_stuck"
    # of its files
    OUTPUT_EXPIRED = "output_expired"
    """Every URL of the job has expired."""
    OUTPUT_EXPIRED_ONCE = "output_expired_once"
    """The URLs of the first observation have expired; those of a later one work."""
    OUTPUT_SHORT_LIVED = "output_short_lived"
    """The URLs of the first observation have expired; those of a later one give one file, and expire then."""
    OUTPUT_CUT = "output_cut"
    """The first download of each file is cut in the middle."""


WITHOUT_JOB: Final = frozenset(
    {
        Fault.CUT_BEFORE_READING,
        Fault.BAD_GATEWAY,
        Fault.RATE_LIMITED,
        Fault.UNPROCESSABLE,
        Fault.REDIRECT,
    }
)
OF_JOBS: Final = frozenset({Fault.JOB_FAILED, Fault.JOB_STUCK})
OF_FILES: Final = frozenset(
    {Fault.OUTPUT_EXPIRED, Fault.OUTPUT_EXPIRED_ONCE, Fault.OUTPUT_SHORT_LIVED, Fault.OUTPUT_CUT}
)
OF_SUBMISSIONS: Final = frozenset(Fault) - OF_JOBS - OF_FILES


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong, and how fast jobs are. `faults` gives each kind the probability with which a
    submission draws it; a payload may ask for its own: `"simulate": {"fault": "slow_drip"}`, or a list of
    kinds. `assigned` gives a client's reference its kinds: what strikes before a body is read can be told in
    no other way."""

    faults: dict[Fault, Probability] = msgspec.field(default_factory=dict)
    assigned: dict[str, tuple[Fault, ...]] = msgspec.field(default_factory=dict)
    polls: tuple[Count, Count] = (1, 3)
    """A job is done at the n-th observation, n drawn between these."""
    drip_s: float = 1.0
    late_s: float = 2.0
    """How long a `late_acceptance` waits before it makes the job."""
    retry_after_s: Annotated[int, Meta(ge=0)] = 1
    cancels: Literal["taken", "cut", "refused"] = "taken"
    """What becomes of a DELETE; `cut`: the job is cancelled, and the answer that says so doesn't come."""
    unlisted: tuple[str, ...] = ()
    """References whose jobs the list leaves out, as one that lags does."""

    @classmethod
    def parse(cls, text: str | bytes, *, source: str) -> "Plan":
        """Read a plan from JSON. Raises UsageError with one sentence."""
        try:
            plan = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise UsageError(f"The plan {source} is wrong: {error}.") from None
        if sum(plan.faults.values()) > 1:
            raise UsageError(f"The plan {source} has fault probabilities that add up to more than 1.")
        return plan


@dataclass(slots=True, kw_only=True)
class Job:
    """A job that really exists. `reference` is what the client called its operation."""

    job_id: str
    reference: str | None
    post: int
    charged: str
    polls_needed: int
    faults: frozenset[Fault]
    files: tuple[bytes, ...]
    polls: int = 0
    cancelled: bool = False
    downloads: Counter[int] = field(default_factory=Counter)
    given_out: dict[str, int] = field(default_factory=dict)
    """By an observation's mark in its URLs: the file that they gave."""

    @property
    def state(self) -> str:
        if self.cancelled:
            return "cancelled"
        if self.polls < self.polls_needed or Fault.JOB_STUCK in self.faults:
            return "running" if self.polls else "queued"
        return "failed" if Fault.JOB_FAILED in self.faults else "succeeded"


@dataclass(slots=True, kw_only=True)
class World:
    """The provider's own books. `truth` is all of it."""

    seed: int
    plan: Plan
    jobs: dict[str, Job] = field(default_factory=dict)
    posts: list[dict[str, Any]] = field(default_factory=list)
    downloads: list[dict[str, Any]] = field(default_factory=list)
    gets: Counter[str] = field(default_factory=Counter)
    cancels: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By Idempotency-Key: the digest of its first body, and the job that came of it."""
    conflict: int = 409
    """What a known key with another body is answered with."""
    _seen: Counter[str] = field(default_factory=Counter)

    def drawn(self, reference: str | None, body: bytes) -> frozenset[Fault]:
        """The faults of this submission: what its payload asks for, else one by the plan's probabilities.
        Those of the submission itself strike an operation's first POST only, so that it can get on."""
        who = reference or hashlib.sha256(body).hexdigest()
        asked = _asked(body)
        self._seen[who] += 1
        if asked is None:
            asked = self._planned(who)
        return asked if self._seen[who] == 1 else asked - OF_SUBMISSIONS

    def repeated(self, key: str, reference: str | None, body: bytes) -> tuple[int, str | None] | None:
        """The status and the job of a POST whose key is known; no job where its body is another one. None: it
        is the key's first that is read."""
        if key not in self.keys:
            return None
        digest, job_id = self.keys[key]
        post = self.posted(reference, body, None)
        same = post["body_sha256"] == digest
        post["status"], post["job_id"] = (201, job_id) if same else (self.conflict, None)
        return post["status"], post["job_id"]

    def refuses_to_read(self, reference: str | None) -> bool:
        """Whether the plan cuts this submission before its body; a payload can't ask for what precedes it."""
        if reference is None or self._seen[reference]:
            return False
        return Fault.CUT_BEFORE_READING in self._planned(reference)

    def _planned(self, who: str) -> frozenset[Fault]:
        if who in self.plan.assigned:
            return frozenset(self.plan.assigned[who])
        draw = random.Random(f"{self.seed}:{who}").random()
        for fault, probability in self.plan.faults.items():
            if draw < probability:
                return frozenset({fault})
            draw -= probability
        return frozenset()

    def posted(self, reference: str | None, body: bytes | None, fault: Fault | None) -> dict[str, Any]:
        """Note a POST; the caller fills in `status` and `job_id` once they are known."""
        if body is None and reference is not None:
            self._seen[reference] += 1
        if fault is not None:
            self.fired[fault] += 1
        post: dict[str, Any] = {
            "post": len(self.posts) + 1,
            "reference": reference,
            "body_sha256": None if body is None else hashlib.sha256(body).hexdigest(),
            "fault": fault,
            "status": None,
            "job_id": None,
        }
        self.posts.append(post)
        return post

    def same(self, post: dict[str, Any]) -> Job | None:
        """The job that was made last, given away once more; None when there is none. Nothing is charged."""
        job = next(reversed(self.jobs.values()), None)
        post["job_id"] = None if job is None else job.job_id
        return job

    def create(self, post: dict[str, Any], faults: frozenset[Fault]) -> Job:
        """Make a job and charge for it."""
        job_id = "job_" + hashlib.sha256(f"{self.seed}:job:{post['post']}".encode()).hexdigest()[:20]
        draw = random.Random(f"{self.seed}:{job_id}")
        cents = draw.randint(*_COST_CENTS)
        job = Job(
            job_id=job_id,
            reference=post["reference"],
            post=post["post"],
            charged=f"{cents // 100}.{cents % 100:02d}",
            polls_needed=draw.randint(*self.plan.polls),
            faults=faults,
            files=tuple(draw.randbytes(draw.randint(*_FILE_BYTES)) for _ in range(draw.randint(1, 2))),
        )
        self.jobs[job_id] = job
        post["job_id"] = job_id
        for fault in faults & OF_JOBS:
            self.fired[fault] += 1
        return job

    def cancel(self, job: Job) -> bool:
        """Stop a job that hasn't ended, and charge nothing for it."""
        if job.state in {"succeeded", "failed"}:
            return False
        job.cancelled = True
        job.charged = "0.00"
        return True

    def truth(self) -> dict[str, Any]:
        """Everything, JSON-able: what `GET /_truth` answers."""
        return {
            "seed": self.seed,
            "posts": self.posts,
            "jobs": [
                {
                    "job_id": job.job_id,
                    "reference": job.reference,
                    "post": job.post,
                    "charged": job.charged,
                    "state": job.state,
                    "polls": job.polls,
                    "outputs": [
                        {
                            "name": file_name(number),
                            "sha256": hashlib.sha256(content).hexdigest(),
                            "size": len(content),
                        }
                        for number, content in enumerate(job.files, start=1)
                    ],
                }
                for job in self.jobs.values()
            ],
            "gets": dict(self.gets),
            "cancels": dict(self.cancels),
            "downloads": self.downloads,
            "faults": {str(fault): count for fault, count in self.fired.items()},
        }


def file_name(number: int) -> str:
    """Name of a job's file number `number`, from 1."""
    return f"frame-{number}.bin"


def _asked(body: bytes) -> frozenset[Fault] | None:
    """What the payload asks for under `simulate`, or None. An unknown kind raises ValueError."""
    try:
        payload = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    asked = payload.get("simulate") if isinstance(payload, dict) else None
    fault = asked.get("fault") if isinstance(asked, dict) else None
    if fault is None:
        return None
    return frozenset(Fault(one) for one in (fault if isinstance(fault, list) else [fault]))
