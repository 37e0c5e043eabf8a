"""What is sent to a provider, rendered from its profile. Pure; it never re-serialises a payload: the bytes
that were approved are spliced into the template as they are.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlsplit

from consumers.providers.profile import Profile
from relay.errors import UsageError

_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*)\}")
# They are spliced into JSON strings and headers, so nothing that could end either may be in them.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._:-]{1,255}")
_FIELD_VALUE: Final = re.compile(r"(?:[\x21-\x7e]+(?:[ \t]+[\x21-\x7e]+)*)?")
"""RFC 9110, 5.5, without what is no ASCII: servers read that in different ways."""
_HASH_VERSION: Final = b"outbox-relay request 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request, complete. `sha256` covers method, URL, body and headers, with a secret's header as
    its template: a rotated credential is not another request."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)
    sha256: str
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Texts that evidence must not contain."""


def render_submit(
    profile: Profile,
    base_url: str,
    *,
    operation_id: str,
    payload: bytes,
    secret: str | None,
    idempotency_key: str | None,
) -> Request:
    """The request that creates a job. Raises UsageError when the URL, the secret or the key that the profile
    needs is missing or wrong: a person has to mend the configuration, and nothing was sent."""
    known = {"operation_id": _token("operation id", operation_id)}
    if idempotency_key is not None:
        known["idempotency_key"] = _token("idempotency key", idempotency_key)
    return _render(
        profile,
        method=profile.submit.method,
        url=base(profile, base_url) + profile.submit.path,
        templates=profile.submit.headers,
        known=known,
        secret=secret,
        body=_splice(profile, profile.submit.body, known, _with_reference(profile, operation_id, payload)),
    )


def idempotency_key(profile: Profile, operation_id: str) -> str | None:
    """The key of every request of the operation, where the profile declares that its provider keeps keys."""
    return None if profile.idempotency == "none" else operation_id


def render_observe(profile: Profile, base_url: str, job_id: str, secret: str | None) -> Request:
    """The GET that observes the job `job_id`, percent-encoded: an id never becomes another path.
    Raises UsageError as `render_submit` does."""
    return _render_job_get(profile, base_url, profile.observe.path, job_id, secret)


def render_result(profile: Profile, base_url: str, job_id: str, secret: str | None) -> Request:
    """The GET for a succeeded job's outputs. Raises UsageError as `render_submit` does, and ValueError when
    the profile has them in the answer that has the status."""
    if profile.observe.result_path is None:
        raise ValueError(f"the profile {profile.name} has no result_path")
    return _render_job_get(profile, base_url, profile.observe.result_path, job_id, secret)


def _render_job_get(profile: Profile, base_url: str, path: str, job_id: str, secret: str | None) -> Request:
    filled = path.replace("${job_id}", quote_id(job_id))
    return render_get(profile, base_url, filled, profile.observe.headers, secret)


def render_cancel(profile: Profile, base_url: str, job_id: str, secret: str | None) -> Request:
    """The request that asks the provider to cancel the job `job_id`. Raises UsageError as `render_submit`
    does, and ValueError when the profile has no `cancel`."""
    if profile.cancel is None:
        raise ValueError(f"the profile {profile.name} has no cancel")
    return _render(
        profile,
        method=profile.cancel.method,
        url=base(profile, base_url) + profile.cancel.path.replace("${job_id}", quote_id(job_id)),
        templates=profile.cancel.headers,
        known={},
        secret=secret,
        body=profile.cancel.body.encode(),
    )


def render_get(
    profile: Profile, base_url: str, path: str, headers: dict[str, str], secret: str | None
) -> Request:
    """A GET of `path`, which is complete and encoded. Raises UsageError as `render_submit` does."""
    return _render(
        profile,
        method="GET",
        url=base(profile, base_url) + path,
        templates=headers,
        known={},
        secret=secret,
        body=b"",
    )


def require_settings(profile: Profile, base_url: str, secret: str | None) -> None:
    """Raises UsageError when the URL, or the credential that a submit needs, is missing or wrong: what is the
    matter with this process, and with no operation."""
    base(profile, base_url)
    asked_for = any("${secret}" in template for template in profile.submit.headers.values())
    if asked_for and profile.secret == "required" and not secret:
        raise _no_credential(profile)
    if asked_for and secret and not _FIELD_VALUE.fullmatch(secret):
        raise _unwritable_credential(profile)


def download_headers(profile: Profile, secret: str | None) -> tuple[tuple[str, str], ...]:
    """Headers of a download from the provider's own origin. Raises UsageError as `render_submit` does."""
    return _headers(profile, profile.download.headers, {}, secret)[0]


