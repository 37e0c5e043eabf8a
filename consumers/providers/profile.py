"""A provider's profile: everything that is particular to one provider, as validated data. Pure: it reads no
file, and it never decides what an answer means (see outcome.py).

A profile is a YAML document that is immutable once released: its digest is part of each operation's
specification. Its parts are in profile_fields.py; how it is read, and refused, in profile_yaml.py. Times
are seconds (`_s`), sizes bytes (`_bytes`).
"""

import hashlib
from typing import Annotated, Final, Literal

from msgspec import Meta
from msgspec import field as value

from consumers.providers import profile_yaml
from consumers.providers.profile_fields import (
    AcceptRule,
    Cancel,
    ClientReference,
    Count,
    Download,
    Duration,
    Idempotency,
    Limits,
    Listing,
    Name,
    Observe,
    OutputPaths,
    Pacing,
    Part,
    RejectRule,
    Seconds,
    State,
    Submit,
    check_path,
)
from consumers.providers.webhooks import Webhooks

__all__ = [
    "AcceptRule",
    "Cancel",
    "ClientReference",
    "Download",
    "Idempotency",
    "Limits",
    "Listing",
    "Observe",
    "OutputPaths",
    "Pacing",
    "Profile",
    "RejectRule",
    "State",
    "Submit",
]

_TEXT: Final = "__text__"
_DIGEST: Final = "__digest__"


class Profile(Part, frozen=True, kw_only=True):
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
    idempotency: Literal["none"] | Idempotency = "none"
    """`none`: a second request may make a second job. Nothing that a server says changes that."""
    client_reference: ClientReference | None = None
    listing: Listing | None = None
    """None: the provider has no list, or none that is worth asking."""
    webhooks: Webhooks | None = None
    """None: the provider sends none, or signs them in a way that can't be checked here."""
    cost: str = "reserved"
    """`reserved`: what was reserved is what it cost; else the path of the cost in a final answer."""
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
    give_up_s: Duration = 86400.0
    """A job that runs longer than this gets a review and slow polling; it never fails by this."""
    not_found_grace_s: Seconds = 60.0
    review_deadlines_s: dict[str, Duration] = value(default_factory=lambda: {"default": 86400.0})
    """Review kind to the seconds until it becomes urgent (evidence expires); `default` for the others."""
    variables: dict[str, str] = value(default_factory=dict)
    """Texts that stand in the document as ${name}: what a copy of it changes, such as a model."""
    sources: tuple[str, ...] = ()
    """Where it is known from: documents and published clients, with their versions."""
    unverified: tuple[str, ...] = ()
    """Fields that no published source confirms."""
    text: str = value(default="", name=_TEXT)
    digest: str = value(default="", name=_DIGEST)

    def __post_init__(self) -> None:
        if self.cost != "reserved":
            check_path("cost", self.cost)
        if "default" not in self.review_deadlines_s:
            raise ValueError("review_deadlines_s has no default")
        if self.secret == "none" and any("${secret}" in text for text in self._header_templates()):
            raise ValueError("secret is none, and a header has ${secret}")
        if (self.idempotency == "none") == self.submit.has("idempotency_key"):
            raise ValueError(
                "idempotency and ${idempotency_key} in submit belong together: a key without a promise is not"
                " replayed, and a promise needs the key"
            )
        if isinstance(self.idempotency, Idempotency):
            shortest_s = self.submit.deadline_s + self.margin_s
            if self.idempotency.retention_s <= shortest_s:
                raise ValueError(
                    f"idempotency.retention_s leaves no room for a replay: deadline and margin are"
                    f" {shortest_s:g} s"
                )
        self._check_reference()

    def _check_reference(self) -> None:
        reference = self.client_reference
        told = self.submit.has("operation_id") or (reference is not None and reference.member is not None)
        if reference is not None and not told:
            raise ValueError("client_reference needs member, or ${operation_id} in submit")
        if self.listing is not None and not told:
            raise ValueError("listing needs a submission that tells the provider its ${operation_id}")

    def _header_templates(self) -> list[str]:
        parts = (self.submit, self.observe, self.download, self.cancel, self.listing)
        return [text for part in parts if part is not None for text in part.headers.values()]

    def review_deadline_s(self, kind: str) -> float:
        """Seconds until a review of `kind` becomes urgent."""
        return self.review_deadlines_s.get(kind, self.review_deadlines_s["default"])

    def id_paths(self) -> tuple[str, ...]:
        """Every declared id path, each once, in the order of the rules."""
        return tuple(dict.fromkeys(rule.job_id for rule in self.accept))

    @classmethod
    def parse(cls, text: str, *, source: str) -> "Profile":
        """Read a YAML document. `source` is what an error calls it, for example its file name.
        Raises UsageError with one sentence that names source, line, column and field, and the mend."""
        document = profile_yaml.read(text, source, cls, reserved=(_TEXT, _DIGEST))
        document.content[_TEXT] = text
        document.content[_DIGEST] = hashlib.sha256(text.encode()).hexdigest()
        profile = document.convert(cls)
        document.require_fields("unverified", profile.unverified)
        return profile
