"""A provider's profile: everything that is particular to one provider, as validated data. Pure: it reads no
file, and it never decides what an answer means (see outcome.py).

A profile is a YAML document that is immutable once released: its digest is part of each operation's
specification. Times are seconds (`_s`), sizes bytes (`_bytes`).
"""

import hashlib
import re
from typing import Annotated, Final, Literal

import msgspec
import yaml
from msgspec import Meta, Struct
from msgspec import field as value

from consumers.providers import json_path, profile_yaml
from consumers.providers.webhooks import Webhooks
from relay.errors import UsageError

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

Seconds = Annotated[float, Meta(ge=0)]
Duration = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
Bytes = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
State = Literal["running", "succeeded", "failed", "cancelled"]


def _check_placeholders(field: str, template: str, allowed: set[str]) -> None:
    for name in _PLACEHOLDER.findall(template):
        if name not in allowed:
            known = ", ".join(f"${{{one}}}" for one in sorted(allowed)) or "no placeholder"
            raise ValueError(f"{field} has ${{{name}}}; it may have only {known}")


def _check_headers(headers: dict[str, str], allowed: set[str]) -> None:
    for name, template in headers.items():
        if not _HEADER.fullmatch(name):
            raise ValueError(f"headers has {name!r}, which is not a header's name")
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"headers has {name}, which follows from the request itself")
        _check_placeholders(f"headers.{name}", template, allowed)


def _check_path(field: str, path: str) -> None:
    try:
        json_path.steps(path)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def _check_url_path(field: str, path: str) -> None:
    if not path.startswith("/") or path.startswith("//") or any(c in path for c in "#\\ \r\n\t"):
        raise ValueError(f"{field} is {path!r}; it must be a path that starts with one /")


class _Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen, and an unknown field is an error: a misspelt rule must not be a missing one."""


class StatusRule(_Part, frozen=True, kw_only=True):
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
        _check_path("job_id", self.job_id)


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
            _check_path("path", self.path)
        if (self.path is None) != (self.equals is None):
            raise ValueError("path and equals belong together")
        if self.reason is not None and not _REASON.fullmatch(self.reason):
            raise ValueError(f"reason is {self.reason!r}; it must be lower-case words with underscores")
        if self.after == "delay" and self.charged:
            raise ValueError("after = delay needs charged = false: what was charged is not submitted again")
        if str(self.status).startswith("2") and self.path is None:
            raise ValueError("a rule that rejects a 2xx needs path and equals")


class Submit(_Part, frozen=True, kw_only=True):
    path: str
    method: Literal["POST", "PUT"] = "POST"
    headers: dict[str, str] = value(default_factory=dict)
    body: str = "${payload}"
    """Template; the payload's bytes are spliced in as they are."""
    connect_timeout_s: Duration = 10.0
    deadline_s: Duration = 60.0
    """From before the connection to the last byte of the answer."""

    def __post_init__(self) -> None:
        _check_url_path("path", self.path)
        _check_placeholders("path", self.path, set())
        _check_placeholders("body", self.body, {"payload", "operation_id", "idempotency_key"})
        _check_headers(self.headers, {"secret", "operation_id", "idempotency_key"})


class OutputPaths(_Part, frozen=True, kw_only=True):
    """Where a succeeded answer names its files: one element per file, fields within it."""

    each: str = "$.outputs[*]"
    url: str = "$.url"
    name: str | None = None
    content_type: str | None = None
    size: str | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        for field in ("each", "url", "name", "content_type", "size", "sha256"):
            path = getattr(self, field)
            if path is not None:
                _check_path(field, path)


class Observe(_Part, frozen=True, kw_only=True):
    path: str
    status: str
    words: dict[str, State]
    headers: dict[str, str] = value(default_factory=dict)
    job_id: str | None = None
    """Where the answer repeats the id; another id there is an error, never a state."""
    outputs: OutputPaths = value(default_factory=OutputPaths)
    deadline_s: Duration = 30.0

    def __post_init__(self) -> None:
        _check_url_path("path", self.path)
        _check_placeholders("path", self.path, {"job_id"})
        if "${job_id}" not in self.path:
            raise ValueError("path has no ${job_id}")
        _check_path("status", self.status)
        if self.job_id is not None:
            _check_path("job_id", self.job_id)
        if "succeeded" not in self.words.values():
            raise ValueError("words has no word for succeeded")
        _check_headers(self.headers, {"secret"})


class Cancel(_Part, frozen=True, kw_only=True):
    """How the provider is asked to cancel a job. That it did, an observation says, never this answer."""

    path: str
    method: Literal["POST", "DELETE", "PUT", "PATCH"] = "POST"
    headers: dict[str, str] = value(default_factory=dict)
    body: str = ""
    destroys: bool = False
    """What the job has made, or its record at the provider, is gone afterwards: asked with --force alone."""
    deadline_s: Duration = 30.0

    def __post_init__(self) -> None:
        _check_url_path("path", self.path)
        _check_placeholders("path", self.path, {"job_id"})
        if "${job_id}" not in self.path:
            raise ValueError("path has no ${job_id}")
        _check_placeholders("body", self.body, set())
        _check_headers(self.headers, {"secret"})


class Listing(_Part, frozen=True, kw_only=True):
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
        _check_url_path("path", self.path)
        _check_placeholders("path", self.path, allowed)
        for field in ("reference", "each", "job_id", "cursor"):
            path = getattr(self, field)
            if path is not None:
                _check_path(field, path)
        if (self.cursor is None) != (self.next_path is None):
            raise ValueError("cursor and next_path belong together")
        if self.next_path is not None:
            _check_url_path("next_path", self.next_path)
            _check_placeholders("next_path", self.next_path, allowed | {"cursor"})
            if "${cursor}" not in self.next_path:
                raise ValueError("next_path has no ${cursor}")
        _check_headers(self.headers, {"secret"})


