"""The parts of a provider's profile, as validated data. Pure.

A part's own checks raise ValueError, in words that begin with the field: profile_yaml.py turns them into a
sentence with file, line and column. Times are seconds (`_s`), sizes bytes (`_bytes`).
"""

import re
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec import field as value

from consumers.providers import json_path

_MIB: Final = 1024 * 1024
_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*)\}")
_STATUS: Final = re.compile(r"([1-5])xx|([1-5][0-9][0-9])")
_ORIGIN: Final = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "expect", "te", "trailer", "upgrade"}
)
"""A second one of these could make the server see another request than the one that was hashed."""
_REASON: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_MEMBER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")

Seconds = Annotated[float, Meta(ge=0)]
Duration = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
Bytes = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
State = Literal["running", "succeeded", "failed", "cancelled"]


def check_placeholders(field: str, template: str, allowed: set[str]) -> None:
    for name in _PLACEHOLDER.findall(template):
        if name not in allowed:
            known = ", ".join(f"${{{one}}}" for one in sorted(allowed)) or "no placeholder"
            raise ValueError(f"{field} has ${{{name}}}; it may have only {known}")


def check_headers(headers: dict[str, str], allowed: set[str]) -> None:
    for name, template in headers.items():
        if not _HEADER.fullmatch(name):
            raise ValueError(f"headers has {name!r}, which is not a header's name")
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"headers has {name}, which follows from the request itself")
        check_placeholders(f"headers.{name}", template, allowed)


def check_path(field: str, path: str) -> None:
    try:
        json_path.steps(path)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def check_url_path(field: str, path: str) -> None:
    if not path.startswith("/") or path.startswith("//") or any(c in path for c in "#\\ \r\n\t"):
        raise ValueError(f"{field} is {path!r}; it must be a path that starts with one /")


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen, and an unknown field is an error: a misspelt rule must not be a missing one."""


# Submit ----------------------------------------------------------------------------------------------


class StatusRule(Part, frozen=True, kw_only=True):
    status: int | str

    def _check_status(self) -> None:
        if not _STATUS.fullmatch(str(self.status)):
            raise ValueError(
                f"status is {self.status!r}; it must be a code such as 502 or a class such as 2xx"
            )

    def covers(self, status: int) -> bool:
        """Whether this rule is about HTTP status `status`."""
        text = str(self.status)
        return status // 100 == int(text[0]) if text.endswith("xx") else status == int(text)


class AcceptRule(StatusRule, frozen=True, kw_only=True):
    """An answer with this status and an id at this path says that the job exists."""

    job_id: str
    accounting: Literal["reserved", "unsettled"] = "reserved"
    """unsettled: the job exists although an error came with it; a person settles what it cost."""

    def __post_init__(self) -> None:
        self._check_status()
        check_path("job_id", self.job_id)


class RejectRule(StatusRule, frozen=True, kw_only=True):
    """An answer with this status (and, where given, this value in its body) says that no job exists."""

    after: Literal["final", "fix", "delay"]
    """final: rejected; fix: held until a person mends the cause; delay: submitted again later."""
    charged: bool
    reason: str | None = None
    path: str | None = None
    equals: str | int | bool | None = None
    delay_s: Duration = 30.0
    """Wait before a `delay` is submitted again, where the answer has no Retry-After."""

    def __post_init__(self) -> None:
        self._check_status()
        if self.path is not None:
            check_path("path", self.path)
        if (self.path is None) != (self.equals is None):
            raise ValueError("path and equals belong together")
        if self.reason is not None and not _REASON.fullmatch(self.reason):
            raise ValueError(f"reason is {self.reason!r}; it must be lower-case words with underscores")
        if self.after == "delay" and self.charged:
            raise ValueError("after = delay needs charged = false: what was charged is not submitted again")
        if str(self.status).startswith("2") and self.path is None:
            raise ValueError("status: a rule that rejects a 2xx needs path and equals")


class Submit(Part, frozen=True, kw_only=True):
    path: str
    method: Literal["POST", "PUT"] = "POST"
    headers: dict[str, str] = value(default_factory=dict)
    body: str = "${payload}"
    """Template; the payload's bytes are spliced in as they are."""
    connect_timeout_s: Duration = 10.0
    deadline_s: Duration = 60.0
    """From before the connection to the last byte of the answer."""

    def __post_init__(self) -> None:
        check_url_path("path", self.path)
        check_placeholders("path", self.path, set())
        check_placeholders("body", self.body, {"payload", "operation_id", "idempotency_key"})
        check_headers(self.headers, {"secret", "operation_id", "idempotency_key"})

    def has(self, placeholder: str) -> bool:
        """Whether the request carries `placeholder` anywhere."""
        return any(f"${{{placeholder}}}" in text for text in (self.body, *self.headers.values()))