def quote_id(job_id: str) -> str:
    """`job_id` as one path segment (RFC 3986, 3.3). ``.`` and ``..`` would be read as steps: refused as
    ValueError, since no encoding of them is safe from a proxy that normalises."""
    if job_id in {".", "..", ""}:
        raise ValueError(f"the job id {job_id!r} can't be a path segment")
    return quote(job_id, safe="")


def base(profile: Profile, base_url: str) -> str:
    """`base_url` without a trailing slash. Raises UsageError for what is not a plain http(s) URL. User and
    password are refused there: the HTTP library would make an authentication flow of them."""
    setting = f"RELAY_PROVIDER_{profile.name.upper().replace('-', '_')}_URL"
    try:
        parts = urlsplit(base_url)
        # Reading it is what checks it.
        _ = parts.port
    except ValueError:
        raise UsageError(f"{setting} is not a URL: its host or port can't be read.") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(
            f"{setting} is not an http or https URL.",
            remedy="Set it to where the provider is, for example https://api.example.com.",
        )
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise UsageError(
            f"{setting} has a user, a password, a query or a fragment.",
            remedy="Leave scheme, host, port and path; the credential goes to the provider's …_SECRET.",
        )
    return base_url.rstrip("/")


def _render(
    profile: Profile,
    *,
    method: str,
    url: str,
    templates: dict[str, str],
    known: dict[str, str],
    secret: str | None,
    body: bytes,
) -> Request:
    headers, hashed = _headers(profile, templates, known, secret)
    digest = hashlib.sha256()
    for part in (
        _HASH_VERSION,
        method.encode(),
        url.encode(),
        *(text.encode() for pair in hashed for text in pair),
        body,
    ):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return Request(
        method=method,
        url=url,
        headers=headers,
        body=body,
        sha256=digest.hexdigest(),
        secrets=(secret,) if secret else (),
    )


def _headers(
    profile: Profile, templates: dict[str, str], known: dict[str, str], secret: str | None
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """The headers to send, and the same as they are hashed."""
    sent: list[tuple[str, str]] = []
    hashed: list[tuple[str, str]] = []
    for name, template in templates.items():
        without_secret = _fill(profile, template, {**known, "secret": "${secret}"})
        hashed.append((name.lower(), without_secret))
        if "${secret}" not in template:
            sent.append((name, without_secret))
        elif secret:
            if not _FIELD_VALUE.fullmatch(secret):
                raise _unwritable_credential(profile)
            sent.append((name, _fill(profile, template, {**known, "secret": secret})))
        elif profile.secret == "required":
            raise _no_credential(profile)
    return tuple(sent), tuple(hashed)


def _no_credential(profile: Profile) -> UsageError:
    variable = f"RELAY_PROVIDER_{profile.name.upper().replace('-', '_')}_SECRET"
    return UsageError(
        f"The provider {profile.name} needs a credential, and none is set.",
        remedy=f"Set {variable} or {variable}_FILE.",
    )


def _unwritable_credential(profile: Profile) -> UsageError:
    variable = f"RELAY_PROVIDER_{profile.name.upper().replace('-', '_')}_SECRET"
    return UsageError(
        f"The credential of the provider {profile.name} has a character that no HTTP header may have: a line"
        " break, a blank at an end, or one that isn't ASCII.",
        remedy=f"Look at {variable} or {variable}_FILE.",
    )


def _fill(profile: Profile, template: str, known: dict[str, str]) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise UsageError(f"The profile {profile.name} needs ${{{match[1]}}}, and this request has none.")
        return known[match[1]]

    return _PLACEHOLDER.sub(one, template)


def _with_reference(profile: Profile, operation_id: str, payload: bytes) -> bytes:
    """The payload with the operation's id as its first member, where the provider takes its reference there.
    What was approved stands behind it, byte for byte."""
    member = None if profile.client_reference is None else profile.client_reference.member
    if member is None:
        return payload
    try:
        approved = json.loads(payload)
    except (ValueError, RecursionError):
        approved = None
    if not isinstance(approved, dict) or member in approved:
        what = f"has a {member} of its own" if isinstance(approved, dict) else "is no JSON object"
        raise UsageError(
            f"The payload {what}, and the profile {profile.name} puts the operation's id there.",
            remedy=f"Prepare another operation: its payload is a JSON object without {member}.",
        )
    rest = payload.lstrip()[1:]
    comma = b", " if approved else b""
    return b'{"' + member.encode() + b'": "' + operation_id.encode() + b'"' + comma + rest


def _splice(profile: Profile, template: str, known: dict[str, str], payload: bytes) -> bytes:
    pieces = template.split("${payload}")
    return payload.join(_fill(profile, piece, known).encode() for piece in pieces)


def _token(what: str, text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise UsageError(
            f"The {what} {text!r} can't be put in a request: it may have A-Z a-z 0-9 . _ : - only."
        )
    return text