class Download(_Part, frozen=True, kw_only=True):
    headers: dict[str, str] = value(default_factory=dict)
    """Sent to the provider's own origin and to no other."""
    allowed_origins: tuple[str, ...] = ()
    """Origins that need be neither https nor public. `self` stands for the provider's own."""

    def __post_init__(self) -> None:
        for origin in self.allowed_origins:
            if origin != "self" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"allowed_origins has {origin!r}; write scheme://host[:port], or self")
        _check_headers(self.headers, {"secret"})


class Limits(_Part, frozen=True, kw_only=True):
    answer_bytes: Bytes = _MIB
    output_bytes: Bytes = 4096 * _MIB
    download_deadline_s: Duration = 1800.0
    redirects: Annotated[int, Meta(ge=0, le=20)] = 5
    submits_at_once: Count | None = None
    """Submissions under way at one time, of all processes together. None, here and below: no such limit."""
    submits_per_s: Duration | None = None
    polls_at_once: Count | None = None
    polls_per_s: Duration | None = None


class Pacing(_Part, frozen=True, kw_only=True):
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


class Profile(_Part, frozen=True, kw_only=True):
    """One provider. `text` and `digest` are the document's own, set by `parse` and never read from it."""

    name: Name
    submit: Submit
    accept: Annotated[tuple[AcceptRule, ...], Meta(min_length=1)]
    observe: Observe
    reject: tuple[RejectRule, ...] = ()
    cancel: Cancel | None = None
    """None: the provider has no way to cancel a job, or none that is known."""
    account: Name = "default"
    secret: Literal["required", "optional", "none"] = "required"
    idempotency: Literal["none"] = "none"
    cost: str = "reserved"
    """`reserved`: what was reserved is what it cost; else the path of the cost in a final answer."""
    listing: Listing | None = None
    """None: the provider has no list, or none that is worth asking."""
    download: Download = value(default_factory=Download)
    limits: Limits = value(default_factory=Limits)
    margin_s: Duration = 15.0
    """Added to the submit deadline to make the lease of `submitting`."""
    late_delivery_s: Seconds = 900.0
    """How long after that lease a request that was given up on may still arrive at the provider."""
    max_unsent: Count = 8
    """Attempts that sent nothing, in a row, before a person is asked."""
    unsent: Pacing = value(default_factory=lambda: Pacing(min_s=1.0, max_s=60.0))
    poll: Pacing = value(default_factory=lambda: Pacing(min_s=5.0, max_s=120.0, factor=1.5))
    webhooks: Webhooks | None = None
    """None: the provider sends none, or signs them in a way that can't be checked here."""
    give_up_s: Duration = 86400.0
    """A job that runs longer than this gets a review and slow polling; it never fails by this."""
    not_found_grace_s: Seconds = 60.0
    review_deadlines_s: dict[str, Duration] = value(default_factory=lambda: {"default": 86400.0})
    """Review kind to the seconds until it becomes urgent (evidence expires); `default` for the others."""
    unverified: tuple[str, ...] = ()
    """Fields that no published source confirms."""
    text: str = value(default="", name="__text__")
    digest: str = value(default="", name="__digest__")

    def __post_init__(self) -> None:
        if self.cost != "reserved":
            _check_path("cost", self.cost)
        if "default" not in self.review_deadlines_s:
            raise ValueError("review_deadlines_s has no default")
        if self.listing and not any("${operation_id}" in text for text in self._references()):
            raise ValueError("listing needs a submission that tells the provider its ${operation_id}")
        if self.secret == "none" and any("${secret}" in text for text in self._header_templates()):
            raise ValueError("secret is none, and a header has ${secret}")

    def _header_templates(self) -> list[str]:
        return [
            *self.submit.headers.values(),
            *self.observe.headers.values(),
            *self.download.headers.values(),
            *(self.cancel.headers.values() if self.cancel else ()),
            *(self.listing.headers.values() if self.listing else ()),
        ]

    def _references(self) -> list[str]:
        return [self.submit.body, *self.submit.headers.values()]

    def review_deadline_s(self, kind: str) -> float:
        """Seconds until a review of `kind` becomes urgent."""
        return self.review_deadlines_s.get(kind, self.review_deadlines_s["default"])

    def id_paths(self) -> tuple[str, ...]:
        """Every declared id path, each once, in the order of the rules."""
        return tuple(dict.fromkeys(rule.job_id for rule in self.accept))

    @classmethod
    def parse(cls, text: str, *, source: str) -> "Profile":
        """Read a YAML document. `source` is what an error calls it, for example its file name.
        Raises UsageError with one sentence that names source, field and line."""
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
            document = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UsageError(f"The profile {source} is not YAML: {profile_yaml.one_line(error)}.") from None
        if root is None or not isinstance(document, dict):
            raise UsageError(f"The profile {source} is not a YAML mapping.")
        profile_yaml.refuse_repeated_keys(root, source)
        for reserved in ("__text__", "__digest__"):
            if reserved in document:
                raise UsageError(f"The profile {source} has {reserved!r}, which is not a field.")
        for field in document.get("unverified") or ():
            if profile_yaml.node_at(root, str(field).split(".")) is None:
                raise UsageError(f"The profile {source} calls {field!r} unverified, and has no such field.")
        document["__text__"] = text
        document["__digest__"] = hashlib.sha256(text.encode()).hexdigest()
        try:
            return msgspec.convert(document, cls, str_keys=True)
        except msgspec.ValidationError as error:
            raise profile_yaml.sentence(error, root, source) from None