class Idempotency(Part, frozen=True, kw_only=True):
    """The provider promises that the same key and the same bytes are one job, for `retention_s` after it
    first read the key. Where ${idempotency_key} stands in the request, `submit` says."""

    mode: Literal["replay"]
    retention_s: Duration
    between: "Pacing" = value(default_factory=lambda: Pacing(min_s=5.0, max_s=300.0, factor=3.0))
    """Waits before the same request is sent again."""


class ClientReference(Part, frozen=True, kw_only=True):
    """Our operation's id, as the provider knows it: what a listing is searched for."""

    member: str | None = None
    """Added to the payload's object under this name. Without it, `submit` has ${operation_id} somewhere."""
    unique: bool = False
    """The provider makes no second job with a reference that it has seen."""

    def __post_init__(self) -> None:
        if self.member is not None and not _MEMBER.fullmatch(self.member):
            raise ValueError(f"member is {self.member!r}; it must be a name of letters, digits, _ and -")


# Observe ---------------------------------------------------------------------------------------------


class OutputPaths(Part, frozen=True, kw_only=True):
    """Where a succeeded answer names its files: one element per file, fields within it. Of several `each`,
    the first that has something counts. `$` is the element itself."""

    each: str | tuple[str, ...] = "$.outputs[*]"
    url: str = "$.url"
    name: str | None = None
    content_type: str | None = None
    size: str | None = None
    sha256: str | None = None
    lifetime_s: Duration | None = None
    """How long a URL works after it was said; None: nothing is known. The job is asked for new ones."""

    def __post_init__(self) -> None:
        if not self.each:
            raise ValueError("each names no path")
        for path in self.places:
            check_path("each", path)
        for field in ("url", "name", "content_type", "size", "sha256"):
            path_or_none = getattr(self, field)
            if path_or_none is not None:
                check_path(field, path_or_none)

    @property
    def places(self) -> tuple[str, ...]:
        """The paths of `each`."""
        return (self.each,) if isinstance(self.each, str) else self.each


class Observe(Part, frozen=True, kw_only=True):
    path: str
    status: str
    words: dict[str, State]
    headers: dict[str, str] = value(default_factory=dict)
    job_id: str | None = None
    """Where the answer repeats the id; another id there is an error, never a state."""
    failure: str | None = None
    """Where an answer with a word for succeeded says that it failed all the same."""
    result_path: str | None = None
    """Where a succeeded job's outputs are asked for, if they aren't in the answer that has the status."""
    outputs: OutputPaths = value(default_factory=OutputPaths)
    deadline_s: Duration = 30.0

    def __post_init__(self) -> None:
        for field, path in (("path", self.path), ("result_path", self.result_path)):
            if path is None:
                continue
            check_url_path(field, path)
            check_placeholders(field, path, {"job_id"})
            if "${job_id}" not in path:
                raise ValueError(f"{field} has no ${{job_id}}")
        check_path("status", self.status)
        for field in ("job_id", "failure"):
            if getattr(self, field) is not None:
                check_path(field, getattr(self, field))
        if "succeeded" not in self.words.values():
            raise ValueError("words has no word for succeeded")
        check_headers(self.headers, {"secret"})


class Cancel(Part, frozen=True, kw_only=True):
    """How the provider is asked to cancel a job. That it did, an observation says, never this answer."""

    path: str
    method: Literal["POST", "DELETE", "PUT", "PATCH"] = "POST"
    headers: dict[str, str] = value(default_factory=dict)
    body: str = ""
    destroys: bool = False
    """What the job has made, or its record at the provider, is gone afterwards: asked with --force alone."""
    deadline_s: Duration = 30.0

    def __post_init__(self) -> None:
        check_url_path("path", self.path)
        check_placeholders("path", self.path, {"job_id"})
        if "${job_id}" not in self.path:
            raise ValueError("path has no ${job_id}")
        check_placeholders("body", self.body, set())
        check_headers(self.headers, {"secret"})


class Listing(Part, frozen=True, kw_only=True):
    """A GET that lists the provider's jobs: evidence of what became of a request that was never answered."""

    path: str
    """May have ${operation_id}, ${since} and ${until}, the interval in question (RFC 3339, UTC)."""
    reference: str
    """Where an element repeats what the submission called its operation (${operation_id})."""
    each: str = "$.jobs[*]"
    job_id: str = "$.job_id"
    headers: dict[str, str] = value(default_factory=dict)
    cursor: str | None = None
    """Where the answer names the next page; absent or null on the last one."""
    next_path: str | None = None
    """Of a further page, with ${cursor}."""
    pages: Annotated[int, Meta(ge=1, le=1000)] = 20
    visibility_lag_s: Seconds = 60.0
    """How long after its acceptance a job may still be missing from the list."""
    proves_absence: bool = False
    """A complete list that covers the interval and has no job of the request proves that there is none."""
    deadline_s: Duration = 30.0

    def __post_init__(self) -> None:
        allowed = {"operation_id", "since", "until"}
        check_url_path("path", self.path)
        check_placeholders("path", self.path, allowed)
        for field in ("reference", "each", "job_id", "cursor"):
            path = getattr(self, field)
            if path is not None:
                check_path(field, path)
        if (self.cursor is None) != (self.next_path is None):
            raise ValueError("cursor and next_path belong together")
        if self.next_path is not None:
            check_url_path("next_path", self.next_path)
            check_placeholders("next_path", self.next_path, allowed | {"cursor"})
            if "${cursor}" not in self.next_path:
                raise ValueError("next_path has no ${cursor}")
        check_headers(self.headers, {"secret"})


# What everything else keeps to -----------------------------------------------------------------------


class Download(Part, frozen=True, kw_only=True):
    headers: dict[str, str] = value(default_factory=dict)
    """Sent to the provider's own origin and to no other."""
    allowed_origins: tuple[str, ...] = ()
    """Origins that need be neither https nor public. `self` stands for the provider's own."""

    def __post_init__(self) -> None:
        for origin in self.allowed_origins:
            if origin != "self" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"allowed_origins has {origin!r}; write scheme://host[:port], or self")
        check_headers(self.headers, {"secret"})


class Limits(Part, frozen=True, kw_only=True):
    answer_bytes: Bytes = _MIB
    output_bytes: Bytes = 4096 * _MIB
    download_deadline_s: Duration = 1800.0
    redirects: Annotated[int, Meta(ge=0, le=20)] = 5
    submits_at_once: Count | None = None
    """Submissions under way at one time, of all processes together. None, here and below: no such limit."""
    submits_per_s: Duration | None = None
    polls_at_once: Count | None = None
    polls_per_s: Duration | None = None


class Pacing(Part, frozen=True, kw_only=True):
    """Waits that grow from `min_s` to `max_s` by `factor`."""

    min_s: Duration
    max_s: Duration
    factor: Annotated[float, Meta(ge=1)] = 2.0

    def __post_init__(self) -> None:
        if self.max_s < self.min_s:
            raise ValueError("max_s is below min_s")

    def delay_s(self, repetition: int, jitter: float = 0.0) -> float:
        """Seconds to wait before repetition number `repetition` (from 0). `jitter` in [0, 1) adds up to 20 %,
        so that many operations of one moment don't come back in one moment."""
        wait = self.min_s
        for _ in range(repetition):
            if wait >= self.max_s:
                break
            wait *= self.factor
        return min(wait, self.max_s) * (1.0 + 0.2 * jitter)
